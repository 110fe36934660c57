"""Models beside plain DSA, as their configurations are published or transcribed in public repositories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FLASH, LITE = "zai-org/GLM-5.3-Flash", "meituan-longcat/LongCat-Flash-Lite-Sparse"
POOL = {"observed": {"kv_bytes": "50 GiB"}}
# huggingface/transformers@02106f7d configuration_glm5_next.py: class defaults, but index_kpool, published as 4.
FLASH_TEXT: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "v_head_dim": 256,
    "qk_nope_head_dim": 256,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_kpool": 4,
    "max_position_embeddings": 1048576,
}
# Tencent's key names as in public ports of hy_v4; 78 layers, 512 + 64 wide, indexer 32 x 128.
HY4: dict[str, Any] = {
    "architectures": ["HYV4ForCausalLM"],
    "model_type": "hy_v4",
    "vocab_size": 120832,
    "hidden_size": 6144,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "max_position_embeddings": 1048576,
    "mlp_layer_types": ["dense"] + ["sparse"] * 77,
    # 21 of 78, the ids that GLM-5.2's published list has.
    "indexer_types": ["full" if layer < 3 or layer % 4 == 2 else "shared" for layer in range(78)],
}


def question(model: str, version: str = "0.5.23", **more: Any) -> dict[str, Any]:
    return {"model": model, "gpu": "H200", "engine": f"sglang@{version}", "sharding": {"tp": 8}} | more


def local(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def nested(**text: Any) -> dict[str, Any]:
    names = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next"}
    return names | {"vision_config": {"depth": 24}, "text_config": FLASH_TEXT | text}
