"""A rule changed on purpose must show: the pins fail, and the program itself doubts the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_claims import EXPECTED, misses

from dsa_ledger import account, claims
from dsa_ledger.account.deploy import _layers
from dsa_ledger.engines import layers
from dsa_ledger.formulas import cells, step

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what was worked out under the other rules, before and after."""
    caches = (account._deployment, account._weights, _layers)  # noqa: SLF001 - a changed rule must not meet them
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def answered() -> dict[str, claims.Answered]:
    return {name: claims.answered(claims.find(name)) for name in ("C9", "C10", "C11", "C18", "C20", "C40")}


def failing(found: dict[str, claims.Answered]) -> set[str]:
    return {name for name, one in found.items() if misses(name, one)}


def test_unchanged_rules_pass():
    assert failing(answered()) == set()


def eighth(formula: Any) -> Any:
    def divided(**inputs: Any) -> Any:
        return formula(**inputs) // 8

    return divided


def test_tp_that_divides_layers_fails(monkeypatch):
    monkeypatch.setattr(cells, "index_k_cell_bytes", eighth(cells.index_k_cell_bytes))
    monkeypatch.setattr(step, "index_k_read_bytes", eighth(step.index_k_read_bytes))
    found = answered()
    assert {"C10", "C11", "C18", "C20"} <= failing(found)
    assert "no longer" in found["C18"].doubt
    assert "nothing is corrected" in found["C11"].doubt


@pytest.mark.parametrize("feature", ["hicache", "pd-decode"])
def test_a_gate_that_moves_fails(feature, monkeypatch):
    monkeypatch.setitem(layers.KEEPS_ALL, feature, "0.5.23")
    assert "C9" in failing(answered())
    assert EXPECTED["C9"][1][1] == "21 layers"


def test_a_gate_moved_to_an_earlier_release_fails(monkeypatch):
    for feature in ("hicache", "pd-decode"):
        monkeypatch.setitem(layers.KEEPS_ALL, feature, "0.5.21")
    assert {"C9", "C40"} <= failing(answered())
