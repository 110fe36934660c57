"""One parser and one formatter: exact, never ambiguous, and judged by pint as an independent oracle."""

from __future__ import annotations

from decimal import Decimal

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger.units import (
    IN_BYTES,
    Unit,
    UnitError,
    brief,
    parse_bytes,
    parse_count,
    parse_gib,
    parse_pace,
    parse_price,
    parse_rate,
    parse_seconds,
    show,
)

ORACLE = pint.UnitRegistry(non_int_type=Decimal)
BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
FLOATS = (Unit.SECONDS, Unit.BYTES_PER_S, Unit.SHARE, Unit.TOKENS_PER_S)
COUNTS = [unit for unit in Unit if unit not in IN_BYTES and unit not in FLOATS]
NUMBERS = st.decimals(min_value=0, max_value=100_000, places=3)


def oracle(number: Decimal, unit: str, into: str) -> Decimal:
    """Return a quantity as pint converts it."""
    converted: Decimal = ORACLE.Quantity(number, unit).to(into).magnitude
    return converted


@pytest.mark.parametrize("unit", sorted(IN_BYTES))
@given(st.integers(-(1 << 60), 1 << 60))
def test_bytes_survive_showing(unit, value):
    """parse(show(x)) = x for every unit in bytes; what follows the B (a token, a step) is no part of the number."""
    shown = show(value, unit)
    assert shown.endswith(unit.value)
    assert parse_bytes(shown.removesuffix(unit.value) + "B") == value


@pytest.mark.parametrize("unit", sorted(IN_BYTES))
@given(st.integers(1, 1023), st.sampled_from([10, 20, 30, 40]))
def test_whole_binary_multiples_survive_showing(unit, value, exponent):
    """parse(show(x)) = x where a binary prefix divides the figure and shortens the text."""
    shown = show(value << exponent, unit)
    assert parse_bytes(shown.removesuffix(unit.value) + "B") == value << exponent
    assert "iB" in shown


@pytest.mark.parametrize("unit", COUNTS)
@given(st.integers(-(1 << 60), 1 << 60))
def test_counts_survive_showing(unit, value):
    """parse(show(x)) = x for every unit that counts."""
    assert parse_count(show(value, unit)) == value


@given(st.floats(1e-12, 1e9))
def test_seconds_survive_showing(value):
    """parse(show(x)) = x for seconds, to the last bit."""
    assert parse_seconds(show(value, Unit.SECONDS)) == value


@given(st.floats(1, 1e15))
def test_rates_survive_showing(value):
    """parse(show(x)) = x for bytes per second, to the last bit."""
    assert parse_rate(show(value, Unit.BYTES_PER_S)) == value


@pytest.mark.parametrize("unit", [Unit.SHARE, Unit.TOKENS_PER_S])
@given(st.floats(0, 1e9))
def test_plain_floats_survive_showing(unit, value):
    """parse(show(x)) = x for shares and tokens a second, which are shown as Python writes them."""
    assert float(show(value, unit)) == value


@pytest.mark.parametrize("unit", BYTE_UNITS)
@given(NUMBERS)
def test_bytes_agree_with_pint(unit, number):
    """A byte count is what pint makes of the same text, to the nearest byte."""
    assert parse_bytes(f"{number} {unit}") == int(oracle(number, unit, "B").to_integral_value())
    assert parse_bytes(f"{number}{unit}") == parse_bytes(f"  {number}  {unit} ")


@pytest.mark.parametrize("unit", BYTE_UNITS)
@given(NUMBERS)
def test_rates_agree_with_pint(unit, number):
    """A rate is what pint makes of the same text."""
    assert parse_rate(f"{number} {unit}/s") == float(oracle(number, f"{unit}/s", "B/s"))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "µs", "ns"])
@given(NUMBERS)
def test_seconds_agree_with_pint(unit, number):
    """A time is what pint makes of the same text."""
    assert parse_seconds(f"{number} {unit}") == pytest.approx(float(oracle(number, unit, "s")), rel=1e-15)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("141 GB", 141_000_000_000),
        ("143771 MiB", 150_754_820_096),
        ("139.8 GiB", 150_109_106_995),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("1 KiB", 1024),
        ("1,024", 1024),
        ("1_000 B", 1000),
        ("1e3 B", 1000),
        ("0", 0),
    ],
)
def test_byte_counts_by_hand(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1M", 1_000_000), ("128Ki", 131_072), ("131072", 131_072), ("1k", 1000), ("1.5k", 1500)]
)
def test_counts_by_hand(text, value):
    assert parse_count(text) == value


def test_rates_and_times_by_hand():
    assert parse_rate("4.8 TB/s") == 4.8e12
    assert parse_rate("1 TiB/s") == 2.0**40
    assert parse_rate("3.35 TB/s") == 3.35e12
    assert parse_seconds("16.9 ms") == 0.0169
    assert parse_seconds("40 us") == parse_seconds("40 µs") == 4e-5
    assert parse_seconds("2 s") == parse_seconds(2) == 2.0


