"""Fits the decode times of one GPU, engine version and module: a floor per series and batch, a shared growth in length.

    microseconds = floor[series, batch] + gather[kind, heads, batch] * min(L, 2048) / 2048 + growth[kind, batch, L]

The growth is a law (gather, top-k start, top-k per token by waves of SMs, bytes, L2) fitted by non-negative least
squares to medians over the series, plus a smooth correction of a few percent that fades where nothing was measured.
Where nothing was measured it goes on with at least the bytes' time, never falls in L, and never falls in batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calib.points import first_eager_batch
from calib.smooth import Part, Smoother, medians, nonnegative, require_points
from dsa_ledger.timing.tables import machine_of

if TYPE_CHECKING:
    from calib.points import Points
    from calib.smooth import Array, Indices

TOPK = 2048
SHORT = 64  # up to here a series is at its floor
ROUNDS = 3
FEWEST_CELLS = 40
SCORE_BYTES = 136  # a key and its scale (132 B) read, its fp32 logit written
RECORD_BYTES = 132
PRIOR_ETA = 0.82
LIKE_A_BATCH = Part(0.02, (2.0, 2.0))  # shared by neighbouring batches (octaves of batch, octaves of length)
OF_ONE_BATCH = Part(0.02, (0.05, 2.0))
NOISE = 0.006
ACROSS = 0.3  # how much of the correction holds on both sides of the first top-k launch
KNOTS = (8192, 32768, 65536)
L2_SHARES = (0.5, 1.0)
MIXED_CELLS = {"tensorrt-llm": 2048}  # exactly here TensorRT-LLM takes another kernel: 21-35% slower than at 4,096


def is_mixed(points: Points) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows no model that grows with L can meet (shown apart, kept out of the fit)."""
    layer = points.group.module == "full_layer"
    return np.asarray(points.prefix == (MIXED_CELLS.get(points.group.engine, -1) if layer else -1))


def law_terms(batch: Array, tokens: Array, gpu: str, first: int) -> Array:
    """Return the terms of the growth law, one column each; every coefficient is microseconds and at least 0.

    `first` is the least number of tokens of which some are left out.
    """
    machine = machine_of(gpu)
    waves = np.ceil(batch / machine.processors)
    gathered = np.minimum(tokens, TOPK) / TOPK
    octaves = np.log2(np.maximum(batch, 1))
    launched = (tokens >= first) * 1.0
    beyond = np.maximum(tokens - TOPK, 0.0)
    footprint = RECORD_BYTES * batch * tokens
    columns: list[Any] = [gathered, gathered * batch / 100, gathered * octaves]
    columns += [launched, launched * octaves, launched * batch / 100]
    columns += [beyond * waves / 1e4, beyond * batch / 1e5]
    columns += [np.maximum(tokens - knot, 0.0) * waves / 1e4 for knot in KNOTS]
    columns += [np.maximum(footprint - share * machine.l2_bytes, 0.0) / 1e8 for share in L2_SHARES]
    return np.stack(columns, axis=1)


