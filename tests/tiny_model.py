"""A config.json small enough to work out by hand, and what the parser makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from dsa_ledger.catalog.config import parse_config
from dsa_ledger.errors import BadInput
from dsa_ledger.schema import Model, Provenance

HERE = Provenance(kind="config", ref="this test")
# Four target layers, the first dense, and one MTP layer; three experts.
TINY: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 100,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 2,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "intermediate_size": 48,
    "moe_intermediate_size": 20,
    "index_n_heads": 4,
    "index_head_dim": 10,
    "index_topk": 6,
    "max_position_embeddings": 4096,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"}


def parse(overrides: dict[str, Any] | None = None, **keys: Any) -> Model:
    return parse_config(TINY | keys, name="tiny", provenance=HERE, overrides=overrides or {})


def faults(overrides: dict[str, Any] | None = None, **keys: Any) -> dict[str, str]:
    """Return path to message of every fault."""
    with pytest.raises(BadInput) as refused:
        parse(overrides, **keys)
    return {fault.path: fault.expected for fault in refused.value.faults}


def spans(model: Model) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for span in model.quantization:
        found.setdefault(span.module, []).append((span.first, span.last))
    return found
