"""A backend whose memory is a formula: what a profile of it must say is known beforehand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from calib.engine_kernels import Found
from calib.profile import Hardware, Software, State

if TYPE_CHECKING:
    from calib.cases import Pool, Work

RATE, R_HALF, SCAN_S_PER_TOKEN, SCAN_T0 = 4e12, 0.25, 0.19e-9, 4e-6
PEAK = 4.8e12


def hardware(**changes: object) -> Hardware:
    given = {
        "kind": "gpu",
        "name": "NVIDIA H200",
        "identity": "GPU-0001",
        "memory_bytes": 143_771 * 2**20,
        "units": 132,
        "cache_bytes": 60 * 2**20,
        "peak_bytes_per_s": PEAK,
        "compute_capability": "9.0",
        "ecc": True,
        "mig": False,
    }
    return Hardware.model_validate(given | changes)


def software(**changes: object) -> Software:
    names = ("dsa_ledger", "backend", "driver", "runtime", "compiler", "python", "kernels_sha256")
    return Software.model_validate(dict.fromkeys(names, "1") | changes)


class Ready:
    def __init__(self, box: Box, work: Work) -> None:
        self.box, self.work = box, work

    def replay(self) -> float:
        self.box.replays.append(self.work.key)
        if self.box.interrupt_after and len(self.box.replays) > self.box.interrupt_after:
            raise KeyboardInterrupt
        work = self.work
        if work.group == "scan":
            seconds = SCAN_T0 + SCAN_S_PER_TOKEN * work.tokens
        else:
            run = work.fragmentation.get("mean_run_pages", 1e9)
            slower = 1.25 if work.kernel == "read_pages_bulk" else 1.0
            seconds = slower * (work.read_bytes + work.write_bytes) / (RATE * run / (run + R_HALF))
        return (
            seconds * (1 + self.box.noise * self.box.random.uniform(-1, 1)) * self.box.slowdown(len(self.box.replays))
        )

    def verified(self) -> bool:
        return self.work.key != self.box.wrong

    def release(self) -> None:
        self.box.released += 1


class Box:
    """The made-up backend; its knobs are what can go wrong."""

    ceiling_kernels = ("read_straight",)
    read_kernels = ("read_pages", "read_pages_bulk")
    scan_kernels = ("scan_rows", "scan_rows_cluster")

    def __init__(self, *, noise: float = 0.001, free: int = 10 * 2**30, largest: int = 2**60) -> None:
        self.hardware, self.software = hardware(), software()
        self.noise, self.free, self.largest = noise, free, largest
        self.random = random.Random(1)  # noqa: S311 - noise, no secret
        self.replays: list[str] = []
        self.tried: list[int] = []
        self.opened = self.closed = self.loaded = self.released = self.interrupt_after = 0
        self.wrong = ""
        self.slowdown = lambda _: 1.0

    def free_bytes(self) -> int:
        return self.free

    def open(self, pool: Pool, seed: int) -> None:
        del seed
        self.tried.append(pool.pages * 8448)
        if self.tried[-1] > self.largest:
            raise MemoryError
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def state(self) -> State:
        return State(sm_mhz=1980)

    def engine_kernels(self, pool: Pool, tokens: int, most: int) -> Found:
        del pool, tokens, most
        return Found((), {}, ("deep_gemm.fp8_paged_mqa_logits: absent",))

    def load(self, work: Work) -> Ready:
        self.loaded += 1
        return Ready(self, work)
