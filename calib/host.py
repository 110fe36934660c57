"""The CPU backend: the same plan, statistics and profile on the CPU's own memory, so that the whole path runs anywhere.

Pages are read by `take` (numpy) or `index_select` (torch) into a small buffer that stays in the cache. Its figures are
labelled and no estimate for a GPU uses them.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calib import plan, reference
from calib.engine_kernels import Found
from calib.profile import Hardware, Software, State
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from calib.cases import Pool, Work

    Words = np.ndarray[Any, np.dtype[np.uint32]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]
    Step = Callable[[], object]

CHUNK_PAGES = 64  # 528 KiB at a time: a buffer that fits the second-level cache
PAGE_WORDS = plan.PAGE_BYTES // 4


class HostBackend:
    """numpy, or torch where it is asked for or present."""

    ceiling_kernels: Sequence[str] = ("read_straight", "copy")
    read_kernels: Sequence[str] = ("read_pages",)
    scan_kernels: Sequence[str] = ("scan_rows",)

    def __init__(self, library: str | None = None) -> None:
        """Choose the library; None is torch if it is there, else numpy (BadInput: another name, or a missing one)."""
        if library not in (None, "torch", "numpy"):
            raise BadInput([Fault("device", f"cpu:{library}", "cpu, cpu:torch or cpu:numpy")])
        self.torch: Any = None
        if library != "numpy":
            try:
                import torch
            except ImportError:
                if library == "torch":
                    expected = "PyTorch, which is not installed: pip install 'dsa-ledger[torch]'"
                    raise BadInput([Fault("device", "cpu:torch", expected)]) from None
            else:
                self.torch = torch
        self.pool: Words = np.empty((0, PAGE_WORDS), dtype=np.uint32)
        self.software = Software(
            dsa_ledger=_version(),
            backend=f"torch {self.torch.__version__}, {self.torch.get_num_threads()} threads"
            if self.torch
            else f"numpy {np.__version__}",
            driver="",
            runtime="",
            compiler="",
            python=platform.python_version(),
            kernels_sha256="",
        )
        self.hardware = Hardware(
            kind="cpu",
            name=_cpu_name(),
            identity=platform.node(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            units=os.cpu_count() or 1,
            cache_bytes=_cache_bytes(),
            peak_bytes_per_s=None,
            compute_capability="",
            ecc=None,
            mig=None,
        )

    def free_bytes(self) -> int:
        """Return the memory that can be had."""
        for line in _lines("/proc/meminfo"):
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def open(self, pool: Pool, seed: int) -> None:
        """Take the pool and fill it with random bytes (MemoryError)."""
        self.pool = np.empty((pool.pages, PAGE_WORDS), dtype=np.uint32)
        random = np.random.default_rng(seed)
        for start in range(0, pool.pages, 4096):
            part = self.pool[start : start + 4096]
            part[:] = random.integers(0, 2**32, part.shape, dtype=np.uint32)

    def close(self) -> None:
        """Give the pool back."""
        self.pool = np.empty((0, PAGE_WORDS), dtype=np.uint32)

    def state(self) -> State:
        """Return the load by others; a CPU tells no clock that means anything here."""
        return State(others=(f"load average {os.getloadavg()[0]:.1f}",))

    def load(self, work: Work) -> _Loaded:
        """Return the case ready to run."""
        return _Loaded(self, work)

    def engine_kernels(self, pool: Pool, tokens: int, most: int) -> Found:
        """Return none: the engines' kernels run on a GPU alone."""
        del pool, tokens, most
        return Found((), {}, ("engine kernels: they need a GPU",))

    def chunk_reader(self, source: Words, numbers: Numbers, out: Words) -> Step:
        """Return what copies the rows of `source` with these numbers to `out`."""
        if self.torch:
            select, given = self.torch.index_select, self.torch.from_numpy(source.view(np.int32))
            index, into = self.torch.from_numpy(numbers), self.torch.from_numpy(out.view(np.int32))
            return lambda: select(given, 0, index, out=into)
        # "clip", because "raise" reads into a buffer of its own first
        return lambda: np.take(source, numbers, axis=0, out=out, mode="clip")

    def straight_reader(self, source: Words, out: Words) -> Step:
        """Return what copies `source` to `out`, which is as long."""
        if self.torch:
            given, into = self.torch.from_numpy(source.view(np.int32)), self.torch.from_numpy(out.view(np.int32))
            return lambda: into.copy_(given)
        return lambda: np.copyto(out, source)


