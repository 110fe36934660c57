"""Entries about the prefill of one request, and what a prefill worker sends to a decode worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.records import scenario_source
from dsa_ledger.engines.rules import engine_source, since
from dsa_ledger.errors import NotModelled
from dsa_ledger.formulas import prefill, workspace
from dsa_ledger.formulas.helpers import choice
from dsa_ledger.ledger import Source
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.account.many import Loads
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Load

KERNEL = Source("engine", "DeepGEMM 54e2261: 128 head rows a query tile", "2026-06-23")


def post_prefill(ledger: Ledger, plan: Deployment, load: Load | Loads) -> None:
    """Post logits, chunks, index-K traffic and score arithmetic of one request's new tokens."""
    rules = plan.prefill
    if plan.caches.index_k.tokens_per_state > 1:
        raise NotModelled("prefill with index_kpool", plan.release.label, "how its logits are cut was not worked out")
    ledger.given("load.new_tokens", load.new_tokens, Unit.TOKENS, scenario_source("load.new_tokens"))
    if "limits.chunk_tokens" not in ledger:
        ledger.fact("limits.chunk_tokens", Unit.TOKENS, rules.chunk_tokens)
    ledger.fact("prefill.unchecked_elements", Unit.ELEMENTS, rules.unchecked_elements)
    context = 0 if load.context is None else load.context
    scores = choice(context <= plan.model.index_topk, 0, 1) if rules.skips_short.value else 1
    ledger.given("prefill.scores", scores, Unit.COUNT, rules.skips_short.source)
    chunked = {"new_tokens": "load.new_tokens", "chunk_tokens": "limits.chunk_tokens"}
    present = {"context_tokens": "load.context_tokens"}
    budget = {
        "budget_bytes": "workspace.prefill_logits_budget_bytes",
        "unchecked_elements": "prefill.unchecked_elements",
    }
    source = rules.chunk_tokens.source
    ledger.derive("prefill.forwards", Unit.COUNT, workspace.forwards, source, **chunked)
    ledger.derive("prefill.last_rows", Unit.ROWS, workspace.last_forward_rows, source, **chunked)
    logits = engine_source(plan.release, "fp32 prefill logits, cut to a budget")
    ledger.derive(
        "workspace.prefill_logits_bytes",
        Unit.BYTES,
        workspace.prefill_logits_bytes,
        logits,
        "the last forward, before any cut",
        rows="prefill.last_rows",
        scores="prefill.scores",
        **present,
    )
    if "prefill.most_rows" in ledger:
        bound = ledger.entries["prefill.most_rows"].source
        rows = {"new_tokens": "prefill.last_rows", "chunk_tokens": "prefill.most_rows"}
        ledger.derive("workspace.prefill_chunks", Unit.COUNT, workspace.forwards, bound, "cut by rows", **rows)
    else:
        rows = {"rows": "prefill.last_rows"}
        chunks = workspace.prefill_chunks
        ledger.derive("workspace.prefill_chunks", Unit.COUNT, chunks, logits, **rows, **present, **budget)
    ledger.derive(
        "workspace.prefill_gather_bytes",
        Unit.BYTES,
        workspace.gathered_index_k_bytes,
        engine_source(plan.release, "index-K gathered to a contiguous copy before ragged scoring"),
        record_bytes="record.index_k_bytes",
        scores="prefill.scores",
        **present,
    )
    _post_reads(ledger, {**chunked, **present}, budget, logits)
    _post_writes(ledger, plan, present)


def _post_reads(ledger: Ledger, inputs: dict[str, str], budget: dict[str, str], source: Source) -> None:
    key = "prefill.keys_by_chunk"
    if "prefill.most_rows" in ledger:
        cut = {"tile_rows": "prefill.most_rows"}
        ledger.derive(key, Unit.TOKENS, prefill.keys_read_by_tile, source, "a chunk of rows at a time", **inputs, **cut)
    else:
        ledger.derive(key, Unit.TOKENS, prefill.keys_read_by_chunk, source, **inputs, **budget)
    ledger.derive("prefill.tile_rows", Unit.ROWS, prefill.tile_rows, KERNEL, index_heads="config.index_heads")
    ledger.derive(
        "prefill.keys_by_tile", Unit.TOKENS, prefill.keys_read_by_tile, KERNEL, tile_rows="prefill.tile_rows", **inputs
    )
    read = {"record_bytes": "record.index_k_bytes", "full_layers": "model.full_layers", "scores": "prefill.scores"}
    rows = ledger["prefill.tile_rows"]
    ledger.derive(
        "prefill.index_k_read_bytes",
        Unit.BYTES,
        prefill.index_k_read_bytes,
        source,
        "q = the rows of a logits chunk: one read of the keys present for each chunk and full layer",
        keys="prefill.keys_by_chunk",
        **read,
    )
    ledger.derive(
        "prefill.index_k_read_bytes_high",
        Unit.BYTES,
        prefill.index_k_read_bytes,
        KERNEL,
        f"q = {rows} rows, a query tile: one read for each tile, as if no cache helped",
        keys="prefill.keys_by_tile",
        **read,
    )


def _post_writes(ledger: Ledger, plan: Deployment, present: dict[str, str]) -> None:
    ledger.derive(
        "prefill.index_k_write_bytes",
        Unit.BYTES,
        prefill.index_k_write_bytes,
        engine_source(plan.release, "each new token's key in each full layer"),
        record_bytes="record.index_k_bytes",
        full_layers="model.full_layers",
        new_tokens="load.new_tokens",
    )
    ledger.derive(
        "prefill.score_flops",
        Unit.FLOPS,
        prefill.score_flops,
        engine_source(plan.release, "two flop a multiply-add, each head, causal within the new block"),
        index_heads="config.index_heads",
        index_head_dim="config.index_head_dim",
        full_layers="model.full_layers",
        new_tokens="load.new_tokens",
        scores="prefill.scores",
        **present,
    )


def post_transfer(ledger: Ledger, plan: Deployment) -> None:
    """Post one copy of one request's target cache, sent from a prefill to a decode worker."""
    source = engine_source(plan.release, "prefill-decode transfer: tokens, not pages; one copy")
    context = {"context_tokens": "load.context_tokens"}
    ledger.derive(
        "transfer.main_kv_bytes",
        Unit.BYTES_PER_REQUEST,
        prefill.transfer_bytes,
        source,
        record_bytes="record.main_kv_bytes",
        layers="model.layers",
        **context,
    )
    ledger.derive(
        "transfer.index_k_bytes",
        Unit.BYTES_PER_REQUEST,
        prefill.transfer_bytes,
        source,
        record_bytes="record.index_k_bytes",
        layers="model.index_k_layers",
        **context,
    )
    engine = plan.release.engine
    seeded = engine == "vllm" or (engine == "sglang" and since(plan.release, "0.5.15"))
    if plan.draft_layers and seeded:
        ledger.derive(
            "transfer.seed_bytes",
            Unit.BYTES_PER_REQUEST,
            prefill.seed_bytes,
            engine_source(plan.release, "MTP seed: the top-k of draft-extend, int32"),
            index_topk="config.index_topk",
            index_kpool="config.index_kpool",
            draft_layers="model.draft_layers",
        )
