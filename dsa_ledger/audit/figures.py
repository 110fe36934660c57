"""What a log's lines say, one figure each, in base units, with the line it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsa_ledger.units import GIB, MIB, Unit

LONGEST_QUOTE = 200
MOST_FIGURES = 50_000
FIXED_DIGITS = 2  # every engine rounds sizes to two; vLLM's format_gib then drops trailing zeros


class Rank(NamedTuple):
    """The process that printed a line, by the parallel ranks in its prefix; None where the prefix has none."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    other: str = ""

    def __str__(self) -> str:
        """Return the ranks as the log writes them."""
        parts = [
            f"{name}{value}" for name, value in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp)) if value is not None
        ]
        return " ".join([*parts, *([self.other] if self.other else [])])


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one line; `within` is half of the last digit printed."""

    key: str
    value: Any
    unit: Unit
    rank: Rank
    line: int
    text: str
    within: float = 0.0


class Take(NamedTuple):
    """Which group of a pattern holds which figure, and its unit in the log."""

    key: str
    scale: str = "count"  # count, gib, gb, mib, share, text


class Pattern(NamedTuple):
    """A line of an engine, by the figures in it."""

    name: str
    regex: re.Pattern[str]
    takes: tuple[Take | None, ...]


def pattern(name: str, regex: str, *takes: Take | None) -> Pattern:
    """Return a line's pattern, one take for each group of the expression, None for a group that is no figure."""
    return Pattern(name, re.compile(regex), takes)


SCALES = {"gib": GIB, "mib": MIB, "gb": 10**9, "tib": 1 << 40, "kib": 1 << 10}
_NUMBER = re.compile(r"-?[\d,]+(?:\.(\d+))?")


def figures_of(pattern: Pattern, found: re.Match[str], rank: Rank, line: int, text: str) -> list[Figure]:
    """Return the figures of one line; a group that did not take part gives none."""
    quote = text[max(0, found.start() - 8) : found.start() + LONGEST_QUOTE].strip()
    figures = []
    for take, value in zip(pattern.takes, found.groups(), strict=True):
        if take is None or value is None:
            continue
        read = _read(take.scale, value)
        if read is not None:
            unit = {"count": Unit.COUNT, "share": Unit.SHARE, "text": Unit.COUNT}.get(take.scale, Unit.BYTES)
            figures.append(
                Figure(
                    f"{pattern.name}.{take.key}" if take.key else pattern.name,
                    read[0],
                    unit,
                    rank,
                    line,
                    quote,
                    read[1],
                )
            )
    return figures


def _read(scale: str, text: str) -> tuple[Any, float] | None:
    """Return a figure in base units, and half of its last printed digit; None where it is no number after all."""
    if scale == "text":
        return text[:LONGEST_QUOTE], 0.0
    if len(text) > 40 or not _NUMBER.fullmatch(text) or not re.search(r"\d", text):  # noqa: PLR2004 - no figure is longer
        return None
    plain = text.replace(",", "")
    digits = len(plain.partition(".")[2])
    if scale == "count":
        return int(plain.partition(".")[0]), 0.0
    if scale == "share":
        return float(plain), 0.5 * 10**-digits
    factor = SCALES[scale]
    digits = max(digits, FIXED_DIGITS)
    return round(float(plain) * factor), 0.5 * factor * 10**-digits