class _Loaded:
    """One case: its launches as steps that need no more preparation. A step leaves what it read in its buffer."""

    def __init__(self, backend: HostBackend, work: Work) -> None:
        self.work, self.backend = work, backend
        self.launches: list[list[tuple[Step, Words]]] = [list(steps) for steps in self._launches()]

    def replay(self) -> float:
        """Run every launch once; return seconds per launch."""
        start = time.perf_counter()
        for steps in self.launches:
            for step, _ in steps:
                step()
        return (time.perf_counter() - start) / len(self.launches)

    def verified(self) -> bool:
        """Run the first launch; return whether the words that arrived are those of its pages, added up another way."""
        got = 0
        for step, buffer in self.launches[0]:
            step()
            got += int(buffer.sum(dtype=np.uint64))
        return got % 2**64 == self._expected() % 2**64

    def release(self) -> None:
        """Give back what the case holds."""
        self.launches = []

    def _launches(self) -> Iterator[Iterator[tuple[Step, Words]]]:
        work, pool = self.work, self.backend.pool
        if work.picks:
            words = int(work.kernel.rpartition("_")[2]) // 4
            records = pool.reshape(-1)[: pool.size // words * words].reshape(-1, words)
            chunk = CHUNK_PAGES * PAGE_WORDS // words
            return (self._reads(records, [picks.reshape(-1).astype(np.int64)], chunk) for picks in work.picks)
        if work.row_starts:
            flat = pool.reshape(-1)
            return (self._scan(flat[start // 4 : start // 4 + work.tokens]) for start in work.row_starts)
        if work.kernel in ("read_straight", "copy"):
            # Contiguous tables: a launch is one range of pages.
            ranges = ((int(table.pages[0, 0]), sum(table.row_pages)) for table in work.tables)
            chunk = CHUNK_PAGES if work.kernel == "read_straight" else pool.shape[0]
            whole = np.empty((min(chunk, sum(work.tables[0].row_pages)), PAGE_WORDS), dtype=np.uint32)
            return (self._straight(pool[first : first + count], chunk, whole) for first, count in ranges)
        tables = ([row.astype(np.int64) for row in table.rows()] for table in work.tables)
        return (self._reads(pool, rows, CHUNK_PAGES) for rows in tables)

    def _reads(self, source: Words, rows: list[Numbers], chunk: int) -> Iterator[tuple[Step, Words]]:
        buffer = np.empty((chunk, source.shape[1]), dtype=np.uint32)
        for row in rows:
            for start in range(0, len(row), chunk):
                numbers = row[start : start + chunk]
                out = buffer[: len(numbers)]
                read = self.backend.chunk_reader(source, numbers, out)
                yield (self._scored(read, out) if self.work.kernel == "score_pages" else read), out

    def _straight(self, source: Words, chunk: int, buffer: Words) -> Iterator[tuple[Step, Words]]:
        for start in range(0, len(source), chunk):
            part = source[start : start + chunk]
            out = buffer[: len(part)]
            if self.work.kernel == "copy":
                yield partial(np.copyto, out, part), out
            else:
                yield self.backend.straight_reader(part, out), out

    def _scan(self, row: Words) -> Iterator[tuple[Step, Words]]:
        def twice() -> int:
            top = row.max() >> np.uint32(24)
            return int(np.count_nonzero((row >> np.uint32(24)) == top))

        yield twice, row

    def _scored(self, read: Step, out: Words) -> Step:
        scores = np.empty(len(out) * plan.PAGE_TOKENS, dtype=np.float32)

        def both() -> None:
            read()
            np.copyto(scores, reference.page_scores(out).reshape(-1))

        return both

    def _expected(self) -> int:
        work, flat = self.work, self.backend.pool.reshape(-1)
        if work.picks:
            words = int(work.kernel.rpartition("_")[2]) // 4
            starts = work.picks[0].reshape(-1).astype(np.int64) * words
            return sum(int(flat[start : start + words].sum(dtype=np.uint64)) for start in starts)
        if work.row_starts:
            start = work.row_starts[0] // 4
            return int(flat[start : start + work.tokens].sum(dtype=np.uint64))
        pages = np.concatenate(work.tables[0].rows())
        return sum(int(self.backend.pool[page].sum(dtype=np.uint64)) for page in pages)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dsa-ledger")
    except PackageNotFoundError:
        return ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _cpu_name() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or sys.platform


def _cache_bytes() -> int:
    """Return the last-level cache that Linux names, 0 where it does not."""
    for index in (3, 2):
        for line in _lines(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size"):
            if line.rstrip("KM").isdigit():
                return int(line.rstrip("KM")) * (2**20 if line.endswith("M") else 2**10)
    return 0
