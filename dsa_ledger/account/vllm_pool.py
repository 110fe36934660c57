"""vLLM: blocks of one pool for target and draft, and the fixed buffers beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.pool_keys import post_pool_keys, post_target_cell
from dsa_ledger.account.records import post_free_before, scenario_source
from dsa_ledger.account.vllm_buffers import post_buffers
from dsa_ledger.engines import vllm
from dsa_ledger.engines.cuts import cut_in_words
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import cells, pool, vllm_buffers
from dsa_ledger.ledger import LEAST, Scope
from dsa_ledger.schema import BF16
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, Stage
    from dsa_ledger.ledger import Ledger

PLANNING = "v1/core/kv_cache_planning.py"


def post_pool(ledger: Ledger, plan: Deployment) -> None:
    """Post cells, budget and blocks of every stage; the pool has the fewest blocks of any."""
    source = engine_source(plan.release, PLANNING)
    asked = plan.scenario.limits.mem_fraction
    if asked is None:
        ledger.fact("engine.mem_fraction", Unit.SHARE, vllm.MEM_FRACTION.at(plan.release))
    else:
        ledger.given("engine.mem_fraction", asked, Unit.SHARE, scenario_source("limits.mem_fraction"))
    striped = engine_source(plan.release, "DCP: a block spans block size x dcp tokens, both caches sharded")
    ledger.given("pool.tokens_per_row", plan.dcp, Unit.COUNT, striped)
    ledger.given("pool.index_rows", 1, Unit.COUNT, striped)
    for stage in plan.stages:
        _post_cell(Scope(ledger, stage.prefix), plan, stage)
    post_buffers(ledger, plan)
    _post_budgets(ledger, plan)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        scope.derive(
            "pool.block_bytes",
            Unit.BYTES,
            pool.block_bytes,
            source,
            page_tokens="engine.page_tokens",
            cell_bytes="cell.bytes",
        )
        scope.derive(
            "pool.fitting_blocks",
            Unit.PAGES,
            pool.blocks,
            source,
            budget_bytes="pool.budget_bytes",
            one_block_bytes="pool.block_bytes",
        )
    ledger.total("pool.blocks", source, [f"{stage.prefix}pool.fitting_blocks" for stage in plan.stages], LEAST)
    _post_need(ledger, plan)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        _post_tokens(scope, plan)
        post_pool_keys(scope, plan)
    _warn(ledger, plan)


def _post_cell(scope: Scope, plan: Deployment, stage: Stage) -> None:
    source = engine_source(plan.release, f"{PLANNING}: one view per layer, no padding")
    scope.total("pool.main_kv_layers", source, ["model.layers"])
    scope.total("pool.index_k_layers", plan.layers.owners_source, ["model.index_k_layers"])
    post_target_cell(
        scope,
        source,
        records=("record.main_kv_bytes", "record.index_k_bytes"),
        layers=("pool.main_kv_layers", "pool.index_k_layers"),
        rows="pool.index_rows",
    )
    if plan.draft_layers and stage.last:
        scope.derive(
            "cell.draft_bytes",
            Unit.BYTES_PER_TOKEN,
            cells.draft_cell_bytes,
            engine_source(plan.release, "the MTP layer lies in the same pool, on the last stage, always full"),
            main_kv_record_bytes="record.main_kv_bytes",
            index_k_record_bytes="record.index_k_bytes",
            draft_layers="model.draft_layers",
            dcp="pool.index_rows",
            main_ratio="pool.index_rows",
            index_ratio="pool.index_rows",
        )
    else:
        scope.given("cell.draft_bytes", 0, Unit.BYTES_PER_TOKEN, source)
    scope.total("cell.bytes", source, ["cell.target_bytes", "cell.draft_bytes"])


def _post_budgets(ledger: Ledger, plan: Deployment) -> None:
    """Post free memory after the weights and, unless given, what utilisation leaves for the pool."""
    post_free_before(ledger, plan)
    worker = engine_source(plan.release, "v1/worker/gpu_worker.py: utilisation x total less what is held")
    ledger.derive(
        "memory.allowed_bytes",
        Unit.BYTES,
        pool.utilisation_bytes,
        worker,
        capacity_bytes="gpu.capacity_bytes",
        mem_fraction="engine.mem_fraction",
    )
    observed, kv_bytes = plan.scenario.observed.free_after, plan.scenario.observed.kv_bytes
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        scope.total("weights.loaded_bytes", worker, ["weights.rank_bytes", "weights.draft_rank_bytes"])
        if observed is not None:
            scope.given(
                "memory.free_after_bytes", round(observed * GIB), Unit.BYTES, scenario_source("observed.free_after")
            )
        else:
            scope.derive(
                "memory.free_after_bytes",
                Unit.BYTES,
                pool.remaining_bytes,
                worker,
                before_bytes="memory.free_before_bytes",
                taken_bytes="weights.loaded_bytes",
            )
        if kv_bytes is not None:
            scope.given("pool.budget_bytes", kv_bytes, Unit.BYTES, scenario_source("observed.kv_bytes"))
        else:
            scope.derive(
                "pool.budget_bytes",
                Unit.BYTES,
                vllm_buffers.budget_bytes,
                worker,
                "an upper bound: peak activations and the CUDA-graph estimate are not modelled",
                allowed_bytes="memory.allowed_bytes",
                capacity_bytes="gpu.capacity_bytes",
                free_after_bytes="memory.free_after_bytes",
                reserved_bytes="workspace.reserved_bytes",
            )
    if len(plan.stages) > 1:
        frees = [f"{stage.prefix}memory.free_after_bytes" for stage in plan.stages]
        ledger.total("memory.free_after_bytes", worker, frees, LEAST)


def _post_need(ledger: Ledger, plan: Deployment) -> None:
    source = engine_source(plan.release, "v1/core/kv_cache_utils.py")
    ledger.derive(
        "pool.needed_blocks",
        Unit.PAGES,
        pool.blocks_of_request,
        source,
        "of one request as long as max_model_len",
        context_length="limits.context_length",
        dcp="sharding.dcp",
        page_tokens="engine.page_tokens",
    )
    check = vllm.KEEPS_NULL_BLOCK.at(plan.release)
    ledger.derive(
        "pool.concurrency",
        Unit.SHARE,
        pool.concurrency,
        source,
        "logged as maximum concurrency",
        block_count="pool.blocks",
        needed_blocks="pool.needed_blocks",
    )
    blocks, needed = ledger["pool.blocks"] - check.value, ledger["pool.needed_blocks"]
    if blocks < needed:
        longest = max(blocks, 0) * ledger["engine.page_tokens"] * plan.dcp
        ledger.shortfalls.append(
            f"{plan.release.label} would not start: one request of {ledger['limits.context_length']:,} tokens needs "
            f"{needed:,} blocks, the pool has {max(blocks, 0):,}; "
            f"{f'set --context-length to at most {longest:,}, ' if longest else ''}"
            f"{'shrink the record (--kv-dtype fp8), ' if plan.record.value == 'bf16' else ''}or take more GPUs or DCP"
        )


def _post_tokens(scope: Scope, plan: Deployment) -> None:
    source = engine_source(plan.release, "v1/core/block_pool.py: block 0 is a null block")
    scope.derive(
        "pool.tokens",
        Unit.TOKENS,
        pool.usable_block_tokens,
        source,
        block_count="pool.blocks",
        page_tokens="engine.page_tokens",
        dcp="sharding.dcp",
    )
    logged = vllm.LOGGED_SIZE.at(plan.release)
    if logged.value == "blocks":
        scope.derive(
            "pool.reported_tokens",
            Unit.TOKENS,
            pool.reported_block_tokens,
            logged.source,
            block_count="pool.blocks",
            page_tokens="engine.page_tokens",
            dcp="sharding.dcp",
        )
    else:
        scope.derive(
            "pool.reported_tokens",
            Unit.TOKENS,
            pool.reported_size_tokens,
            logged.source,
            "a derived number: concurrency x max_model_len",
            block_count="pool.blocks",
            needed_blocks="pool.needed_blocks",
            context_length="limits.context_length",
        )
    for key, cell in (("pool.target_bytes", "cell.target_bytes"), ("pool.draft_bytes", "cell.draft_bytes")):
        scope.derive(
            key,
            Unit.BYTES,
            pool.blocks_bytes,
            source,
            block_count="pool.blocks",
            page_tokens="engine.page_tokens",
            cell_bytes=cell,
        )


def _warn_of_whole_experts(ledger: Ledger, plan: Deployment) -> None:
    """Warn of shared experts that a rank holds whole, where the ledger cuts them as without expert parallelism."""
    sharding = plan.scenario.sharding
    if min(sharding.ep, sharding.tp, sharding.dp_attention) == 1:
        return
    formats = {span.quant.name for span in plan.model.quantization} | {BF16.name}
    keys = [f"weights.shared_bytes.{name}" for name in sorted(formats)]
    held = max(
        sum(ledger[f"{stage.prefix}{key}"] for key in keys if f"{stage.prefix}{key}" in ledger) for stage in plan.stages
    )
    ledger.warn(
        "expert parallelism with tp and data parallel above 1 is vLLM's sequence-parallel MoE (config/parallel.py "
        "use_sequence_parallel_moe): each rank holds the shared experts whole, "
        f"{held * (sharding.tp - 1) / GIB:.2f} GiB more than weights.rank_bytes; give --free-after from a log"
    )


def _warn(ledger: Ledger, plan: Deployment) -> None:
    _warn_of_whole_experts(ledger, plan)
    if plan.scenario.observed.kv_bytes is None:
        ledger.warn(
            "pool.budget_bytes is an upper bound: vLLM also takes off peak activations and its CUDA-graph estimate, "
            "which are not modelled; give --kv-bytes from the log's 'Available KV cache memory'"
        )
    full = set(plan.layers.full)
    starts = [stage.first for stage in plan.stages if stage.first not in full]
    if starts:
        ledger.warn(
            f"a pipeline stage starts on shared layer {', '.join(map(str, starts))}: vLLM passes no top-k between "
            "stages, it reads a buffer that nobody wrote; "
            f"{cut_in_words(plan.layers.full, plan.stages, 'VLLM_PP_LAYER_PARTITION=')}"
        )
