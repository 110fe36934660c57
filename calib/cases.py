"""What a calibration measures: each case is a kernel, a shape and a page order, as launches over disjoint pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from calib import plan
from calib.fragments import fragmentation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calib.plan import Order, Pages, Table

RUN_PAGES = (1, 2, 4, 8, 16, 64, 256, 1024)  # a page of 2 MiB holds 248: from there on translation costs nothing more
SCAN_BYTES_PER_TOKEN = 8  # two passes over fp32
PICKED_RECORDS = 2048  # index_topk
RECORD_BYTES = (576, 656, 1152)
SPANS = (1 / 64, 1 / 16, 1 / 4)


@dataclass(frozen=True)
class Pool:
    """The memory that a run may use: `tensors` equal tensors, one per layer, of `tensor_pages` pages each."""

    tensors: int
    tensor_pages: int

    @property
    def pages(self) -> int:
        """Return the pages of all tensors."""
        return self.tensors * self.tensor_pages


@dataclass(frozen=True, eq=False)
class Work:
    """One case to run. Its launches go in order, each on pages of its own: tables, record picks, or row starts."""

    group: str
    kernel: str
    order: str
    rows: int
    tokens: int
    read_bytes: int
    write_bytes: int
    tables: tuple[Table, ...] = ()
    picks: tuple[Pages, ...] = ()
    row_starts: tuple[int, ...] = ()  # bytes into the pool, where a scan's fp32 rows begin
    fragmentation: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return the name that tells this case from all others."""
        return f"{self.group}/{self.kernel}/{self.order}/b{self.rows}/L{self.tokens}"

    @property
    def launches(self) -> int:
        """Return how many launches one replay has."""
        return len(self.tables) or len(self.picks) or len(self.row_starts)

    @property
    def reuse_bytes(self) -> int:
        """Return what is read until the first launch's bytes come round again; a warm case has one table for all."""
        distinct = len({id(table) for table in self.tables}) or self.launches
        return distinct * self.read_bytes


def paged(group: str, kernel: str, order: str, tables: Sequence[Table]) -> Work:
    """Return the case of a kernel that reads pages."""
    first = tables[0]
    mean_tokens = sum(first.tokens) // len(first.tokens)
    written = 4 * plan.PAGE_TOKENS * sum(first.row_pages) if kernel == "score_pages" else 0
    return Work(
        group=group,
        kernel=kernel,
        order=order,
        rows=len(first.tokens),
        tokens=mean_tokens,
        read_bytes=first.read_bytes,
        write_bytes=written,
        tables=tuple(tables),
        fragmentation=fragmentation(first).as_dict(),
    )


def fragmentation_works(pool: Pool, kernels: Sequence[str], tokens: int, most: int, seed: int) -> list[Work]:
    """Return one shape, a single row, in every page order; measured interleaved, so that they can be compared."""
    works = []
    for kernel in kernels:
        for name, order in _orders(pool.tensor_pages, seed):
            tables = plan.rotation(order, [tokens], tensors=pool.tensors, most=most)
            works.append(paged("fragmentation", kernel, name, tables))
    kernel = kernels[0]
    half = [tokens // 2, tokens // 2]
    straight = plan.contiguous(pool.tensor_pages)
    shapes: list[tuple[str, dict[str, Any], Sequence[int]]] = [
        ("interleaved", {"interleaved": True}, half),
        ("shared-prefix", {"shared_pages": plan.pages_of(tokens) // 4}, half),
        ("ragged", {}, plan.ragged(4, tokens // 8, seed)),
        ("last-page-1", {}, [tokens - 63]),
    ]
    for name, dealing, lengths in shapes:
        tables = plan.rotation(straight, lengths, tensors=pool.tensors, most=most, **dealing)
        works.append(paged("shapes", kernel, name, tables))
    for share in SPANS:
        pages = int(pool.tensor_pages * share)
        if pages >= plan.pages_of(tokens):
            tables = plan.rotation(plan.scattered(pages, seed), [tokens], tensors=pool.tensors, most=most)
            works.append(paged("span", kernel, f"span-{share:.4g}", tables))
    return works


def _orders(pages: int, seed: int) -> Iterator[tuple[str, Order]]:
    yield "contiguous", plan.contiguous(pages)
    for run in RUN_PAGES:
        if run * 4 <= pages:
            yield f"runs-{run}", plan.runs(pages, run, seed)
    yield "backwards", plan.backwards(pages)
    yield "strided-7", plan.strided(pages, 7)


def grid_works(pool: Pool, kernel: str, shapes: Sequence[tuple[int, int]], most: int, seed: int) -> list[Work]:
    """Return batch by length, pages in a row and scattered; shapes that the pool cannot hold are left out."""
    works = []
    orders = (("contiguous", plan.contiguous(pool.tensor_pages)), ("runs-1", plan.scattered(pool.tensor_pages, seed)))
    for rows, tokens in shapes:
        if rows * plan.pages_of(tokens) <= pool.tensor_pages:
            for name, order in orders:
                tables = plan.rotation(order, [tokens] * rows, tensors=pool.tensors, most=most)
                works.append(paged("grid", kernel, name, tables))
    return works


def ceiling_works(pool: Pool, tokens: int, most: int, kernels: Sequence[str]) -> list[Work]:
    """Return the read without a table, and whatever else a backend can say about its own ceiling."""
    tables = plan.rotation(plan.contiguous(pool.tensor_pages), [tokens], tensors=pool.tensors, most=most)
    return [paged("ceiling", kernel, "contiguous", tables) for kernel in kernels]


def warm_works(pool: Pool, kernel: str, lengths: Sequence[int], most: int) -> list[Work]:
    """Return single rows read again and again, from the cache where they fit, as public tables were measured."""
    orders = [tokens for tokens in lengths if plan.pages_of(tokens) <= pool.tensor_pages]
    tables = [plan.deal(plan.contiguous(pool.tensor_pages), [tokens]) for tokens in orders]
    return [paged("warm", kernel, "contiguous", [table] * most) for table in tables]


def score_works(pool: Pool, tokens: int, most: int) -> list[Work]:
    """Return the read with its score-like write."""
    tables = plan.rotation(plan.contiguous(pool.tensor_pages), [tokens], tensors=pool.tensors, most=most)
    return [paged("score", "score_pages", "contiguous", tables)]


def scan_works(pool: Pool, kernels: Sequence[str], tokens: int, most: int) -> list[Work]:
    """Return two-pass scans of one fp32 row, over the pool's own bytes; none where the pool is shorter than a row."""
    row_bytes = 4 * tokens
    starts = tuple(range(0, pool.pages * plan.PAGE_BYTES - row_bytes + 1, row_bytes))[:most]
    read = SCAN_BYTES_PER_TOKEN * tokens
    return [Work("scan", kernel, "contiguous", 1, tokens, read, 0, row_starts=starts) for kernel in kernels if starts]


def gather_works(pool: Pool, rows: int, most: int, seed: int) -> list[Work]:
    """Return gathers of 2,048 records a row at random positions, every launch with picks of its own."""
    works = []
    random = np.random.default_rng(seed)
    for record_bytes in RECORD_BYTES:
        records = min(pool.pages * plan.PAGE_BYTES // record_bytes, plan.POISON - 1)
        picks = tuple(random.integers(0, records, (rows, PICKED_RECORDS), dtype=np.int32) for _ in range(most))
        read = rows * PICKED_RECORDS * record_bytes
        works.append(Work("gather", f"gather_{record_bytes}", "random", rows, PICKED_RECORDS, read, 0, picks=picks))
    return works
