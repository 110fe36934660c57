"""Which tensors a checkpoint quantises: block FP8, NVFP4, lists of exclusions, hf_quant_config.json."""

from __future__ import annotations

import fnmatch
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import FP8, HERE, NVFP4, TINY, faults, parse, spans

from dsa_ledger.catalog import load_model
from dsa_ledger.errors import BadInput, NotModelled

if TYPE_CHECKING:
    from pathlib import Path

LINEAR = ["q_a", "q_b", "kv_a", "kv_b", "o", "wq_b", "wk"]
EVERYWHERE = {module: [(0, 4)] for module in LINEAR} | {"dense": [(0, 0)], "expert": [(1, 4)], "shared": [(1, 4)]}


def test_block_fp8():
    model = parse(quantization_config=FP8)
    assert spans(model) == EVERYWHERE
    (quant,) = {span.quant for span in model.quantization}
    assert quant.name == "fp8-block128"
    assert (model.quant_method, model.kv_quant) == ("fp8", None)


def test_block_fp8_of_other_blocks():
    model = parse(quantization_config=FP8 | {"weight_block_size": [64, 32]})
    quant = model.quantization[0].quant
    assert (quant.name, quant.block_rows, quant.block_columns) == ("fp8-block64x32", 64, 32)


def test_the_list_of_glm_fp8():
    """What zai-org's lists name is norms, gates, heads and the mangled `indexers_proj`: nothing that FP8 reaches."""
    names = [
        "lm_head",
        "model.embed_tokens",
        "model.norm",
        *(
            f"model.layers.{layer}.{name}"
            for layer in range(5)
            for name in (
                "input_layernorm",
                "self_attn.indexers_proj",
                "self_attn.indexer.k_norm",
                "mlp.gate",
                "eh_proj",
            )
        ),
    ]
    assert spans(parse(quantization_config=FP8 | {"modules_to_not_convert": names})) == EVERYWHERE


@pytest.mark.parametrize(
    ("pattern", "module", "left"),
    [
        ("model.layers.2.self_attn.o_proj", "o", [(0, 1), (3, 4)]),
        ("model.layers.2.self_attn", "wk", [(0, 1), (3, 4)]),
        ("model.layers.2", "expert", [(1, 1), (3, 4)]),
        ("model.layers.2.mlp.experts", "expert", [(1, 1), (3, 4)]),
        ("model.layers.4*", "q_a", [(0, 3)]),
        ("kv_b_proj", "kv_b", None),
        ("self_attn.indexer", "wq_b", None),
        ("*.shared_experts*", "shared", None),
        ("model.layers.[12].*", "shared", [(3, 4)]),
        ("model.layers.?.mlp.experts.*", "expert", None),
        ("proj", "o", [(0, 4)]),
        ("layers.2.self_attn.o_pro", "o", [(0, 4)]),
        ("model.layers.2.self_attn.o_proj.weight", "o", [(0, 4)]),
    ],
)
def test_exclusions(pattern, module, left):
    for config in (FP8 | {"modules_to_not_convert": [pattern]}, NVFP4 | {"ignore": [pattern]}):
        assert spans(parse(quantization_config=config)).get(module) == left


def test_a_star_reaches_the_two_digit_layers():
    """`layers.1*` names layers 1 and 10 to 19; NVIDIA writes `layers.1.*` for layer 1 alone."""
    keys: dict[str, Any] = {"num_hidden_layers": 21, "num_nextn_predict_layers": 0}
    wide = parse(quantization_config=NVFP4 | {"ignore": ["model.layers.1*"]}, **keys)
    assert spans(wide)["o"] == [(0, 0), (2, 9), (20, 20)]
    narrow = parse(quantization_config=NVFP4 | {"ignore": ["model.layers.1.*"]}, **keys)
    assert spans(narrow)["o"] == [(0, 0), (2, 20)]


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.2.mlp.experts.1",
        "*.experts.1.*",
        "model.layers.2.mlp.experts.[01]*",
        "*experts.?.gate_proj",
        "*.up_proj",
        "model.layers.0.mlp.gate_proj",
        "shared_experts.down_proj",
    ],
)
def test_a_module_quantised_in_part_is_not_modelled(pattern):
    with pytest.raises(NotModelled, match="in part"):
        parse(quantization_config=NVFP4 | {"ignore": [pattern]})


def test_a_list_that_would_take_minutes_is_refused():
    keys: dict[str, Any] = {"num_hidden_layers": 4096, "n_routed_experts": 4096}
    found = faults(quantization_config=NVFP4 | {"ignore": ["*1*"]}, **keys)
    assert "1,000,000 trials" in found["model.quantization_config.ignore"]


def test_a_list_of_every_expert():
    names = [f"model.layers.2.mlp.experts.{expert}" for expert in range(3)]
    assert spans(parse(quantization_config=NVFP4 | {"ignore": names}))["expert"] == [(1, 1), (3, 4)]


def test_nvfp4():
    model = parse(quantization_config=NVFP4)
    assert spans(model) == EVERYWHERE | {"lm_head": [(0, 0)]}
    assert spans(parse(quantization_config=NVFP4 | {"ignore": ["lm_head"]})) == EVERYWHERE
    assert (model.quant_method, model.kv_quant) == ("modelopt", "fp8")


