"""The protocol: cold pages by rotation, cases interleaved, noise judged, drift checked, nothing written before the end.

A group of cases is replayed in turn, A B A B, so that a change of clock meets them all alike. A group that is noisy is
measured again, at most three times while there is time; what stays noisy is kept and says so.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from calib import cases, plan, profile, stats
from calib.fits import fits_of
from calib.fragments import load_block_table
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calib.cases import Pool, Work
    from calib.engine_kernels import Found

    Progress = Callable[[int, int, str], None]

SEED = 20_26
TENSORS = 21  # full layers of GLM-5.2: as many index-K tensors does a rank keep
WARM_TOKENS = (16_384, 65_536, 262_144)  # 2, 9 and 35 MB of index-K: within the last-level cache of H200
GATHER_ROWS = 16  # query rows of a sparse attention launch
TRIES = 3
LEAST_SAMPLES = 5  # of a case, however late it is
LEAST_POOL_BYTES = 64 * MIB


class Loaded(Protocol):
    """A case that a backend holds ready."""

    def replay(self) -> float:
        """Run every launch once; return seconds per launch."""

    def verified(self) -> bool:
        """Return whether the words read are the right ones."""

    def release(self) -> None:
        """Give back what the case holds."""


class Backend(Protocol):
    """The memory that is measured. The host's and the device's are the two there are; tests have a made-up one."""

    hardware: profile.Hardware
    software: profile.Software
    ceiling_kernels: Sequence[str]
    read_kernels: Sequence[str]
    scan_kernels: Sequence[str]

    def free_bytes(self) -> int:
        """Return the free memory."""

    def open(self, pool: Pool, seed: int) -> None:
        """Take the pool and fill it with data that is not zero (MemoryError)."""

    def close(self) -> None:
        """Give everything back."""

    def state(self) -> profile.State:
        """Return clocks, power and company."""

    def load(self, work: Work) -> Loaded:
        """Return the case ready to run."""

    def engine_kernels(self, pool: Pool, tokens: int, most: int) -> Found:
        """Return the engines' own kernels that are installed here, over the pool that is open."""


@dataclass(frozen=True)
class Plan:
    """What a run is asked for."""

    quick: bool
    free_fraction: float = 0.85
    one_span: bool = False
    block_table: bytes | None = None  # the content of a dumped .npy, since a worker has no file of the driver's
    extent: Extent | None = None  # None: by `quick` and the kind of device


def differing(made: profile.Protocol, asked: Plan) -> list[str]:
    """Return in what a profile falls short of what is asked for; a full run is enough where a quick one is."""
    tensors = 1 if asked.one_span else TENSORS
    found = ["a quick run, a full one is asked for"] if made.quick and not asked.quick else []
    if made.tensors != tensors:
        found.append(f"{made.tensors} tensors, {tensors} are asked for")
    if asked.block_table and made.block_table_sha256 != hashlib.sha256(asked.block_table).hexdigest():
        found.append("another block table")
    return found


@dataclass(frozen=True)
class Extent:
    """How much is measured: sizes and counts, by kind of device."""

    pool_bytes: int  # at most; the fraction of free memory may be less
    tokens: int  # of the shape that every page order is measured on
    grid: tuple[tuple[int, int], ...]
    scan_tokens: tuple[int, ...]
    replays: int
    replay_bytes: int  # a replay has launches enough to read about so much
    seconds: float  # after this no second or third try, and only the fewest samples


