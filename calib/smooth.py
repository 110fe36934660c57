"""Small numerics of the table fits: non-negative least squares, grouped medians, a correction that fades with distance.

numpy only; everything is deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class Part(NamedTuple):
    """One part of a correction: its usual size, and per coordinate the distance over which it fades."""

    share: float
    scales: tuple[float, ...]


class Smoother:
    """A correction known at some points, carried to others: the mean of a Gaussian process, zero far away.

    Coordinates fade exponentially, the last one smoothly. Points on different sides of `edge` in the last coordinate
    share only `across` of it.
    """

    def __init__(
        self,
        points: Array,
        values: Array,
        parts: tuple[Part, ...],
        *,
        noise: float,
        edge: float = -np.inf,
        across: float = 1.0,
        rounds: int = 0,
    ) -> None:
        """Take n x d points and n values (finite); `noise` is the scatter of one point.

        With `rounds` a point that stays off by more than twice the noise counts less, in proportion.
        """
        self.points, self.parts, self.edge, self.across = points, parts, edge, across
        covariance = self._covariance(points)
        scatter = np.full(len(points), noise)
        self.weights = np.linalg.solve(covariance + np.diag(scatter**2), values)
        for _ in range(rounds):
            off = np.abs(values - covariance @ self.weights)
            scatter = noise * np.maximum(1.0, off / (2 * noise)) ** 0.5
            self.weights = np.linalg.solve(covariance + np.diag(scatter**2), values)

    def _covariance(self, points: Array) -> Array:
        apart = np.abs(points[:, None, :] - self.points[None, :, :])
        total = np.zeros(apart.shape[:2])
        for part in self.parts:
            scaled = apart / np.array(part.scales)
            last = scaled[..., -1]
            total += part.share**2 * np.exp(-scaled[..., :-1].sum(axis=-1) - last) * (1 + last)
        same = (points[:, None, -1] >= self.edge) == (self.points[None, :, -1] >= self.edge)
        return np.asarray(total * np.where(same, 1.0, self.across), dtype=np.float64)

    def at(self, points: Array) -> Array:
        """Return the correction at m x d points."""
        return np.asarray(self._covariance(points) @ self.weights)
