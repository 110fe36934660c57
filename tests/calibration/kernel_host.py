"""The kernels on a CPU: paged_read.cu built by g++ with fibres for threads, called through ctypes; numpy is the judge.

Run as a script with built libraries it prints a line for each: how many cases failed. A broken kernel may crash, so
each is run in a fork of its own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from calib import build, plan

HERE = Path(__file__).parent
SEED = 12345
TRAP_PAGES = 4  # behind the pool: where poisoned entries of these tests point, with data that no row has


PLAIN = ["g++", "-std=c++17", "-fPIC", "-O0"]


def precompile(folder: Path) -> None:
    """Compile what all builds without optimisation share; `compile_for_host` finds it in the library's folder."""
    copy = folder / "host_cuda.h"
    copy.write_bytes((HERE / "host_cuda.h").read_bytes())
    subprocess.run([*PLAIN, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"], check=True, capture_output=True)


def compile_for_host(source: Path, library: Path, *, strict: bool = True, level: int = 0) -> None:
    """Build the kernels of `source` as a library; `strict` finds undefined behaviour too, and takes longer.

    Next to a precompiled header only the kernels that walk pages are built.
    """
    words = [*PLAIN, f"-O{level}", "-shared", f'-DSOURCE="{source}"', "-o", str(library)]
    compiled = library.parent / "host_cuda.h"
    if compiled.exists():
        words += ["-include", str(compiled), "-DONLY_PAGED"]
    if strict:
        words += ["-Wall", "-Werror", "-Wno-unknown-pragmas", "-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run([*words, str(HERE / "host_kernels.cpp")], check=True, capture_output=True)


def hashed(words: int, seed: int) -> np.ndarray:
    """Return what `fill` writes: the finaliser of MurmurHash3 over the word's number."""

    def mixed(h: np.ndarray) -> np.ndarray:
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return h ^ (h >> np.uint32(16))

    number = np.arange(words, dtype=np.uint64)
    high = (number >> np.uint64(32)).astype(np.uint32) + np.uint32(seed)
    return mixed(number.astype(np.uint32) ^ mixed(high))


def aligned(size: int) -> np.ndarray:
    """Return zeroed bytes that begin on 128, as a CUDA allocation does at least."""
    raw = np.zeros(size + 128, dtype=np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size]


class Host:
    """One built library, a pool of hashed pages, and a case at a time."""

    def __init__(self, library: Path, pool_pages: int = 96) -> None:
        self.library = ctypes.CDLL(str(library))
        self.pool_pages = pool_pages
        self.pool = aligned((pool_pages + TRAP_PAGES) * plan.PAGE_BYTES)
        self.pool.view(np.uint32)[:] = hashed(len(self.pool) // 4, SEED)

    def sums(self, kernel: str, row_units: list[int], shares: int, *arguments: object) -> np.ndarray:
        """Return the checksum of each row as a kernel with slots computes it."""
        slots = np.zeros((shares + len(row_units), build.WARPS), dtype=np.uint64)
        first_unit, first_row = plan.first_units(row_units), plan.first_rows(row_units, shares)
        self.call(kernel, shares, *arguments[:3], first_unit, first_row, len(row_units), slots, *arguments[3:])
        rows = plan.slot_rows(row_units, shares)
        assert not slots[rows < 0].any(), "a slot was written that belongs to no row"
        return np.array([slots[rows == row].sum(dtype=np.uint64) for row in range(len(row_units))])

    def call(self, kernel: str, grid: int, *arguments: object) -> None:
        """Run a kernel; AssertionError where the host says that it went wrong."""
        given = [
            argument.ctypes.data_as(ctypes.c_void_p)
            if isinstance(argument, np.ndarray)
            else ctypes.c_longlong(argument)
            for argument in arguments
        ]
        fault = getattr(self.library, f"run_{kernel}")(ctypes.c_uint(grid), *given)
        assert fault == 0, f"{kernel}: fault {fault}, as host_kernels.cpp numbers them"

    def page_sums(self) -> np.ndarray:
        """Return each page's sum of words."""
        return self.pool.view(np.uint32).reshape(-1, plan.PAGE_BYTES // 4).sum(axis=1, dtype=np.uint64)

    def poisoned(self, table: plan.Table) -> np.ndarray:
        """Return the block table with its unused entries pointing at the trap pages."""
        return np.where(table.pages == plan.POISON, self.pool_pages, table.pages).astype(np.int32)

    def expected(self, table: plan.Table) -> np.ndarray:
        """Return each row's checksum."""
        return np.array([self.page_sums()[row].sum(dtype=np.uint64) for row in table.rows()])

    def scores(self, table: plan.Table) -> list[np.ndarray]:
        """Return each row's scores: the low halves of a key's words, added up, times 1 + the scale's low bits."""
        words = self.pool.view(np.uint32).reshape(-1, plan.PAGE_BYTES // 4)
        keys = (words[:, :2048].reshape(-1, 64, 32) & 0xFFFF).sum(axis=2)
        of_page = (keys * ((words[:, 2048:] & 7) + 1)).astype(np.float32)
        return [of_page[row].reshape(-1) for row in table.rows()]


def random_table(random: np.random.Generator, pool_pages: int) -> plan.Table:
    """Return a table of one to five rows over some of the pool, ragged, the last pages partly filled."""
    order = plan.runs(pool_pages, int(random.integers(1, 9)), int(random.integers(1000)))
    rows = int(random.integers(1, 6))
    tokens = [int(random.integers(1, pool_pages * plan.PAGE_TOKENS // rows - 64)) for _ in range(rows)]
    return plan.deal(order, tokens, interleaved=bool(random.integers(2)))


def check_reads(host: Host, seed: int, kernels: tuple[str, ...]) -> None:
    """Run one random case of the paged kernels against numpy."""
    random = np.random.default_rng(seed)
    table = random_table(random, host.pool_pages)
    shares = int(random.choice([1, 2, 5, 13]))
    entries = host.poisoned(table)
    for kernel in kernels:
        units = list(table.row_pages)
        given = (host.pool, entries, entries.shape[1])
        if kernel == "score_pages":
            scores = np.full((len(units), entries.shape[1] * 64), -1, dtype=np.float32)
            got = host.sums(kernel, units, shares, *given, scores, scores.shape[1])
            for row, wanted in enumerate(host.scores(table)):
                np.testing.assert_array_equal(scores[row, : len(wanted)], wanted)
                assert (scores[row, len(wanted) :] == -1).all(), "a score was written past the row's end"
        else:
            got = host.sums(kernel, units, shares, *given)
        np.testing.assert_array_equal(got, host.expected(table), err_msg=f"{kernel}, seed {seed}")


def main() -> None:
    """Print how many of the random cases each library fails: arguments are their number, then KERNEL=LIBRARY."""
    count = int(sys.argv[1])
    for words in sys.argv[2:]:
        kernel, _, library = words.partition("=")
        sys.stdout.flush()
        child = os.fork()
        if not child:
            print(f"failed {failures(Host(Path(library)), kernel, count)} of {count}", flush=True)  # noqa: T201 - the answer
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(f"ended with {status}")  # noqa: T201 - as above


def failures(host: Host, kernel: str, count: int) -> int:
    """Return how many of the random cases a library fails."""
    failed = 0
    for seed in range(count):
        try:
            check_reads(host, seed, (kernel,))
        except AssertionError:
            failed += 1
    return failed


if __name__ == "__main__":
    main()
