"""Which architectures are the DSA family, and why each neighbour is not modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.catalog.files import shown
from dsa_ledger.errors import Faults, NotModelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.catalog.kin import Kin

FAMILY = {"deepseek_v32": "DeepseekV32ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM"}


class Neighbour(NamedTuple):
    """An architecture that selects tokens by an index but stores or shares it in another way."""

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    feature: str
    reason: str


_V4 = Neighbour(
    ("deepseekv4",),
    ("deepseek_v4", "deepseek_ref"),
    "DeepSeek-V4 cache",
    "compress_ratios compress KV and index layer by layer, so a record is not 132 bytes a token",
)
NEIGHBOURS = (_V4,)
# Settings that change tensors; every published DSA model has them off.
OFF = {
    "tie_word_embeddings": "embedding and head in one tensor",
    "attention_bias": "biases on the attention projections",
    "mlp_bias": "biases on the MLP projections",
}
LEADING = "dense layers are taken to be the leading ones"


def refuse_other_layouts(config: Mapping[str, Any], name: str, kin: Kin | None, faults: Faults) -> str:
    """Return the architecture's class name; raise for a model that is no DSA model (BadInput) or not modelled."""
    architectures, model_type = names_in(config, faults)
    known = [kin.architecture] if kin else architectures or [FAMILY.get(model_type, "")]
    for neighbour in NEIGHBOURS:
        plain = [found.lower().replace("_", "") for found in architectures]
        if any(found.startswith(neighbour.architectures) for found in plain) or model_type.startswith(
            neighbour.model_types
        ):
            raise NotModelled(neighbour.feature, name, neighbour.reason)
    if config.get("compress_ratios") is not None:
        raise NotModelled(_V4.feature, name, _V4.reason)
    if config.get("index_topk") is None:
        faults.add("model.index_topk", "missing", "the keys an attention layer selects; else it is not a DSA model")
        faults.stop_if_any()
    architecture = next((found for found in known if kin or found in FAMILY.values()), "")
    if not architecture:
        faults.stop_if_any()
        what = shown(", ".join(architectures) or model_type or "none named")
        raise NotModelled(f"architecture {what!r}", name, f"only {' and '.join(FAMILY.values())} have been read")
    _refuse_settings(config, name, faults)
    return architecture


def names_in(config: Mapping[str, Any], faults: Faults) -> tuple[list[str], str]:
    """Return the architectures and the model type that a config.json names, noting what is neither."""
    architectures, model_type = config.get("architectures") or [], config.get("model_type") or ""
    if not isinstance(architectures, list) or not all(isinstance(found, str) for found in architectures):
        faults.add("model.architectures", shown(architectures), "a list of class names")
        architectures = []
    if not isinstance(model_type, str):
        faults.add("model.model_type", shown(model_type), "text")
        model_type = ""
    return architectures, model_type.lower()


def _refuse_settings(config: Mapping[str, Any], name: str, faults: Faults) -> None:
    for key, reason in OFF.items():
        value = config.get(key)
        faults.require(value is None or isinstance(value, bool), f"model.{key}", shown(value), "true or false")
        if value is True:
            raise NotModelled(f"{key} = true", name, f"{reason} are not counted")
    every = config.get("moe_layer_freq")
    if every is not None and (type(every) is not int or every < 1):
        faults.add("model.moe_layer_freq", shown(every), "a positive whole number")
    elif every is not None and every != 1:
        raise NotModelled(f"moe_layer_freq = {shown(every)}", name, LEADING)
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(kind in ("dense", "sparse") for kind in kinds):
        faults.add("model.mlp_layer_types", shown(kinds), "a list of 'dense' and 'sparse'")
    elif "dense" in kinds[leading_dense(kinds) :]:
        raise NotModelled("dense layers after the first MoE layer", name, LEADING)


def leading_dense(kinds: list[str]) -> int:
    """Return how many layers stand before the first that is not dense."""
    return next((layer for layer, kind in enumerate(kinds) if kind != "dense"), len(kinds))
