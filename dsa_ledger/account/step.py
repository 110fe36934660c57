"""Entries about one decode step of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.model import cached_layers
from dsa_ledger.account.records import INDEX_STATE, STATE_TOKENS, scenario_source
from dsa_ledger.engines.caches import PAGE_STATES
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import pool, step
from dsa_ledger.formulas import weights as weight_formulas
from dsa_ledger.formulas.helpers import choice
from dsa_ledger.ledger import Scope, Source
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.account.many import Loads
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Load

CORRELATION = 0.6

# Fullest card over mean, whole experts on each, uniform routing, own Monte Carlo: ep -> (tokens in flight, share).
STRAGGLER = {
    4: ((1, 1.75), (4, 1.36), (8, 1.24), (16, 1.16), (32, 1.10), (64, 1.05), (128, 1.01)),
    8: ((1, 2.55), (4, 1.72), (8, 1.49), (16, 1.32), (32, 1.18), (64, 1.09), (128, 1.02)),
    16: ((1, 4.02), (4, 2.33), (8, 1.88), (16, 1.54), (32, 1.32), (64, 1.14), (128, 1.02)),
}


def post_requests(ledger: Ledger, plan: Deployment, load: Load | Loads) -> None:
    """Post the load as asked and a rank's share of its requests."""
    ledger.given("load.batch", load.batch, Unit.REQUESTS, scenario_source("load.batch"))
    ledger.given("load.context_tokens", load.context, Unit.TOKENS, scenario_source("load.context"))
    ledger.derive(
        "load.requests",
        Unit.REQUESTS,
        pool.requests_of_rank,
        plan.replicas.source,
        batch="load.batch",
        replicas="sharding.replicas",
    )
    page = engine_source(plan.release, "a page spans the DCP ranks")
    ledger.derive(
        "load.page_tokens",
        Unit.TOKENS,
        pool.logical_tokens,
        page,
        rows="engine.page_tokens",
        tokens_per_row="pool.tokens_per_row",
    )


def post_load(ledger: Ledger, plan: Deployment, load: Load | Loads) -> None:
    """Post the load and what a rank sees of it."""
    post_requests(ledger, plan, load)
    rules = plan.step
    ledger.fact("step.request_shards", Unit.RANKS, rules.request_shards)
    ledger.derive(
        "step.requests",
        Unit.REQUESTS,
        pool.requests_of_rank,
        rules.request_shards.source,
        batch="load.requests",
        replicas="step.request_shards",
    )
    ledger.fact("step.scoring_draft_forwards", Unit.COUNT, rules.scoring_draft_forwards)
    ledger.fact("step.dcp_shards", Unit.RANKS, rules.dcp_scoring_shards)
    ledger.given("step.verify_flattens", int(rules.verify_flattens.value), Unit.COUNT, rules.verify_flattens.source)
    ledger.fact("step.tile_rows", Unit.ROWS, rules.tile_rows)
    ledger.fact("step.read_tokens", Unit.TOKENS, rules.read_tokens)
    ledger.given("step.extend_flattens", int(rules.extend_flattens.value), Unit.COUNT, rules.extend_flattens.source)
    if plan.caches.index_k.tokens_per_state > 1:
        _post_pooled_keys(ledger, plan)
    else:
        ledger.derive(
            "step.tokens",
            Unit.TOKENS,
            step.cached_tokens,
            rules.dcp_scoring_shards.source,
            context_tokens="load.context_tokens",
            dcp_shards="step.dcp_shards",
        )
    if plan.model.weights_modelled:
        _post_experts(ledger)


def _post_pooled_keys(ledger: Ledger, plan: Deployment) -> None:
    """Post the keys that a step scores where one stands for several tokens, and what a row then selects."""
    pooled = engine_source(plan.release, "dsa_indexer.py, index_kpool: whole pools are scored, the open one is taken")
    ledger.derive(
        "step.tokens",
        Unit.TOKENS,
        step.pooled_keys,
        pooled,
        "keys, one a whole pool",
        context_tokens="load.context_tokens",
        state_tokens=STATE_TOKENS,
    )
    ledger.given("step.page_keys", PAGE_STATES, Unit.TOKENS, pooled)
    ledger.derive(
        "step.selected_tokens",
        Unit.TOKENS,
        step.selection_width,
        pooled,
        "at most",
        index_topk="config.index_topk",
        index_kpool="config.index_kpool",
    )


