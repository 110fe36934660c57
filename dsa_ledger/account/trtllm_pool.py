"""TensorRT-LLM: what a token is charged, the pool that a budget buys, and the buffers outside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.pool_keys import post_pool_keys, post_target_cell
from dsa_ledger.account.records import post_free_before, post_main_kv, scenario_source
from dsa_ledger.engines import trtllm
from dsa_ledger.engines.cuts import cut_in_words
from dsa_ledger.engines.layers import NEVER, deciding_reader, published_full_layers
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import cells, pool, workspace
from dsa_ledger.ledger import LEAST, MOST, Scope
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, Stage
    from dsa_ledger.ledger import Ledger

ESTIMATE = "sparse/dsa/cache_manager.py get_cache_size_per_token"
SIZING = "pyexecutor/_util.py"
MANAGER = "pyexecutor/resource_manager.py, sparse/dsa/cache_manager.py"


def post_pool(ledger: Ledger, plan: Deployment) -> None:
    """Post cells, budget, pool and buffers; the pool's tokens are the minimum over the ranks."""
    _post_charged(ledger, plan)
    _post_fraction(ledger, plan)
    for stage in plan.stages:
        _post_cell(Scope(ledger, stage.prefix), plan, stage)
    _post_free_after(ledger, plan)
    source = engine_source(plan.release, f"{SIZING}: tokens = budget / bytes a token, in whole blocks")
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        _post_budget(scope, plan)
        scope.derive(
            "pool.profiled_tokens",
            Unit.TOKENS,
            pool.whole_page_tokens,
            source,
            budget_bytes="pool.budget_bytes",
            cell_bytes="cell.bytes",
            page_tokens="engine.page_tokens",
        )
    _post_rows(ledger, plan)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        _post_allocated(scope, plan, stage)
        post_pool_keys(scope, plan)
    _post_buffers(ledger, plan)
    _warn(ledger, plan)


def _post_charged(ledger: Ledger, plan: Deployment) -> None:
    """Post the records as the size estimate charges them."""
    charged = trtllm.charged_layout(plan.record, plan.release)
    if charged.value == plan.record.value:
        ledger.total("record.charged_main_kv_bytes", charged.source, ["record.main_kv_bytes"])
    else:
        post_main_kv(ledger, "record.charged_main_kv_bytes", charged)
    factor = trtllm.charged_element_bytes(charged, plan.release)
    ledger.fact("record.index_k_charged_factor", Unit.COUNT, factor)
    ledger.derive(
        "record.charged_index_k_bytes",
        Unit.BYTES_PER_TOKEN_PER_LAYER,
        cells.element_charged_record_bytes,
        factor.source,
        record_bytes="record.index_k_bytes",
        element_bytes="record.index_k_charged_factor",
    )
    one = engine_source(plan.release, f"{MANAGER}: one record a token and layer")
    ledger.given("pool.main_rows", 1, Unit.COUNT, one)
    ledger.given("pool.index_rows", 1, Unit.COUNT, one)
    ledger.given("pool.tokens_per_row", 1, Unit.COUNT, engine_source(plan.release, "a pool row serves one token"))
    ledger.given("pool.pad_tokens", 0, Unit.TOKENS, engine_source(plan.release, f"{MANAGER}: no pad page is known"))


def _post_fraction(ledger: Ledger, plan: Deployment) -> None:
    asked = plan.scenario.limits.mem_fraction
    if asked is not None:
        ledger.given("engine.mem_fraction", asked, Unit.SHARE, scenario_source("limits.mem_fraction"))
        return
    where = "llmapi/llm_args.py KvCacheConfig.free_gpu_memory_fraction, of the free memory"
    ledger.given("engine.mem_fraction", trtllm.FREE_FRACTION, Unit.SHARE, engine_source(plan.release, where))


def _post_cell(scope: Scope, plan: Deployment, stage: Stage) -> None:
    """Post what a token is charged on a stage's rank."""
    source = engine_source(plan.release, ESTIMATE)
    scope.given(
        "pool.main_kv_layers", stage.end - stage.first, Unit.LAYERS, engine_source(plan.release, "mapping.py pp_layers")
    )
    scope.given("pool.index_k_layers", len(stage.of(plan.layers.owners)), Unit.LAYERS, plan.layers.owners_source)
    post_target_cell(
        scope,
        source,
        records=("record.charged_main_kv_bytes", "record.charged_index_k_bytes"),
        layers=("pool.main_kv_layers", "pool.index_k_layers"),
        rows="pool.index_rows",
    )
    drafts = trtllm.draft_layers_charged(plan.scenario, plan.draft_layers if stage.last else 0, plan.release)
    scope.fact("pool.draft_layers_charged", Unit.LAYERS, drafts)
    scope.derive(
        "cell.draft_bytes",
        Unit.BYTES_PER_TOKEN,
        cells.layers_cell_bytes,
        drafts.source,
        main_kv_record_bytes="record.charged_main_kv_bytes",
        index_k_record_bytes="record.charged_index_k_bytes",
        layers="pool.draft_layers_charged",
    )
    scope.total("cell.bytes", source, ["cell.target_bytes", "cell.draft_bytes"])


