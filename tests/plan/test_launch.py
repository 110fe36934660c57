"""Launch commands: each goes back through the reader of commands to the same ledger."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from scenarios_at_random import tables

from dsa_ledger import Scenario, estimate
from dsa_ledger.audit.merge import merge_command
from dsa_ledger.errors import BadInput, Faults, NotModelled
from dsa_ledger.plan.launch import command, unsaid
from dsa_ledger.plan.nodes import nodes_of
from dsa_ledger.plan.ranking import rank
from dsa_ledger.plan.tried import Machine
from dsa_ledger.scenario_file import read, shipped
from dsa_ledger.schema import Engine


def read_back(text: str, whole: Scenario) -> Scenario:
    """Return the scenario that a command stands for, with what no flag says taken from `whole`."""
    table: dict[str, Any] = {"gpu": whole.gpu, "load": whole.load, "observed": whole.observed.model_dump()}
    faults = Faults()
    name = f"{whole.engine.name}@{whole.engine.version}" if whole.engine.version else whole.engine.name
    reading = merge_command(table, [text], name, {"gpu"}, faults)
    faults.stop_if_any()
    assert reading.unknown == []
    assert reading.missing == {}
    if whole.engine.version:
        assert table["engine"] == name
    features = [*(table.get("features") or ()), *(name for name in unsaid(whole) if not name.startswith("model."))]
    if whole.engine.name == "tensorrt-llm":
        table["model_overrides"] = whole.model_overrides
    return Scenario.model_validate(table | {"features": features, "machine": whole.machine.model_dump()})


def figures(whole: Scenario) -> dict[str, Any]:
    ledger = estimate(whole)
    return {key: ledger[key] for key in ledger.entries} | {"shortfalls": ledger.shortfalls}


@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_shipped_scenario_comes_back_from_its_command(name):
    whole = Scenario.model_validate(read(shipped()[name]))
    assert figures(read_back(command(whole), whole)) == figures(whole)


@settings(max_examples=150)
@given(tables())
def test_any_scenario_comes_back_from_its_command(table):
    """What a command says is read back as it was: no field is lost, none comes from a default by accident."""
    whole = Scenario.model_validate(table)
    cut = whole.sharding
    assume(not whole.has("deepep") or cut.ep == cut.tp)  # DeepEP itself sets ep to tp
    try:
        wanted = figures(whole)
    except (BadInput, NotModelled):
        assume(False)  # noqa: FBT003 - hypothesis' own signature
    assert figures(read_back(command(whole), whole)) == wanted


def test_flags_are_spelled_as_the_release_has_them():
    base = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "sharding": {"tp": 8}, "backends": {"decode": "trtllm"}}
    for version, flag in (("0.5.9", "--nsa-decode-backend"), ("0.5.23", "--dsa-decode-backend")):
        said = command(Scenario.model_validate(base | {"engine": f"sglang@{version}"}))
        assert flag in said.split()


def test_a_hostile_model_name_is_quoted():
    whole = Scenario.model_validate({"model": "a b; rm -rf $HOME", "gpu": "H200", "engine": "vllm@0.33.0"})
    assert "'a b; rm -rf $HOME'" in command(whole)


@pytest.mark.parametrize("engine", ["sglang@0.5.23", "vllm@0.33.0", "tensorrt-llm@1.4.0rc2"])
def test_every_command_of_a_ranking_comes_back(engine):
    name, _, version = engine.partition("@")
    asked = Scenario.model_validate(
        {"model": "zai-org/GLM-5.3", "gpu": "B200", "engine": engine, "load": {"context": 100_000, "batch": 4}}
    )
    ranking = rank(
        asked, [Machine("B200", 16)], [Engine(name=name, version=version)], ["fp8", "bf16"], "requests", top=0
    )
    assert len(ranking.best) > 10
    for one in ranking.best:
        whole = one.outcome.scenario
        back = read_back(command(whole), whole)
        assert back.sharding == whole.sharding
        assert figures(back)["pool.tokens"] == one.outcome.value("pool.tokens")


# The flags of a second node: SGLang docs "Multi-Node Deployment"; vLLM docs, PR #30509 and "Data Parallel Deployment";
# TensorRT-LLM docs "trtllm-serve", multi-node serving with Slurm.
@pytest.mark.parametrize(
    ("engine", "gpu", "cut", "words", "others"),
    [
        ("sglang@0.5.23", "H200", {"tp": 16},
         "--nnodes 2 --node-rank 0 --dist-init-addr HEAD_NODE_IP:20000", "--node-rank 1"),
        ("sglang@0.5.23", "GB300", {"tp": 16}, "--nnodes 4 --node-rank 0", "--node-rank 1 to 3"),
        ("vllm@0.33.0", "H200", {"tp": 8, "pp": 2}, "--nnodes 2 --node-rank 0 --master-addr HEAD_NODE_IP",
         "--headless"),
        ("vllm@0.33.0", "H200", {"tp": 4, "dp_attention": 4}, "--data-parallel-size-local 2 --data-parallel-address",
         "--headless --data-parallel-start-rank 2"),
        ("tensorrt-llm@1.4.0rc2", "H200", {"tp": 16, "ep": 16},
         "srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch trtllm-serve", "srun"),
    ],
)  # fmt: skip
def test_a_server_on_several_nodes_says_where_they_are(engine, gpu, cut, words, others):
    whole = Scenario.model_validate({"model": "zai-org/GLM-5.3", "gpu": gpu, "engine": engine, "sharding": cut})
    assert words in command(whole)
    assert others in nodes_of(whole).others


def test_nodes_are_of_as_many_gpus_as_the_scenario_states():
    stated = {"gpu": "H200", "engine": "sglang@0.5.23", "sharding": {"tp": 8}, "machine": {"node_gpus": 4}}
    assert "--nnodes 2" in command(Scenario.model_validate({"model": "zai-org/GLM-5.3"} | stated))


def test_a_server_on_one_node_needs_no_word_about_nodes():
    for gpu, ranks in (("H200", 8), ("GB300", 4)):
        whole = Scenario.model_validate(
            {"model": "zai-org/GLM-5.3", "gpu": gpu, "engine": "sglang@0.5.23", "sharding": {"tp": ranks}}
        )
        assert nodes_of(whole).many == 1
        assert "--nnodes" not in command(whole)