def _post_experts(ledger: Ledger) -> None:
    """Post the tokens that meet in a MoE layer and the experts they hit."""
    prior = Source(
        "prior", "verify rows count 0.6 of an independent token (0.57 to 0.8 in public measurements)", "2026-09"
    )
    ledger.given("draft.correlation", CORRELATION, Unit.SHARE, prior)
    ledger.derive(
        "step.tokens_in_flight",
        Unit.TOKENS,
        weight_formulas.tokens_in_flight,
        prior,
        batch="load.batch",
        correlation="draft.correlation",
        draft_steps="draft.steps",
    )
    ledger.derive(
        "step.distinct_experts",
        Unit.COUNT,
        weight_formulas.distinct_experts,
        prior,
        "independent and uniform routing: at most",
        experts="config.experts",
        experts_per_token="config.experts_per_token",
        tokens="step.tokens_in_flight",
    )


def post_step(scope: Scope, plan: Deployment) -> None:
    """Post what a rank of one stage reads and writes in a step."""
    post_held_requests(scope, plan)
    _post_index_k(scope, plan)
    _post_logits(scope, plan)
    _post_main_kv(scope, plan)
    if plan.model.weights_modelled:
        _post_weights(scope, plan)


def post_held_requests(scope: Scope, plan: Deployment) -> None:
    """Post the requests of the asked context that a rank's pool holds."""
    source = engine_source(plan.release, "whole pages a request")
    scope.derive(
        "pool.requests_at_context",
        Unit.REQUESTS,
        pool.requests_at_context,
        source,
        tokens="pool.tokens",
        context_tokens="load.context_tokens",
        page_tokens="load.page_tokens",
    )


def _post_index_k(scope: Scope, plan: Deployment) -> None:
    kernel = engine_source(plan.release, "paged scoring reads each cached key once per pass")
    passes = plan.step.scoring_draft_forwards.source
    scope.derive(
        "step.draft_passes", Unit.PASSES, step.draft_passes, passes, scoring_forwards="step.scoring_draft_forwards"
    )
    scope.derive(
        "step.index_k_passes",
        Unit.PASSES,
        step.index_k_passes,
        passes,
        full_layers="model.full_layers",
        draft_layers="model.draft_layers",
        draft_passes="step.draft_passes",
    )
    scope.derive(
        "step.index_k_passes_high",
        Unit.PASSES,
        step.most_index_k_passes,
        plan.step.verify_flattens.source,
        "where no flattened row and no query tile finds the keys in L2",
        full_layers="model.full_layers",
        rows="draft.rows",
        tile_rows="step.tile_rows",
        verify_flattens="step.verify_flattens",
        draft_layers="model.draft_layers",
        scoring_forwards="step.scoring_draft_forwards",
        extend_flattens="step.extend_flattens",
    )
    pooled = plan.caches.index_k.tokens_per_state > 1
    record, page = (INDEX_STATE, "step.page_keys") if pooled else ("record.index_k_bytes", "engine.page_tokens")
    read = {"record_bytes": record, "tokens": "step.tokens", "requests": "step.requests"}
    scope.derive(
        "step.index_k_read_bytes",
        Unit.BYTES_PER_STEP,
        step.index_k_read_bytes,
        kernel,
        passes="step.index_k_passes",
        **read,
    )
    scope.derive(
        "step.index_k_read_bytes_high",
        Unit.BYTES_PER_STEP,
        step.index_k_read_bytes,
        plan.step.verify_flattens.source,
        passes="step.index_k_passes_high",
        **read,
    )
    scope.derive(
        "step.index_k_page_read_bytes",
        Unit.BYTES_PER_STEP,
        step.index_k_page_read_bytes,
        kernel,
        "whole pages, on SM100 whole splits",
        passes="step.index_k_passes",
        page_tokens=page,
        **read,
    )
    scope.derive(
        "step.page_table_read_bytes",
        Unit.BYTES_PER_STEP,
        step.page_table_read_bytes,
        kernel,
        requests="step.requests",
        tokens="step.tokens",
        page_tokens=page,
        passes="step.index_k_passes",
    )
    scope.derive(
        "step.scored_layers",
        Unit.LAYERS,
        step.scored_layers,
        kernel,
        full_layers="model.full_layers",
        draft_layers="model.draft_layers",
    )
    scope.derive(
        "step.index_k_write_bytes",
        Unit.BYTES_PER_STEP,
        step.index_k_write_bytes,
        kernel,
        record_bytes="record.index_k_bytes",
        layers="step.scored_layers",
        rows="draft.rows",
        requests="step.requests",
    )
    scope.derive(
        "step.index_q_bytes",
        Unit.BYTES_PER_STEP,
        step.index_query_traffic_bytes,
        kernel,
        "written once and read once",
        requests="step.requests",
        rows="draft.rows",
        index_heads="config.index_heads",
        index_head_dim="config.index_head_dim",
        layers="step.scored_layers",
    )


