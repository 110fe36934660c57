"""Fits the prefill times of one GPU, engine version and module: the larger of a host constant and a kernel law.

    microseconds = max(host[series], law(batch, new, prefix)) * (1 + correction[series])

The law is non-negative: per token and per launch of each series; shared by all series the gather, the scores (new
tokens times keys), top-k per row, the keys that are gathered once. The correction is smooth in tokens, new tokens and
prefix and fades where nothing was measured. Below `index_topk` keys SGLang runs dense attention, a path fitted apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calib.smooth import Part, Smoother, medians, nonnegative, require_points
from dsa_ledger.timing.measured import LAYERS

if TYPE_CHECKING:
    from calib.points import Points
    from calib.smooth import Array

TOPK = 2048
FEWEST_CELLS = 12
ROUNDS = 6
NOISE = 0.02
SHARED = (Part(0.08, (4.0, 16.0, 4.0)),)  # octaves of batch x new tokens, of new tokens, of prefix + 512
OF_A_SERIES = (Part(0.05, (4.0, 16.0, 6.0)),)
TWO_LAUNCHES = 131072  # keys of all requests beyond which the engines cut the work once more
OUTLIER = 0.15
REWEIGHTED = 4


def is_dense(points: Points) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows run dense attention: no more keys than top-k would keep (SGLang's layers)."""
    runs = points.group.engine == "sglang" and points.group.module in LAYERS
    return np.asarray((points.prefix + points.new <= TOPK) & runs)


def kept_keys(new: Array, prefix: Array) -> Array:
    """Return the mean over the new tokens of min(keys, 2048)."""
    beyond = np.clip(prefix + new - TOPK, 0, new)
    below = new - beyond
    return np.asarray((below * (prefix + (below + 1) / 2) + beyond * TOPK) / new)


def law_terms(batch: Array, new: Array, prefix: Array, *, dense: bool, scores: bool) -> Array:
    """Return the law's shared terms, one column each."""
    tokens, keys = batch * new, prefix + new
    pairs = tokens * (prefix + new / 2) * 1e-6
    if dense:
        return np.stack([pairs, batch * keys / 1e5], axis=1)
    columns = [tokens * kept_keys(new, prefix) / TOPK / 1e3, batch * keys / 1e5, (batch * keys > TWO_LAUNCHES) * 100.0]
    if scores:
        ranked = np.where(keys > TOPK, pairs, 0.0)
        columns += [ranked, (keys > TOPK) * tokens / 1e3]
        columns += [ranked * np.clip(np.log2(keys / knot), 0, None) for knot in (8192, 65536)]
    return np.stack(columns, axis=1)


class PrefillFit:
    """The fitted model of one path (dense or sparse) of one group."""

    def __init__(self, points: Points, *, dense: bool) -> None:
        """Fit (BadInput on too few cells)."""
        self.labels, self.dense = points.labels, dense
        self.scores = points.group.module in ("full_layer", "topk_kernel")
        cells = np.unique(np.stack([points.batch, points.new, points.prefix], axis=1), axis=0)
        require_points(len(cells), FEWEST_CELLS, " ".join(points.group))
        self._fit_law(points)
        self._fit_corrections(points)

    def _design(self, points: Points) -> Array:
        count, rows = len(self.labels), np.arange(len(points))
        own = np.zeros((len(points), 2 * count))
        own[rows, points.series] = points.batch * points.new / 1e3
        own[rows, count + points.series] = 100.0
        shared = law_terms(points.batch, points.new, points.prefix, dense=self.dense, scores=self.scores)
        return np.concatenate([own, shared], axis=1)

    def _fit_law(self, points: Points) -> None:
        us, series, count = points.us, points.series, len(self.labels)
        design = self._design(points)
        self.host = np.array(
            [np.percentile(us[series == index], 8) if (series == index).any() else 0.0 for index in range(count)]
        )
        self.law = np.zeros(design.shape[1])
        use = us > 1.35 * self.host[series]
        for _ in range(ROUNDS):
            self.law = self._robust(design, us, use)
            kernel = design @ self.law
            bound = kernel < 0.85 * self.host[series]
            constant = medians(us[bound], series[bound], count)
            self.host = np.where(np.isfinite(constant), constant, self.host)
            use = kernel > self.host[series]
            if use.sum() < FEWEST_CELLS:
                use = us > 1.15 * self.host[series]

    def _robust(self, design: Array, us: Array, use: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Array:
        """Return the coefficients over the chosen rows, then once more without the outliers."""
        if use.sum() < FEWEST_CELLS:
            return self.law
        law = nonnegative((design / us[:, None])[use], np.ones(int(use.sum())))
        off = np.abs(design @ law / us - 1)
        near = use & (off < max(OUTLIER, 3 * float(np.median(off[use]))))
        return (
            nonnegative((design / us[:, None])[near], np.ones(int(near.sum()))) if near.sum() >= FEWEST_CELLS else law
        )

    def _uncorrected(self, points: Points) -> Array:
        return np.asarray(np.maximum(self.host[points.series], self._design(points) @ self.law))

    def _place(self, batch: Array, new: Array, prefix: Array) -> Array:
        return np.asarray(np.log2(np.stack([batch * new, new, prefix + 512], axis=1)))

    def _fit_corrections(self, points: Points) -> None:
        off = points.us / self._uncorrected(points) - 1
        place = self._place(points.batch, points.new, points.prefix)
        cells, cell = np.unique(place, axis=0, return_inverse=True)
        self.shared = Smoother(cells, medians(off, cell.ravel(), len(cells)), SHARED, noise=NOISE, rounds=REWEIGHTED)
        left = off - self.shared.at(cells)[cell.ravel()]
        self.own: dict[int, Smoother] = {}
        for index in range(len(self.labels)):
            chosen = points.series == index
            if chosen.sum() >= FEWEST_CELLS:
                self.own[index] = Smoother(
                    place[chosen], left[chosen], OF_A_SERIES, noise=1.5 * NOISE, rounds=REWEIGHTED
                )

    def correction(self, index: int, batch: Array, new: Array, prefix: Array) -> Array:
        """Return the relative correction of one series."""
        place = self._place(batch, new, prefix)
        own = self.own[index].at(place) if index in self.own else 0.0
        return np.asarray(self.shared.at(place) + own)

    def predict(self, points: Points) -> Array:
        """Return microseconds at points of the same series."""
        result = self._uncorrected(points)
        for index in range(len(self.labels)):
            chosen = points.series == index
            if chosen.any():
                place = points.batch[chosen], points.new[chosen], points.prefix[chosen]
                result[chosen] *= 1 + self.correction(index, *place)
        return result
