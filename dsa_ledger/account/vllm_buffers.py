"""vLLM: buffers of a fixed size, which ones profiling sees, and the logits it may run into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.records import scenario_source
from dsa_ledger.engines import vllm
from dsa_ledger.engines.rules import engine_source, since
from dsa_ledger.formulas import step, vllm_buffers
from dsa_ledger.ledger import Fact
from dsa_ledger.units import MIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

LOGITS_BUDGET_BYTES = 512 * MIB
FLASHINFER_BYTES = 394 * MIB
SEQUENCES = 1024


def post_buffers(ledger: Ledger, plan: Deployment) -> None:
    """Post each buffer, and `workspace.reserved_bytes`: those that the budget already lacks."""
    _post_limits(ledger, plan)
    reserved = ["workspace.topk_index_bytes"]
    reserved += _post_topk(ledger, plan)
    reserved += _post_sparse_prefill(ledger, plan)
    reserved += ["workspace.prefill_logits_budget_bytes"]
    reserved += _post_tables(ledger, plan)
    ledger.total(
        "workspace.reserved_bytes",
        engine_source(plan.release, "buffers made before or during profiling"),
        reserved,
        note="top-k, sparse prefill, gather and logits reserve; the gather shares an arena with the MoE scratch",
    )
    _post_decode_logits(ledger, plan)


def _post_limits(ledger: Ledger, plan: Deployment) -> None:
    scenario, release = plan.scenario, plan.release
    ledger.fact("limits.batched_tokens", Unit.TOKENS, vllm.batched_tokens(scenario, plan.gpu, release))
    asked = scenario.limits.max_running_requests
    if asked is None:
        default = engine_source(release, "engine/arg_utils.py: max_num_seqs 1,024 on H100 and larger")
        ledger.given("limits.sequences", SEQUENCES, Unit.REQUESTS, default)
    else:
        ledger.given("limits.sequences", asked, Unit.REQUESTS, scenario_source("limits.max_running_requests"))
    factor = vllm.workspace_factor(ledger["limits.context_length"], release)
    ledger.fact("engine.workspace_factor", Unit.COUNT, factor)
    heads = plan.model.heads // plan.build.weights.attention_shards.value
    ledger.given("layout.local_heads", heads, Unit.COUNT, plan.build.weights.attention_shards.source)


def _post_topk(ledger: Ledger, plan: Deployment) -> list[str]:
    source = engine_source(plan.release, "topk_indices_buffer; the draft module makes its own (inferred)")
    ledger.given("workspace.topk_copies", 1 + bool(plan.draft_layers), Unit.COUNT, source)
    ledger.derive(
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
        return []
    ledger.derive(
        "workspace.index_groups",
        Unit.LAYERS,
        step.scored_layers,
        groups.source,
        full_layers="model.full_layers",
        draft_layers="model.draft_layers",
    )
    ledger.derive(
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
    return ["workspace.index_group_bytes"]


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


def _post_sparse_prefill(ledger: Ledger, plan: Deployment) -> list[str]:
    """Post FlashMLA's workspace where that backend is chosen, and the indexer's gather arena."""
    release = plan.release
    keys = []
    kind = vllm.flashmla_workspace(plan.record.value, plan.gpu, release, ledger["layout.local_heads"])
    heads = {"batched_tokens": "limits.batched_tokens", "local_heads": "layout.local_heads"}
    source = engine_source(release, "mla/flashmla_sparse.py")
    if kind == "packed":
        padded = vllm.PADS_QUERIES.at(release)
        ledger.fact("engine.pads_queries", Unit.COUNT, Fact(int(padded.value), padded.source))
        ledger.derive(
            "workspace.sparse_prefill_bytes",
            Unit.BYTES,
            vllm_buffers.packed_prefill_bytes,
            source,
            context_length="limits.context_length",
            factor="engine.workspace_factor",
            pads_queries="engine.pads_queries",
            **heads,
        )
        keys.append("workspace.sparse_prefill_bytes")
    elif kind == "bf16":
        ledger.derive("workspace.sparse_prefill_bytes", Unit.BYTES, vllm_buffers.bf16_prefill_bytes, source, **heads)
        keys.append("workspace.sparse_prefill_bytes")
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
    budget = engine_source(release, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB: 512 MiB")
    ledger.given("workspace.prefill_logits_budget_bytes", LOGITS_BUDGET_BYTES, Unit.BYTES, budget)
    return [*keys, "workspace.gather_arena_bytes"]


def _post_tables(ledger: Ledger, plan: Deployment) -> list[str]:
    """Post block tables; they are made with the KV cache, after profiling, but for the V1 runner's request tables."""
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
        "one indexer metadata builder; the drafter makes a second one; made after profiling",
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
    return [] if since(plan.release, "0.29.0") else ["workspace.request_table_bytes"]


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
