"""Page tables: who owns which page, in what order. Pure functions of their arguments; nothing here measures.

Two steps: an *order* is the sequence in which a pool's pages are handed out, and a *deal* gives them to requests.
A page of index-K holds 64 tokens: 8,192 B of FP8 keys, token after token, then 64 fp32 scales
(deepseek-ai/DeepGEMM@54e22612 csrc/apis/attention.hpp; SGLang dsa/index_buf_accessor.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Pages = NDArray[np.int32]
    Order = NDArray[np.int64]

PAGE_TOKENS = 64
PAGE_BYTES = PAGE_TOKENS * (128 + 4)
POISON = 2**31 - 1  # an entry that nobody may follow: as an address it lies 18 TB into the pool, so a stray read faults


@dataclass(frozen=True, eq=False)
class Table:
    """The block table of one launch: `pages[row, i]` is the i-th page of a request, POISON past its end."""

    pages: Pages
    tokens: tuple[int, ...]

    @property
    def row_pages(self) -> tuple[int, ...]:
        """Return the pages that each row really has; the last one may be partly filled."""
        return tuple(pages_of(tokens) for tokens in self.tokens)

    @property
    def read_bytes(self) -> int:
        """Return what a kernel that reads whole pages reads, each row once."""
        return sum(self.row_pages) * PAGE_BYTES

    def rows(self) -> list[Pages]:
        """Return each row without its unused entries."""
        return [row[:count] for row, count in zip(self.pages, self.row_pages, strict=True)]


def pages_of(tokens: int) -> int:
    """Return the pages that hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)


def contiguous(pool_pages: int) -> Order:
    """Return the pages in address order: a pool that nobody has used yet."""
    return np.arange(pool_pages, dtype=np.int64)


def backwards(pool_pages: int) -> Order:
    """Return the pages from the last to the first: blocks freed in reverse and used again from the front."""
    return np.arange(pool_pages - 1, -1, -1, dtype=np.int64)


def runs(pool_pages: int, run_pages: int, seed: int) -> Order:
    """Return runs of `run_pages` neighbours in random order; two runs may meet, so the mean run is a little longer.

    The pages of the last, shorter run are kept: every page is handed out once.
    """
    starts = np.arange(0, pool_pages, run_pages, dtype=np.int64)
    np.random.default_rng(seed).shuffle(starts)
    order = (starts[:, None] + np.arange(run_pages, dtype=np.int64)).reshape(-1)
    return order[order < pool_pages]


def scattered(pool_pages: int, seed: int) -> Order:
    """Return a random permutation: a pool after much churn."""
    return runs(pool_pages, 1, seed)


def strided(pool_pages: int, stride_pages: int) -> Order:
    """Return every `stride_pages`-th page, then the same shifted by one, until all are handed out."""
    return np.concatenate([np.arange(start, pool_pages, stride_pages) for start in range(stride_pages)]).astype(
        np.int64
    )


def deal(order: Order, tokens: Sequence[int], *, interleaved: bool = False, shared_pages: int = 0) -> Table:
    """Return the table of requests with so many tokens each, their pages taken from the front of `order`.

    `interleaved`: page i of every request before page i + 1 of any, as requests that decode in step get them.
    `shared_pages`: the first pages of every row are the same ones, a common prefix.
    Raises BadInput when the order has too few pages or a row is shorter than the prefix.
    """
    counts = [pages_of(count) for count in tokens]
    own = [count - shared_pages for count in counts]
    if min(tokens) < 1 or min(own) < 0:
        raise BadInput([Fault("tokens", list(tokens)[:8], f"at least one token and {shared_pages} shared pages a row")])
    needed = shared_pages + sum(own)
    if needed > len(order):
        raise BadInput([Fault("pool.pages", len(order), f"at least {needed:,}, which these requests fill")])
    pages = np.full((len(counts), max(counts)), POISON, dtype=np.int32)
    pages[:, :shared_pages] = order[:shared_pages]
    taken = shared_pages
    if interleaved:
        for place in range(max(own)):
            rows = [row for row, count in enumerate(own) if count > place]
            pages[rows, shared_pages + place] = order[taken : taken + len(rows)]
            taken += len(rows)
    else:
        for row, count in enumerate(own):
            pages[row, shared_pages : shared_pages + count] = order[taken : taken + count]
            taken += count
    return Table(pages, tuple(tokens))


def moved(table: Table, by_pages: int) -> Table:
    """Return the same table in a tensor that starts `by_pages` later: one layer's index-K beside another's."""
    used = table.pages != POISON
    return Table(np.where(used, table.pages + by_pages, POISON).astype(np.int32), table.tokens)


def rotation(
    order: Order,
    tokens: Sequence[int],
    *,
    tensors: int,
    most: int,
    interleaved: bool = False,
    shared_pages: int = 0,
) -> list[Table]:
    """Return up to `most` tables over disjoint pages: by the time a page is read again, all others were.

    The pool is `tensors` equal tensors of len(order) pages, one per layer, with one table for all of them, as an engine
    keeps it: the layer changes fastest. Requests are dealt from the next part of the order once every layer was read.
    """
    first = deal(order, tokens, interleaved=interleaved, shared_pages=shared_pages)
    needed = shared_pages + sum(count - shared_pages for count in first.row_pages)
    tables: list[Table] = []
    for part in range(0, len(order) - needed + 1, needed):
        here = deal(order[part:], tokens, interleaved=interleaved, shared_pages=shared_pages)
        tables += [moved(here, tensor * len(order)) for tensor in range(tensors)][: most - len(tables)]
        if len(tables) == most:
            break
    return tables


def ragged(rows: int, mean_tokens: int, seed: int) -> tuple[int, ...]:
    """Return row lengths between a quarter and seven quarters of the mean, uniform, at least one token."""
    drawn = np.random.default_rng(seed).integers(mean_tokens // 4, mean_tokens * 7 // 4, rows, endpoint=True)
    return tuple(max(1, int(count)) for count in drawn)


def first_rows(row_units: Sequence[int], shares: int) -> NDArray[np.int32]:
    """Return the row in which each of `shares` equal, contiguous shares of all the rows' units starts.

    Share k takes units [all * k // shares, all * (k + 1) // shares), counted through the rows in order.
    """
    ends = np.cumsum(np.asarray(row_units, dtype=np.int64))
    starts = int(ends[-1]) * np.arange(shares, dtype=np.int64) // shares
    return np.searchsorted(ends, starts, side="right").astype(np.int32)


def first_units(row_units: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of the first unit of each row, and the total after the last."""
    return np.concatenate([[0], np.cumsum(np.asarray(row_units, dtype=np.int64))]).astype(np.int64)


def slot_rows(row_units: Sequence[int], shares: int) -> NDArray[np.int32]:
    """Return the row that each slot of partial sums belongs to, -1 where none is written.

    Share k and row r, where they overlap, have slot k + r (paged_read.cu `walk`): no two pairs have the same.
    """
    ends = np.cumsum(np.asarray(row_units, dtype=np.int64))
    edges = int(ends[-1]) * np.arange(shares + 1, dtype=np.int64) // shares
    rows = np.full(shares + len(ends), -1, dtype=np.int32)
    for row, (begin, end) in enumerate(zip(ends - np.asarray(row_units), ends, strict=True)):
        # Both edges grow with the share, so the overlapping shares are one range.
        first = int(np.searchsorted(edges[1:], begin, side="right"))
        last = int(np.searchsorted(edges[:-1], end, side="left"))
        met = [share for share in range(first, last) if edges[share] < edges[share + 1] and begin < end]
        rows[[share + row for share in met]] = row
    return rows
