"""The ledger refuses what would make a figure untraceable, and the golden checker finds every kind of wrong figure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from golden_cases import cases, merged, misses
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger.ledger import LEAST, MOST, RANKED, SUM, Entry, Fact, Ledger, LedgerError, Scope, Source, as_table
from dsa_ledger.units import Unit

ENGINE = Source("engine", "engine 1.0 pool.py", "2026-01-02")
CONFIG = Source("config", "config.json", "")
PRIOR = Source("prior", "a guess", "")
ASKED = Source("scenario", "load", "")


def product(*, record_bytes: Any, layers: Any) -> Any:
    """Return a product."""
    return record_bytes * layers


def small() -> Ledger:
    """Return two givens and what follows from them."""
    ledger = Ledger()
    ledger.given("record.bytes", 576, Unit.BYTES, ENGINE)
    ledger.given("model.layers", 78, Unit.LAYERS, CONFIG)
    ledger.derive("cell.bytes", Unit.BYTES, product, ENGINE, record_bytes="record.bytes", layers="model.layers")
    return ledger


def test_a_derived_value_is_its_formula_of_its_inputs():
    ledger = small()
    entry = ledger.entries["cell.bytes"]
    assert (ledger["cell.bytes"], entry.unit, entry.formula) == (44928, Unit.BYTES, product)
    assert entry.inputs == (("record_bytes", "record.bytes"), ("layers", "model.layers"))


@pytest.mark.parametrize("key", ["record.bytes", "cell.bytes"])
def test_a_key_is_posted_once(key):
    ledger = small()
    with pytest.raises(LedgerError, match=f"{key} is posted twice"):
        ledger.given(key, 1, Unit.BYTES, ENGINE)
    with pytest.raises(LedgerError, match="posted twice"):
        ledger.post(ledger.entries[key])
    assert len(ledger.entries) == 3


@pytest.mark.parametrize("kind", RANKED)
def test_a_source_needs_a_reference(kind):
    with pytest.raises(ValueError, match="reference"):
        Source(kind, "", "2026-01-01")


def test_a_source_has_no_default():
    with pytest.raises(TypeError):
        Source("engine")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Ledger().given("a", 1, Unit.BYTES)  # type: ignore[call-arg]


def test_entries_and_sources_are_frozen():
    ledger = small()
    with pytest.raises(AttributeError):
        ledger.entries["cell.bytes"].value = 2 * 44928
    with pytest.raises(dataclasses.FrozenInstanceError):
        ENGINE.ref = "elsewhere"


def test_a_total_does_not_mix_units():
    ledger = small()
    with pytest.raises(LedgerError, match=r"sum\.all would combine the units \['B', 'layers'\]"):
        ledger.total("sum.all", ENGINE, ["record.bytes", "model.layers"])
    assert "sum.all" not in ledger


def test_a_total_needs_parts_that_are_posted():
    with pytest.raises(LedgerError):
        small().total("sum.none", ENGINE, [])
    with pytest.raises((LedgerError, KeyError)):
        small().total("sum.unknown", ENGINE, ["record.bytes", "no.such.key"])


def test_an_input_must_be_posted():
    with pytest.raises(LedgerError, match=r"cell\.bytes needs 'no\.such\.key'"):
        Ledger().derive("cell.bytes", Unit.BYTES, product, ENGINE, record_bytes="no.such.key", layers="no.other")


@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=6))
def test_totals(values):
    """A total is the sum, the least or the most of its parts, in their unit, and names each part."""
    ledger = Ledger()
    parts = [f"part[{index}].bytes" for index in range(len(values))]
    for part, value in zip(parts, values, strict=True):
        ledger.given(part, value, Unit.BYTES, ENGINE)
    for key, how, wanted in (("sum", SUM, sum(values)), ("least", LEAST, min(values)), ("most", MOST, max(values))):
        ledger.total(key, ENGINE, parts, how)
        assert ledger[key] == wanted
        assert ledger.entries[key].unit is Unit.BYTES
        assert [used for _, used in ledger.entries[key].inputs] == parts


def test_givens_are_found_once_each_in_the_order_met():
    ledger = small()
    ledger.total("sum", ENGINE, ["cell.bytes", "record.bytes"])
    assert [entry.key for entry in ledger.givens_under("sum")] == ["record.bytes", "model.layers"]
    assert [entry.key for entry in ledger.givens_under("record.bytes")] == ["record.bytes"]


@pytest.mark.parametrize(
    ("other", "weakest"),
    [
        (ENGINE, "engine"),
        (CONFIG, "config"),
        (PRIOR, "prior"),
        (ASKED, "engine"),
        (Source("measured", "x", ""), "engine"),
    ],
)
def test_a_figure_is_as_weak_as_its_weakest_fact(other, weakest):
    ledger = Ledger()
    ledger.given("a", 1, Unit.BYTES, ENGINE)
    ledger.given("b", 1, Unit.BYTES, other)
    ledger.total("c", ENGINE, ["a", "b"])
    assert ledger.weakest("c") == weakest


def test_what_rests_on_the_scenario_alone_says_so():
    ledger = Ledger()
    ledger.given("a", 1, Unit.BYTES, ASKED)
    assert ledger.weakest("a") == "scenario"


def test_a_stage_reads_its_own_entry_first():
    ledger = small()
    scope = Scope(ledger, "stage[1].")
    scope.given("model.layers", 39, Unit.LAYERS, ENGINE)
    scope.derive("cell.bytes", Unit.BYTES, product, ENGINE, record_bytes="record.bytes", layers="model.layers")
    assert (ledger["cell.bytes"], ledger["stage[1].cell.bytes"], scope["cell.bytes"]) == (44928, 22464, 22464)
    assert scope["record.bytes"] == 576
    scope.total("two.bytes", ENGINE, ["cell.bytes", "record.bytes"])
    assert ledger["stage[1].two.bytes"] == 22464 + 576


def test_a_copy_goes_its_own_way():
    ledger = small()
    twin = ledger.copy()
    twin.given("more", 1, Unit.BYTES, ENGINE)
    twin.warn("mind the gap")
    twin.shortfalls.append("too small")
    assert "more" not in ledger
    assert (ledger.warnings, ledger.shortfalls) == ([], [])


def test_a_warning_is_kept_once():
    ledger = Ledger()
    for _ in range(2):
        ledger.warn("upgrade")
    assert ledger.warnings == ["upgrade"]


def test_reading_a_ledger():
    ledger = small()
    ledger.fact("gpu.bytes", Unit.BYTES, Fact(3, CONFIG))
    assert "cell.bytes" in ledger
    assert [entry.key for entry in ledger] == ["record.bytes", "model.layers", "cell.bytes", "gpu.bytes"]
    assert as_table(ledger) == {"record.bytes": 576, "model.layers": 78, "cell.bytes": 44928, "gpu.bytes": 3}
    with pytest.raises(KeyError):
        ledger["no.such.key"]


# --- the checker that every golden test relies on

EXPECT = {
    "cell.bytes": 47700,
    "pool.target_bytes": {"gib": 133.40},
    "weights.rank_bytes": {"near": 114_632_677_130, "rel": 0.003},
    "pool.scratch_bytes": {"near_gib": 11.1, "within": 0.05},
    "engine.mem_fraction": 0.886,
}
RIGHT = {
    "cell.bytes": 47700,
    "pool.target_bytes": 143_234_323_200,
    "weights.rank_bytes": 114_638_296_780,
    "pool.scratch_bytes": 11_901_559_296,
    "engine.mem_fraction": 0.886,
}


def checked(values: dict[str, Any]) -> list[str]:
    """Return what the golden checker says of some figures."""
    ledger = Ledger()
    for key, value in values.items():
        ledger.post(Entry(key, value, Unit.BYTES, None, (), ENGINE, ""))
    return misses(ledger, EXPECT)


def test_the_checker_lets_right_figures_pass():
    assert checked(RIGHT) == []


FAULTS: dict[str, Any] = {
    "doubled": lambda value: value * 2,
    "zero": lambda value: value * 0,
    "negative": lambda value: -value,
    "ten to the nine for two to the thirty": lambda value: value / 2**30 * 10**9,
    "two to the thirty for ten to the nine": lambda value: value / 10**9 * 2**30,
    "one percent off": lambda value: value * 1.01,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("key", RIGHT)
def test_the_checker_finds_a_wrong_figure(key, fault):
    (said,) = checked(RIGHT | {key: FAULTS[fault](RIGHT[key])})
    assert said.startswith(f"{key} is ")


def test_the_checker_finds_what_is_missing_or_not_whole():
    assert checked({key: value for key, value in RIGHT.items() if key != "cell.bytes"}) == [
        "cell.bytes is missing, want 47700"
    ]
    assert checked(RIGHT | {"cell.bytes": 47700.0}) != []
    assert checked(RIGHT | {"cell.bytes": 47701}) != []


def test_every_golden_case_has_a_source_and_expects_something():
    names = ("cells", "pools", "workspace", "step")
    counts = {name: len(cases(name)) for name in names}
    assert all(count > 8 for count in counts.values()), counts


def test_tables_are_merged_below_the_top():
    base = {"sharding": {"tp": 8}, "gpu": "H200"}
    assert merged(base, {"sharding": {"pp": 2}, "gpu": "B200"}) == {"sharding": {"tp": 8, "pp": 2}, "gpu": "B200"}
    assert base == {"sharding": {"tp": 8}, "gpu": "H200"}
