"""vLLM: buffers of a fixed size, which ones profiling sees, and the logits it may run into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines import vllm
from dsa_ledger.engines.rules import engine_source, since
from dsa_ledger.formulas import vllm_buffers
from dsa_ledger.ledger import MOST, Fact, Scope
from dsa_ledger.units import MIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, Stage
    from dsa_ledger.ledger import Ledger

LOGITS_BUDGET_BYTES = 512 * MIB
FLASHINFER_BYTES = 394 * MIB


def post_buffers(ledger: Ledger, plan: Deployment) -> None:
    """Post each buffer, and `workspace.reserved_bytes` of each stage: those that its budget already lacks."""
    _post_limits(ledger, plan)
    _post_arena(ledger, plan)
    early = _post_tables(ledger, plan)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        made_with_model = _post_topk(scope, plan, stage)
        scope.total(
            "workspace.reserved_bytes",
            engine_source(plan.release, "buffers made before or during profiling"),
            [*made_with_model, "workspace.arena_bytes", "workspace.prefill_logits_budget_bytes", *early],
            note="top-k, the shared arena and the logits reserve",
        )
    _post_decode_logits(ledger, plan)


def _post_limits(ledger: Ledger, plan: Deployment) -> None:
    scenario, release = plan.scenario, plan.release
    batch = vllm.batch(scenario, plan.gpu, release)
    ledger.fact("limits.batched_tokens", Unit.TOKENS, batch.tokens)
    ledger.fact("limits.sequences", Unit.REQUESTS, batch.requests)
    factor = vllm.workspace_factor(ledger["limits.context_length"], release)
    ledger.fact("engine.workspace_factor", Unit.COUNT, factor)
    heads = plan.model.heads // plan.build.weights.attention_shards.value
    ledger.given("layout.local_heads", heads, Unit.COUNT, plan.build.weights.attention_shards.source)


def _post_topk(scope: Scope, plan: Deployment, stage: Stage) -> list[str]:
    """Post a stage's top-k buffers; the MTP layer and its own lie on the last one."""
    source = engine_source(plan.release, "topk_indices_buffer; the draft module makes its own (inferred)")
    scope.given("workspace.topk_copies", 1 + (stage.last and plan.draft_layers > 0), Unit.COUNT, source)
    scope.derive(
        "workspace.topk_index_bytes",
        Unit.BYTES,
        vllm_buffers.topk_index_bytes,
        source,
        batched_tokens="limits.batched_tokens",
        index_topk="config.index_topk",
        copies="workspace.topk_copies",
    )
    groups = vllm.INDEX_GROUPS.at(plan.release)
    if not groups.value:
        return ["workspace.topk_index_bytes"]
    parts = ["model.full_layers", "model.draft_layers"]
    if stage.first not in plan.layers.full:
        opened = engine_source(plan.release, "mla/index_group.py: a stage's first layer opens a group, shared or not")
        scope.given("workspace.headless_groups", 1, Unit.LAYERS, opened)
        parts.append("workspace.headless_groups")
    scope.total("workspace.index_groups", groups.source, parts)
    scope.derive(
        "workspace.index_group_bytes",
        Unit.BYTES,
        vllm_buffers.index_group_bytes,
        groups.source,
        groups="workspace.index_groups",
        batched_tokens="limits.batched_tokens",
        sequences="limits.sequences",
        rows="draft.rows",
        index_topk="config.index_topk",
    )
    return ["workspace.topk_index_bytes", "workspace.index_group_bytes"]


def _post_flashinfer(ledger: Ledger, plan: Deployment) -> None:
    """Post FlashInfer's workspace; under DCP its metadata builder adds the gathered queries' part."""
    later = engine_source(plan.release, "FlashInfer's workspace, made at the first forward: not seen by profiling")
    if plan.dcp == 1:
        ledger.given("workspace.flashinfer_bytes", FLASHINFER_BYTES, Unit.BYTES, later)
        return
    ledger.given("workspace.flashinfer_base_bytes", FLASHINFER_BYTES, Unit.BYTES, later)
    ledger.derive(
        "workspace.flashinfer_bytes",
        Unit.BYTES,
        vllm_buffers.flashinfer_dcp_bytes,
        engine_source(plan.release, "FlashInfer's metadata builder under DCP: not seen by profiling"),
        base_bytes="workspace.flashinfer_base_bytes",
        local_heads="layout.local_heads",
        dcp="sharding.dcp",
        batched_tokens="limits.batched_tokens",
    )