def _post_logits(scope: Scope, plan: Deployment) -> None:
    source = engine_source(plan.release, "fp32 logits: columns up to each row's end, written once and read by top-k")
    for key in ("step.logits_write_bytes", "step.logits_read_bytes"):
        scope.derive(
            key,
            Unit.BYTES_PER_STEP,
            step.logits_traffic_bytes,
            source,
            requests="step.requests",
            rows="draft.rows",
            tokens="step.tokens",
            layers="step.scored_layers",
        )


def _post_main_kv(scope: Scope, plan: Deployment) -> None:
    source = engine_source(plan.release, "sparse MLA gathers index_topk records a row; target layers")
    scope.derive(
        "step.main_kv_read_bytes",
        Unit.BYTES_PER_STEP,
        step.main_kv_read_bytes,
        source,
        record_bytes="record.main_kv_bytes",
        layers=cached_layers(plan.model),
        context_tokens="load.context_tokens",
        index_topk="step.selected_tokens" if plan.caches.index_k.tokens_per_state > 1 else "config.index_topk",
        rows="draft.rows",
        requests="step.requests",
    )
    scope.derive(
        "step.main_kv_write_bytes",
        Unit.BYTES_PER_STEP,
        step.main_kv_write_bytes,
        source,
        record_bytes="record.main_kv_bytes",
        layers=cached_layers(plan.model),
        rows="draft.rows",
        requests="step.requests",
    )


def _post_weights(scope: Scope, plan: Deployment) -> None:
    source = scope.ledger.entries[scope.name("weights.always_read_bytes")].source
    scope.derive(
        "step.indexer_weights_read_bytes",
        Unit.BYTES_PER_STEP,
        step.running_indexer_bytes,
        source,
        "whatever the context",
        indexer_bytes="weights.indexer_bytes",
        running_layers="model.full_layers",
        built_layers="model.indexer_layers",
    )
    scope.derive(
        "step.always_read_bytes",
        Unit.BYTES_PER_STEP,
        step.always_read_bytes,
        source,
        "without routed experts",
        other_bytes="weights.always_read_bytes",
        indexer_bytes="step.indexer_weights_read_bytes",
    )
    parts = {"always_bytes": "step.always_read_bytes", "distinct": "step.distinct_experts", "experts": "config.experts"}
    if scope.name("weights.expert_rank_bytes") not in scope.ledger:
        scope.total("step.weights_read_bytes", source, ["step.always_read_bytes"])
        return
    note = "an upper bound: independent, uniform routing"
    scope.derive(
        "step.weights_read_bytes",
        Unit.BYTES_PER_STEP,
        weight_formulas.weights_read_bytes,
        source,
        note,
        expert_bytes="weights.expert_rank_bytes",
        **parts,
    )
    shares = STRAGGLER.get(plan.scenario.sharding.ep)
    if shares is None:
        return
    tokens = scope["step.tokens_in_flight"]
    share = _straggler(shares, tokens)
    prior = Source(
        "prior", "own Monte Carlo, uniform routing: fullest rank over mean; real skew makes it worse", "2026-10"
    )
    scope.given("step.expert_straggler_share", share, Unit.SHARE, prior)
    scope.derive(
        "step.weights_read_bytes_high",
        Unit.BYTES_PER_STEP,
        weight_formulas.straggling_read_bytes,
        prior,
        "the rank with the most hit experts",
        expert_bytes="weights.expert_rank_bytes",
        straggler="step.expert_straggler_share",
        **parts,
    )


def _straggler(shares: tuple[tuple[int, float], ...], tokens: Any) -> Any:
    """Return fullest card over mean for so many tokens in flight, an array of them for an array."""
    share: Any = shares[0][1]
    for limit, value in shares[1:]:
        share = choice(tokens >= limit, value, share)
    return share
