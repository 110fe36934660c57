"""SGLang: what features keep outside the pool, HiCache's host tier, HiSparse's tables, layer split's broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.records import scenario_source
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import tiers
from dsa_ledger.ledger import Scope
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, Stage
    from dsa_ledger.ledger import Ledger

HOST = "mem_cache/memory_pool_host.py"
DEVICE_BUFFER_TOKENS = 4096


def post_tiers(ledger: Ledger, plan: Deployment) -> None:
    """Post the entries of each feature that is on."""
    scenario = plan.scenario
    if scenario.has("hicache"):
        ledger.given("hicache.ratio", scenario.hicache.ratio, Unit.SHARE, scenario_source("hicache.ratio"))
        for stage in plan.stages:
            _post_host_pool(Scope(ledger, stage.prefix), plan, stage)
    if scenario.has("hisparse"):
        _post_hisparse(ledger, plan)
    if scenario.sharding.layer_split:
        _post_broadcast(ledger, plan)


def _post_host_pool(scope: Scope, plan: Deployment, stage: Stage) -> None:
    """Post the host tier of one rank: index-K of the layers that own one, the draft layer's main KV packed in."""
    source = engine_source(plan.release, f"{HOST}: a slot holds main KV, the owners' index-K, the packed draft layer")
    scope.given("host.draft_layers", plan.draft_layers if stage.last else 0, Unit.LAYERS, source)
    scope.derive(
        "host.cell_bytes",
        Unit.BYTES_PER_TOKEN,
        tiers.host_cell_bytes,
        source,
        main_kv_record_bytes="record.main_kv_bytes",
        layers="model.layers",
        draft_layers="host.draft_layers",
        index_k_record_bytes="record.index_k_bytes",
        index_k_layers="model.index_k_layers",
    )
    size = plan.scenario.hicache.size_gb
    aligned = engine_source(plan.release, f"{HOST}: whole pages and one more")
    if size is None:
        scope.derive(
            "host.pool_tokens",
            Unit.TOKENS,
            tiers.host_tokens_by_ratio,
            aligned,
            "before the shrink to free host memory",
            rows="pool.rows",
            ratio="hicache.ratio",
            page_tokens="engine.page_tokens",
        )
    else:
        scope.given("hicache.size_bytes", round(size * 1e9), Unit.BYTES, scenario_source("hicache.size_gb, decimal GB"))
        scope.derive(
            "host.pool_tokens",
            Unit.TOKENS,
            tiers.host_tokens_by_size,
            aligned,
            "the flag counts main KV alone",
            size_bytes="hicache.size_bytes",
            main_kv_record_bytes="record.main_kv_bytes",
            layers="model.layers",
            page_tokens="engine.page_tokens",
        )
    scope.derive(
        "host.pool_bytes",
        Unit.BYTES,
        tiers.host_pool_bytes,
        source,
        "of one rank; a node holds as many as it has ranks",
        tokens="host.pool_tokens",
        cell_bytes="host.cell_bytes",
    )


def _post_hisparse(ledger: Ledger, plan: Deployment) -> None:
    """Post what HiSparse takes from the slack: nothing of it is charged."""
    source = engine_source(plan.release, "HiSparse tables: allocated, not charged")
    buffer = plan.scenario.hisparse.device_buffer or DEVICE_BUFFER_TOKENS
    ledger.given(
        "hisparse.device_buffer_tokens", buffer, Unit.TOKENS, scenario_source("hisparse.device_buffer, default 4,096")
    )
    ledger.given("hisparse.hash_tables", int(plan.draft_layers > 0), Unit.COUNT, source)
    ledger.derive(
        "workspace.hisparse_map_bytes",
        Unit.BYTES,
        tiers.slot_map_bytes,
        source,
        rows="pool.rows",
        rows_per_token="pool.index_rows",
    )
    rows = {"requests": "workspace.table_requests", "extra_rows": "workspace.extra_rows"}
    ledger.derive(
        "workspace.hisparse_host_map_bytes",
        Unit.BYTES,
        tiers.request_map_bytes,
        source,
        columns="workspace.request_columns",
        page_tokens="engine.page_tokens",
        **rows,
    )
    ledger.derive(
        "workspace.hisparse_table_bytes",
        Unit.BYTES,
        tiers.buffer_table_bytes,
        source,
        layers="model.layers",
        buffer_tokens="hisparse.device_buffer_tokens",
        page_tokens="engine.page_tokens",
        **rows,
    )
    ledger.derive(
        "workspace.hisparse_hash_bytes",
        Unit.BYTES,
        tiers.hash_table_bytes,
        source,
        "with MTP",
        tables="hisparse.hash_tables",
        layers="model.layers",
        **rows,
    )


def _post_broadcast(ledger: Ledger, plan: Deployment) -> None:
    """Post what layer split broadcasts: owners' whole buffers, not the tokens in use."""
    ledger.derive(
        "network.layer_broadcast_bytes",
        Unit.BYTES_PER_STEP,
        tiers.broadcast_bytes,
        engine_source(plan.release, "layers/cp/utils.py: a layer is read through a broadcast of its owner's buffer"),
        "per forward: the whole pool, whatever is in use",
        rows="pool.rows",
        page_tokens="engine.page_tokens",
        main_kv_record_bytes="record.main_kv_bytes",
        layers="model.layers",
        index_k_record_bytes="record.index_k_bytes",
        full_layers="model.full_layers",
    )
