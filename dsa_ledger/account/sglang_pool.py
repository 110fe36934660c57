"""SGLang: what a token is charged, and the pool that a budget buys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.pool_keys import post_pool_keys, post_target_cell
from dsa_ledger.account.records import INDEX_STATE, STATE_TOKENS, post_free_before, post_main_kv, scenario_source
from dsa_ledger.engines import sglang
from dsa_ledger.engines.caches import CHARGES_POOLED_KEYS
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.engines.sglang_memory import reserve
from dsa_ledger.formulas import cells, pool, records
from dsa_ledger.ledger import LEAST, MOST, Fact, Scope
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.engines.base import Deployment, Stage
    from dsa_ledger.ledger import Ledger

CONFIGURATOR = "model_executor/pool_configurator.py"
CHARGED_KEY = "record.charged_index_k_bytes"


def post_pool(ledger: Ledger, plan: Deployment) -> None:
    """Post cells, budget and pool of every stage; the pool's rows are the minimum over the stages."""
    _post_factors(ledger, plan)
    post_mem_fraction(ledger, plan)
    for stage in plan.stages:
        _post_cell(Scope(ledger, stage.prefix), plan, stage)
    _post_free_after(ledger, plan)
    source = engine_source(plan.release, CONFIGURATOR)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        _post_budget(scope, plan)
        scope.derive(
            "pool.profiled_tokens",
            Unit.TOKENS,
            pool.paged_tokens,
            source,
            budget_bytes="pool.budget_bytes",
            scratch_bytes="pool.scratch_bytes",
            cell_bytes="cell.bytes",
            page_tokens="engine.page_tokens",
        )
    ledger.total("pool.fitting_rows", source, [f"{stage.prefix}pool.profiled_tokens" for stage in plan.stages], LEAST)
    cap = plan.scenario.limits.max_total_tokens
    if cap is None:
        ledger.total("pool.rows", source, ["pool.fitting_rows"])
    else:
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
    if plan.draft_layers and len(plan.stages) > 1 and not plan.scenario.has("pd-prefill"):
        ledger.warn(
            "SGLang runs MTP with pipeline stages outside a PD prefill worker only with SGLANG_ENABLE_PP_SPEC=1"
        )
    for stage in plan.stages:
        _post_allocated(Scope(ledger, stage.prefix), plan, stage)
        post_pool_keys(Scope(ledger, stage.prefix), plan)


def _post_factors(ledger: Ledger, plan: Deployment) -> None:
    """Post the factors of cell and pool that features bring: HiSparse ratio, DCP replicas, KV sharding."""
    scenario, release = plan.scenario, plan.release
    ratio = scenario.hisparse.ratio if scenario.has("hisparse") else 1
    charged, scaled = 1, 1
    where = engine_source(release, f"{CONFIGURATOR}: one index-K row per main row, HiSparse x ratio, DCP x ranks")
    if scenario.has("hisparse"):
        charged = ratio if sglang.HISPARSE_CHARGED.of(release) else 1
        scaled = ratio if sglang.HISPARSE_SCALES_DRAFT.of(release) else 1
    copies = 1 if "dcp" in plan.caches.index_k.sharded_by else plan.dcp
    ledger.given("pool.index_rows_charged", charged * copies, Unit.COUNT, where)
    ledger.given("pool.index_rows", ratio * copies, Unit.COUNT, where)
    ledger.given("pool.draft_main_ratio", scaled, Unit.COUNT, where)
    ledger.given("pool.draft_index_ratio", charged, Unit.COUNT, where)
    ledger.given("pool.draft_main_rows", scaled * plan.dcp, Unit.COUNT, where)
    ledger.given("pool.main_rows", 1, Unit.COUNT, where)
    ledger.given(
        "pool.draft_layers_charged",
        plan.draft_layers,
        Unit.LAYERS,
        engine_source(release, f"{CONFIGURATOR}: on every stage"),
    )
    shared = scenario.sharding.cp if scenario.has("kv-sharding") else 1
    striped = engine_source(release, "tokens a pool row serves: DCP and KV sharding stripe them over their ranks")
    ledger.given("pool.tokens_per_row", plan.dcp * shared, Unit.COUNT, striped)
    if scenario.has("kv-sharding"):
        _post_sharding_scratch(ledger, plan)
    else:
        ledger.given("pool.scratch_bytes", 0, Unit.BYTES, engine_source(release, "no KV sharding, no scratch"))
    if sglang.CHARGES_REAL_RECORD.of(release) or plan.record.value != "packed_fp8":
        ledger.total(
            "record.charged_main_kv_bytes", sglang.CHARGES_REAL_RECORD.at(release).source, ["record.main_kv_bytes"]
        )
    else:
        charged_as = Fact("raw_fp8", sglang.CHARGES_REAL_RECORD.at(release).source)
        post_main_kv(ledger, "record.charged_main_kv_bytes", charged_as)  # type: ignore[arg-type]
        ledger.warn(
            f"SGLang {release.version} charges a packed record as 576 B and allocates 656: the pool overshoots "
            "its budget; cap it with --max-total-tokens or upgrade to 0.5.17"
        )
    if plan.caches.index_k.tokens_per_state > 1:
        _post_charged_keys(ledger, plan)