def _post_free_after(ledger: Ledger, plan: Deployment) -> None:
    """Post the free memory that the fraction is of: as observed, or what the heaviest stage's weights leave."""
    post_free_before(ledger, plan)
    observed, given = plan.scenario.observed.free_after, plan.scenario.observed.kv_bytes
    if observed is not None:
        ledger.given(
            "memory.free_after_bytes", round(observed * GIB), Unit.BYTES, scenario_source("observed.free_after")
        )
        return
    source = engine_source(
        plan.release, "pyexecutor/model_loader.py: target and MTP weights load before the pool is sized"
    )
    for stage in plan.stages:
        parts = ["weights.rank_bytes", "weights.draft_rank_bytes"]
        Scope(ledger, stage.prefix).total("weights.loaded_bytes", source, parts)
    ledger.total("memory.loaded_bytes", source, [f"{stage.prefix}weights.loaded_bytes" for stage in plan.stages], MOST)
    ledger.derive(
        "memory.free_after_bytes",
        Unit.BYTES,
        pool.remaining_bytes,
        engine_source(plan.release, f"{SIZING}: minimum over all ranks; the profiling peak's activations not modelled"),
        before_bytes="memory.free_before_bytes",
        taken_bytes="memory.loaded_bytes",
    )
    if given is None:
        ledger.warn(
            "pool.budget_bytes is an upper bound: TensorRT-LLM takes its fraction of what a profiling run leaves free, "
            "and that run's activations are not modelled; give what is free then as --free-after, or --kv-bytes"
        )


def _post_budget(scope: Scope, plan: Deployment) -> None:
    kv_bytes = plan.scenario.observed.kv_bytes
    if kv_bytes is not None:
        scope.given("pool.budget_bytes", kv_bytes, Unit.BYTES, scenario_source("observed.kv_bytes"))
        return
    scope.derive(
        "pool.budget_bytes",
        Unit.BYTES,
        pool.share_of_free_bytes,
        engine_source(plan.release, f"{SIZING}: (total - peak + temporary KV) x free_gpu_memory_fraction"),
        free_bytes="memory.free_after_bytes",
        fraction="engine.mem_fraction",
    )


def _post_rows(ledger: Ledger, plan: Deployment) -> None:
    source = engine_source(plan.release, f"{SIZING}: minimum over ranks; kv_cache_config.max_tokens caps it")
    ledger.total("pool.fitting_rows", source, [f"{stage.prefix}pool.profiled_tokens" for stage in plan.stages], LEAST)
    cap = plan.scenario.limits.max_total_tokens
    if cap is None:
        ledger.total("pool.rows", source, ["pool.fitting_rows"])
        return
    ledger.given("limits.max_total_tokens", cap, Unit.TOKENS, scenario_source("limits.max_total_tokens"))
    ledger.derive(
        "pool.rows",
        Unit.TOKENS,
        pool.capped_tokens,
        source,
        tokens="pool.fitting_rows",
        cap_tokens="limits.max_total_tokens",
        page_tokens="engine.page_tokens",
    )


def _post_allocated(scope: Scope, plan: Deployment, stage: Stage) -> None:
    """Post the bytes that target and MTP caches store, and the tokens the log prints."""
    source = engine_source(plan.release, MANAGER)
    stored = {
        "tokens": "pool.rows",
        "pad_tokens": "pool.pad_tokens",
        "main_kv_record_bytes": "record.main_kv_bytes",
        "index_k_record_bytes": "record.index_k_bytes",
        "main_rows_per_token": "pool.main_rows",
        "index_rows_per_token": "pool.index_rows",
    }
    held = {"main_kv_layers": "pool.main_kv_layers", "index_k_layers": "pool.index_k_layers"}
    scope.derive("pool.target_bytes", Unit.BYTES, pool.pool_bytes, source, **stored, **held)
    if plan.draft_layers and stage.last:
        drafts = {"main_kv_layers": "model.draft_layers", "index_k_layers": "model.draft_layers"}
        scope.derive("pool.draft_bytes", Unit.BYTES, pool.pool_bytes, source, **stored, **drafts)
    else:
        scope.given("pool.draft_bytes", 0, Unit.BYTES, source)
    logged = engine_source(plan.release, "resource_manager.py: the log prints the tokens of all blocks")
    scope.total("pool.reported_tokens", logged, ["pool.rows"])
    scope.total("pool.tokens", source, ["pool.rows"])


