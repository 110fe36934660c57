"""Which records and which layers give a pool's bytes per token: every combination is tried, those that fit are kept."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAIN_RECORDS = {
    576: "raw fp8 records",
    656: "packed fp8 records",
    1152: "bf16 records",
    352: "nvfp4_ds_mla records",
    324: "NVFP4 records",
    416: "NVFP4 records of a build that is not read",
    432: "nvfp4 records of a build that is not read",
}
PLAIN_RECORDS = (576, 656, 1152)  # what released engines store
INDEX_RECORD = 132
INDEX_RECORDS = {132: "fp8 index-K", 68: "fp4 index-K"}


class Shape(NamedTuple):
    """Layers of one rank: all, those that own an index-K, draft layers beside them."""

    model: str
    layers: int
    owners: int
    draft_layers: int


class Hypothesis(NamedTuple):
    """One way to explain a number of bytes per row."""

    shape: Shape
    main_bytes: int
    main_layers: int
    index_bytes: int
    index_layers: int
    draft_layers: int
    index_rows: int = 1

    @property
    def cell_bytes(self) -> int:
        """Return bytes per row [B/token]."""
        main = self.main_bytes * (self.main_layers + self.draft_layers)
        return main + self.index_bytes * (self.index_layers * self.index_rows + self.draft_layers)

    @property
    def plain(self) -> bool:
        """Tell whether a released engine is known to store so."""
        return self.main_bytes in PLAIN_RECORDS and self.index_bytes == INDEX_RECORD and self.index_layers > 0

    @property
    def says(self) -> str:
        """Return the hypothesis in words."""
        layers = f"{self.main_layers + self.draft_layers} x {self.main_bytes}"
        index = f"{self.index_layers + self.draft_layers} x {self.index_bytes}"
        rows = f" x {self.index_rows} DCP ranks" if self.index_rows > 1 else ""
        drafted = f", {self.draft_layers} MTP layer inside" if self.draft_layers else ""
        return f"{layers} + {index}{rows} B{drafted}"


def explained(
    shapes: Iterable[Shape],
    low: float,
    high: float,
    *,
    draft_inside: bool,
    index_rows: Sequence[int] = (1,),
    index_records: Sequence[int] = tuple(INDEX_RECORDS),
) -> list[Hypothesis]:
    """Return the hypotheses whose bytes lie within [low, high], the plainest first."""
    every = _all(shapes, index_rows, index_records, draft_inside=draft_inside)
    found = [one for one in every if low <= one.cell_bytes <= high]
    return sorted(found, key=_oddity)


def nearest_to(
    shapes: Iterable[Shape], middle: float, *, draft_inside: bool, index_rows: Sequence[int] = (1,)
) -> Hypothesis | None:
    """Return the plain hypothesis nearest to a number of bytes, or None where no shape is given."""
    every = _all(shapes, index_rows, (INDEX_RECORD,), draft_inside=draft_inside)
    plain = [one for one in every if _oddity(one)[0] == 0]
    return min(plain, key=lambda one: abs(one.cell_bytes - middle), default=None)


def _all(
    shapes: Iterable[Shape], index_rows: Sequence[int], index_records: Sequence[int], *, draft_inside: bool
) -> Iterator[Hypothesis]:
    for shape in dict.fromkeys(shapes):
        drafts = (0, shape.draft_layers) if draft_inside and shape.draft_layers else (0,)
        owners = dict.fromkeys((shape.owners, shape.layers, 0))
        for main, index, held, draft, rows in product(MAIN_RECORDS, index_records, owners, drafts, index_rows):
            yield Hypothesis(shape, main, shape.layers, index, held, draft, rows)


def _oddity(one: Hypothesis) -> tuple[int, int]:
    """Return how far a hypothesis is from what released engines do: fewer reasons to doubt come first."""
    doubts = (one.main_bytes not in PLAIN_RECORDS) + 2 * (one.index_bytes != INDEX_RECORD) + 4 * (one.index_layers == 0)
    return doubts, one.cell_bytes


class DraftFit(NamedTuple):
    """One draft pool explained: record widths and layers."""

    main_bytes: int
    index_bytes: int
    layers: int


def draft_explained(low: float, high: float, layers: int, ratio: int = 1) -> list[DraftFit]:
    """Return how a separate draft pool's bytes per row come about."""
    return [
        DraftFit(main, index, count)
        for main in MAIN_RECORDS
        for index in (*INDEX_RECORDS, 0)
        for count in range(1, max(layers, 1) + 1)
        if low <= count * (main + index) * ratio <= high
    ]
