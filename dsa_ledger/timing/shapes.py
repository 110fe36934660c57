"""Attention shapes of the measured model families, and the bytes of one attention layer's weights on a rank.

Needed to carry a measured floor to another head count, weight format or GPU: the floor holds the time of these bytes.
"""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Dimensions of one attention layer, from the family's config.json."""

    hidden: int
    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int
    index_heads: int
    index_head_dim: int


# zai-org/GLM-5 config.json (the same in 5.1, 5.2, 5.3) and deepseek-ai/DeepSeek-V3.2 config.json.
FAMILIES = {
    "glm": Shape(6144, 2048, 512, 192, 64, 256, 32, 128),
    "v32": Shape(7168, 1536, 512, 128, 64, 128, 64, 128),
    # zai-org/GLM-4.7-Flash config.json with GLM-5's indexer: the DSA variant of arXiv:2603.12201 is not released.
    "glm-4.7-flash": Shape(2048, 768, 512, 192, 64, 256, 32, 128),
}
ELEMENT_BYTES = {"bfloat16": 2.0, "fp8_block": 1.0, "nvfp4": 0.5625}  # block scales counted where they matter
RECORD_BYTES = {"fp8": 656, "bfloat16": 1152}


def attention_bytes(shape: Shape, weight_dtype: str, heads: int, *, indexer: bool) -> float:
    """Return the weight bytes that one attention layer reads on a rank with so many heads, indexer in it or not [B].

    The absorbed halves of kv_b are bf16 in every engine (SGLang w_kc and w_vc).
    """
    element = ELEMENT_BYTES.get(weight_dtype, 1.0)
    projections = shape.hidden * (shape.q_lora + shape.kv_lora + shape.qk_rope)
    projections += shape.q_lora * heads * (shape.qk_nope + shape.qk_rope) + heads * shape.v_head * shape.hidden
    absorbed = heads * (shape.qk_nope + shape.v_head) * shape.kv_lora * 2
    total = projections * element + absorbed
    if indexer:
        total += (shape.q_lora * shape.index_heads + shape.hidden) * shape.index_head_dim * element
        total += shape.hidden * shape.index_heads * 2
    return total


def activation_bytes(shape: Shape, heads: int) -> float:
    """Return the bytes that one token's activations take between the kernels of one attention layer, bf16 [B].

    Each is written once and read once: input and output, latents, and of each head its query before and after it is
    absorbed, what attention gives, and what the absorbed half of kv_b makes of it.
    """
    head = (shape.qk_nope + shape.qk_rope) + (shape.kv_lora + shape.qk_rope) + shape.kv_lora + shape.v_head
    return 2 * 2.0 * (2 * shape.hidden + shape.q_lora + shape.kv_lora + shape.qk_rope + heads * head)
