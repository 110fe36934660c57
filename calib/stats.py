"""What samples say: median and spread, a verdict on noise, drift, and fits with covariance and residuals."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STEADY_SPREAD = 0.03  # (p90 - p10) / median above this is noise: a figure to look at, not to rest on
STEADY_DRIFT = 0.03  # between the first case measured and the same one measured last


@dataclass(frozen=True)
class Summary:
    """One case's samples in five numbers, seconds."""

    median_s: float
    p10_s: float
    p90_s: float
    least_s: float
    count: int

    @property
    def spread(self) -> float:
        """Return (p90 - p10) / median."""
        return (self.p90_s - self.p10_s) / self.median_s

    @property
    def verdict(self) -> str:
        """Return "steady" or "noisy"."""
        return "steady" if self.spread <= STEADY_SPREAD else "noisy"

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Line:
    """A weighted fit y = at_zero + slope * x; `residuals` are relative, (y - fitted) / fitted, in the points' order."""

    at_zero: float
    slope: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    residuals: tuple[float, ...]
    held_at_zero: str = ""  # "slope" or "at_zero" where the best fit would have been negative


@dataclass(frozen=True)
class RunLaw:
    """How the read rate depends on run length r, in pages: rate(r) = rate_inf * r / (r + r_half)."""

    rate_inf_bytes_per_s: float
    r_half_pages: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    residuals: tuple[float, ...]
    held_at_zero: str = ""

    def rate(self, run_pages: float) -> float:
        """Return bytes per second at this mean run length."""
        return self.rate_inf_bytes_per_s * run_pages / (run_pages + self.r_half_pages)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the quantile by linear interpolation between order statistics."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summary(samples: Sequence[float]) -> Summary:
    """Return the five numbers of at least one sample [s]."""
    return Summary(
        median_s=quantile(samples, 0.5),
        p10_s=quantile(samples, 0.1),
        p90_s=quantile(samples, 0.9),
        least_s=min(samples),
        count=len(samples),
    )


def drift(first: Sequence[float], last: Sequence[float]) -> float:
    """Return by what share the median moved between two rounds of the same case."""
    return quantile(last, 0.5) / quantile(first, 0.5) - 1


def line(x: Sequence[float], y: Sequence[float], *, at_least_zero: bool = True) -> Line:
    """Return the fit that minimises the relative errors; both coefficients at least 0 where physics asks it.

    Weights 1/y^2. Needs two different x (ValueError). The covariance is scaled by the residuals' own variance; with
    two points there is none left over and it is infinite.
    """
    if len(set(x)) < 2:  # noqa: PLR2004 - a line has two coefficients
        raise ValueError("a line needs two different x")
    weights = [1 / (value * value) for value in y]
    best = _solve(x, y, weights)
    held = ""
    if at_least_zero and best[1] < 0:
        best, held = (_mean(y, weights), 0.0), "slope"
    elif at_least_zero and best[0] < 0:
        best, held = (0.0, _through_zero(x, y, weights)), "at_zero"
    fitted = [best[0] + best[1] * value for value in x]
    residuals = tuple((seen - value) / value for seen, value in zip(y, fitted, strict=True))
    return Line(*best, _covariance(x, y, weights, fitted, held), residuals, held)


def run_law(run_pages: Sequence[float], rates: Sequence[float]) -> RunLaw:
    """Return the law of run length from measured rates [B/s].

    A run costs a fixed time beside its bytes, so the time of a byte is a line in 1/r: 1/rate = 1/rate_inf +
    (r_half / rate_inf) / r. The covariance is that of (rate_inf, r_half), to first order. ValueError where the rate
    grows with r so steeply that no ceiling is in sight.
    """
    found = line([1 / run for run in run_pages], [1 / rate for rate in rates])
    if found.at_zero <= 0:
        raise ValueError("the rate has no ceiling")
    rate_inf, r_half = 1 / found.at_zero, found.slope / found.at_zero
    # How (rate_inf, r_half) move with (at_zero, slope).
    jacobian = ((-rate_inf * rate_inf, 0.0), (-r_half * rate_inf, rate_inf))
    covariance = _sandwich(jacobian, found.covariance)
    residuals = tuple(rate / (rate_inf * run / (run + r_half)) - 1 for run, rate in zip(run_pages, rates, strict=True))
    return RunLaw(rate_inf, r_half, covariance, residuals, found.held_at_zero.replace("slope", "r_half_pages"))


def _solve(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    middle_x, middle_y = _mean(x, weights), _mean(y, weights)
    over = sum(w * (a - middle_x) * (b - middle_y) for w, a, b in zip(weights, x, y, strict=True))
    under = sum(w * (a - middle_x) ** 2 for w, a in zip(weights, x, strict=True))
    slope = over / under
    return middle_y - slope * middle_x, slope


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _through_zero(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * a * b for w, a, b in zip(weights, x, y, strict=True)) / sum(
        w * a * a for w, a in zip(weights, x, strict=True)
    )


def _covariance(
    x: Sequence[float], y: Sequence[float], weights: Sequence[float], fitted: Sequence[float], held: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    free = len(x) - (1 if held else 2)
    left = sum(w * (seen - value) ** 2 for w, seen, value in zip(weights, y, fitted, strict=True))
    scale = left / free if free else math.inf
    total = sum(weights)
    squares = sum(w * a * a for w, a in zip(weights, x, strict=True))
    if held == "slope":
        return ((scale / total, 0.0), (0.0, 0.0))
    if held == "at_zero":
        return ((0.0, 0.0), (0.0, scale / squares))
    middle = _mean(x, weights)
    around = sum(w * (a - middle) ** 2 for w, a in zip(weights, x, strict=True))
    cross = -scale * middle / around
    return ((scale * squares / (total * around), cross), (cross, scale / around))


def _sandwich(
    jacobian: tuple[tuple[float, float], tuple[float, float]], inner: tuple[tuple[float, float], tuple[float, float]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    def at(i: int, j: int) -> float:
        return sum(jacobian[i][k] * inner[k][m] * jacobian[j][m] for k in (0, 1) for m in (0, 1))

    return ((at(0, 0), at(0, 1)), (at(1, 0), at(1, 1)))
