"""Entries about a pool that every engine has alike: the target's cell, system tokens, longest request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import cells, pool
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Scope, Source


def post_target_cell(
    scope: Scope, source: Source, *, records: tuple[str, str], layers: tuple[str, str], rows: str
) -> None:
    """Post what a pool row is charged for the target layers [B/token].

    `records` and `layers` are the keys of main KV, then of index-K; `rows` of the index-K rows kept per pool row.
    """
    scope.derive(
        "cell.main_kv_bytes",
        Unit.BYTES_PER_TOKEN,
        cells.main_kv_cell_bytes,
        source,
        record_bytes=records[0],
        layers=layers[0],
    )
    scope.derive(
        "cell.index_k_bytes",
        Unit.BYTES_PER_TOKEN,
        cells.index_k_cell_bytes,
        source,
        record_bytes=records[1],
        layers=layers[1],
        replicas=rows,
    )
    scope.total("cell.target_bytes", source, ["cell.main_kv_bytes", "cell.index_k_bytes"])


def post_pool_keys(scope: Scope, plan: Deployment) -> None:
    """Post what follows from `pool.tokens` and the context length."""
    scope.derive(
        "pool.system_tokens",
        Unit.TOKENS,
        pool.logical_tokens,
        plan.replicas.source,
        rows="pool.tokens",
        tokens_per_row="sharding.replicas",
    )
    scope.derive(
        "pool.longest_request_tokens",
        Unit.TOKENS,
        pool.longest_request_tokens,
        engine_source(plan.release, "a request ends at the pool or at the context length"),
        tokens="pool.tokens",
        context_length="limits.context_length",
    )