def _post_charged_keys(ledger: Ledger, plan: Deployment) -> None:
    """Post what a token's pooled key is charged: its share of a key, or through 0.5.21 a whole one."""
    rule = CHARGES_POOLED_KEYS.at(plan.release)
    tokens = plan.caches.index_k.tokens_per_state if rule.value else 1
    ledger.given("record.index_k_charged_tokens", tokens, Unit.TOKENS, rule.source)
    ledger.derive(
        CHARGED_KEY,
        Unit.BYTES_PER_TOKEN_PER_LAYER,
        records.index_k_token_bytes,
        rule.source,
        state_bytes=INDEX_STATE,
        state_tokens="record.index_k_charged_tokens",
    )
    if not rule.value:
        ledger.warn(
            f"SGLang {plan.release.version} charges a key for each token and stores one for "
            f"{plan.caches.index_k.tokens_per_state}: the pool leaves memory unused; upgrade to 0.5.22"
        )


def _charged_key(plan: Deployment) -> str:
    """Return the key of what a token is charged for index-K in one layer."""
    return CHARGED_KEY if plan.caches.index_k.tokens_per_state > 1 else "record.index_k_bytes"


def _post_sharding_scratch(ledger: Ledger, plan: Deployment) -> None:
    source = engine_source(plan.release, f"{CONFIGURATOR}: fixed scratch of KV sharding, twice with MTP")
    ledger.given("pool.scratch_copies", 2 if plan.draft_layers else 1, Unit.COUNT, source)
    ledger.fact("limits.chunk_tokens", Unit.TOKENS, plan.prefill.chunk_tokens)
    ledger.derive(
        "pool.scratch_bytes",
        Unit.BYTES,
        pool.sharding_scratch_bytes,
        source,
        copies="pool.scratch_copies",
        context_length="limits.context_length",
        ranks="sharding.cp",
        chunk_tokens="limits.chunk_tokens",
        page_tokens="engine.page_tokens",
        main_kv_record_bytes="record.main_kv_bytes",
        index_k_record_bytes="record.index_k_bytes",
    )


def post_mem_fraction(ledger: Ledger, plan: Deployment) -> None:
    """Post mem_fraction_static as given, or the release's default with its terms."""
    asked = plan.scenario.limits.mem_fraction
    if asked is not None:
        ledger.given("engine.mem_fraction", asked, Unit.SHARE, scenario_source("limits.mem_fraction"))
        return
    terms = reserve(plan.scenario, plan.gpu, plan.release)
    for name, fact in terms._asdict().items():
        ledger.fact(f"reserve.{name}", Unit.COUNT, fact)
    ranks = plan.scenario.sharding.tp * plan.scenario.sharding.pp
    ledger.given("reserve.ranks", ranks, Unit.RANKS, scenario_source("sharding.tp x sharding.pp"))
    ledger.derive(
        "reserve.mib",
        Unit.COUNT,
        pool.reserve_mib,
        terms.chunk_tokens.source,
        ranks="reserve.ranks",
        dp_attention="sharding.dp_attention",
        **{name: f"reserve.{name}" for name in terms._fields},
    )
    ledger.derive(
        "engine.mem_fraction",
        Unit.SHARE,
        pool.default_mem_fraction,
        terms.chunk_tokens.source,
        gpu_mib="gpu.mib",
        kept_free_mib="reserve.mib",
    )


