"""Fits the prefill times of one GPU, engine version and module: the larger of a host constant and a kernel law.

    microseconds = max(host[series], law(batch, new, prefix)) * (1 + correction[series])

The law is non-negative: per token and per launch of each series; shared by all series the gather, the scores (new
tokens times keys), top-k per row, the keys that are gathered once. SGLang makes the logits of all requests' keys in
chunks of as many rows as memory allows (sgl-project/sglang, `_should_chunk_mqa_logits`): beside what a pair takes
there is what a pair takes for each key of the batch. The host is one constant less where nothing is cached and more
beyond 131,072 keys; vLLM on Blackwell has another speed from 65,536 tokens a forward, both as measured. The correction
is smooth in tokens, new tokens and prefix and fades where nothing was measured. Below `index_topk` keys SGLang runs
dense attention, a path fitted apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calib.smooth import Part, Smoother, medians, nonnegative, require_points
from dsa_ledger.timing.measured import LAYERS

if TYPE_CHECKING:
    from calib.points import Points
    from calib.smooth import Array

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

TOPK = 2048
FEWEST_CELLS = 12
FEWEST_BOUND = 5  # host-bound rows for one of the host's own constants
ROUNDS = 6
NOISE = 0.02
SHARED = (Part(0.08, (4.0, 16.0, 4.0)),)  # octaves of batch x new tokens, of new tokens, of prefix + 512
OF_A_SERIES = (Part(0.05, (4.0, 16.0, 6.0)),)
FAR = 131072  # keys of a request beyond which the engines launch more kernels
WIDE = 65536  # tokens of a forward from which vLLM's kernels on Blackwell run at another speed
CHUNKS = -2  # place of the chunks' term in the law
OUTLIER = 0.15
REWEIGHTED = 4


def is_dense(points: Points) -> Flags:
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
    is_far, is_narrow = keys > FAR, tokens < WIDE
    gathered = tokens * kept_keys(new, prefix) / TOPK / 1e3
    columns: list[Any] = [
        gathered,
        batch * keys / 1e5,
        is_far * tokens / 1e3,
        is_narrow * gathered,
        is_narrow * tokens / 1e3,
    ]
    if scores:
        ranked = np.where(keys > TOPK, pairs, 0.0)
        columns += [ranked, (keys > TOPK) * tokens / 1e3]
        columns += [ranked * np.clip(np.log2(keys / knot), 0, None) for knot in (8192, 65536)]
        # The chunks of the logits: the more keys, the fewer rows, and few rows fill no GPU.
        columns += [ranked * batch * keys / 1e6, is_narrow * ranked]
    return np.stack(columns, axis=1)


def _typical(values: Array) -> float:
    """Return the median, 0 where there are too few values or it is negative."""
    return max(float(np.median(values)), 0.0) if len(values) >= FEWEST_BOUND else 0.0


class PrefillFit:
    """The fitted model of one path (dense or sparse) of one group."""

    def __init__(self, points: Points, *, dense: bool) -> None:
        """Fit (BadInput on too few cells)."""
        self.labels, self.dense = points.labels, dense
        self.scores = points.group.module in ("full_layer", "topk_kernel")
        cells = np.unique(np.stack([points.batch, points.new, points.prefix], axis=1), axis=0)
        self.is_far_measured = bool((points.prefix + points.new > FAR).any())
        require_points(len(cells), FEWEST_CELLS, " ".join(points.group))
        self._fit_law(points)
        self._fit_corrections(points)

    def _design(self, points: Points) -> Array:
        count, rows = len(self.labels), np.arange(len(points))
        own = np.zeros((len(points), 2 * count))
        own[rows, points.series] = points.batch * points.new / 1e3
        own[rows, count + points.series] = 100.0
        shared = law_terms(points.batch, points.new, points.prefix, dense=self.dense, scores=self.scores)
        if self.scores and not self.dense and not self.is_far_measured:
            shared[:, CHUNKS] = 0.0  # short contexts cannot tell it, and long ones would pay for what they tell
        return np.concatenate([own, shared], axis=1)

    def _fit_law(self, points: Points) -> None:
        us, series, count = points.us, points.series, len(self.labels)
        design = self._design(points)
        is_far, is_fresh = points.prefix + points.new > FAR, points.prefix == 0
        self.host = np.nan_to_num(self._quickest(points, np.ones(len(points), dtype=bool)))
        later = self._quickest(points, is_far) - self.host
        self.far = max(float(np.nanmedian(later)), 0.0) if is_far.any() else 0.0
        self.fresh = 0.0
        self.law = np.zeros(design.shape[1])
        use = us > 1.35 * self.host[series]
        for _ in range(ROUNDS):
            self.law = self._robust(design, us, use)
            kernel = design @ self.law
            bound = kernel < 0.85 * self._bound(points)
            usual = bound & ~is_far & ~is_fresh
            constant = medians(us[usual], series[usual], count)
            self.host = np.where(np.isfinite(constant), constant, self.host)
            self.far = _typical((us - self.host[series])[bound & is_far])
            self.fresh = _typical((self.host[series] - us)[bound & is_fresh])
            use = kernel > self._bound(points)
            if use.sum() < FEWEST_CELLS:
                use = us > 1.15 * self._bound(points)

    def _quickest(self, points: Points, chosen: Flags) -> Array:
        """Return what nearly the quickest of the chosen rows of each series take, NaN where it has none."""
        rows = [points.us[chosen & (points.series == index)] for index in range(len(self.labels))]
        return np.array([np.percentile(some, 8) if len(some) else np.nan for some in rows])

    def _robust(self, design: Array, us: Array, use: Flags) -> Array:
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
        return np.asarray(np.maximum(self._bound(points), self._design(points) @ self.law))

    def _bound(self, points: Points) -> Array:
        """Return the host's time: its constant, less without cached tokens, more where more kernels are launched."""
        is_far, is_fresh = points.prefix + points.new > FAR, points.prefix == 0
        return np.asarray(self.host[points.series] + is_far * self.far - is_fresh * self.fresh)

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
