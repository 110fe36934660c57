"""Bytes of one token in one layer of one cache."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div


def bf16_record_bytes(*, kv_lora: Any, qk_rope: Any) -> Any:
    """Return the main-KV record kept in bfloat16 [B/token/layer]. Source: sglang memory_pool.py MLATokenToKVPool."""
    return (kv_lora + qk_rope) * 2


def raw_fp8_record_bytes(*, kv_lora: Any, qk_rope: Any) -> Any:
    """Return the main-KV record of one-byte elements [B/token/layer]. Source: sglang kv_cache_configurator.py."""
    return kv_lora + qk_rope


def packed_fp8_record_bytes(*, kv_lora: Any, qk_rope: Any, scale_block: Any, scale_bytes: Any) -> Any:
    """Return latent in FP8, a scale per block, RoPE part in bf16 [B/token/layer].

    Source: sglang dsa_quant_k_cache.py.
    """
    return kv_lora + ceil_div(kv_lora, scale_block) * scale_bytes + qk_rope * 2


def nvfp4_ds_mla_record_bytes(*, kv_lora: Any, qk_rope: Any, scale_block: Any) -> Any:
    """Return latent in 4 bits, RoPE part in FP8, a byte per block [B/token/layer].

    Source: vllm 0.30 flashmla_sparse.py.
    """
    return kv_lora // 2 + qk_rope + ceil_div(kv_lora, scale_block)


def nvfp4_record_bytes(*, kv_lora: Any, qk_rope: Any, scale_block: Any) -> Any:
    """Return all elements in 4 bits and a byte per block [B/token/layer]. Source: tensorrt-llm resource_manager.py."""
    return (kv_lora + qk_rope) // 2 + ceil_div(kv_lora + qk_rope, scale_block)


def index_k_record_bytes(*, index_head_dim: Any, bits: Any, scale_block: Any, scale_bytes: Any) -> Any:
    """Return one indexer key and its scales [B/token/layer]. Source: sglang index_key_cache.py, vllm attention.py."""
    return index_head_dim * bits // 8 + ceil_div(index_head_dim, scale_block) * scale_bytes


def index_k_token_bytes(*, state_bytes: Any, state_tokens: Any) -> Any:
    """Return a pooled key's bytes a token, rounded up [B/token/layer]. Source: sglang 0.5.22 index_key_cache.py."""
    return ceil_div(state_bytes, state_tokens)


def index_tail_request_bytes(*, index_kpool: Any, draft_tokens: Any, index_head_dim: Any) -> Any:
    """Return a request's open pool, keys and gate scores in bf16, in one layer [B/request].

    Source: sglang memory_pool.py DSATokenToKVPool with index_kpool_compress.
    """
    return 2 * (index_kpool + draft_tokens) * index_head_dim * 2
