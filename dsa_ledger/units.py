"""Units: base units inside (bytes as int, seconds and rates as float), one parser, one formatter.

Prefixes k..E are powers of 1000, Ki..Ei powers of 1024. A bare `G` says neither and is refused.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
PREFIXES = DECIMAL | {"K": 10**3} | BINARY
MIB = 2**20
GIB = 2**30
MANY = 10_000_000  # a count from here on reads better in millions
LONGEST_TEXT = 64
SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9")}
CURRENCIES = "$€£¥"

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


IN_BYTES = frozenset(
    {Unit.BYTES, Unit.BYTES_PER_TOKEN, Unit.BYTES_PER_TOKEN_PER_LAYER, Unit.BYTES_PER_STEP, Unit.BYTES_PER_REQUEST}
)


class UnitError(ValueError):
    """The text is no quantity of the kind asked for; the message says what would be one, to stand behind "expected"."""


def _split(text: str, what: str) -> tuple[Decimal, str]:
    found = _NUMBER.fullmatch(text)
    if not found or len(text) > LONGEST_TEXT:
        raise UnitError(_EXAMPLES[what])
    return Decimal(found[1].replace("_", "").replace(",", "")), found[2]


_EXAMPLES = {
    "byte count": "a byte count, such as '139.8 GiB' or '141 GB'",
    "rate": "a rate, such as '4.8 TB/s'",
    "count": "a count, such as '131072', '128Ki' or '1M'",
    "time": "a time with its unit (s, ms, us or ns), such as 16.9ms",
    "pace": "tokens per second, such as 38, or the time of one, such as 26ms",
    "price": "a price, such as 3.5 or '$3.5'",
    "GiB": "GiB, such as 44.7 or '44.7 GiB'",
}


def parse_bytes(text: str | int) -> int:
    """Return bytes. A bare number is bytes; `GB` is 10^9, `GiB` 2^30; a bare `G` is refused (UnitError)."""
    if isinstance(text, int):
        return text
    number, suffix = _split(text, "byte count")
    prefix = suffix.removesuffix("B")
    if prefix not in PREFIXES or (suffix == prefix and suffix):
        raise UnitError(_ambiguous(number, suffix) or _EXAMPLES["byte count"])
    # A figure such as 139.8 GiB is no whole number of bytes: the nearest one is meant.
    return int((number * PREFIXES[prefix]).to_integral_value())


def _ambiguous(number: Decimal, suffix: str) -> str:
    if suffix not in ("k", "K", "M", "G", "T"):
        return ""
    letter = suffix.upper()
    decimal, binary = int(number * PREFIXES[suffix]), int(number * BINARY[letter + "i"])
    readings = f"{number} {letter}B = {decimal:,} B or {number} {letter}iB = {binary:,} B"
    return f"one of two readings: {readings}"


def parse_rate(text: str | float) -> float:
    """Return bytes per second; the text must end in `B/s`, decimal or binary (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "rate")
    prefix = suffix.removesuffix("B/s")
    if not suffix.endswith("B/s") or prefix not in PREFIXES:
        raise UnitError(_EXAMPLES["rate"])
    return float(number * PREFIXES[prefix])


def parse_count(text: str | int) -> int:
    """Return a whole count of tokens: `1M` is 10^6, `128Ki` is 131,072 (UnitError)."""
    if isinstance(text, int):
        return text
    number, prefix = _split(text, "count")
    if prefix not in PREFIXES:
        raise UnitError(_EXAMPLES["count"])
    value = number * PREFIXES[prefix]
    if value != value.to_integral_value():
        raise UnitError(f"a whole number, which {value} is not")
    return int(value)


def parse_seconds(text: str | float) -> float:
    """Return seconds from `16.9 ms` or `40 us`; a number is seconds, text without a unit is refused (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "time")
    if suffix not in SECONDS:
        raise UnitError(_EXAMPLES["time"])
    return float(number * SECONDS[suffix])


def parse_gib(text: str | float) -> float:
    """Return GiB from `44.7` or `44.7 GiB`; `GB` is refused, since SGLang's log means GiB by it (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "GiB")
    if suffix == "GB":
        in_gib = float(number) * DECIMAL["G"] / GIB
        raise UnitError(f"GiB: {number} as SGLang's log means its GB, or {in_gib:.2f} for {number} x 10^9 bytes")
    if suffix not in ("", "GiB"):
        raise UnitError(_EXAMPLES["GiB"])
    return float(number)


def parse_price(text: str | float) -> float:
    """Return a price in whatever currency the text names by a sign, or names not (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text.strip().lstrip(CURRENCIES), "price")
    if suffix:
        raise UnitError(_EXAMPLES["price"])
    return float(number)


def parse_pace(text: str | float) -> float:
    """Return tokens per second from `38`, or from the time of one token, `26 ms` (UnitError)."""
    if isinstance(text, int | float):
        return float(text)
    number, suffix = _split(text, "pace")
    if suffix not in SECONDS and suffix:
        raise UnitError(_EXAMPLES["pace"])
    value = float(number * SECONDS.get(suffix, Decimal(1)))
    return value if not suffix else 1 / value if value else 0.0


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


def in_one_unit(values: Sequence[float], unit: Unit) -> tuple[list[float], str]:
    """Return values in one unit, and that unit: bytes and seconds by the largest of them, counts from 10 M on in M."""
    largest = max(map(abs, values), default=0.0)
    if unit in IN_BYTES:
        prefix = max((name for name in BINARY if BINARY[name] <= largest), key=BINARY.__getitem__, default="")
        return [value / BINARY.get(prefix, 1) for value in values], f"{prefix}{unit.value}"
    if unit is Unit.SECONDS:
        name = next((name for name in ("s", "ms", "us") if float(SECONDS[name]) <= largest), "ns")
        return [value / float(SECONDS[name]) for value in values], name
    if largest >= MANY:
        return [value / DECIMAL["M"] for value in values], f"M {unit.value}"
    return list(values), unit.value


def tokens_text(value: float) -> str:
    """Return a number of tokens as `128Ki` where it is that many times 1,024, else grouped."""
    whole = round(value)
    for prefix in ("Mi", "Ki"):
        if whole >= BINARY[prefix] and whole % BINARY[prefix] == 0:
            return f"{whole // BINARY[prefix]}{prefix}"
    return f"{whole:,}"


def in_gib(value: float) -> str:
    """Return bytes as a number of GiB for a column that says so."""
    return f"{value / GIB:,.2f}"


def _scaled(value: float, table: dict[str, int], smallest: int) -> tuple[str, str]:
    if abs(value) < smallest:
        return f"{value:,.0f}", ""
    prefix = max((name for name in table if table[name] <= abs(value)), key=lambda name: table[name])
    return f"{value / table[prefix]:,.2f}", prefix
