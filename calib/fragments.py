"""Fragmentation as numbers, and the block table of a real server (how to dump one: profiles/README.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from calib.plan import PAGE_BYTES, PAGE_TOKENS, POISON, Table
from dsa_ledger.errors import BadInput, Fault

LARGE_PAGE_BYTES = 2 * 2**20  # CUDA maps large allocations in pages of 2 MiB


@dataclass(frozen=True)
class Fragmentation:
    """How scattered the pages of one table are."""

    mean_run_pages: float
    adjacent_share: float
    large_pages_ratio: float
    span_ratio: float
    distinct_pages: int

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


def fragmentation(table: Table) -> Fragmentation:
    """Return the numbers of one table.

    mean_run_pages: pages divided by runs, a run being neighbours in ascending order within one row.
    adjacent_share: pairs of consecutive entries that are neighbours, of all pairs (1 where there is no pair).
    large_pages_ratio: 2-MiB pages touched over the fewest that could hold as many bytes.
    span_ratio: first to last page over distinct pages; 1 is gapless.
    """
    rows = table.rows()
    adjacent = sum(int((np.diff(row.astype(np.int64)) == 1).sum()) for row in rows)
    pages = sum(len(row) for row in rows)
    distinct = np.unique(np.concatenate(rows)).astype(np.int64)
    first = distinct * PAGE_BYTES // LARGE_PAGE_BYTES
    last = (distinct * PAGE_BYTES + PAGE_BYTES - 1) // LARGE_PAGE_BYTES
    touched = len(np.unique(np.concatenate([first, last])))
    fewest = -(-len(distinct) * PAGE_BYTES // LARGE_PAGE_BYTES)
    pairs = pages - len(rows)
    return Fragmentation(
        mean_run_pages=pages / (pages - adjacent),
        adjacent_share=adjacent / pairs if pairs else 1.0,
        large_pages_ratio=touched / fewest,
        span_ratio=(int(distinct[-1]) - int(distinct[0]) + 1) / len(distinct),
        distinct_pages=len(distinct),
    )


def load_block_table(dump: Path | bytes, pool_pages: int | None = None) -> Table:
    """Return the table of a dumped `.npy` file or its content: whole numbers, one row a request, page numbers.

    Page 0 is no request's page in either engine (SGLang writes padding there, vLLM's null block), and a negative
    entry is no page: both end a row. Rows without a page are left out. Raises BadInput with every fault.
    """
    name = str(dump) if isinstance(dump, Path) else f"{len(dump):,} B"
    entries = _entries(dump, name)
    kept = [row[: _length(row)] for row in entries]
    kept = [row for row in kept if len(row)]
    faults = []
    if not kept:
        faults.append(Fault("block-table", name, "at least one row with a page number above 0"))
    for number, row in enumerate(kept):
        if (row < 1).any():
            faults.append(Fault(f"block-table[{number}]", int(row[row < 1][0]), "page numbers above 0 up to its end"))
        elif pool_pages is not None and int(row.max()) >= pool_pages:
            wanted = (int(row.max()) + 1) * PAGE_BYTES
            faults.append(
                Fault(f"block-table[{number}]", int(row.max()), f"below {pool_pages:,}; the pool needs {wanted:,} B")
            )
    if faults:
        raise BadInput(faults)
    pages = np.full((len(kept), max(map(len, kept))), POISON, dtype=np.int32)
    for number, row in enumerate(kept):
        pages[number, : len(row)] = row
    return Table(pages, tuple(len(row) * PAGE_TOKENS for row in kept))


def _entries(dump: Path | bytes, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    expected = "a .npy file with a table of whole numbers, one row a request"
    try:
        with dump.open("rb") if isinstance(dump, Path) else BytesIO(dump) as file:
            entries = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as failure:
        raise BadInput([Fault("block-table", name, f"a file that can be read: {failure.strerror}")]) from None
    except ValueError:
        raise BadInput([Fault("block-table", name, expected)]) from None
    if entries.ndim not in (1, 2) or entries.dtype.kind not in "iu":
        raise BadInput([Fault("block-table", name, expected)])
    wide: np.ndarray[tuple[int, int], np.dtype[np.int64]] = np.atleast_2d(entries).astype(np.int64)
    if wide.size and int(wide.max()) >= POISON:
        raise BadInput([Fault("block-table", int(wide.max()), f"page numbers below {POISON:,}")])
    return wide


def _length(row: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    used = np.flatnonzero(row > 0)
    return int(used[-1]) + 1 if len(used) else 0