GPU_GRID = tuple(
    (rows, tokens) for rows in (1, 4, 16, 64, 256) for tokens in (4096, 16_384, 65_536, 262_144, 1_048_576)
)
SCAN_TOKENS = (32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
EXTENTS = {
    ("gpu", True): Extent(8 * GIB, 262_144, GPU_GRID[::2], SCAN_TOKENS[::2] + SCAN_TOKENS[-1:], 20, 2 * GIB, 12),
    ("gpu", False): Extent(2**60, 524_288, GPU_GRID, SCAN_TOKENS, 40, 4 * GIB, 70),
    ("cpu", True): Extent(
        384 * MIB, 65_536, ((1, 16_384), (4, 16_384), (1, 131_072)), SCAN_TOKENS[:4], 11, 32 * MIB, 6
    ),
    ("cpu", False): Extent(
        4 * GIB,
        131_072,
        ((1, 16_384), (4, 16_384), (16, 16_384), (1, 131_072), (4, 131_072)),
        SCAN_TOKENS,
        31,
        64 * MIB,
        45,
    ),
}
KEPT_FREE_BYTES = {"gpu": 2 * GIB, "cpu": GIB}


@dataclass
class _Measured:
    work: Work
    samples: list[float] = field(default_factory=list)
    verified: bool = False


def calibrate(backend: Backend, asked: Plan, progress: Progress = lambda *_: None) -> profile.Profile:
    """Return the profile of a backend's memory (BadInput: too little memory, a table that does not fit).

    Whatever ends the run, Ctrl-C included, the backend is closed and nothing was written.
    """
    began = time.monotonic()
    extent = asked.extent or EXTENTS[backend.hardware.kind, asked.quick]
    before = backend.state()
    try:
        pool = _take_pool(backend, asked, extent)
        groups, absent = _groups(backend, pool, asked, extent)
        measured, warnings, drift = _measure(backend, groups, extent, began, progress)
    finally:
        backend.close()
    found = tuple(_case(one) for one in measured)
    return profile.Profile(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=backend.hardware,
        software=backend.software,
        protocol=profile.Protocol(
            quick=asked.quick,
            pool_bytes=pool.pages * plan.PAGE_BYTES,
            tensors=pool.tensors,
            span_bytes=pool.tensor_pages * plan.PAGE_BYTES,
            replays=extent.replays,
            free_fraction=asked.free_fraction,
            seed=SEED,
            block_table_sha256=hashlib.sha256(asked.block_table).hexdigest() if asked.block_table else "",
        ),
        before=before,
        after=backend.state(),
        drift=drift,
        cases=found,
        fits=fits_of(found, backend.hardware.peak_bytes_per_s),
        warnings=tuple(warnings),
        absent=absent,
        host=os.environ.get("DSA_LEDGER_HOST") or platform.node(),  # a pod has a name of its own
    )


def _take_pool(backend: Backend, asked: Plan, extent: Extent) -> Pool:
    """Take the asked fraction of free memory, or half of it until it can be had."""
    free = backend.free_bytes()
    wanted = min(int(free * asked.free_fraction), free - KEPT_FREE_BYTES[backend.hardware.kind], extent.pool_bytes)
    tensors = 1 if asked.one_span else TENSORS
    while wanted >= LEAST_POOL_BYTES:
        pool = cases.Pool(tensors, wanted // tensors // plan.PAGE_BYTES)
        try:
            backend.open(pool, SEED)
        except MemoryError:
            wanted //= 2
        else:
            return pool
    raise BadInput(
        [
            Fault(
                "memory.free",
                free,
                f"{LEAST_POOL_BYTES:,} B to measure with, beside what stays free; end what fills it",
            )
        ]
    )


def _groups(backend: Backend, pool: Pool, asked: Plan, extent: Extent) -> tuple[list[list[Work]], tuple[str, ...]]:
    # A tensor of the pool must hold the shape several times, or there is nothing to scatter it over.
    tokens = min(extent.tokens, pool.tensor_pages * plan.PAGE_TOKENS // 4)

    def most(read_bytes: int) -> int:
        return max(2, min(64, extent.replay_bytes // read_bytes))

    several = most(plan.pages_of(tokens) * plan.PAGE_BYTES)
    reads = backend.read_kernels
    groups = [
        cases.ceiling_works(pool, tokens, several, backend.ceiling_kernels)
        + cases.fragmentation_works(pool, reads, tokens, several, SEED),
        cases.score_works(pool, tokens, several),
        cases.warm_works(pool, reads[0], WARM_TOKENS, 8),
        [
            work
            for count in extent.scan_tokens
            for work in cases.scan_works(pool, backend.scan_kernels, count, most(cases.SCAN_BYTES_PER_TOKEN * count))
        ],
        cases.gather_works(pool, GATHER_ROWS, most(GATHER_ROWS * cases.PICKED_RECORDS * 656), SEED),
    ]
    for shape in extent.grid:
        several = most(shape[0] * plan.pages_of(shape[1]) * plan.PAGE_BYTES)
        groups.append([one for kernel in reads for one in cases.grid_works(pool, kernel, [shape], several, SEED)])
    if asked.block_table:
        table = load_block_table(asked.block_table, pool.tensor_pages)
        tables = [plan.moved(table, tensor * pool.tensor_pages) for tensor in range(pool.tensors)]
        groups.append([cases.paged("replay", kernel, "dumped", tables) for kernel in reads])
    if asked.quick:
        return [group for group in groups if group], ("engine kernels: not looked for in a quick run",)
    found = backend.engine_kernels(pool, tokens // 4, most(plan.pages_of(tokens) * plan.PAGE_BYTES))
    groups += [[work] for work in found.works]
    return [group for group in groups if group], found.absent


def _measure(
    backend: Backend, groups: list[list[Work]], extent: Extent, began: float, progress: Progress
) -> tuple[list[_Measured], list[str], float]:
    shuffled = groups[:1] + random.Random(SEED).sample(groups[1:], len(groups) - 1)  # noqa: S311 - an order, no secret
    total = sum(map(len, groups)) + 1
    measured: list[_Measured] = []
    warnings: list[str] = []
    first: list[float] = []
    for group in shuffled:
        progress(len(measured), total, group[0].group)
        done = _measure_group(backend, group, extent, began)
        first = first or done[0].samples
        measured += done
    again = _measure_group(backend, groups[0][:1], extent, began)[0]
    drift = stats.drift(first, again.samples)
    progress(total, total, "done")
    if abs(drift) > stats.STEADY_DRIFT:
        warnings.append(f"the first case took {drift:+.1%} when it was measured again at the end: the machine drifted")
    noisy = [one.work.key for one in measured if stats.summary(one.samples).verdict == "noisy"]
    if noisy:
        warnings.append(f"{len(noisy)} of {len(measured)} cases are noisy: p10 to p90 is more than 3% of the median")
    wrong = [one.work.key for one in measured if not one.verified]
    if wrong:
        raise RuntimeError(f"wrong words were read, the figures mean nothing: {', '.join(wrong[:5])}")
    return measured, warnings, drift


def _measure_group(backend: Backend, group: list[Work], extent: Extent, began: float) -> list[_Measured]:
    best: list[_Measured] = []
    loaded: list[Loaded] = []
    try:
        loaded.extend(backend.load(work) for work in group)  # one by one: what was loaded is released
        correct = [one.verified() for one in loaded]
        for one in loaded:
            one.replay()  # warms what is compiled or mapped on first use, not the pages
        for _ in range(TRIES):
            tried = [_Measured(work, [], right) for work, right in zip(group, correct, strict=True)]
            for replay in range(extent.replays):
                if replay >= LEAST_SAMPLES and time.monotonic() - began > extent.seconds:
                    break
                for case, ready in zip(tried, loaded, strict=True):
                    case.samples.append(ready.replay())
            if not best or _spread(tried) < _spread(best):
                best = tried
            if _spread(best) <= stats.STEADY_SPREAD or time.monotonic() - began > extent.seconds:
                break
    finally:
        for one in loaded:
            one.release()
    return best


def _spread(measured: list[_Measured]) -> float:
    return max(stats.summary(one.samples).spread for one in measured)


def _case(one: _Measured) -> profile.Case:
    work = one.work
    return profile.Case(
        key=work.key,
        group=work.group,
        kernel=work.kernel,
        order=work.order,
        rows=work.rows,
        tokens=work.tokens,
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        reuse_bytes=work.reuse_bytes,
        fragmentation=work.fragmentation,
        verified=one.verified,
        samples_s=tuple(one.samples),
    )