def _post_arena(ledger: Ledger, plan: Deployment) -> None:
    """Post FlashMLA's workspace where that backend is chosen, the indexer's gather, and the arena that both share."""
    release = plan.release
    shared = []
    kind = vllm.flashmla_workspace(plan.record.value, plan.gpu, release, ledger["layout.local_heads"])
    if kind != "none":
        ledger.fact("engine.prefill_heads", Unit.COUNT, vllm.prefill_heads(plan.gpu, release))
        packed = kind == "packed"
        pads = (vllm.PADS_QUERIES if packed else vllm.PADS_BF16_QUERIES).at(release)
        ledger.fact("engine.pads_queries", Unit.COUNT, Fact(int(pads.value), pads.source))
        length = {"context_length": "limits.context_length", "factor": "engine.workspace_factor"}
        ledger.derive(
            "workspace.sparse_prefill_bytes",
            Unit.BYTES,
            vllm_buffers.packed_prefill_bytes if packed else vllm_buffers.bf16_prefill_bytes,
            engine_source(release, "mla/flashmla_sparse.py"),
            batched_tokens="limits.batched_tokens",
            local_heads="layout.local_heads",
            prefill_heads="engine.prefill_heads",
            pads_queries="engine.pads_queries",
            **(length if packed else {}),
        )
        shared.append("workspace.sparse_prefill_bytes")
    elif plan.gpu.compute_capability[0] == vllm.BLACKWELL:
        _post_flashinfer(ledger, plan)
    ledger.derive(
        "workspace.gather_arena_bytes",
        Unit.BYTES,
        vllm_buffers.gather_bytes,
        engine_source(release, "mla/indexer.py: gather rows = max_model_len x 8 x factor"),
        context_length="limits.context_length",
        factor="engine.workspace_factor",
        record_bytes="record.index_k_bytes",
    )
    ledger.total(
        "workspace.arena_bytes",
        engine_source(release, "v1/worker/workspace.py: one buffer, grown to the largest of its users (PR #56902)"),
        [*shared, "workspace.gather_arena_bytes"],
        MOST,
        "the MoE scratch lies in it too and is not modelled",
    )
    budget = engine_source(release, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB: 512 MiB")
    ledger.given("workspace.prefill_logits_budget_bytes", LOGITS_BUDGET_BYTES, Unit.BYTES, budget)


def _post_tables(ledger: Ledger, plan: Deployment) -> list[str]:
    """Post block tables; return those made before profiling: the V1 runner's request tables.

    The rest are made with the KV cache; the drafter's metadata builder, on the last stage, makes a set of its own.
    """
    source = engine_source(plan.release, "v1/worker/block_table.py, mla/indexer.py")
    ledger.derive(
        "workspace.table_columns",
        Unit.PAGES,
        vllm_buffers.table_columns,
        source,
        context_length="limits.context_length",
        page_tokens="engine.page_tokens",
        dcp="sharding.dcp",
    )
    ledger.derive(
        "workspace.page_table_bytes",
        Unit.BYTES,
        vllm_buffers.expanded_table_bytes,
        source,
        "one indexer metadata builder; made after profiling",
        batched_tokens="limits.batched_tokens",
        columns="workspace.table_columns",
    )
    ledger.derive(
        "workspace.request_table_bytes",
        Unit.BYTES,
        vllm_buffers.request_tables_bytes,
        source,
        sequences="limits.sequences",
        columns="workspace.table_columns",
    )
    if plan.draft_layers:
        last = Scope(ledger, plan.stages[-1].prefix)
        last.total("workspace.draft_page_table_bytes", source, ["workspace.page_table_bytes"], note="the drafter's")
    v2 = since(plan.release, "0.29.0") or plan.scenario.sharding.cp > 1  # PCP runs on the V2 runner alone
    return [] if v2 else ["workspace.request_table_bytes"]


def _post_decode_logits(ledger: Ledger, plan: Deployment) -> None:
    release = plan.release
    wide = since(release, "0.33.0") and plan.gpu.compute_capability[0] == vllm.BLACKWELL
    source = engine_source(release, "sparse_attn_indexer.py: fp32; from 0.33 on SM100 bf16 and an fp32 copy")
    ledger.given("workspace.logits_element_bytes", 6 if wide else 4, Unit.BYTES, source)
    ledger.derive(
        "workspace.decode_logits_bytes",
        Unit.BYTES,
        vllm_buffers.decode_logits_bytes,
        source,
        "a full batch, as wide as max_model_len",
        sequences="limits.sequences",
        rows="draft.rows",
        context_length="limits.context_length",
        element_bytes="workspace.logits_element_bytes",
    )
    if ledger["workspace.decode_logits_bytes"] > LOGITS_BUDGET_BYTES:
        ledger.warn(
            f"decode logits of {ledger['limits.sequences']:,} requests as wide as max_model_len take more than the "
            "512 MiB that profiling reserves; lower --context-length or --max-running-requests (max_num_seqs)"
        )
