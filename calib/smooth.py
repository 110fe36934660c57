"""Small numerics of the table fits: non-negative least squares, grouped medians, a correction that fades with distance.

numpy only; everything is deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.int64]

ZERO = 1e-12
MOST_ROUNDS = 300


def nonnegative(design: Array, wanted: Array) -> Array:
    """Return x >= 0 that minimises |design x - wanted|^2, by the active-set method of Lawson and Hanson (1974)."""
    gram, moment = design.T @ design, design.T @ wanted
    count = len(moment)
    x, passive = np.zeros(count), np.zeros(count, dtype=bool)
    small = 1e-9 * float(np.abs(moment).max(initial=ZERO))
    for _ in range(MOST_ROUNDS):
        gain = moment - gram @ x
        gain[passive] = -np.inf
        entering = int(np.argmax(gain))
        if gain[entering] <= small:
            break
        passive[entering] = True
        x = _passive_solution(gram, moment, passive, x)
    return x


def _passive_solution(gram: Array, moment: Array, passive: NDArray[np.bool_], start: Array) -> Array:
    """Return the solution over the passive set; variables that would turn negative leave the set on the way."""
    x = start
    for _ in range(MOST_ROUNDS):
        trial = np.zeros(len(x))
        trial[passive] = np.linalg.lstsq(gram[np.ix_(passive, passive)], moment[passive], rcond=None)[0]
        leaving = passive & (trial <= 0)
        if not leaving.any():
            return trial
        share = float((x[leaving] / (x[leaving] - trial[leaving] + 1e-300)).min())
        x = x + share * (trial - x)
        passive &= x > ZERO
    return np.maximum(x, 0.0)


def medians(values: Array, groups: Indices, count: int) -> Array:
    """Return the median of the finite values of each group 0..count-1, NaN where a group has none."""
    finite = np.isfinite(values)
    order = np.lexsort((values[finite], groups[finite]))
    sorted_groups, sorted_values = groups[finite][order], values[finite][order]
    first = np.searchsorted(sorted_groups, np.arange(count))
    end = np.searchsorted(sorted_groups, np.arange(count) + 1)
    result = np.full(count, np.nan)
    some = end > first
    middle_low, middle_high = (first + end - 1)[some] // 2, (first + end)[some] // 2
    result[some] = (sorted_values[middle_low] + sorted_values[middle_high]) / 2
    return result


def require_points(have: int, need: int, what: str) -> None:
    """Raise BadInput where a fit has too few points, with the number it needs."""
    if have < need:
        raise BadInput([Fault(what, have, f"at least {need} measured cells for a fit")])


class Smoother:
    """A correction known at some points, carried to others: the mean of a Gaussian process, zero far away.

    `share` is its usual size, `scales` the distance per coordinate over which it fades, `noise` the scatter of a point.
    Points on different sides of `edge` in the last coordinate share only `across` of it.
    """

    def __init__(
        self,
        points: Array,
        values: Array,
        *,
        share: float,
        scales: tuple[float, ...],
        noise: Array | float,
        edge: float = -np.inf,
        across: float = 1.0,
    ) -> None:
        """Take n x d points and n values (finite)."""
        self.points, self.share, self.scales = points, share, np.array(scales)
        self.edge, self.across = edge, across
        covariance = self._covariance(points) + np.diag(np.broadcast_to(np.asarray(noise) ** 2, (len(points),)))
        self.weights = np.linalg.solve(covariance, values)

    def _covariance(self, points: Array) -> Array:
        apart = np.abs(points[:, None, :] - self.points[None, :, :]) / self.scales
        result = self.share**2 * np.exp(-apart[..., :-1].sum(axis=-1)) * (1 + apart[..., -1]) * np.exp(-apart[..., -1])
        same = (points[:, None, -1] >= self.edge) == (self.points[None, :, -1] >= self.edge)
        return np.asarray(result * np.where(same, 1.0, self.across), dtype=np.float64)

    def at(self, points: Array) -> Array:
        """Return the correction at m x d points."""
        return self._covariance(points) @ self.weights
