"""Single formulas and ratios against figures printed by others; no expectation here is computed by our code."""

from __future__ import annotations

from importlib import import_module

import pytest
from golden_cases import GIB, ledger_of, read

CASES = read("formulas")["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_formula(case):
    assert case["source"]
    module, _, name = case["formula"].partition(".")
    value = getattr(import_module(f"dsa_ledger.formulas.{module}"), name)(**case["inputs"])
    if "gib" in case:
        assert round(value / GIB, 2) == case["gib"]
    else:
        assert (value, type(value)) == (case["value"], int)


def test_elision_gains_as_many_tokens_as_the_pull_request_says():
    """SGLang PR #30310 printed 2,430,528 and 2,813,952 tokens, target pools of one size: within 0.05%."""
    scenario = {"model": "nvidia/GLM-5.2-NVFP4", "gpu": "GB300", "sharding": {"tp": 4}}
    before, after = (ledger_of(scenario | {"engine": f"sglang@{release}"}) for release in ("0.5.15", "0.5.18"))
    ratio = before["cell.target_bytes"] / after["cell.target_bytes"]
    assert abs(ratio / (2_813_952 / 2_430_528) - 1) < 0.0005


def test_waste_of_shared_layers():
    """SGLang PR #30923 (2026-07-12): 57 of 78 layers waste 7.5 KB a token, 13.6% of the pool."""
    scenario = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "sharding": {"tp": 8}, "engine": "sglang@0.5.14"}
    ledger = ledger_of(scenario)
    wasted = ledger["record.index_k_bytes"] * ledger["model.shared_layers"]
    assert ledger["model.shared_layers"] == 57
    assert wasted == 7524
    assert round(100 * wasted / ledger["cell.target_bytes"], 1) == 13.6


def test_a_million_tokens_a_rank():
    """By hand, GiB for 1,048,576 tokens of GLM-5.2: 46.58 (raw, elided), 53.93 (raw, all layers), 52.68 (packed)."""
    wanted = {
        ("B200", "auto", "0.5.18"): 46.58,
        ("B200", "auto", "0.5.17"): 53.93,
        ("H200", "fp8_e4m3", "0.5.18"): 52.68,
        ("H200", "fp8_e4m3", "0.5.17"): 60.02,
        ("H200", "auto", "0.5.18"): 90.46,
        ("H200", "auto", "0.5.17"): 97.80,
    }
    got = {
        (gpu, dtype, release): round(
            ledger_of(
                {
                    "model": "zai-org/GLM-5.2-FP8",
                    "gpu": gpu,
                    "kv_dtype": dtype,
                    "engine": f"sglang@{release}",
                    "sharding": {"tp": 8},
                }
            )["cell.bytes"]
            * 1_048_576
            / GIB,
            2,
        )
        for gpu, dtype, release in wanted
    }
    assert got == wanted
