"""Plain keys out of the stages' own: the worst stage's value, key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.ledger import LEAST, MOST, Source

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

SMALLEST = (
    "pool.budget_bytes",
    "pool.tokens",
    "pool.requests_at_context",
    "memory.headroom_bytes",
    "memory.prefill_headroom_bytes",
)
# Public keys of one rank: with stages each stands beside the plain one, equal or not.
RANK_GROUPS = ("record.", "cell.", "pool.", "workspace.", "step.")
RANK_KEYS = ("engine.mem_fraction", "weights.rank_bytes", "weights.indexer_rank_bytes", "weights.draft_rank_bytes")
WEIGHT_TOTALS = (
    "weights.rank_bytes",
    "weights.indexer_rank_bytes",
    "weights.draft_rank_bytes",
    "weights.expert_rank_bytes",
    "weights.always_read_bytes",
    "weights.overhead_bytes",
)
# What a capacity answer reads of a rank.
CAPACITY = (
    "cell.bytes",
    "weights.rank_bytes",
    "weights.draft_rank_bytes",
    "pool.budget_bytes",
    "pool.tokens",
    "pool.system_tokens",
    "pool.target_bytes",
    "pool.draft_bytes",
    "pool.requests_at_context",
    "pool.longest_request_tokens",
    "memory.headroom_bytes",
    "memory.prefill_headroom_bytes",
)


def is_smallest(key: str) -> bool:
    """Tell whether the worst stage is the one with the smallest value."""
    return key in SMALLEST or (key.startswith("pool.") and key.endswith("_tokens"))


def post_worst(ledger: Ledger, plan: Deployment) -> None:
    """Post each key that stages have, once without a stage: smallest of pool figures, largest of all else."""
    if len(plan.stages) == 1:
        return
    source = Source("engine", "pipeline: the worst stage's own value", "")
    suffixes: dict[str, list[str]] = {}
    for key in list(ledger.entries):
        if key.startswith("stage["):
            suffixes.setdefault(key.partition("].")[2], []).append(key)
    for suffix, keys in suffixes.items():
        skipped = suffix.startswith("weights.") and suffix not in WEIGHT_TOTALS
        if suffix not in ledger and not skipped:
            ledger.total(suffix, source, keys, LEAST if is_smallest(suffix) else MOST)
    _post_alike(ledger, plan)


def post_worst_capacity(ledger: Ledger, plan: Deployment) -> None:
    """Post the plain keys that a capacity answer reads, without the rest of the stages' entries."""
    if len(plan.stages) == 1:
        return
    source = Source("engine", "pipeline: the worst stage's own value", "")
    for key in CAPACITY:
        parts = [f"{stage.prefix}{key}" for stage in plan.stages]
        if key not in ledger and parts[0] in ledger:
            ledger.total(key, source, parts, LEAST if is_smallest(key) else MOST)


def _post_alike(ledger: Ledger, plan: Deployment) -> None:
    """Post a plain rank key beside each stage, where the stages do not differ in it."""
    for key in list(ledger.entries):
        if key.startswith(RANK_GROUPS) or key in RANK_KEYS:
            for stage in plan.stages:
                if f"{stage.prefix}{key}" not in ledger:
                    ledger.total(f"{stage.prefix}{key}", ledger.entries[key].source, [key], note="alike on every stage")
