"""Reads the golden cases: facts from outside, typed by hand in `golden/*.toml`, each with its public source."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsa_ledger import Scenario, estimate

if TYPE_CHECKING:
    from dsa_ledger import Ledger

GOLDEN = Path(__file__).with_name("golden")
GIB = 2**30


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on top, tables table by table."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def read(name: str) -> dict[str, Any]:
    """Return one golden file."""
    return tomllib.loads((GOLDEN / f"{name}.toml").read_text(encoding="utf-8"))


def cases(name: str) -> list[Any]:
    """Return the cases of a golden file as pytest parameters: scenario and expectations.

    A case names a setup (`on`) and what it changes (`with`); a case without a source or an expectation is an error.
    """
    table = read(name)
    found = []
    for case in table["case"]:
        source = case.get("source") or table["source"]
        assert source.strip(), f"{name}: {case['id']} has no source"
        assert case["expect"], f"{name}: {case['id']} expects nothing"
        scenario = merged(table["setup"][case["on"]], case.get("with", {}))
        found.append(pytest.param(scenario, case["expect"], id=case["id"]))
    return found


def ledger_of(scenario: dict[str, Any]) -> Ledger:
    """Return the ledger of a scenario given as tables."""
    return estimate(Scenario.model_validate(scenario))


def misses(ledger: Ledger, expect: dict[str, Any]) -> list[str]:
    """Return one sentence per expectation that the ledger does not meet.

    A bare number is met exactly; `gib` to two printed digits; `near` within `rel` of itself or within `abs`.
    """
    said = []
    for key, want in expect.items():
        if key not in ledger:
            said.append(f"{key} is missing, want {want}")
            continue
        got = ledger[key]
        if not isinstance(want, dict):
            good = got == want and isinstance(got, int) == isinstance(want, int)
        elif "gib" in want:
            good = round(got / GIB, 2) == want["gib"]
        elif "near" in want:
            good = abs(got - want["near"]) <= want.get("abs", 0) + want.get("rel", 0) * abs(want["near"])
        else:
            good = abs(got / GIB - want["near_gib"]) <= want["within"]
        if not good:
            said.append(f"{key} is {got} ({got / GIB:.4f} GiB), want {want}")
    return said
