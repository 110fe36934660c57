"""Expected failures: every fault at once, one line each, the value readable, the nearest names first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger.errors import BadInput, ExpectedError, Fault, Faults, NotModelled, Said, Words, nearest


@pytest.mark.parametrize(("error", "code"), [(BadInput([]), 2), (NotModelled("dcp", "sglang@0.5.9", "none"), 4)])
def test_each_failure_has_its_exit_code(error, code):
    assert isinstance(error, ExpectedError)
    assert error.exit_code == code


def test_a_fault_is_a_path_a_value_and_what_was_expected():
    assert str(Fault("sharding.tp", 7, "a divisor of 64")) == "sharding.tp: 7: expected a divisor of 64"
    assert str(Fault("engine.version", "x", "a version")) == "engine.version: 'x': expected a version"


def test_every_fault_says_what_was_expected_once():
    """One shape for every fault: `path: value: expected ...`; nothing given is absent; a sentence stands for itself."""
    faults = Faults()
    faults.require(False, "--goal", "cheap", nearest("cheap", ["step", "gpus"]))  # noqa: FBT003
    faults.add("out", None, "a file")
    faults.add("profile", Words("a table of 2"), Said("no such file"))
    with pytest.raises(BadInput) as bad:
        faults.stop_if_any()
    assert bad.value.lines() == [
        "--goal: 'cheap': expected one of step, gpus; did you mean 'step'?",
        "out: absent: expected a file",
        "profile: a table of 2: no such file",
    ]


@pytest.mark.parametrize(
    ("value", "closing"), [("x" * 99, "'"), ("it's " * 30, '"'), ([1] * 99, "..."), (10**99, "...")]
)
def test_a_quote_that_opens_closes(value, closing):
    said = str(Fault("path", value, "less")).removesuffix(": expected less")
    assert said.endswith(closing)
    assert "..." in said


def test_all_faults_are_kept_in_order_and_once():
    first, second = Fault("b", 1, "x"), Fault("a", [1, {2: 3}], "y")
    bad = BadInput([first, second, first])
    assert bad.faults == (first, second)
    assert bad.lines() == ["b: 1: expected x", "a: [1, {2: 3}]: expected y"]
    assert str(bad) == "b: 1: expected x\na: [1, {2: 3}]: expected y"


@given(st.one_of(st.text(), st.binary(), st.integers(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())))
def test_a_fault_is_one_short_line(value):
    """A fault is one line of bounded length, whatever the value."""
    said = str(Fault("path", value, "less"))
    assert len(said.splitlines()) == 1
    assert len(said) <= len("path: ") + 80 + len(": expected less")


def test_not_modelled_names_feature_version_and_reason():
    error = NotModelled("sglang", "0.4.0", "its rules were not read")
    assert error.lines() == ["not modelled: sglang (0.4.0): its rules were not read"]
    assert (error.feature, error.version, error.reason) == ("sglang", "0.4.0", "its rules were not read")


def test_faults_are_collected_and_raised_together():
    faults = Faults()
    faults.stop_if_any()
    faults.require(True, "a", 1, "never noted")  # noqa: FBT003 - reads as a sentence
    faults.stop_if_any()
    faults.require(False, "b", 2, "two")  # noqa: FBT003
    faults.add("c", 3, "three")
    with pytest.raises(BadInput) as bad:
        faults.stop_if_any()
    assert [fault.path for fault in bad.value.faults] == ["b", "c"]


def test_the_nearest_names_come_first():
    names = ["H100", "H200", "B200", "GB300", "H20", "H800", "B300", "GB200", "H20-3e", "A100"]
    said = nearest("H20O", names)
    assert said.startswith("one of H20")
    assert "H200" in said
    assert "and 2 more; did you mean 'H20" in said
    assert nearest("h200", names).endswith("; did you mean 'H200'?")


def test_without_anything_near_the_known_names_are_listed():
    assert nearest("zzzzzz", ["bb", "aa"]) == "one of aa, bb"


@given(st.text(max_size=20), st.lists(st.text("abcXYZ019-", min_size=1, max_size=8), max_size=20, unique=True))
def test_at_most_eight_names_are_listed_each_once(word, names):
    """At most eight known names are listed, each once, and the rest is counted."""
    said = nearest(word, names)
    listed = said.partition("; did")[0].removeprefix("one of ").partition(" and ")[0]
    shown = listed.split(", ") if listed else []
    assert len(shown) == len(set(shown)) == min(len(names), 8)
    assert set(shown) <= set(names)
    assert (f"and {len(names) - 8} more" in said) == (len(names) > 8)