def _post_cell(scope: Scope, plan: Deployment, stage: Stage) -> None:
    """Post what one pool row of a stage's rank is charged."""
    release = plan.release
    source = engine_source(release, CONFIGURATOR)
    main, index, main_held, index_held = _layer_counts(plan, stage)
    scope.fact("pool.main_kv_layers_charged", Unit.LAYERS, main)
    scope.fact("pool.index_k_layers_charged", Unit.LAYERS, index)
    scope.fact("pool.main_kv_layers", Unit.LAYERS, main_held)
    scope.fact("pool.index_k_layers", Unit.LAYERS, index_held)
    post_target_cell(
        scope,
        source,
        records=("record.charged_main_kv_bytes", _charged_key(plan)),
        layers=("pool.main_kv_layers_charged", "pool.index_k_layers_charged"),
        rows="pool.index_rows_charged",
    )
    charge = sglang.DRAFT_CHARGE.at(release)
    if charge.value == "ratio" and plan.draft_layers:
        scope.derive(
            "cell.draft_bytes",
            Unit.BYTES_PER_TOKEN,
            cells.draft_cell_bytes_by_layer_ratio,
            charge.source,
            target_bytes="cell.target_bytes",
            draft_layers="pool.draft_layers_charged",
            layers="model.layers",
        )
    elif charge.value == "exact" and plan.draft_layers:
        scope.derive(
            "cell.draft_bytes",
            Unit.BYTES_PER_TOKEN,
            cells.draft_cell_bytes,
            charge.source,
            main_kv_record_bytes="record.charged_main_kv_bytes",
            index_k_record_bytes=_charged_key(plan),
            draft_layers="pool.draft_layers_charged",
            dcp="sharding.dcp",
            main_ratio="pool.draft_main_ratio",
            index_ratio="pool.draft_index_ratio",
        )
    else:
        scope.given("cell.draft_bytes", 0, Unit.BYTES_PER_TOKEN, charge.source)
    scope.total("cell.bytes", source, ["cell.target_bytes", "cell.draft_bytes"])


def _layer_counts(plan: Deployment, stage: Stage) -> tuple[Fact[int], Fact[int], Fact[int], Fact[int]]:
    """Return layers charged for main KV and index-K, then layers held, of the fullest rank of a stage."""
    owners = stage.of(plan.layers.owners)
    count = len(stage.of(plan.model.sparse_layers))
    cut = engine_source(plan.release, "layer_setup.py: the stage's layers")
    if not plan.scenario.sharding.layer_split:
        held, owned = Fact(count, cut), Fact(len(owners), plan.layers.owners_source)
        return held, owned, held, owned
    ranks = plan.scenario.sharding.cp
    source = engine_source(plan.release, "layers/cp/utils.py: the first ranks own one more, and one scratch layer")
    slices = sglang.stage_cuts(count, ranks)[::-1]
    starts = [sum(slices[:rank]) for rank in range(ranks)]
    most_owned = max(
        sum(start <= layer < start + slices[rank] for layer in owners) for rank, start in enumerate(starts)
    )
    main, index = Fact(max(slices) + 1, source), Fact(most_owned + 1, source)
    rule = sglang.LAYER_SPLIT_INDEX.at(plan.release)
    if rule.value == "all split":
        return main, Fact(main.value, rule.source), main, index
    if len(owners) == count:
        return main, Fact(count, plan.layers.owners_source), main, index
    return main, index, main, index


