"""Entries about a pool that every engine has alike: system tokens, longest request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import pool
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Scope


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
