"""Elements and tensors of a published checkpoint, block scales and other quantisation tensors left out."""

from __future__ import annotations

from typing import Any


def other_layers(*, layers: Any, some_layers: Any) -> Any:
    """Return the layers that are not among some [layers]. Source: arithmetic."""
    return layers - some_layers


def attention_elements(
    *, hidden: Any, heads: Any, qk_nope: Any, qk_rope: Any, v_head: Any, q_lora: Any, kv_lora: Any
) -> Any:
    """Return one layer's five MLA matrices and four norms [elements]. Source: transformers modeling_glm_moe_dsa.py."""
    return (
        q_lora * hidden
        + heads * (qk_nope + qk_rope) * q_lora
        + (kv_lora + qk_rope) * hidden
        + heads * (qk_nope + v_head) * kv_lora
        + hidden * heads * v_head
        + q_lora
        + kv_lora
        + 2 * hidden
    )


def indexer_elements(*, hidden: Any, q_lora: Any, index_heads: Any, index_head_dim: Any) -> Any:
    """Return one indexer: wq_b, wk, weights_proj, key norm [elements]. Source: DeepSeek-V3.2-Exp model.py Indexer."""
    return index_heads * index_head_dim * q_lora + index_head_dim * hidden + index_heads * hidden + 2 * index_head_dim


def parameters(
    *,
    hidden: Any,
    vocabulary: Any,
    dense_layers: Any,
    heads: Any,
    qk_nope: Any,
    qk_rope: Any,
    v_head: Any,
    q_lora: Any,
    kv_lora: Any,
    experts: Any,
    shared_experts: Any,
    dense_intermediate: Any,
    expert_intermediate: Any,
    index_heads: Any,
    index_head_dim: Any,
    layers: Any,
    draft_layers: Any,
    indexer_layers: Any,
    draft_tables: Any,
) -> Any:
    """Return all elements, MTP, norms and router biases in [elements].

    Source: Megatron-Bridge glm5 verification cards.
    """
    return (
        (2 + draft_tables) * vocabulary * hidden
        + hidden
        + (layers + draft_layers)
        * attention_elements(
            hidden=hidden,
            heads=heads,
            qk_nope=qk_nope,
            qk_rope=qk_rope,
            v_head=v_head,
            q_lora=q_lora,
            kv_lora=kv_lora,
        )
        + (indexer_layers + draft_layers)
        * indexer_elements(hidden=hidden, q_lora=q_lora, index_heads=index_heads, index_head_dim=index_head_dim)
        + dense_layers * 3 * hidden * dense_intermediate
        + (layers - dense_layers + draft_layers)
        * ((experts + shared_experts) * 3 * hidden * expert_intermediate + experts * hidden + experts)
        + draft_layers * (2 * hidden * hidden + 3 * hidden)
    )


def tensors(
    *,
    layers: Any,
    draft_layers: Any,
    indexer_layers: Any,
    draft_tables: Any,
    dense_layers: Any,
    experts: Any,
    shared_experts: Any,
) -> Any:
    """Return all tensors but scales and other quantisation tensors [count]. Source: Megatron-Bridge PR #6117 audit."""
    return (
        9 * (layers + draft_layers)
        + 5 * (indexer_layers + draft_layers)
        + 3 * dense_layers
        + (layers - dense_layers + draft_layers) * (2 + 3 * experts + 3 * shared_experts)
        + 3
        + 4 * draft_layers
        + draft_tables
    )
