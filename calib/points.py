"""Measured rows of one group as arrays, and the facts about GPUs and engines that the fits need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsa_ledger.timing.measured import LAYERS, family_of
from dsa_ledger.timing.tables import machine_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calib.smooth import Array, Indices
    from dsa_ledger.timing.measured import Cell, Group, Row

MICROSECOND = 1e-6
HOPPER = 9  # major compute capability


class Label(NamedTuple):
    """A series of a table: models of one family are one; a top-k kernel's kind of scores stands for the format."""

    family: str
    kind: str
    weight_dtype: str
    heads: int

    def __str__(self) -> str:
        """Return the key it has in a table."""
        return " ".join(map(str, self))


@dataclass(frozen=True)
class Points:
    """The rows of one group: index of the series, batch, new tokens, cached tokens, microseconds."""

    group: Group
    labels: tuple[Label, ...]
    series: Indices
    batch: Array
    new: Array
    prefix: Array
    us: Array

    def where(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Points:
        """Return the chosen rows; the series keep their numbers."""
        return Points(
            self.group,
            self.labels,
            self.series[chosen],
            self.batch[chosen],
            self.new[chosen],
            self.prefix[chosen],
            self.us[chosen],
        )

    def renumbered(self) -> Points:
        """Return the same rows without the series that have none."""
        used, series = np.unique(self.series, return_inverse=True)
        labels = tuple(self.labels[index] for index in used)
        return Points(self.group, labels, series.ravel(), self.batch, self.new, self.prefix, self.us)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.us)


def points_of(group: Group, rows: Sequence[Row]) -> Points:
    """Return the rows of a group as arrays, cells of one family averaged."""
    cells: dict[tuple[Label, Cell], list[float]] = {}
    for row in rows:
        series = row.series
        label = Label(family_of(series.model), series.score_mode or series.kv_dtype, series.weight_dtype, series.heads)
        cells.setdefault((label, row.cell), []).append(row.seconds / MICROSECOND)
    labels = tuple(sorted({label for label, _ in cells}))
    number = {label: index for index, label in enumerate(labels)}
    table = np.array(
        [(number[label], *cell, sum(times) / len(times)) for (label, cell), times in cells.items()], dtype=np.float64
    )
    batch, new, prefix, us = table[:, 1:].T
    return Points(group, labels, table[:, 0].astype(np.int64), batch, new, prefix, us)


def first_eager_batch(group: Group) -> float:
    """Return the batch from which decode rows were no graph replays: they sit on a host-bound constant.

    Source: the measurements themselves (SGLang: 1.4 ms from 512 on Hopper, 0.9 ms from 1,024 on Blackwell).
    """
    if group.engine != "sglang" or group.module not in LAYERS:
        return np.inf
    return 512.0 if machine_of(group.gpu).major == HOPPER else 1024.0
