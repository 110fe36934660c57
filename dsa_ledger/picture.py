"""Places in a picture, in percent of its width and height: axes, ticks, lines, bands. No figure is made here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WHOLE = 100.0
MOST_TICKS = 5  # on an axis, about


class Scale(NamedTuple):
    """From values to percent of a length; logarithmic scales take values above 0 only."""

    low: float
    high: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 100, cut to the picture."""
        low, high, at = (self._bent(part) for part in (self.low, self.high, value))
        share = 0.5 if high == low else (at - low) / (high - low)
        return round(WHOLE * min(max(share, 0.0), 1.0), 3)

    def _bent(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.logarithmic else value

    def ticks(self) -> list[float]:
        """Return round values along the axis: powers of two or ten where it is logarithmic, else 1, 2 or 5 apart."""
        if self.logarithmic:
            base = 2.0 if self.high / max(self.low, 1e-300) < 1e5 else 10.0  # noqa: PLR2004 - decades from here on
            first, last = math.ceil(math.log(self.low, base) - 1e-9), math.floor(math.log(self.high, base) + 1e-9)
            step = max(1, -(-(last - first) // MOST_TICKS))
            return [base**power for power in range(first, last + 1, step)]
        if self.high <= self.low:
            return [self.low]
        raw = (self.high - self.low) / MOST_TICKS
        unit = 10.0 ** math.floor(math.log10(raw))
        step_size = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first = math.ceil(self.low / step_size)
        return [step_size * place for place in range(first, math.floor(self.high / step_size) + 1)]


def scale(values: Sequence[float], *, logarithmic: bool) -> Scale:
    """Return the scale that holds all values; a linear one starts at 0."""
    low = min(values) if logarithmic else min(0.0, *values)
    return Scale(low, max(values), logarithmic)


def line(points: Sequence[tuple[float, float]], across: Scale, up: Scale) -> str:
    """Return the points of an SVG polyline in a box of 100 x 100, y downwards."""
    return " ".join(f"{across.place(x):g},{WHOLE - up.place(y):g}" for x, y in points)


def band(low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], across: Scale, up: Scale) -> str:
    """Return the points of an SVG polygon between two lines."""
    return f"{line(low, across, up)} {line(list(reversed(high)), across, up)}"


def share(value: float, whole: float) -> str:
    """Return a value as percent of a whole, as CSS writes it."""
    return f"{WHOLE * value / whole:.3f}%" if whole else "0%"


def labelled(places: Scale, name: Callable[[float], str]) -> list[tuple[float, str]]:
    """Return where each tick lies and what it says."""
    return [(places.place(value), name(value)) for value in places.ticks()]


def signs(value: float, places: Scale, most: int) -> str:
    """Return a bar of so many signs at most; a value above 0 has at least one."""
    return "#" * max(round(places.place(value) * most / WHOLE), 1) if value > 0 else ""