def _post_free_after(ledger: Ledger, plan: Deployment) -> None:
    """Post free memory after the weights: as observed, or before less the heaviest stage's weights."""
    post_free_before(ledger, plan)
    observed = plan.scenario.observed.free_after
    if observed is not None:
        ledger.given(
            "memory.free_after_bytes", round(observed * GIB), Unit.BYTES, scenario_source("observed.free_after")
        )
        return
    if not plan.model.weights_modelled:
        return
    order = sglang.DRAFT_WEIGHTS_FIRST.at(plan.release)
    loaded = []
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        parts = ["weights.rank_bytes", "weights.draft_rank_bytes"] if order.value else ["weights.rank_bytes"]
        scope.total("weights.loaded_bytes", order.source, parts)
        loaded.append(f"{stage.prefix}weights.loaded_bytes")
    ledger.total("memory.loaded_bytes", order.source, loaded, MOST)
    ledger.derive(
        "memory.free_after_bytes",
        Unit.BYTES,
        pool.remaining_bytes,
        engine_source(plan.release, "model_runner.py: minimum over all ranks"),
        before_bytes="memory.free_before_bytes",
        taken_bytes="memory.loaded_bytes",
    )


def _post_budget(scope: Scope, plan: Deployment) -> None:
    kv_bytes = plan.scenario.observed.kv_bytes
    if kv_bytes is not None:
        scope.given("pool.budget_bytes", kv_bytes, Unit.BYTES, scenario_source("observed.kv_bytes"))
        return
    scope.derive(
        "pool.budget_bytes",
        Unit.BYTES,
        pool.static_budget_bytes,
        engine_source(plan.release, "kv_cache_configurator.py: 1 - m of the free memory before weights stays free"),
        free_after_bytes="memory.free_after_bytes",
        free_before_bytes="memory.free_before_bytes",
        mem_fraction="engine.mem_fraction",
    )


def _post_allocated(scope: Scope, plan: Deployment, stage: Stage) -> None:
    """Post the bytes that target and draft pool take, pad page included."""
    source = engine_source(plan.release, "mem_cache/memory_pool.py: one pad page per layer")
    formula: Callable[..., Any] = pool.pool_bytes
    key = {"index_k_record_bytes": "record.index_k_bytes"}
    if plan.caches.index_k.tokens_per_state > 1:
        formula, key = pool.pooled_pool_bytes, {"index_k_state_bytes": INDEX_STATE, "state_tokens": STATE_TOKENS}
    scope.derive(
        "pool.target_bytes",
        Unit.BYTES,
        formula,
        source,
        tokens="pool.rows",
        pad_tokens="engine.page_tokens",
        main_kv_record_bytes="record.main_kv_bytes",
        main_kv_layers="pool.main_kv_layers",
        **key,
        index_k_layers="pool.index_k_layers",
        main_rows_per_token="pool.main_rows",
        index_rows_per_token="pool.index_rows",
    )
    if plan.draft_layers and stage.last:
        scope.derive(
            "pool.draft_bytes",
            Unit.BYTES,
            formula,
            source,
            tokens="pool.rows",
            pad_tokens="engine.page_tokens",
            main_kv_record_bytes="record.main_kv_bytes",
            main_kv_layers="model.draft_layers",
            **key,
            index_k_layers="model.draft_layers",
            main_rows_per_token="pool.draft_main_rows",
            index_rows_per_token="pool.index_rows",
        )
    else:
        scope.given("pool.draft_bytes", 0, Unit.BYTES, source)
    scope.derive(
        "pool.reported_tokens",
        Unit.TOKENS,
        pool.logical_tokens,
        engine_source(plan.release, "the log prints physical rows"),
        rows="pool.rows",
        tokens_per_row="pool.main_rows",
    )
    scope.derive(
        "pool.tokens",
        Unit.TOKENS,
        pool.logical_tokens,
        source,
        rows="pool.rows",
        tokens_per_row="pool.tokens_per_row",
    )
