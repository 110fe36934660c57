"""Entries about what a rank sends to others in a step, and about the host memory of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.deploy import TRAY_GPUS, usual_node_gpus
from dsa_ledger.account.records import scenario_source
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import network
from dsa_ledger.ledger import Scope, Source
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

RING = Source(
    "prior",
    "counted as rings and pairs in bf16: a rank sends 2 (N - 1) / N of each all-reduced tensor; fused kernels and "
    "reductions inside the switch move less",
    "2026-11",
)
# Patterns of what crosses, from public descriptions; how each engine's release calls them was not read in its code.
DEEPEP = Source(
    "prior",
    "DeepEP's own benchmark setting, fp8 dispatch and bf16 combine, a token to each of its experts: "
    "github.com/deepseek-ai/DeepEP@0297fc80 README.md; the engine's calls were not read",
    "2026-11",
)
DEEPEP_RANKS = Source(
    "prior", "experts lie whole on all tp ranks, ep = tp; assumed, the engine's calls were not read", "2026-11"
)
PARTIAL = Source(
    "prior",
    "partial outputs in bf16 and an fp32 log-sum of the gathered heads go back to their ranks; assumed from what "
    "context-parallel decode has to combine, not read in the engine's code",
    "2026-11",
)


def post_network(ledger: Ledger, plan: Deployment) -> None:
    """Post the bytes that one rank of each stage sends in a step, by kind, and their sum."""
    cut = plan.scenario.sharding
    attention = plan.build.weights.attention_shards
    ledger.given("network.element_bytes", 2, Unit.BYTES, RING)
    ledger.given("network.attention_ranks", attention.value, Unit.RANKS, attention.source)
    ledger.derive("network.tokens", Unit.TOKENS, network.step_tokens, RING, requests="step.requests", rows="draft.rows")
    # Without attention DP the MLP is reduced over the same ranks; with it experts are reached by gather or exchange.
    ledger.given("network.reductions", 1 if cut.dp_attention > 1 else 2, Unit.COUNT, RING)
    ledger.given("network.exchange_ranks", cut.tp, Unit.RANKS, DEEPEP_RANKS)
    for stage in plan.stages:
        _post_stage(Scope(ledger, stage.prefix), plan, last=stage.last)
    _post_transfer(ledger)


def _post_stage(scope: Scope, plan: Deployment, *, last: bool) -> None:
    cut = plan.scenario.sharding
    tokens = {"tokens": "network.tokens"}
    wide = tokens | {"hidden": "config.hidden"}
    kinds: list[str] = []

    def post(name: str, formula: object, source: Source, **inputs: str) -> None:
        scope.derive(f"network.{name}_bytes", Unit.BYTES_PER_STEP, formula, source, **inputs)  # type: ignore[arg-type]
        kinds.append(f"network.{name}_bytes")

    post(
        "tp_allreduce", network.allreduce_bytes, RING, ranks="network.attention_ranks", count="network.reductions",
        layers="model.layers", element_bytes="network.element_bytes", **wide,
    )  # fmt: skip
    if cut.dp_attention > 1 and plan.scenario.has("deepep"):
        post(
            "ep_exchange", network.expert_exchange_bytes, DEEPEP, ranks="network.exchange_ranks", layers="model.layers",
            experts_per_token="config.experts_per_token", **wide,
        )  # fmt: skip
    elif cut.dp_attention > 1:
        post(
            "dp_gather", network.gather_bytes, RING, replicas="sharding.dp_attention", ranks="network.attention_ranks",
            layers="model.layers", element_bytes="network.element_bytes", **wide,
        )  # fmt: skip
    if cut.dcp > 1:
        if scope.name("network.local_heads") not in scope.ledger:
            heads = plan.model.heads // plan.build.weights.attention_shards.value
            scope.ledger.given("network.local_heads", heads, Unit.COUNT, plan.build.weights.attention_shards.source)
        post(
            "dcp", network.partial_attention_bytes, PARTIAL, dcp="sharding.dcp", layers="model.layers",
            local_heads="network.local_heads", kv_lora="config.kv_lora", **tokens,
        )  # fmt: skip
    if len(plan.stages) > 1 and last:
        scope.given("network.pp_send_bytes", 0, Unit.BYTES_PER_STEP, RING, "the last stage sends no hidden states on")
    elif len(plan.stages) > 1:
        post("pp_send", network.stage_bytes, RING, element_bytes="network.element_bytes", **wide)
    scope.total("network.step_bytes", RING, kinds, note="logits, sampling and drafts not counted")
    rate = plan.scenario.machine.link_bytes_per_s
    if rate is not None:
        if "machine.link_bytes_per_s" not in scope.ledger:
            scope.ledger.given(
                "machine.link_bytes_per_s", rate, Unit.BYTES_PER_S, scenario_source("machine.link_bytes_per_s")
            )
        scope.derive(
            "network.step_s", Unit.SECONDS, network.link_seconds, RING, "at the rate given, latency not counted",
            sent_bytes="network.step_bytes", bytes_per_s="machine.link_bytes_per_s",
        )  # fmt: skip


def _post_transfer(ledger: Ledger) -> None:
    """Post one request's PD transfer over all ranks, and its time at the link rate of one rank."""
    parts = [
        key for key in ("transfer.main_kv_bytes", "transfer.index_k_bytes", "transfer.seed_bytes") if key in ledger
    ]
    if not parts:
        return
    source = ledger.entries[parts[0]].source
    ledger.total("network.pd_transfer_bytes", source, parts, note="one copy of one request")
    if "machine.link_bytes_per_s" in ledger:
        ledger.derive(
            "network.pd_transfer_s", Unit.SECONDS, network.link_seconds, source, "over one link, latency not counted",
            sent_bytes="network.pd_transfer_bytes", bytes_per_s="machine.link_bytes_per_s",
        )  # fmt: skip


