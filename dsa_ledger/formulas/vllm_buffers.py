"""vLLM's fixed buffers: they scale with max_model_len and batch limits as configured, not with real contexts."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, choice, least, round_up


def topk_index_bytes(*, batched_tokens: Any, index_topk: Any, copies: Any) -> Any:
    """Return the top-k index buffers in int32 [B]. Source: vllm models/deepseek_v2.py topk_indices_buffer."""
    return copies * batched_tokens * index_topk * 4


def index_group_bytes(*, groups: Any, batched_tokens: Any, sequences: Any, rows: Any, index_topk: Any) -> Any:
    """Return physical top-k, one buffer per full layer [B]. Source: vllm 0.30 models/deepseek_v32 index groups."""
    return groups * (least(batched_tokens, sequences * rows) + 1) * index_topk * 4


def packed_prefill_bytes(
    *, batched_tokens: Any, local_heads: Any, prefill_heads: Any, context_length: Any, factor: Any, pads_queries: Any
) -> Any:
    """Return FlashMLA's sparse prefill workspace for the packed record [B]. Source: vllm mla/flashmla_sparse.py."""
    return (
        batched_tokens * local_heads * 1152
        + factor * context_length * 1152
        + pads_queries * batched_tokens * (round_up(local_heads, prefill_heads) * 2176 + local_heads * 1024)
    )


def bf16_prefill_bytes(*, batched_tokens: Any, local_heads: Any, prefill_heads: Any, pads_queries: Any) -> Any:
    """Return FlashMLA's workspace for the bf16 record [B]. Source: vllm mla/flashmla_sparse.py."""
    return batched_tokens * choice(pads_queries > 0, round_up(local_heads, prefill_heads), local_heads) * 1152


def flashinfer_dcp_bytes(*, base_bytes: Any, local_heads: Any, dcp: Any, batched_tokens: Any) -> Any:
    """Return FlashInfer's workspace under DCP [B]. Source: vllm 0.33 sparse FlashInfer metadata builder."""
    return base_bytes + 8 * (local_heads * dcp) * batched_tokens * 256 + 1048576


def gather_bytes(*, context_length: Any, factor: Any, record_bytes: Any) -> Any:
    """Return the indexer's prefill gather workspace [B]. Source: vllm mla/indexer.py get_max_prefill_buffer_size."""
    return context_length * 8 * factor * record_bytes


def table_columns(*, context_length: Any, page_tokens: Any, dcp: Any) -> Any:
    """Return block-table columns of a request, even [pages]. Source: vllm v1/worker/block_table.py."""
    return round_up(ceil_div(context_length, page_tokens * dcp), 2)


def expanded_table_bytes(*, batched_tokens: Any, columns: Any) -> Any:
    """Return one indexer builder's expanded decode block table in int32 [B]. Source: vllm mla/indexer.py."""
    return batched_tokens * columns * 4


def request_tables_bytes(*, sequences: Any, columns: Any) -> Any:
    """Return the requests' block tables, two copies in int32 [B]. Source: vllm v1/worker/block_table.py."""
    return 2 * sequences * columns * 4


def decode_logits_bytes(*, sequences: Any, rows: Any, context_length: Any, element_bytes: Any) -> Any:
    """Return decode logits of a full batch, as wide as max_model_len [B]. Source: vllm sparse_attn_indexer.py."""
    return sequences * rows * round_up(context_length, 256) * element_bytes


def budget_bytes(*, allowed_bytes: Any, capacity_bytes: Any, free_after_bytes: Any, reserved_bytes: Any) -> Any:
    """Return bytes for the KV cache, activations and graphs not taken off [B]. Source: vllm v1/worker/gpu_worker.py."""
    return allowed_bytes - (capacity_bytes - free_after_bytes) - reserved_bytes
