"""SGLang against facts from outside (release packages, pull requests, logs): no expectation is computed by our code."""

from __future__ import annotations

from typing import Any

import pytest
from golden_cases import cases, ledger_of, misses, read

from dsa_ledger import BadInput


@pytest.mark.parametrize(("scenario", "expect"), cases("cells"))
def test_cell(scenario, expect):
    assert misses(ledger_of(scenario), expect) == []


@pytest.mark.parametrize(("scenario", "expect"), cases("pools"))
def test_pool(scenario, expect):
    assert misses(ledger_of(scenario), expect) == []


@pytest.mark.parametrize(("scenario", "expect"), cases("workspace"))
def test_workspace(scenario, expect):
    assert misses(ledger_of(scenario), expect) == []


@pytest.mark.parametrize(("scenario", "expect"), cases("step"))
def test_step(scenario, expect):
    assert misses(ledger_of(scenario), expect) == []


RELEASES = [f"0.5.{patch}" for patch in (9, 10, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)]


def spread(span: str) -> list[str]:
    """Return the releases that "0.5.15-0.5.16" means, both ends included."""
    first, _, last = span.partition("-")
    return RELEASES[RELEASES.index(first) : RELEASES.index(last or first) + 1]


def by_release(table: str) -> list[Any]:
    """Return one parameter set per cell of a table in by_release.toml."""
    found = read("by_release")[table]
    assert found["source"]
    return [
        pytest.param(row["scenario"] | {"model": "zai-org/GLM-5.2-FP8", "engine": f"sglang@{release}"}, value, id=name)
        for row in found["row"]
        for span, value in row["values"].items()
        for release in spread(span)
        for name in [f"{row['id']} {release}"]
    ]


@pytest.mark.parametrize(("scenario", "share"), by_release("mem_fraction"))
def test_default_mem_fraction(scenario, share):
    assert ledger_of(scenario)["engine.mem_fraction"] == share


@pytest.mark.parametrize(("scenario", "mib"), by_release("reserve"))
def test_memory_kept_free(scenario, mib):
    assert ledger_of(scenario)["reserve.mib"] == mib


@pytest.mark.parametrize(("scenario", "layers"), by_release("elision"))
def test_layers_that_own_an_index_k(scenario, layers):
    ledger = ledger_of(scenario)
    assert ledger["model.index_k_layers"] == layers
    # GLM-5.2 scores on 21 layers from 0.5.10 on, whatever is stored.
    assert ledger["model.full_layers"] == (78 if scenario["engine"].endswith("@0.5.9") else 21)


def test_the_undercharged_pool_overshoots_its_budget_and_says_so():
    """SGLang 0.5.14: 557,888 tokens are charged 576 B and stored in 656: 3.24 GiB over the budget of 28.694."""
    (case,) = (param.values[0] for param in cases("pools") if param.id == "h200-fp8-0.5.14")
    ledger = ledger_of(case)
    assert round((ledger["pool.target_bytes"] - ledger["pool.budget_bytes"]) / 2**30, 2) == 3.24
    (warning,) = [sentence for sentence in ledger.warnings if "overshoots" in sentence]
    assert "--max-total-tokens" in warning


def test_a_pool_that_is_charged_what_it_stores_does_not_warn():
    (case,) = (param.values[0] for param in cases("pools") if param.id == "h200-fp8")
    assert ledger_of(case).warnings == []


@pytest.mark.parametrize("engine", ["sglang@0.5.19", "sglang@0.5.20"])
def test_mtp_over_stages_is_refused_through_0_5_20(engine):
    """SGLang 0.5.20 server_args.py: PP with EAGLE raises; 0.5.21 runs it on a PD prefill worker."""
    scenario = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "engine": engine}
    with pytest.raises(BadInput, match=r"draft\.steps"):
        ledger_of(scenario | {"sharding": {"tp": 8, "pp": 2}, "draft": {"steps": 3}})


@pytest.mark.parametrize(
    ("release", "counted"), [("0.5.9", False), ("0.5.10", False), ("0.5.14", True), ("0.5.23", True)]
)
def test_draft_weights_leave_the_budget_from_0_5_14_on(release, counted):
    """SGLang 0.5.10 and 0.5.14 model_runner.py, diffed: before, the draft loads after the target pool is sized."""
    scenario = {
        "model": "zai-org/GLM-5.2-FP8",
        "gpu": "H200",
        "engine": f"sglang@{release}",
        "sharding": {"tp": 8},
        "limits": {"mem_fraction": 0.886},
    }
    without, ledger = ledger_of(scenario), ledger_of(scenario | {"draft": {"steps": 3}})
    lost = without["pool.budget_bytes"] - ledger["pool.budget_bytes"]
    assert round(lost / 2**30, 2) == (1.32 if counted else 0.0)