def post_host(ledger: Ledger, plan: Deployment) -> None:
    """Post the host memory that a node's ranks take for their tiers, against what the node has where that is given."""
    keys = [f"{stage.prefix}host.pool_bytes" for stage in plan.stages]
    if keys[0] not in ledger:
        return
    machine = plan.scenario.machine
    if machine.node_gpus is not None:
        ledger.given("machine.node_gpus", machine.node_gpus, Unit.RANKS, scenario_source("machine.node_gpus"))
    else:
        count = usual_node_gpus(plan.gpu.name)
        where = "4 GPUs an operating system in a GB200 or GB300 tray" if count == TRAY_GPUS else "8 GPUs a node"
        ledger.given("machine.node_gpus", count, Unit.RANKS, Source("prior", where, ""))
    source = engine_source(plan.release, "each rank has a host tier of its own")
    ledger.derive(
        "host.node_ranks", Unit.RANKS, network.node_ranks, source, ranks="sharding.ranks", node_gpus="machine.node_gpus"
    )
    for stage in plan.stages:
        Scope(ledger, stage.prefix).derive(
            "host.node_bytes", Unit.BYTES, network.node_bytes, source, rank_bytes="host.pool_bytes",
            ranks="host.node_ranks",
        )  # fmt: skip
    if machine.host_bytes is None:
        return
    ledger.given("machine.host_bytes", machine.host_bytes, Unit.BYTES, scenario_source("machine.host_bytes"))
    needed = max(ledger[f"{stage.prefix}host.node_bytes"] for stage in plan.stages)
    if needed > machine.host_bytes:
        ledger.shortfalls.append(
            f"the host tiers of a node take {needed / GIB:,.1f} GiB and it has {machine.host_bytes / GIB:,.1f} GiB; "
            "lower --set hicache.size_gb (it counts main KV alone) or hicache.ratio"
        )
