"""A Hugging Face config.json as a Model: the keys that bytes depend on, every fault at once, all other keys ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.catalog.files import shown
from dsa_ledger.catalog.kin import in_family_keys, kin_of, linear_layers, require_keys
from dsa_ledger.catalog.quantization import Geometry, quantization
from dsa_ledger.catalog.refused import leading_dense, names_in, refuse_other_layouts
from dsa_ledger.errors import Faults, Said, nearest
from dsa_ledger.schema import IndexSharing, Model, Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

WIDEST = 1 << 24
MOST_LAYERS, MOST_DRAFT_LAYERS, MOST_EXPERTS = 4096, 16, 4096
LONGEST_CONTEXT_TOKENS = 1 << 32
LONGEST_PATTERN = 4096


class Whole(NamedTuple):
    """A whole-number key: the field it fills, its bounds, what an absent or null key means (None: a fault)."""

    field: str
    least: int = 1
    most: int = WIDEST
    absent: int | None = None
    null: int | None = None


# `head_dim` is left out on purpose: GLM-5 writes 64, GLM-5.2 writes 192, and neither is the width of a head
# (PrimeIntellect-ai/prime-rl PR #2851 strips it). The widths are qk_nope + qk_rope and v.
WHOLE = {
    "hidden_size": Whole("hidden"),
    "vocab_size": Whole("vocabulary"),
    "num_hidden_layers": Whole("layers", most=MOST_LAYERS),
    "first_k_dense_replace": Whole("dense_layers", least=0, most=MOST_LAYERS),
    "num_nextn_predict_layers": Whole("draft_layers", least=0, most=MOST_DRAFT_LAYERS, absent=0, null=0),
    "num_attention_heads": Whole("heads"),
    "qk_nope_head_dim": Whole("qk_nope"),
    "qk_rope_head_dim": Whole("qk_rope"),
    "v_head_dim": Whole("v_head"),
    "q_lora_rank": Whole("q_lora"),
    "kv_lora_rank": Whole("kv_lora"),
    "n_routed_experts": Whole("experts", most=MOST_EXPERTS),
    "num_experts_per_tok": Whole("experts_per_token", most=MOST_EXPERTS),
    "n_shared_experts": Whole("shared_experts", least=0, most=MOST_EXPERTS, null=0),
    "intermediate_size": Whole("dense_intermediate"),
    "moe_intermediate_size": Whole("expert_intermediate"),
    "index_n_heads": Whole("index_heads"),
    "index_head_dim": Whole("index_head_dim"),
    "index_topk": Whole("index_topk"),
    "index_kpool": Whole("index_kpool", absent=1, null=1),
    "max_position_embeddings": Whole("max_position", most=LONGEST_CONTEXT_TOKENS),
}
SWITCHES = {
    "index_share_for_mtp_iteration": "index_share_for_mtp",
    "indexer_rope_interleave": "indexer_rope_interleave",
    "index_kpool_compress": "index_kpool_compress",
}
SHARING = ("indexer_types", "cli_factor", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
LAYOUT = (
    "architectures",
    "model_type",
    "quantization_config",
    "layer_types",
    "mlp_layer_types",
    "moe_layer_freq",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "compress_ratios",
    "use_index_cache",  # vLLM 0.21 and 0.22 alone ask for it (docs/features/index_cache.md)
)
KEYS = (*WHOLE, *SWITCHES, *SHARING, *LAYOUT)

# Whether the checkpoint stores embedding and head again in its MTP layer. DeepSeek: 685B = 671B + 14B of MTP weights
# (deepseek-ai/DeepSeek-V3 README). GLM: 59,585 tensors leave no room for them (NVIDIA-NeMo/Megatron-Bridge PR #6117).
DRAFT_OWNS_EMBEDDING = {"DeepseekV32ForCausalLM": True, "GlmMoeDsaForCausalLM": False}


def parse_config(
    config: Mapping[str, Any],
    *,
    name: str,
    provenance: Provenance,
    overrides: Mapping[str, JsonValue],
    beside: dict[str, Any] | None = None,
) -> Model:
    """Return the model that a config.json describes.

    `overrides` replace keys before every rule, as the engines' own override options do; `beside` is the
    hf_quant_config.json of the same folder. Raises BadInput with a path `model.KEY` for each fault, and NotModelled for
    an architecture, cache layout or tensor format whose bytes are not known.
    """
    faults = Faults()
    for key in overrides:
        if key not in KEYS:
            faults.add(f"model.{key}", shown(overrides[key]), Said(f"unknown key; expected {nearest(key, KEYS)}"))
    asked = {key: value for key, value in overrides.items() if key in KEYS}
    kin = kin_of(*names_in({**config, **asked}, Faults()))
    if kin:
        config = in_family_keys(config, kin, faults)
        faults.stop_if_any()
    merged = {**config, **asked}
    if kin:
        by_list = merged.get("mlp_layer_types") is not None  # it may stand for first_k_dense_replace
        keys = [key for key, rule in WHOLE.items() if rule.absent is None]
        require_keys(merged, kin, [key for key in keys if not (by_list and key == "first_k_dense_replace")], name)
    architecture = refuse_other_layouts(merged, name, kin, faults)
    numbers = _whole_numbers(merged, faults, least_rope=0 if kin else 1)
    layers, dense = numbers.get("layers", 0), numbers.get("dense_layers", 0)
    if layers:
        faults.require(dense <= layers, "model.first_k_dense_replace", dense, f"at most the {layers} layers")
    chosen, experts = numbers.get("experts_per_token", 0), numbers.get("experts", MOST_EXPERTS)
    faults.require(chosen <= experts, "model.num_experts_per_tok", chosen, f"at most the {experts} experts")
    switches = {field: _switch(merged, key, faults) for key, field in SWITCHES.items()}
    sharing = _sharing(merged, layers, faults)
    linear = linear_layers(merged, kin, layers, faults) if layers else ()
    faults.stop_if_any()
    geometry = Geometry(name, layers, dense, numbers["draft_layers"], numbers["experts"], numbers["shared_experts"])
    beside = None if "quantization_config" in overrides else beside
    # A kin's checkpoint leaves other modules unquantised, and none of its weights are counted.
    quant = quantization(None if kin else merged.get("quantization_config"), None if kin else beside, geometry, faults)
    faults.stop_if_any()
    return Model(
        name=name,
        architecture=architecture,
        **numbers,
        **switches,
        sharing=sharing,
        published_sharing=_published(config, layers) if any(key in SHARING for key in overrides) else None,
        draft_owns_embedding=DRAFT_OWNS_EMBEDDING.get(architecture, False) and numbers["draft_layers"] > 0,
        linear_layers=linear,
        weights_modelled=kin is None,
        quantization=quant.spans,
        kv_quant=quant.kv_quant,
        quant_method=_method_named(merged) if kin else quant.method,
        provenance=provenance,
    )


def _method_named(config: Mapping[str, Any]) -> str:
    """Return what a checkpoint calls its format, where its tensors are not counted."""
    table = config.get("quantization_config")
    method = table.get("quant_method") if isinstance(table, dict) else None
    return method if isinstance(method, str) else "none"


def _whole_numbers(config: Mapping[str, Any], faults: Faults, *, least_rope: int) -> dict[str, int]:
    numbers = {}
    for key, rule in WHOLE.items():
        value = config.get(key, rule.absent)
        if key in config and value is None:
            value = rule.null
        kinds = config.get("mlp_layer_types")
        if key == "first_k_dense_replace" and value is None and isinstance(kinds, list):
            value = leading_dense(kinds)  # Transformers 5 may write the list alone
        least = least_rope if key == "qk_rope_head_dim" else rule.least  # 0: an attention without RoPE
        if _is_whole(value, least, rule.most, faults, key, missing=key not in config):
            numbers[rule.field] = value
    return numbers


def _is_whole(value: Any, least: int, most: int, faults: Faults, key: str, *, missing: bool = False) -> bool:
    """Tell whether a value is a whole number within bounds; a bool, a float or digits in quotes are none."""
    good = type(value) is int and least <= value <= most
    found = "missing" if missing and value is None else shown(value)
    faults.require(good, f"model.{key}", found, f"a whole number from {least} to {most:,}")
    return good


def _switch(config: Mapping[str, Any], key: str, faults: Faults) -> bool:
    value = config.get(key)
    faults.require(value is None or isinstance(value, bool), f"model.{key}", shown(value), "true or false")
    return value is True


def _sharing(config: Mapping[str, Any], layers: int, faults: Faults) -> IndexSharing:
    """Return the sharing keys as written; a contradiction is no fault, because engines differ on which key wins."""
    values = {key: config[key] for key in SHARING if config.get(key) is not None}
    nulls = tuple(key for key in SHARING if key in config and config[key] is None)
    good: dict[str, Any] = {}
    for key in ("cli_factor", "index_topk_freq", "index_skip_topk_offset"):
        if key in values and _is_whole(values[key], 1, WIDEST, faults, key):
            good[key] = values[key]
    if "indexer_types" in values and _are_types(values["indexer_types"], layers, faults):
        good["indexer_types"] = tuple(values["indexer_types"])
    if "index_topk_pattern" in values and _is_pattern(values["index_topk_pattern"], faults):
        good["index_topk_pattern"] = values["index_topk_pattern"]
    return IndexSharing(**good, nulls=nulls)


def _are_types(value: Any, layers: int, faults: Faults) -> bool:
    path = "model.indexer_types"
    if not isinstance(value, list):
        faults.add(path, shown(value), "a list of 'full' and 'shared', one word a layer")
        return False
    if layers and len(value) != layers:
        faults.add(path, f"{len(value)} words", f"{layers}, one a layer")
        return False
    wrong = [layer for layer, kind in enumerate(value) if kind not in ("full", "shared")]
    for layer in wrong[:8]:
        faults.add(f"{path}[{layer}]", shown(value[layer]), "'full' or 'shared'")
    return not wrong


def _is_pattern(value: Any, faults: Faults) -> bool:
    """Tell whether a pattern is capital letters F and S; its length is the engines' business (past its end: full)."""
    good = isinstance(value, str) and len(value) <= LONGEST_PATTERN and set(value) <= {"F", "S"}
    expected = f"letters F (full) and S (shared), one a layer, at most {LONGEST_PATTERN:,}"
    faults.require(good, "model.index_topk_pattern", shown(value), expected)
    return good


def _published(config: Mapping[str, Any], layers: int) -> IndexSharing | None:
    """Return the checkpoint's own sharing, or None where the file states none that fits the model's layers."""
    faults = Faults()
    sharing = _sharing(config, layers, faults)
    return None if faults.found else sharing
