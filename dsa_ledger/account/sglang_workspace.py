"""SGLang: memory outside the pool that follows from the configuration, not from the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines import sglang, sglang_memory
from dsa_ledger.engines.rules import engine_source, since
from dsa_ledger.formulas import workspace
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

RESOLVE = "kv_cache_configurator.py: resolve_max_num_reqs"
FREE_SHARE = 0.2


def post_workspace(ledger: Ledger, plan: Deployment) -> None:
    """Post running requests, tables, captured logits and the logits budget of one rank."""
    _post_requests(ledger, plan)
    _post_tables(ledger, plan)
    if plan.caches.index_k.tokens_per_state > 1:
        _post_index_tail(ledger, plan)
        ledger.warn("the captured logits of pooled index keys are not worked out: no workspace.decode_logits_bytes")
    else:
        _post_captured_logits(ledger, plan)
    _post_budget(ledger, plan)


def _post_requests(ledger: Ledger, plan: Deployment) -> None:
    """Post the requests that one rank runs at most."""
    release, cap = plan.release, sglang_memory.running_cap(plan.scenario, plan.release)
    source = engine_source(release, RESOLVE)
    ledger.derive(
        "workspace.estimated_requests",
        Unit.REQUESTS,
        workspace.estimated_requests,
        source,
        pool_tokens="pool.rows",
        context_length="limits.context_length",
    )
    running = "workspace.estimated_requests"
    if cap is not None:
        ledger.fact("limits.max_running_requests", Unit.REQUESTS, cap)
        floor = engine_source(release, f"{RESOLVE}: from 0.5.23 at least one request a rank")
        ledger.given("workspace.least_requests", int(since(release, "0.5.23")), Unit.REQUESTS, floor)
        running = "workspace.asked_requests"
        ledger.derive(
            running,
            Unit.REQUESTS,
            workspace.asked_requests,
            source,
            asked="limits.max_running_requests",
            dp_attention="sharding.dp_attention",
            least_requests="workspace.least_requests",
        )
    asked = "limits.max_running_requests"
    undivided = asked in ledger and not since(release, "0.5.10")  # 0.5.9: rows and limit are the flag as typed
    if since(release, "0.5.14"):
        inputs = {"requests": running, "pool_tokens": "pool.rows"}
        ledger.derive("workspace.running_requests", Unit.REQUESTS, workspace.requests_in_pool, source, **inputs)
    else:
        limit = {"requests": running, "limit": asked if undivided else "workspace.estimated_requests"}
        ledger.derive("workspace.running_requests", Unit.REQUESTS, workspace.smaller_requests, source, **limit)
    ledger.total("workspace.table_requests", source, [asked if undivided else "workspace.running_requests"])
    ledger.fact(
        "workspace.graph_requests", Unit.REQUESTS, sglang_memory.captured_default(plan.scenario, plan.gpu, release)
    )
    ledger.derive(
        "workspace.captured_requests",
        Unit.REQUESTS,
        workspace.captured_requests,
        engine_source(release, "cuda_graph_runner.py: largest captured batch, not above the running requests"),
        graph_requests="workspace.graph_requests",
        running="workspace.running_requests",
    )


def _post_tables(ledger: Ledger, plan: Deployment) -> None:
    release, scenario = plan.release, plan.scenario
    extra = sglang_memory.extra_tokens(scenario, release, ledger["engine.page_tokens"])
    ledger.fact("workspace.extra_tokens", Unit.TOKENS, extra)
    ledger.derive(
        "workspace.request_columns",
        Unit.TOKENS,
        workspace.request_columns,
        extra.source,
        context_length="limits.context_length",
        extra_tokens="workspace.extra_tokens",
    )
    ledger.fact("workspace.extra_rows", Unit.ROWS, sglang_memory.request_rows(scenario, release))
    ledger.derive(
        "workspace.req_to_token_bytes",
        Unit.BYTES,
        workspace.request_table_bytes,
        engine_source(release, "mem_cache/memory_pool.py ReqToTokenPool: int32"),
        requests="workspace.table_requests",
        extra_rows="workspace.extra_rows",
        columns="workspace.request_columns",
    )
    wide = sglang_memory.table_columns_extra(scenario, release, extra.value)
    ledger.fact("workspace.table_extra_tokens", Unit.TOKENS, wide)
    ledger.derive(
        "workspace.table_columns",
        Unit.TOKENS,
        workspace.request_columns,
        wide.source,
        context_length="limits.context_length",
        extra_tokens="workspace.table_extra_tokens",
    )
    compact = sglang_memory.compact_table(scenario, plan.model, release)
    rows = {"requests": "workspace.captured_requests", "rows": "draft.rows"}
    if compact.value:
        ledger.derive(
            "workspace.page_table_bytes",
            Unit.BYTES,
            workspace.compact_page_table_bytes,
            compact.source,
            context_length="limits.context_length",
            page_tokens="engine.page_tokens",
            **rows,
        )
    else:
        ledger.derive(
            "workspace.page_table_bytes",
            Unit.BYTES,
            workspace.wide_page_table_bytes,
            compact.source,
            columns="workspace.table_columns",
            **rows,
        )


def _post_index_tail(ledger: Ledger, plan: Deployment) -> None:
    """Post what each request keeps of the pool of keys that is still open, outside the cell."""
    tail = plan.caches.index_k.fixed_bytes_per_request
    if tail is None:
        return
    source = engine_source(plan.release, "memory_pool.py: open pools of index_kpool + draft tokens, keys and scores")
    drafted = plan.scenario.draft.steps + 1 if plan.scenario.draft.steps else 0
    ledger.given("draft.tokens", drafted, Unit.TOKENS, engine_source(plan.release, "speculative_num_draft_tokens"))
    ledger.derive("record.index_k_request_bytes", Unit.BYTES_PER_REQUEST, tail.formula, source, **tail.inputs)
    ledger.derive(
        "workspace.index_tail_bytes",
        Unit.BYTES,
        workspace.index_tail_bytes,
        source,
        "target layers that own an index-K",
        layers="model.index_k_layers",
        requests="workspace.table_requests",
        extra_rows="workspace.extra_rows",
        request_bytes="record.index_k_request_bytes",
    )


def _post_captured_logits(ledger: Ledger, plan: Deployment) -> None:
    release = plan.release
    ledger.given("workspace.logits_element_bytes", 4, Unit.BYTES, engine_source(release, "dsa_indexer.py: fp32 logits"))
    ledger.derive(
        "workspace.decode_logits_bytes",
        Unit.BYTES,
        workspace.decode_logits_bytes,
        engine_source(release, "dsa_indexer.py _get_topk_paged: no budget, as wide as the page table"),
        requests="workspace.captured_requests",
        rows="draft.rows",
        columns="workspace.table_columns",
        page_tokens="engine.page_tokens",
        element_bytes="workspace.logits_element_bytes",
    )


def _post_budget(ledger: Ledger, plan: Deployment) -> None:
    """Post the static limit of ragged prefill logits; in a server free memory may bind sooner."""
    rule = sglang.LOGITS_BUDGET.at(plan.release)
    share = FREE_SHARE if rule.value == "share" else 0.5
    ledger.given("workspace.free_share", share, Unit.SHARE, rule.source)
    ledger.derive(
        "workspace.prefill_logits_budget_bytes",
        Unit.BYTES,
        workspace.static_logits_budget_bytes,
        rule.source,
        "an upper bound: the engine asks the free memory at the first prefill",
        capacity_bytes="gpu.capacity_bytes",
        mem_fraction="engine.mem_fraction",
        share="workspace.free_share",
    )