class DecodeFit:
    """The fitted model of one group's graph-replayed rows."""

    def __init__(self, points: Points) -> None:
        """Fit points without eager batches and mixed cells (BadInput on too few cells)."""
        self.gpu, self.labels = points.group.gpu, points.labels
        self.engine, self.module = points.group.engine, points.group.module
        # Up to 2,048 tokens a layer keeps all and selects none; the kernel alone is at its whole number from there on.
        self.first = TOPK if self.module == "sparse_mla_kernel" else TOPK + 1
        self.kinds = sorted({label.kind for label in self.labels})
        self.heads = sorted({(label.kind, label.heads) for label in self.labels})
        self.batches = np.unique(points.batch)
        self._kind_of = np.array([self.kinds.index(label.kind) for label in self.labels])
        self._heads_of = np.array([self.heads.index((label.kind, label.heads)) for label in self.labels])
        self._fit(points)

    def _slots(self, batch: Array) -> Indices:
        return np.searchsorted(self.batches, batch)

    def _fit(self, points: Points) -> None:
        series, batch, tokens, us = points.series, points.batch, points.prefix, points.us
        columns = len(self.batches)
        slot = self._slots(batch)
        floor_slot, floors = series * columns + slot, len(self.labels) * columns
        head_slot, gathers = self._heads_of[series] * columns + slot, len(self.heads) * columns
        kind = self._kind_of[series]
        cells, cell = np.unique(np.stack([kind, batch, tokens], axis=1), axis=0, return_inverse=True)
        require_points(len(cells), FEWEST_CELLS, " ".join(points.group))
        typical = medians(us, cell, len(cells))
        ramp = np.minimum(tokens, TOPK) / TOPK
        shortest = np.full(floors, np.inf)
        np.minimum.at(shortest, floor_slot, tokens)
        short = tokens <= np.maximum(shortest[floor_slot], SHORT)
        floor = medians(us[short], floor_slot[short], floors)
        gather = np.zeros(gathers)
        for turn in range(ROUNDS):
            seen = medians(us - floor[floor_slot] - gather[head_slot] * ramp, cell, len(cells))
            self._fit_growth(cells, seen, typical)
            growth = np.zeros(len(cells))
            for index in range(len(self.kinds)):
                chosen = cells[:, 0] == index
                growth[chosen] = self._growth(index, cells[chosen, 1], cells[chosen, 2], typical[chosen])
            floor = medians(us - growth[cell] - gather[head_slot] * ramp, floor_slot, floors)
            if turn < ROUNDS - 1 and len(self.heads) > len(self.kinds):
                rest, long = us - growth[cell] - floor[floor_slot], tokens >= TOPK / 2
                gather = np.nan_to_num(medians((rest / np.maximum(ramp, 1e-9))[long], head_slot[long], gathers))
        self.floor = self._without_gaps(floor.reshape(len(self.labels), columns))
        self.gather = gather.reshape(len(self.heads), columns)
        self.measured = {kind: cells[cells[:, 0] == index, 1:] for index, kind in enumerate(self.kinds)}

    def _fit_growth(self, cells: Array, seen: Array, typical: Array) -> None:
        self.laws, self.corrections = [], []
        for index in range(len(self.kinds)):
            chosen = (cells[:, 0] == index) & np.isfinite(seen)
            weight = 1 / typical[chosen]
            terms = law_terms(cells[chosen, 1], cells[chosen, 2], self.gpu, self.first)
            terms[:, -len(L2_SHARES) :] *= self._reaches_beyond_l2(cells[chosen])  # else noise would set a slope
            law = nonnegative(terms * weight[:, None], seen[chosen] * weight)
            left = (seen[chosen] - terms @ law) * weight
            parts, edge = (LIKE_A_BATCH, OF_ONE_BATCH), np.log2(self.first)
            self.laws.append(law)
            self.corrections.append(
                Smoother(np.log2(cells[chosen, 1:]), left, parts, noise=NOISE, edge=edge, across=ACROSS)
            )

    def _reaches_beyond_l2(self, cells: Array) -> Array:
        """Return 1 for each share of L2 that the largest measured index-K is at least an octave beyond, else 0."""
        largest = float((cells[:, 1] * cells[:, 2]).max()) * RECORD_BYTES
        return np.array([float(largest >= 2 * share * machine_of(self.gpu).l2_bytes) for share in L2_SHARES])

    def _growth(self, kind: int, batch: Array, tokens: Array, typical: Array) -> Array:
        law = law_terms(batch, tokens, self.gpu, self.first) @ self.laws[kind]
        return np.asarray(law + typical * self.corrections[kind].at(np.log2(np.stack([batch, tokens], axis=1))))

    def _without_gaps(self, floor: Array) -> Array:
        """Return the floors with batches that a series lacks filled by the ratio to the other series there."""
        if not np.isnan(floor).any():
            return floor
        with np.errstate(invalid="ignore"):
            usual = np.nanmedian(floor, axis=0)
            ratio = np.nanmedian(floor / usual, axis=1)
        return np.where(np.isnan(floor), ratio[:, None] * usual, floor)

    def predict(self, points: Points) -> Array:
        """Return microseconds at points of the same series; between and beyond the fitted batches on a line."""
        series, batch, tokens = points.series, points.batch, points.prefix
        kind = self._kind_of[series]
        ramp = np.minimum(tokens, TOPK) / TOPK
        floor = self._between_batches(self.floor[series], batch)
        gather = self._between_batches(self.gather[self._heads_of[series]], batch)
        growth = np.zeros(len(points))
        for index in range(len(self.kinds)):
            chosen = kind == index
            if chosen.any():
                typical = self.typical(index, batch[chosen], tokens[chosen])
                growth[chosen] = self._growth(index, batch[chosen], tokens[chosen], typical)
        return np.asarray(floor + gather * ramp + growth)

    def typical(self, kind: int, batch: Array, tokens: Array) -> Array:
        """Return the usual time of a kind of series: median floor and law [us]."""
        usual = np.median(self.floor[self._kind_of == kind], axis=0)
        law = law_terms(batch, tokens, self.gpu, self.first) @ self.laws[kind]
        return np.asarray(self._between_batches(np.broadcast_to(usual, (len(batch), len(usual))), batch) + law)

    def _between_batches(self, table: Array, batch: Array) -> Array:
        """Return table[row, batch], linear in batch between the fitted ones, the last slope beyond them."""
        if len(self.batches) == 1:
            return np.asarray(table[:, 0])
        high = np.clip(np.searchsorted(self.batches, batch), 1, len(self.batches) - 1)
        low = high - 1
        share = (batch - self.batches[low]) / (self.batches[high] - self.batches[low])
        rows = np.arange(len(batch))
        return np.asarray(table[rows, low] + share * (table[rows, high] - table[rows, low]))

    def growth_table(self, nodes: Array) -> dict[str, Array]:
        """Return growth[batch, node] of each kind, monotone in L, extrapolated by at least the bytes' time."""
        return {kind: self._sane(index, kind, nodes) for index, kind in enumerate(self.kinds)}

    def _sane(self, index: int, kind: str, nodes: Array) -> Array:
        measured = self.measured[kind]
        table = np.zeros((len(self.batches), len(nodes)))
        scores = self.module == "full_layer"
        price = SCORE_BYTES / (PRIOR_ETA * machine_of(self.gpu).peak) if scores else 0.0
        for row, batch in enumerate(self.batches):
            same = np.full(len(nodes), batch)
            raw = self._growth(index, same, nodes, self.typical(index, same, nodes))
            longest = measured[measured[:, 0] == batch, 1].max(initial=0.0)
            if self.module == "sparse_mla_kernel":  # the one that gets faster with length
                last = np.searchsorted(nodes, longest, side="right") - 1
                table[row] = np.where(nodes <= longest, raw, raw[last])
                continue
            values = np.maximum(monotone(raw, np.where(nodes <= longest, 1.0, 1e-3)), 0.0)
            for node in range(1, len(nodes)):
                if nodes[node] > longest:
                    least = values[node - 1] + price * batch * (nodes[node] - nodes[node - 1])
                    values[node] = max(values[node], least, table[row - 1, node] if row else 0.0)
            table[row] = values
        return table


def monotone(values: Array, weights: Array) -> Array:
    """Return the nearest non-decreasing values, weighted least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([float(value), float(weight), 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            late, early = blocks.pop(), blocks.pop()
            total = early[1] + late[1]
            blocks.append([(early[0] * early[1] + late[0] * late[1]) / total, total, early[2] + late[2]])
    return np.concatenate([np.full(int(count), value) for value, _, count in blocks])


def split(points: Points) -> tuple[Points, Points, Points]:
    """Return the rows to fit, those that ran eagerly, and the mixed cells."""
    eager, mixed = points.batch >= first_eager_batch(points.group), is_mixed(points)
    return points.where(~eager & ~mixed), points.where(eager), points.where(mixed & ~eager)


def eager_constants(points: Points) -> Array:
    """Return the host-bound microseconds of each series, NaN where it has no eager row."""
    return medians(points.us, points.series, len(points.labels))
