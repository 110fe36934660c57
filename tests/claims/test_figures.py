"""How a figure is scaled, rounded and held against the printed one."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dsa_ledger import claims
from dsa_ledger.claims import scale

C18 = claims.find("C18")


def answer(claimed: str, **how: object) -> claims.Answer:
    """Return the answer 2,772 B x 100,000 = 277,200,000 B to a claimed figure."""
    figure = {"what": "x", "key": "step.index_k_read_bytes", "claimed": claimed} | how
    (found,) = claims.answered(C18.model_copy(update={"figures": (claims.Figure.model_validate(figure),)})).answers
    return found


@pytest.mark.parametrize(
    ("unit", "base_units"),
    [
        ("B", 1),
        ("kB", 10**3),
        ("MB", 10**6),
        ("GB", 10**9),
        ("GiB", 2**30),
        ("B/token", 1),
        ("PFLOP", 10**15),
        ("ms", Decimal("0.001")),
        ("s", 1),
        ("%", Decimal("0.01")),
        ("M elements", 10**6),
        ("layers", 1),
        ("passes", 1),
        ("tokens", 1),
        ("x", 1),
        ("indices", 1),
        ("requests", 1),
    ],
)
def test_a_unit_is_so_many_base_units(unit, base_units):
    assert scale(unit) == base_units


@pytest.mark.parametrize(
    ("claimed", "agrees"),
    [
        ("277.2 MB", True),
        ("277 MB", True),
        ("278 MB", False),
        ("277.3 MB", False),
        ("0.3 GB", True),
        ("277,200,000 B", True),
        ("277,200,001 B", False),
        ("below 300 MB", True),
        ("below 277.2 MB", False),
        ("at most 277.2 MB", True),
        ("over 277.2 MB", False),
        ("over 277 MB", True),
        ("little", None),
        ("", None),
    ],
)
def test_the_printed_digits_decide(claimed, agrees):
    assert answer(claimed, shown_as="0.00 MB").agrees is agrees


@pytest.mark.parametrize(
    ("cut", "claimed", "agrees"), [(True, "0.2 GB", True), (True, "0.3 GB", False), (False, "0.2 GB", False)]
)
def test_a_cut_figure_is_not_rounded(cut, claimed, agrees):
    assert answer(claimed, cut=cut).agrees is agrees


@pytest.mark.parametrize(("within", "agrees"), [(1.8, True), (1.7, False)])
def test_what_a_figure_may_miss_by_is_in_its_unit(within, agrees):
    assert answer("279 MB", within=within).agrees is agrees


def test_entries_of_runs_are_combined():
    found = answer("10 x", key="million:step.index_k_read_bytes", over="step.index_k_read_bytes")
    assert (found.value, found.agrees) == (10, True)
    assert found.commands == (
        "dsa-ledger explain step.index_k_read_bytes C18 --set load.context=1000000",
        "dsa-ledger explain step.index_k_read_bytes C18",
    )
    difference = answer("2.4948 GB", key="million:step.index_k_read_bytes", less="step.index_k_read_bytes")
    assert difference.agrees
    assert answer("27.72 TB", times="load.context_tokens").value == 277_200_000 * 100_000


def test_a_gap_is_the_time_between_two_speeds():
    """38 and 60 tokens a second lie 9.65 ms apart."""
    found = answer("1 x", key="time.indexer_floor_s", gap=(38, 60))
    assert found.value == pytest.approx(277_200_000 / 4.8e12 / (1 / 38 - 1 / 60))


def test_a_refusal_that_does_not_come_is_seen():
    found = answer("starts", key="", refused=True)
    assert (found.text, found.agrees) == ("starts", True)


def test_a_warning_that_does_not_come_is_seen():
    found = answer("must not", key="", warning="no such words")
    assert (found.text, found.agrees) == ("no warning", False)


@pytest.mark.parametrize(
    ("verdict", "claimed", "doubt"),
    [
        ("holds", "277.2 MB", ""),
        ("holds", "300 MB", "no longer gives"),
        ("corrected", "300 MB", ""),
        ("corrected", "277.2 MB", "nothing is corrected"),
        ("depends", "300 MB", ""),
    ],
)
def test_a_verdict_that_the_figures_do_not_bear_out_is_in_doubt(verdict, claimed, doubt):
    figure = claims.Figure(what="x", key="step.index_k_read_bytes", claimed=claimed)
    found = claims.answered(C18.model_copy(update={"verdict": verdict, "figures": (figure,)}))
    assert doubt in found.doubt
    assert bool(found.doubt) == bool(doubt)
