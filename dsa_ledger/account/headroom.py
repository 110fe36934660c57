"""Entries about memory outside the pool: what stays free, at rest and while a prefill runs at the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines import sglang
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import headroom, workspace
from dsa_ledger.ledger import Scope, Source
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

ACTIVATION_BYTES = 57_344
ACTIVATIONS = Source(
    "prior",
    "https://github.com/SemiAnalysisAI/InferenceX/pull/2488: about 7 GiB of activations at a chunk of 131,072 tokens, "
    "1.7 GiB at 32,768; other layouts and models differ",
    "2026-07",
)
# Buffers of a fixed size that no pool arithmetic of the engine has taken off the free memory of this ledger.
FIXED = (
    "workspace.decode_logits_bytes",
    "workspace.req_to_token_bytes",
    "workspace.page_table_bytes",
    "workspace.index_tail_bytes",
    "workspace.hisparse_map_bytes",
    "workspace.hisparse_host_map_bytes",
    "workspace.hisparse_table_bytes",
    "workspace.hisparse_hash_bytes",
    "workspace.topk_index_bytes",
    "workspace.index_group_bytes",
    "workspace.arena_bytes",
    "workspace.flashinfer_bytes",
    "workspace.draft_page_table_bytes",
    "workspace.request_table_bytes",
    "workspace.topk_bytes",
)


def post_headroom(ledger: Ledger, plan: Deployment) -> None:
    """Post what each stage's rank has left beside weights, pool and fixed buffers."""
    if not plan.model.weights_modelled and "memory.free_after_bytes" not in ledger:
        return
    source = engine_source(plan.release, "free memory less pool and fixed buffers; activations and graphs come on top")
    late = plan.release.engine == "sglang" and not sglang.DRAFT_WEIGHTS_FIRST.of(plan.release)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        held = [key for key in FIXED if scope.name(key) in ledger]
        scope.total("workspace.fixed_bytes", source, held)
        if late and plan.scenario.observed.free_after is None and scope.name("weights.draft_rank_bytes") in ledger:
            scope.total("memory.late_bytes", source, ["weights.draft_rank_bytes"], note="loaded after the pool")
        else:
            scope.given("memory.late_bytes", 0, Unit.BYTES, source)
        scope.derive(
            "memory.headroom_bytes",
            Unit.BYTES,
            headroom.headroom_bytes,
            source,
            "before activations and CUDA graphs",
            free_after_bytes="memory.free_after_bytes",
            target_bytes="pool.target_bytes",
            draft_bytes="pool.draft_bytes",
            late_bytes="memory.late_bytes",
            workspace_bytes="workspace.fixed_bytes",
        )


def post_prefill_headroom(ledger: Ledger, plan: Deployment) -> None:
    """Post what is left while a rank prefills a full chunk whose last row sees the whole context.

    How the logits of pooled keys are cut is not known, so nothing is said of them.
    """
    if f"{plan.stages[0].prefix}memory.headroom_bytes" not in ledger or plan.caches.index_k.tokens_per_state > 1:
        return
    if "limits.chunk_tokens" not in ledger:
        ledger.fact("limits.chunk_tokens", Unit.TOKENS, plan.prefill.chunk_tokens)
    ledger.given("prior.activation_token_bytes", ACTIVATION_BYTES, Unit.BYTES_PER_TOKEN, ACTIVATIONS)
    logits = engine_source(plan.release, "fp32 prefill logits of one forward, cut to the engine's limit")
    rows = {"rows": "limits.chunk_tokens", "context_tokens": "load.context_tokens"}
    if "workspace.prefill_logits_budget_bytes" in ledger:
        rows |= {"budget_bytes": "workspace.prefill_logits_budget_bytes"}
        ledger.derive("workspace.chunk_logits_bytes", Unit.BYTES, headroom.chunk_logits_bytes, logits, **rows)
    else:
        rows |= {"most_rows": "prefill.most_rows"}
        ledger.derive("workspace.chunk_logits_bytes", Unit.BYTES, headroom.bounded_logits_bytes, logits, **rows)
    if plan.release.engine == "vllm":
        ledger.given("workspace.chunk_gather_bytes", 0, Unit.BYTES, engine_source(plan.release, "in the gather arena"))
    else:
        ledger.given("prefill.gathers", 1, Unit.COUNT, logits)
        ledger.derive(
            "workspace.chunk_gather_bytes",
            Unit.BYTES,
            workspace.gathered_index_k_bytes,
            engine_source(plan.release, "index-K gathered to a contiguous copy before ragged scoring"),
            record_bytes="record.index_k_bytes",
            context_tokens="load.context_tokens",
            scores="prefill.gathers",
        )
    ledger.derive(
        "workspace.chunk_activation_bytes",
        Unit.BYTES,
        headroom.chunk_activation_bytes,
        ACTIVATIONS,
        chunk_tokens="limits.chunk_tokens",
        token_bytes="prior.activation_token_bytes",
    )
    for stage in plan.stages:
        Scope(ledger, stage.prefix).derive(
            "memory.prefill_headroom_bytes",
            Unit.BYTES,
            headroom.prefill_headroom_bytes,
            logits,
            "one full chunk at the end of the context; CUDA graphs come on top",
            headroom_bytes="memory.headroom_bytes",
            logits_bytes="workspace.chunk_logits_bytes",
            gather_bytes="workspace.chunk_gather_bytes",
            activation_bytes="workspace.chunk_activation_bytes",
        )