def test_paces_prices_and_gibibytes_by_hand():
    assert parse_pace("38") == parse_pace(38) == 38.0
    assert parse_pace("25 ms") == 40.0  # a token every 25 ms
    assert parse_price("$3.5") == parse_price("3.5 ") == parse_price(3.5) == 3.5
    assert parse_gib("44.7") == parse_gib("44.7 GiB") == 44.7


def test_a_time_without_its_unit_is_refused():
    """Text is a time only with its unit: 16.9 may be ms as well as s."""
    for text in ("16.9", "25", "1e-3"):
        with pytest.raises(UnitError, match=r"with its unit \(s, ms, us or ns\), such as 16.9ms"):
            parse_seconds(text)


def test_gb_of_free_memory_has_two_readings():
    """SGLang's log prints GB and means GiB: 48 GB may be 48 GiB or 48 x 10^9 bytes, 44.70 GiB."""
    with pytest.raises(UnitError, match=r"48 as SGLang's log means its GB, or 44\.70 "):
        parse_gib("48GB")


@pytest.mark.parametrize("number", [5, 6.5, 0])
def test_numbers_are_base_units(number):
    assert parse_rate(number) == parse_seconds(number) == float(number)
    assert isinstance(parse_rate(number), float)


@pytest.mark.parametrize(
    ("text", "decimal", "binary"),
    [
        ("80G", "80,000,000,000", "85,899,345,920"),
        ("80 G", "80,000,000,000", "85,899,345,920"),
        ("1T", "1,000,000,000,000", "1,099,511,627,776"),
        ("2M", "2,000,000", "2,097,152"),
        ("3k", "3,000", "3,072"),
        ("3K", "3,000", "3,072"),
    ],
)
def test_a_bare_letter_is_refused_with_both_readings(text, decimal, binary):
    with pytest.raises(UnitError) as refused:
        parse_bytes(text)
    assert decimal in str(refused.value)
    assert binary in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GB",
        "1 GBs",
        "1 Gib",
        "1 gb",
        "1 GB/s",
        "one GB",
        "1 2 GB",
        "1..2 GB",
        "nan GB",
        "inf B",
        "1e999 B",
        "0x10",
        "1 B B",
        "9" * 65,
        "1 XB",
        "-",
        "1 G iB",
    ],
)
def test_what_is_no_byte_count(text):
    with pytest.raises(UnitError):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["4.8", "4.8 TB", "4.8 T", "4.8 TB/h", "TB/s", "4.8 Tb/s", ""])
def test_what_is_no_rate(text):
    with pytest.raises(UnitError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1.5", "0.5", "1 GB", "1M tokens", "", "ten", "1e-3"])
def test_what_is_no_count(text):
    with pytest.raises(UnitError):
        parse_count(text)


@pytest.mark.parametrize("text", ["1 h", "1 min", "", "ms", "1 m", "1 Ms"])
def test_what_is_no_time(text):
    with pytest.raises(UnitError):
        parse_seconds(text)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text):
    """Any text is parsed or refused with a sentence of one line: no other error comes out."""
    for parse in (parse_bytes, parse_rate, parse_count, parse_seconds, parse_gib, parse_pace, parse_price):
        said = ""
        try:
            parse(text)
        except UnitError as refused:
            said = str(refused)
        assert "\n" not in said


@given(st.integers(0, 1 << 62), st.sampled_from(sorted(Unit)))
def test_brief_text_is_short_and_keeps_its_unit(value, unit):
    """Short text has at most four digits and a point where it is scaled, and says what it counts."""
    said = brief(value, unit)
    if unit in IN_BYTES:
        number, named = said.rsplit(" ", 1)
        assert named.endswith(unit.value)
        assert abs(parse_bytes(f"{number} {named.removesuffix(unit.value)}B") - value) <= value * 0.005
    elif unit not in (Unit.COUNT, Unit.SHARE, Unit.SECONDS):
        assert said.endswith(unit.value)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (47_700, Unit.BYTES_PER_TOKEN, "46.58 KiB/token"),
        (277_200_000, Unit.BYTES_PER_STEP, "264.36 MiB/step"),
        (132, Unit.BYTES_PER_TOKEN_PER_LAYER, "132 B/token/layer"),
        (4.8e12, Unit.BYTES_PER_S, "4.80 TB/s"),
        (0.0169, Unit.SECONDS, "16.9 ms"),
        (0.886, Unit.SHARE, "0.886"),
        (2_574_848, Unit.TOKENS, "2,574,848 tokens"),
        (21, Unit.COUNT, "21"),
    ],
)
def test_brief_text_by_hand(value, unit, said):
    assert brief(value, unit) == said
