"""The kin of DSA: their caches follow from config.json, some of their tensors do not, so weights are not modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.catalog.files import shown
from dsa_ledger.errors import Faults, NotModelled

if TYPE_CHECKING:
    from collections.abc import Mapping

GLM5_NEXT, LONGCAT, HYV4 = "Glm5NextForConditionalGeneration", "LongcatCausalLM", "HYV4ForCausalLM"
LINEAR, SPARSE = "linear_attention", ("deepseek_sparse_attention", "full_attention")
LINEAR_UNLESS, PERIOD = 3, 4
LEADING_DENSE = 3
SHOWN_KEYS = 4


class Kin(NamedTuple):
    """An architecture beside the family: how it is known, the keys its caches cannot do without, and why."""

    architecture: str
    prefixes: tuple[str, ...]
    model_types: tuple[str, ...]
    feature: str
    needs: tuple[str, ...]
    reason: str


KIN = (
    Kin(
        GLM5_NEXT,
        ("glm5next",),
        ("glm5_next",),
        "GLM-5.3-Flash cache",
        ("index_kpool",),
        "one index key stands for index_kpool tokens (published: 4; the class default of transformers is 16)",
    ),
    Kin(
        LONGCAT,
        ("longcat",),
        ("longcat",),
        "LongCat sparse attention",
        ("cli_factor", "index_topk"),
        "which attention layers run an indexer follows from cli_factor, and the publisher's file is not at hand",
    ),
    Kin(
        HYV4,
        ("hyv4", "hunyuanv4"),
        ("hy_v4", "hyv4", "hunyuan_v4"),
        "Hy4 gated DSA",
        ("indexer_types", "index_topk"),
        "which layers run an indexer is not public, nor are the attention gate's tensors",
    ),
)
# LongCat's own spelling of keys (github.com/unslothai/unsloth@07995f74 tests/test_longcat_lsa.py, the published file).
LONGCAT_KEYS = {
    "moe_topk": "num_experts_per_tok",
    "ffn_hidden_size": "intermediate_size",
    "expert_ffn_hidden_size": "moe_intermediate_size",
    "mtp_num_layers": "num_nextn_predict_layers",
}
ATTENTIONS_A_BLOCK = 2


def kin_of(architectures: list[str], model_type: str) -> Kin | None:
    """Return the kin that the names in a config.json mean, if any."""
    plain = [found.lower().replace("_", "") for found in architectures]
    for kin in KIN:
        if any(found.startswith(kin.prefixes) for found in plain) or model_type.startswith(kin.model_types):
            return kin
    return None


def in_family_keys(config: Mapping[str, Any], kin: Kin, faults: Faults) -> dict[str, Any]:
    """Return a kin's config.json under the family's keys, class defaults filled in."""
    if kin.architecture == LONGCAT:
        return _longcat(config)
    if kin.architecture == GLM5_NEXT:
        return _glm5_next(config, faults)
    return dict(config)


def _longcat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Count attentions as layers: each of the `num_layers` blocks has two, and the cache and cli_factor count those."""
    found = {LONGCAT_KEYS.get(key, key): value for key, value in config.items()}
    blocks = config.get("num_layers")
    if blocks is not None:
        found["num_hidden_layers"] = blocks * ATTENTIONS_A_BLOCK if type(blocks) is int else blocks
    return {"n_shared_experts": 0, "first_k_dense_replace": 0} | found


def _glm5_next(config: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
    """Take the text fields out of `text_config`, or flat ones; defaults of transformers' configuration_glm5_next.py.

    Source of the defaults: github.com/huggingface/transformers@02106f7d.
    """
    text = config.get("text_config")
    if text is not None and not isinstance(text, dict):
        faults.add("model.text_config", shown(text), "a table of the text model's keys")
        text = None
    names = {key: config[key] for key in ("architectures", "model_type", "quantization_config") if key in config}
    found = {**config, **(text or {}), **names}
    defaults: dict[str, Any] = {"qk_rope_head_dim": 0, "index_kpool_compress": True}
    if found.get("mlp_layer_types") is None:
        defaults["first_k_dense_replace"] = LEADING_DENSE
    return {**defaults, **{key: value for key, value in found.items() if value is not None or key not in defaults}}


def require_keys(config: Mapping[str, Any], kin: Kin, keys: list[str], name: str) -> None:
    """Raise NotModelled where a file does not state what the caches follow from, naming the keys it lacks."""
    missing = [key for key in dict.fromkeys((*kin.needs, *keys)) if config.get(key) is None]
    if missing:
        more = f" and {len(missing) - SHOWN_KEYS} more" if len(missing) > SHOWN_KEYS else ""
        listed = ", ".join(missing[:SHOWN_KEYS]) + more
        raise NotModelled(kin.feature, name, f"{kin.reason}; give a config.json that states {listed}")
    kinds = config.get("layer_types")
    if kin.architecture == HYV4 and isinstance(kinds, list) and "full_attention" in kinds:
        raise NotModelled(kin.feature, name, "its layer_types name full attention beside sparse; only sparse was read")


def linear_layers(config: Mapping[str, Any], kin: Kin | None, layers: int, faults: Faults) -> tuple[int, ...]:
    """Return the ids of the linear-attention layers: as `layer_types` says, else all but every fourth."""
    if kin is None or kin.architecture != GLM5_NEXT:
        return ()
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [LINEAR if layer % PERIOD != LINEAR_UNLESS else SPARSE[0] for layer in range(layers)]
    expected = f"a list of {layers} words, {LINEAR!r} or {SPARSE[0]!r}, at least one of the latter"
    good = isinstance(kinds, list) and len(kinds) == layers and all(kind in (LINEAR, *SPARSE) for kind in kinds)
    good = good and any(kind in SPARSE for kind in kinds)
    faults.require(good, "model.layer_types", shown(kinds), expected)
    return tuple(layer for layer, kind in enumerate(kinds) if kind == LINEAR) if good else ()
