"""Memory that stays free outside weights, pool and fixed buffers, before and during a prefill forward."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import least


def headroom_bytes(
    *, free_after_bytes: Any, target_bytes: Any, draft_bytes: Any, late_bytes: Any, workspace_bytes: Any
) -> Any:
    """Return what one rank has left, negative where it runs out [B]. Source: arithmetic."""
    return free_after_bytes - target_bytes - draft_bytes - late_bytes - workspace_bytes


def chunk_logits_bytes(*, rows: Any, context_tokens: Any, budget_bytes: Any) -> Any:
    """Return fp32 logits of one full prefill forward after the cut [B]. Source: sglang mqa_logits_utils.py."""
    return least(4 * rows * context_tokens, budget_bytes)


def bounded_logits_bytes(*, rows: Any, most_rows: Any, context_tokens: Any) -> Any:
    """Return fp32 logits of a forward cut by rows [B]. Source: tensorrt-llm llm_args.py indexer_max_chunk_size."""
    return 4 * least(rows, most_rows) * context_tokens


def chunk_activation_bytes(*, chunk_tokens: Any, token_bytes: Any) -> Any:
    """Return activations of one prefill forward [B]. Source: close to linear in github.com InferenceX PR 2488."""
    return chunk_tokens * token_bytes


def prefill_headroom_bytes(*, headroom_bytes: Any, logits_bytes: Any, gather_bytes: Any, activation_bytes: Any) -> Any:
    """Return what one rank has left while it prefills at the context [B]. Source: arithmetic."""
    return headroom_bytes - logits_bytes - gather_bytes - activation_bytes