def _post_buffers(ledger: Ledger, plan: Deployment) -> None:
    """Post the indexer's buffers of one rank; captured decode logits were not read and are not posted."""
    release, asked = plan.release, plan.scenario.limits.max_running_requests
    where = engine_source(release, "sparse/dsa/metadata.py")
    key = "limits.max_running_requests"
    if asked is None:
        default = engine_source(release, "llmapi/llm_args.py: max_batch_size, default 2,048")
        ledger.given(key, trtllm.BATCH_REQUESTS, Unit.REQUESTS, default)
    else:
        ledger.given(key, asked, Unit.REQUESTS, scenario_source(key))
    ledger.derive(
        "workspace.running_requests",
        Unit.REQUESTS,
        workspace.sequences_of_rank,
        engine_source(release, "pyexecutor/model_engine.py get_max_num_sequences: max_batch_size x pipeline stages"),
        batch_requests=key,
        stages="sharding.pp",
    )
    ledger.derive(
        "workspace.page_table_bytes",
        Unit.BYTES,
        workspace.expanded_block_table_bytes,
        where,
        requests="workspace.running_requests",
        rows="draft.rows",
        context_length="limits.context_length",
        page_tokens="engine.page_tokens",
    )
    ledger.fact("limits.chunk_tokens", Unit.TOKENS, plan.prefill.chunk_tokens)
    ledger.derive(
        "workspace.topk_bytes",
        Unit.BYTES,
        workspace.topk_buffer_bytes,
        where,
        rows="limits.chunk_tokens",
        index_topk="config.index_topk",
    )
    rows = engine_source(
        release, "llmapi/llm_args.py: indexer_max_chunk_size, default 32,768, bounds the rows of prefill logits"
    )
    ledger.given("prefill.most_rows", trtllm.INDEXER_CHUNK_ROWS, Unit.ROWS, rows)


def _warn(ledger: Ledger, plan: Deployment) -> None:
    """Say where charge and store differ, and where a layer runs otherwise than the config says."""
    label, layers, model = plan.release.label, plan.layers, plan.model
    main, charged = ledger["record.main_kv_bytes"], ledger["record.charged_main_kv_bytes"]
    index, counted = ledger["record.index_k_bytes"], ledger["record.charged_index_k_bytes"]
    if charged != main:
        ledger.warn(
            f"{label} estimates a main-KV record at {charged} B and stores {main} (inferred): the pool fills less than "
            "its budget; cache manager V2, which divides a byte budget, may hold more tokens; check the log's count"
        )
    if counted != index:
        ledger.warn(
            f"{label} charges an index-K record as {counted} B and stores {index}: the pool leaves budget unused; "
            "fp8 KV, or 1.3.0rc21 and later, charge it right"
        )
    if plan.draft_layers and plan.scenario.sharding.dp_attention > 1:
        ledger.warn(
            f"with attention DP {label} charges the target's layers only (inferred), and the MTP layer's cache lies in "
            "the pool uncharged: it overshoots its budget by pool.draft_bytes; leave that much with --mem-fraction"
        )
    reader, _ = deciding_reader(model, plan.release)
    if reader.shares(model.sharing, 0):
        ledger.warn(f"{label} runs layer 0 as full although {reader.key} says shared; correct the config")
    missing = set(layers.built) - set(published_full_layers(model))
    if missing:
        never = layers.decided_by == NEVER.key
        advice = "take 1.3.0rc23 or later" if never else "set index_topk_freq and index_skip_topk_offset"
        ledger.warn(
            f"{label} builds {len(missing)} indexers for which {model.name} publishes no weights (it decides by "
            f"{layers.decided_by}); {advice}"
        )
    shared = [stage.number for stage in plan.stages if stage.first not in layers.full]
    if shared:
        ledger.warn(
            f"pipeline stage {', '.join(map(str, shared))} starts on a layer that reuses an earlier stage's top-k, "
            "which stays there; newer text of sparse/dsa/module.py refuses it (whether "
            f"{label} does was not read); {cut_in_words(layers.full, plan.stages, 'pp_partition ')}"
        )
