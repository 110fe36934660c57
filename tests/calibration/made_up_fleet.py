"""Made-up profiles of many boxes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import made_up

from calib.profile import Case, Fits, Profile, Protocol, State, save

if TYPE_CHECKING:
    from pathlib import Path

USUAL = {"sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 50, "throttle": "0x0000000000000000"}


def profile(number: int, speed: float = 1.0, *, cases: int = 1, samples: int = 1, **found: object) -> Profile:
    """Return a made-up profile; a quick run's has about 60 cases of 20 samples."""
    state = State.model_validate(USUAL | found.get("state", {}))
    rate = made_up.RATE * speed
    shapes = [
        {"rows": rows, "tokens": 65_536, "order": order, "rate_bytes_per_s": rate * share, "eta": rate * share / 4.8e12}
        for rows, share in ((1, 0.6), (16, 0.9), (64, 1.0))
        for order in ("contiguous", "runs-1")
    ]
    draw = random.Random(number)  # noqa: S311 - noise, no secret
    return Profile(
        created="2026-01-02T03:04:05+00:00",
        host=found.get("host", f"node{number // 8:03}"),
        hardware=made_up.hardware(**{"identity": f"GPU-{number:08}"} | found.get("hardware", {})),
        software=made_up.software(),
        protocol=Protocol(
            quick=True,
            pool_bytes=10**9,
            tensors=21,
            span_bytes=10**7,
            replays=samples,
            free_fraction=0.85,
            seed=1,
            block_table_sha256="",
        ),
        before=state,
        after=state,
        drift=0.0,
        cases=tuple(
            Case(
                key=f"grid/read_pages/contiguous/b1/L{one}",
                group="grid",
                kernel="read_pages",
                order="contiguous",
                rows=1,
                tokens=4096,
                read_bytes=540_672,
                write_bytes=0,
                reuse_bytes=2**30,
                fragmentation={"mean_run_pages": 64.0},
                verified=True,
                samples_s=tuple(draw.uniform(1e-6, 2e-6) for _ in range(samples)),
            )
            for one in range(cases)
        ),
        fits=Fits.model_validate(
            {"ceiling_bytes_per_s": rate, "run_length": None, "shapes": shapes, "scans": (), "gathers": ()}
        ),
        warnings=(),
    )


def few(folder: Path, count: int = 6, **changes: object) -> None:
    """Fill a folder with GPUs that differ by a thousandth."""
    for number in range(count):
        save(profile(number, 1 - number / 1000, **changes), folder)


def hosts(folder: Path, speeds: dict[str, list[float]]) -> None:
    """Fill a folder with GPUs of the speeds given, named by host and number."""
    for host, each in speeds.items():
        for number, speed in enumerate(each):
            save(profile(0, speed, host=host, hardware={"identity": f"{host}-{number}"}), folder)
