"""Bytes between ranks, and host memory of a node, against figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dsa_ledger import Scenario, estimate
from dsa_ledger.scenario_file import find, read


def ledger(**tables: Any) -> Any:
    base = {"model": "zai-org/GLM-5.3", "gpu": "B200", "engine": "sglang@0.5.23", "sharding": {"tp": 8}}
    return estimate(Scenario.model_validate(base | {"load": {"context": 10_000, "batch": 16}} | tables))


def test_tensor_parallel_ranks_reduce_twice_a_layer():
    # 78 layers x 2 all-reduces x 16 rows x 6,144 bf16, a ring of 8: 2 x 7/8 of each tensor.
    assert ledger()["network.tp_allreduce_bytes"] == 78 * 2 * 16 * 6144 * 2 * 2 * 7 // 8
    assert ledger()["network.step_bytes"] == ledger()["network.tp_allreduce_bytes"]
    assert ledger(draft={"steps": 3})["network.tokens"] == 16 * 4


def test_one_rank_sends_nothing():
    found = ledger(sharding={"tp": 1}, gpu="GB300", model="nvidia/GLM-5.2-NVFP4")
    assert found["network.step_bytes"] == 0


def test_attention_dp_gathers_and_deepep_exchanges():
    cut = {"tp": 8, "ep": 8, "dp_attention": 8}
    gathered = ledger(sharding=cut)
    assert gathered["network.tp_allreduce_bytes"] == 0
    assert gathered["network.dp_gather_bytes"] == 2 * 7 * 78 * 2 * 6144 * 2
    exchanged = ledger(sharding=cut, features=["deepep"])
    # 2 rows x 8 experts x 6,144 x (1 + 2) B, seven eighths of them elsewhere.
    assert exchanged["network.ep_exchange_bytes"] == 7 * 78 * 2 * 8 * 6144 * 3 // 8
    assert "network.dp_gather_bytes" not in exchanged


def test_decode_context_parallelism_sends_partial_attention():
    found = ledger(engine="vllm@0.33.0", sharding={"tp": 8, "dcp": 4}, limits={"context_length": 100_000})
    assert found["network.dcp_bytes"] == 3 * 78 * 16 * (64 // 8) * (2 * 512 + 4)


def test_patterns_that_were_not_read_in_an_engine_are_priors():
    exchanged = ledger(sharding={"tp": 8, "ep": 8, "dp_attention": 8}, features=["deepep"])
    cut = ledger(engine="vllm@0.33.0", sharding={"tp": 8, "dcp": 4}, limits={"context_length": 100_000})
    for found, name in ((exchanged, "ep_exchange"), (exchanged, "exchange_ranks"), (cut, "dcp")):
        key = name if name == "exchange_ranks" else f"{name}_bytes"
        source = found.entries[f"network.{key}"].source
        assert source.kind == "prior"
        assert "not read" in source.ref


def test_every_stage_but_the_last_hands_on_its_rows():
    found = ledger(sharding={"tp": 8, "pp": 2})
    assert found["stage[0].network.pp_send_bytes"] == 2 * 16 * 6144 * 2 == found["network.pp_send_bytes"]
    assert found["stage[1].network.pp_send_bytes"] == 0
    assert found["stage[0].network.step_bytes"] == 39 * 2 * 16 * 6144 * 2 * 2 * 7 // 8 + 2 * 16 * 6144 * 2


def test_time_only_from_a_rate_that_the_user_gives():
    assert "network.step_s" not in ledger()
    found = ledger(machine={"link_bytes_per_s": "450 GB/s"}, features=["pd-prefill"])
    assert found["network.step_s"] == found["network.step_bytes"] / 450e9
    moved = found["transfer.main_kv_bytes"] + found["transfer.index_k_bytes"]
    assert found["network.pd_transfer_bytes"] == moved
    assert found["network.pd_transfer_s"] == moved / 450e9


def test_a_node_holds_eight_host_tiers():
    """--hicache-size 270 takes 335.34 GB a rank, 2.683 TB a node (github.com/SemiAnalysisAI/InferenceX/pull/2651)."""
    table = read(find("glm52-8xb300-hicache-0521"))
    found = estimate(Scenario.model_validate(table))
    assert found["host.node_bytes"] / 1e12 == pytest.approx(2.683, abs=5e-4)
    assert found.shortfalls == []
    small = estimate(Scenario.model_validate(table | {"machine": {"host_bytes": "2.4 TB"}}))
    assert "host tiers of a node" in small.shortfalls[0]
    assert estimate(Scenario.model_validate(table | {"machine": {"host_bytes": "3 TB"}})).shortfalls == []


def test_a_tray_has_four_gpus():
    table = read(find("glm52-8xb300-hicache-0521"))
    found = estimate(Scenario.model_validate(table | {"gpu": "GB300"}))
    assert found["host.node_bytes"] == 4 * found["host.pool_bytes"]
    assert estimate(Scenario.model_validate(table | {"machine": {"node_gpus": 2}}))["host.node_ranks"] == 2
