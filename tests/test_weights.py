"""Weights against published checkpoints, load logs, and sums worked from the configs apart from our code."""

from __future__ import annotations

from typing import Any

import pytest
from golden_cases import GIB, ledger_of, misses, read

from dsa_ledger import load_model
from dsa_ledger.engines.layers import published_full_layers

GOLDEN = read("weights")
FP8_MATRICES = {"dense": 3, "expert": 3 * 256, "shared": 3}


def layout(name: str) -> dict[str, Any]:
    """Return the scenario fields for TP8, or DP8 with as many expert shards and DeepEP."""
    ranks = int(name[2:])
    if name.startswith("TP"):
        return {"sharding": {"tp": ranks}}
    return {"sharding": {"tp": ranks, "dp_attention": ranks, "ep": ranks}, "features": ["deepep"]}


def scenario(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "gpu": "B300", "engine": "sglang@0.5.23"} | fields


def cells(table: str, column: str) -> list[Any]:
    found = GOLDEN[table]
    assert found["source"]
    return [
        pytest.param(row["model"], name, row, value, id=f"{row['model'].partition('/')[2]} {name}")
        for row in found["row"]
        for name, value in row[column].items()
    ]


@pytest.mark.parametrize("case", GOLDEN["checkpoint"], ids=lambda case: case["model"])
def test_checkpoint_to_the_byte(case):
    assert case["source"]
    tables = scenario(case["model"], sharding={"tp": 16}, model_overrides=case.get("with", {}))
    assert misses(ledger_of(tables), case["expect"]) == []


@pytest.mark.parametrize("case", GOLDEN["stored_tensors"], ids=lambda case: case["model"])
def test_stored_tensors(case):
    """Tensors in the files are the base tensors and one scale for each quantised one."""
    assert case["source"]
    model = load_model(case["model"], {})
    indexers = {*published_full_layers(model), *range(model.layers, model.layers + model.draft_layers)}
    quantised = sum(
        FP8_MATRICES.get(span.module, 1)
        for span in model.quantization
        for layer in range(span.first, span.last + 1)
        if span.module not in ("wq_b", "wk") or layer in indexers
    )
    assert quantised == case["quantised"]
    base = ledger_of(scenario(case["model"], sharding={"tp": 8}))["model.tensors"]
    assert base + quantised == case["all"]


@pytest.mark.parametrize("case", GOLDEN["indexers"], ids=lambda case: f"{case['model']} {case['bytes']}")
def test_indexers_of_a_rank(case):
    assert case["source"]
    engine = case.get("engine", "sglang@0.5.18")
    ledger = ledger_of(scenario(case["model"], engine=engine, sharding=case["sharding"]))
    assert ledger["weights.indexer_rank_bytes"] == case["bytes"]


def test_57_skipped_indexers_free_a_gibibyte():
    """SGLang PR #30922 and #30531: 57 x 18,744,320 = 1,068,426,240 B, on each rank whatever TP."""
    for ranks in (4, 8):
        before, after = (
            ledger_of(scenario("nvidia/GLM-5.2-NVFP4", engine=f"sglang@{release}", sharding={"tp": ranks}))
            for release in ("0.5.17", "0.5.18")
        )
        assert before["weights.rank_bytes"] - after["weights.rank_bytes"] == 1_068_426_240


@pytest.mark.parametrize("case", GOLDEN["loaded"], ids=lambda case: f"{case['gib']} GiB")
def test_load_that_a_log_printed(case):
    assert case["source"]
    ledger = ledger_of(scenario(case["model"], **{name: case[name] for name in ("gpu", "engine", "sharding")}))
    assert abs(ledger["weights.rank_bytes"] / GIB / case["gib"] - 1) < 0.003


@pytest.mark.parametrize(("model", "name", "row", "gib"), cells("rank", "gib"))
def test_tensors_of_a_rank(model, name, row, gib):  # noqa: ARG001 - one signature for the tables
    ledger = ledger_of(scenario(model, **layout(name)))
    tensors = ledger["weights.rank_bytes"] - ledger["weights.overhead_bytes"]
    assert abs(tensors / GIB - gib) <= 0.02


@pytest.mark.parametrize(("model", "name", "row", "gib"), cells("draft", "gib"))
def test_mtp_layer_of_a_rank(model, name, row, gib):  # noqa: ARG001
    ledger = ledger_of(scenario(model, draft={"steps": 3}, **layout(name)))
    assert abs(ledger["weights.draft_rank_bytes"] / GIB - gib) <= 0.002


@pytest.mark.parametrize(("model", "tokens", "row", "gb"), cells("read", "gb"))
def test_weights_read_in_a_step(model, tokens, row, gb):
    load = {"batch": int(tokens), "context": 4096}
    ledger = ledger_of(scenario(model, load=load, **layout(row["layout"])))
    assert abs(ledger["step.weights_read_bytes"] / 1e9 / gb - 1) < 0.01
    assert abs(ledger["step.always_read_bytes"] / 1e9 / row["always"] - 1) < 0.005


def test_without_draft_steps_no_mtp_weight_is_held():
    assert ledger_of(scenario("zai-org/GLM-5.2-FP8", sharding={"tp": 8}))["weights.draft_rank_bytes"] == 0


def test_verify_rows_count_six_tenths_of_a_token():
    """The stated prior: T = batch x (1 + 0.6 x draft steps); 4 requests with 5 steps are 16 tokens in flight."""
    fields = {"load": {"batch": 4, "context": 4096}, "draft": {"steps": 5}, "sharding": {"tp": 8}}
    ledger = ledger_of(scenario("zai-org/GLM-5.2-FP8", **fields))
    assert ledger["step.tokens_in_flight"] == 16
    assert abs(ledger["step.weights_read_bytes"] / 1e9 / 40.1 - 1) < 0.01
