"""Bytes of weight tensors: whole in the checkpoint (shards = 1), or a rank's part of them.

Every format is bits an element plus a scale per block plus a constant per matrix: bf16, block FP8 and NVFP4 are one
formula.
"""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, least, power, quotient, round_up, truncated


def matrix_bytes(
    *, rows: Any, columns: Any, bits: Any, scale_bytes: Any, block_rows: Any, block_columns: Any, fixed_bytes: Any
) -> Any:
    """Return one stored matrix [B]. Source: checkpoint layouts of block FP8 (128 x 128) and ModelOpt NVFP4 (1 x 16)."""
    return (
        rows * columns * bits // 8
        + scale_bytes * ceil_div(rows, block_rows) * ceil_div(columns, block_columns)
        + fixed_bytes
    )


def matrices_bytes(
    *,
    layers: Any,
    rows: Any,
    columns: Any,
    bits: Any,
    scale_bytes: Any,
    block_rows: Any,
    block_columns: Any,
    fixed_bytes: Any,
) -> Any:
    """Return one matrix a layer, over its layers [B]. Source: checkpoint layouts, as `matrix_bytes`."""
    return layers * matrix_bytes(
        rows=rows,
        columns=columns,
        bits=bits,
        scale_bytes=scale_bytes,
        block_rows=block_rows,
        block_columns=block_columns,
        fixed_bytes=fixed_bytes,
    )


def joined_width(*, first: Any, second: Any) -> Any:
    """Return the width of two vectors side by side [elements]. Source: sglang deepseek_v2.py kv_a_proj_with_mqa."""
    return first + second


def heads_width(*, heads: Any, shards: Any, head_dim: Any) -> Any:
    """Return the width of a rank's heads [elements]. Source: sglang deepseek_v2.py, projections cut by heads."""
    return heads // shards * head_dim


def bf16_bytes(*, layers: Any, rows: Any, columns: Any) -> Any:
    """Return a bf16 matrix a layer [B]. Source: sglang deepseek_v2.py w_kc and w_vc, dsa_indexer.py wk_weights_proj."""
    return layers * rows * columns * 2


def index_norm_bytes(*, layers: Any, index_head_dim: Any, element_bytes: Any) -> Any:
    """Return weight and bias of the indexer's key norm [B]. Source: sglang dsa_indexer.py k_norm (fp32 when built)."""
    return layers * 2 * index_head_dim * element_bytes


def mlp_bytes(
    *,
    hidden: Any,
    intermediate: Any,
    bits: Any,
    scale_bytes: Any,
    block_rows: Any,
    block_columns: Any,
    fixed_bytes: Any,
) -> Any:
    """Return gate, up and down of one MLP or expert [B]. Source: sglang deepseek_v2.py DeepseekV2MLP."""
    return 2 * matrix_bytes(
        rows=intermediate,
        columns=hidden,
        bits=bits,
        scale_bytes=scale_bytes,
        block_rows=block_rows,
        block_columns=block_columns,
        fixed_bytes=fixed_bytes,
    ) + matrix_bytes(
        rows=hidden,
        columns=intermediate,
        bits=bits,
        scale_bytes=scale_bytes,
        block_rows=block_rows,
        block_columns=block_columns,
        fixed_bytes=fixed_bytes,
    )


def sharded_mlp_bytes(*, layers: Any, copies: Any, one_bytes: Any, shards: Any) -> Any:
    """Return a rank's part of dense MLPs, shared or routed experts [B].

    Source: sglang deepseek_v2.py; TP or EP alike.
    """
    return layers * copies * one_bytes // shards


def router_bytes(*, layers: Any, experts: Any, hidden: Any) -> Any:
    """Return the router gate in bf16 and its fp32 bias [B]. Source: sglang deepseek_v2.py MoEGate."""
    return layers * (experts * hidden * 2 + experts * 4)


def norm_bytes(*, layers: Any, q_lora: Any, kv_lora: Any, hidden: Any) -> Any:
    """Return the four bf16 norms of a layer [B]. Source: sglang deepseek_v2.py."""
    return layers * (q_lora + kv_lora + 2 * hidden) * 2


def vocabulary_bytes(*, vocabulary: Any, pad: Any, hidden: Any, shards: Any) -> Any:
    """Return embedding table or head in bf16, vocabulary padded [B]. Source: sglang vocab_parallel_embedding.py."""
    return round_up(vocabulary, pad) * hidden * 2 // shards


def vector_tables_bytes(*, tables: Any, vocabulary: Any, hidden: Any) -> Any:
    """Return so many whole bf16 tables of one vector a token [B]. Source: checkpoint, embed_tokens and lm_head."""
    return tables * vocabulary * hidden * 2


def vector_bytes(*, count: Any, hidden: Any) -> Any:
    """Return so many bf16 vectors as wide as the hidden state [B]. Source: sglang deepseek_v2.py, deepseek_nextn.py."""
    return count * hidden * 2


def draft_projection_bytes(*, layers: Any, hidden: Any) -> Any:
    """Return the MTP layer's eh_proj in bf16, whole on each rank [B]. Source: sglang deepseek_nextn.py."""
    return layers * 2 * hidden * hidden * 2


def rope_table_bytes(*, max_position: Any, qk_rope: Any, element_bytes: Any) -> Any:
    """Return a table of cosines and sines [B]. Source: sglang rotary_embedding.py (fp32), vllm (bf16, two tables)."""
    return max_position * qk_rope * element_bytes


def tokens_in_flight(*, batch: Any, correlation: Any, draft_steps: Any) -> Any:
    """Return effective tokens that meet in a MoE layer [tokens].

    Source: prior, verify rows counted at `correlation`.
    """
    return batch * (1 + correlation * draft_steps)


def distinct_experts(*, experts: Any, experts_per_token: Any, tokens: Any) -> Any:
    """Return expected distinct experts of a layer, uniform routing [experts]. Source: arithmetic, an upper bound."""
    return experts * (1 - power(1 - quotient(experts_per_token, experts), tokens))


def weights_read_bytes(*, always_bytes: Any, expert_bytes: Any, distinct: Any, experts: Any) -> Any:
    """Return weight bytes a rank reads in a step [B/step]. Source: tensors read once, experts by distinct share."""
    return always_bytes + truncated(quotient(expert_bytes * distinct, experts))


def straggling_read_bytes(*, always_bytes: Any, expert_bytes: Any, distinct: Any, experts: Any, straggler: Any) -> Any:
    """Return weight bytes read by the rank with the most hit experts [B/step].

    Source: prior, whole experts per rank.
    """
    return always_bytes + truncated(least(quotient(expert_bytes * distinct * straggler, experts), expert_bytes))