def test_nvfp4_as_a_config_group():
    """The form that ModelOpt writes into config.json itself."""
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 32}, "targets": ["Linear"]}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": group}}
    model = parse(quantization_config=config | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert model.quantization[0].quant.block_columns == 32
    assert model.kv_quant == "fp8"
    assert parse(quantization_config=config).kv_quant is None


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq"},
        {"quant_method": "gptq"},
        {"quant_method": "mxfp4"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": ["fp8"]},
        {"quant_method": "fp8"},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "modelopt"},
        NVFP4 | {"kv_cache_quant_algo": "NVFP4"},
        NVFP4 | {"config_groups": {"a": {}, "b": {}}},
    ],
    ids=json.dumps,
)
def test_formats_that_are_not_modelled(config):
    with pytest.raises(NotModelled):
        parse(quantization_config=config)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ([], ""),
        ("fp8", ""),
        ({}, ".quant_method"),
        (FP8 | {"weight_block_size": 128}, ".weight_block_size"),
        (FP8 | {"weight_block_size": [128]}, ".weight_block_size"),
        (FP8 | {"weight_block_size": [128, 0]}, ".weight_block_size"),
        (FP8 | {"weight_block_size": [True, True]}, ".weight_block_size"),
        (FP8 | {"modules_to_not_convert": "lm_head"}, ".modules_to_not_convert"),
        (FP8 | {"modules_to_not_convert": ["lm_head", 3]}, ".modules_to_not_convert"),
        (FP8 | {"modules_to_not_convert": ["a" * 513]}, ".modules_to_not_convert"),
        (NVFP4 | {"ignore": [f"*{number}*" for number in range(257)]}, ".ignore"),
        (NVFP4 | {"exclude_modules": {}}, ".exclude_modules"),
        (NVFP4 | {"group_size": 0}, ".group_size"),
        (NVFP4 | {"group_size": "16"}, ".group_size"),
        (NVFP4 | {"config_groups": [1]}, ".config_groups"),
        (NVFP4 | {"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, ".config_groups"),
    ],
)
def test_wrong_quantisation(config, path):
    assert set(faults(quantization_config=config)) == {f"model.quantization_config{path}"}


PARTS = ["model", "layers", "1", "3", "*", "?", "self_attn", "o_proj", "indexer", "mlp", "experts", "shared_experts"]
PATTERNS = st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map(".".join), max_size=5)


@given(patterns=PATTERNS)
def test_exclusions_against_a_plain_reading(patterns):
    """A matrix is quantised unless some pattern matches its name: by fnmatch, or as a whole run of dotted parts."""

    def named(module: str) -> bool:
        return any(
            fnmatch.fnmatchcase(module, pattern) if set(pattern) & set("*?[") else f".{pattern}." in f".{module}."
            for pattern in patterns
        )

    names = {
        "o": ["self_attn.o_proj"],
        "wk": ["self_attn.indexer.wk"],
        "expert": [f"mlp.experts.{expert}.{part}_proj" for expert in range(3) for part in ("gate", "up", "down")],
        "shared": [f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")],
    }
    expected: dict[str, set[int]] = {module: set() for module in names}
    mixed = False
    for layer in range(5):
        for module, found in names.items():
            left_out = {named(f"model.layers.{layer}.{name}") for name in found}
            mixed |= len(left_out) > 1
            if left_out == {False}:
                expected[module].add(layer)
    keys: dict[str, Any] = {"first_k_dense_replace": 0, "quantization_config": NVFP4 | {"ignore": patterns}}
    if mixed:
        with pytest.raises(NotModelled, match="in part"):
            parse(**keys)
        return
    found_spans = spans(parse(**keys))
    for module, layers in expected.items():
        assert {layer for first, last in found_spans.get(module, []) for layer in range(first, last + 1)} == layers


def sidecar(folder: Path, config: dict[str, Any], quant: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "hf_quant_config.json").write_text(json.dumps(quant), encoding="utf-8")
    return str(folder)


def test_hf_quant_config_beside_a_silent_config(tmp_path):
    quant = {"quantization": {key: value for key, value in NVFP4.items() if key != "quant_method"}}
    model = load_model(sidecar(tmp_path, TINY, quant), {})
    assert model.model_copy(update={"name": "tiny", "provenance": HERE}) == parse(quantization_config=NVFP4)
    # What config.json says itself goes first, and an override goes before both.
    assert load_model(sidecar(tmp_path, TINY | {"quantization_config": FP8}, quant), {}).quant_method == "fp8"
    assert load_model(sidecar(tmp_path, TINY, quant), {"quantization_config": None}).quant_method == "none"


@pytest.mark.parametrize("quant", [[], {"quantization": {}}, {"quantization": []}, {}], ids=json.dumps)
def test_a_wrong_hf_quant_config(tmp_path, quant):
    with pytest.raises(BadInput) as refused:
        load_model(sidecar(tmp_path, TINY, quant), {})
    assert all(fault.path.startswith("model.hf_quant_config") for fault in refused.value.faults)
