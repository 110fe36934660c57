"""Units: base units inside (bytes as int, seconds and rates as float), one parser, one formatter.

Prefixes k..E are powers of 1000, Ki..Ei powers of 1024. A bare `G` says neither and is refused.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum

DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
PREFIXES = DECIMAL | {"K": 10**3} | BINARY
MIB = 2**20
GIB = 2**30
SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9")}

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?)\s*([A-Za-zµ/]*)\s*", re.ASCII)


class Unit(StrEnum):
    """What a number counts; display is a function of this alone."""

    BYTES = "B"
    BYTES_PER_TOKEN = "B/token"
    BYTES_PER_TOKEN_PER_LAYER = "B/token/layer"
    BYTES_PER_STEP = "B/step"
    BYTES_PER_REQUEST = "B/request"
    BYTES_PER_S = "B/s"
    SECONDS = "s"
    TOKENS = "tokens"
    LAYERS = "layers"
    PAGES = "pages"
    RANKS = "ranks"
    REQUESTS = "requests"
    ROWS = "rows"
    SHARE = "share"
    COUNT = "count"
    ELEMENTS = "elements"
    PASSES = "passes"
    FLOPS = "flop"
    TOKENS_PER_S = "tokens/s"


LONGEST_TEXT = 64
IN_BYTES = frozenset(
    {Unit.BYTES, Unit.BYTES_PER_TOKEN, Unit.BYTES_PER_TOKEN_PER_LAYER, Unit.BYTES_PER_STEP, Unit.BYTES_PER_REQUEST}
)


class UnitError(ValueError):
    """The text is no quantity of the kind asked for; the message shows the readings it allows."""


def _split(text: str, what: str) -> tuple[Decimal, str]:
    found = _NUMBER.fullmatch(text)
    if not found or len(text) > LONGEST_TEXT:
        raise UnitError(f"{text[:LONGEST_TEXT]!r} is no {what}; write for example {_EXAMPLES[what]}")
    return Decimal(found[1].replace("_", "").replace(",", "")), found[2]


_EXAMPLES = {
    "byte count": "'139.8 GiB' or '141 GB'",
    "rate": "'4.8 TB/s'",
    "count": "'131072', '128Ki' or '1M'",
    "time": "'16.9 ms'",
}


def _whole(value: Decimal, text: str) -> int:
    if value != value.to_integral_value():
        raise UnitError(f"{text!r} is {value} bytes or tokens, not a whole number")
    return int(value)


def parse_bytes(text: str | int) -> int:
    """Return bytes. A bare number is bytes; `GB` is 10^9, `GiB` 2^30; a bare `G` is refused (UnitError)."""
    if isinstance(text, int):
        return text
    number, suffix = _split(text, "byte count")
    prefix = suffix.removesuffix("B")
    if prefix not in PREFIXES or (suffix == prefix and suffix):
        raise UnitError(_ambiguous(text, number, suffix) or f"unknown byte unit {suffix!r} in {text!r}; use GB or GiB")
    # A figure such as 139.8 GiB is no whole number of bytes: the nearest one is meant.
    return int((number * PREFIXES[prefix]).to_integral_value())


def _ambiguous(text: str, number: Decimal, suffix: str) -> str:
    if suffix not in ("k", "K", "M", "G", "T"):
        return ""
    letter = suffix.upper()
    decimal, binary = int(number * PREFIXES[suffix]), int(number * BINARY[letter + "i"])
    readings = f"{number} {letter}B = {decimal:,} B or {number} {letter}iB = {binary:,} B"
    return f"{text!r} has two readings: {readings}; write one"


def parse_rate(text: str | float) -> float:
    """Return bytes per second; the text must end in `B/s`, decimal or binary (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "rate")
    prefix = suffix.removesuffix("B/s")
    if not suffix.endswith("B/s") or prefix not in PREFIXES:
        raise UnitError(f"unknown rate unit {suffix!r} in {text!r}; write for example '4.8 TB/s'")
    return float(number * PREFIXES[prefix])


def parse_count(text: str | int) -> int:
    """Return a whole count of tokens: `1M` is 10^6, `128Ki` is 131,072 (UnitError)."""
    if isinstance(text, int):
        return text
    number, prefix = _split(text, "count")
    if prefix not in PREFIXES:
        raise UnitError(f"unknown suffix {prefix!r} in {text!r}; write for example '1M' or '128Ki'")
    return _whole(number * PREFIXES[prefix], text)


def parse_seconds(text: str | float) -> float:
    """Return seconds from `16.9 ms`, `40 us` or a bare number of seconds (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "time")
    if suffix not in SECONDS and suffix:
        raise UnitError(f"unknown time unit {suffix!r} in {text!r}; use s, ms, us or ns")
    return float(number * SECONDS[suffix or "s"])


def show(value: float, unit: Unit) -> str:
    """Return exact text that parses back to the same number: the largest prefix that divides it, or the base unit."""
    if unit in IN_BYTES:
        for prefix in reversed(BINARY):
            if value and value % BINARY[prefix] == 0:
                return f"{value // BINARY[prefix]:,} {prefix}{unit.value}"
        return f"{value:,} {unit.value}"
    if unit is Unit.BYTES_PER_S:
        return f"{value!r} B/s"
    if unit is Unit.SECONDS:
        return f"{value!r} s"
    return f"{value:,}" if isinstance(value, int) else repr(value)


def brief(value: float, unit: Unit) -> str:
    """Return short text for people: sizes in KiB..PiB, rates and flop in k..E, two digits behind the point."""
    if unit in IN_BYTES:
        scaled, prefix = _scaled(value, BINARY, 10_000)
        return f"{scaled} {prefix}{unit.value}" if prefix else f"{value:,.0f} {unit.value}"
    if unit in (Unit.BYTES_PER_S, Unit.FLOPS, Unit.TOKENS_PER_S):
        scaled, prefix = _scaled(value, DECIMAL, 1000)
        return f"{scaled} {prefix}{unit.value}"
    if unit is Unit.SECONDS:
        for name in ("s", "ms", "us"):
            if abs(value) >= float(SECONDS[name]):
                return f"{value / float(SECONDS[name]):.3g} {name}"
        return f"{value / 1e-9:.3g} ns"
    if unit is Unit.SHARE:
        return f"{value:.3f}"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return shown if unit is Unit.COUNT else f"{shown} {unit.value}"


def _scaled(value: float, table: dict[str, int], smallest: int) -> tuple[str, str]:
    if abs(value) < smallest:
        return f"{value:,.0f}", ""
    prefix = max((name for name in table if table[name] <= abs(value)), key=lambda name: table[name])
    return f"{value / table[prefix]:,.2f}", prefix
