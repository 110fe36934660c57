"""config.json to Model: every key, every fault, overrides, neighbours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import HERE, TINY, faults, parse

from dsa_ledger.catalog import load_model
from dsa_ledger.catalog.config import KEYS, SHARING, WHOLE, parse_config
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.schema import Model


def test_every_field():
    assert parse(index_kpool=4, index_share_for_mtp_iteration=True, indexer_rope_interleave=True) == Model(
        name="tiny",
        architecture="GlmMoeDsaForCausalLM",
        hidden=64,
        vocabulary=100,
        layers=4,
        dense_layers=1,
        draft_layers=1,
        heads=2,
        qk_nope=24,
        qk_rope=8,
        v_head=32,
        q_lora=16,
        kv_lora=12,
        experts=3,
        experts_per_token=2,
        shared_experts=1,
        dense_intermediate=48,
        expert_intermediate=20,
        index_heads=4,
        index_head_dim=10,
        index_topk=6,
        index_kpool=4,
        max_position=4096,
        index_share_for_mtp=True,
        indexer_rope_interleave=True,
        provenance=HERE,
    )


def test_keys_that_no_byte_depends_on_are_ignored():
    """GLM's own `head_dim` is 64 in one release and 192 in the next, and neither is a head's width."""
    assert parse(head_dim="nonsense", rope_theta=None, topk_group=[], torch_dtype=3, num_key_value_heads=0) == parse()


def test_absent_keys():
    config = {key: value for key, value in TINY.items() if key != "num_nextn_predict_layers"}
    model = parse_config(config, name="tiny", provenance=HERE, overrides={})
    assert (model.draft_layers, model.index_kpool, model.index_share_for_mtp) == (0, 1, False)
    assert parse(n_shared_experts=None).shared_experts == 0


def test_model_type_stands_in_for_the_architecture():
    assert parse(architectures=None, model_type="deepseek_v32").architecture == "DeepseekV32ForCausalLM"


def test_draft_embedding_needs_a_draft_layer():
    assert parse(architectures=["DeepseekV32ForCausalLM"]).draft_owns_embedding
    assert not parse(architectures=["DeepseekV32ForCausalLM"], num_nextn_predict_layers=0).draft_owns_embedding


def test_every_missing_key_at_once():
    with pytest.raises(BadInput) as refused:
        parse_config(
            {"architectures": TINY["architectures"], "index_topk": 1}, name="tiny", provenance=HERE, overrides={}
        )
    required = {f"model.{key}" for key, rule in WHOLE.items() if rule.absent is None} - {"model.index_topk"}
    assert {fault.path for fault in refused.value.faults} == required
    assert len(required) == 18
    assert all(fault.value == "missing" for fault in refused.value.faults)


WRONG_NUMBERS = [True, False, "78", 78.0, -1, 1 << 70, [78], {"layers": 78}]


@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=repr)
@pytest.mark.parametrize("key", WHOLE)
def test_wrong_numbers(key, wrong):
    found = faults(**{key: wrong})
    assert f"model.{key}" in found
    assert set(found) <= {f"model.{key}", "model.num_experts_per_tok"}


@pytest.mark.parametrize("key", [key for key, rule in WHOLE.items() if rule.least == 1])
def test_zero(key):
    assert f"model.{key}" in faults(**{key: 0})


def test_numbers_that_contradict_each_other():
    assert set(faults(first_k_dense_replace=5, num_experts_per_tok=4)) == {
        "model.first_k_dense_replace",
        "model.num_experts_per_tok",
    }


@pytest.mark.parametrize("key", ["index_share_for_mtp_iteration", "indexer_rope_interleave", "attention_bias"])
@pytest.mark.parametrize("wrong", [1, 0, "true", []], ids=repr)
def test_wrong_switches(key, wrong):
    assert set(faults(**{key: wrong})) == {f"model.{key}"}


def test_faults_of_every_kind_at_once():
    found = faults(
        {"index_topk_frequency": 4},
        hidden_size="64",
        index_share_for_mtp_iteration=1,
        indexer_types=["full"],
        index_topk_pattern="fs",
        index_topk_freq=0,
    )
    assert set(found) == {
        "model.index_topk_frequency",
        "model.hidden_size",
        "model.index_share_for_mtp_iteration",
        "model.indexer_types",
        "model.index_topk_pattern",
        "model.index_topk_freq",
    }
    assert "did you mean 'index_topk_freq'" in found["model.index_topk_frequency"]


# Sharing.


def test_sharing_as_written():
    sharing = parse(
        indexer_types=["full", "shared", "full", "shared"],
        index_topk_freq=2,
        index_skip_topk_offset=1,
        index_topk_pattern=None,
        cli_factor=None,
    ).sharing
    assert sharing.indexer_types == ("full", "shared", "full", "shared")
    assert (sharing.index_topk_freq, sharing.index_skip_topk_offset) == (2, 1)
    assert sharing.nulls == ("cli_factor", "index_topk_pattern")


@pytest.mark.parametrize("pattern", ["", "F", "FSFS", "FSSSFSSS"])
def test_a_pattern_of_any_length_is_kept(pattern):
    """Engines read a layer past the end as full."""
    assert parse(index_topk_pattern=pattern).sharing.index_topk_pattern == pattern


@pytest.mark.parametrize("pattern", ["fsfs", "FXFS", "F S", ["F", "S"], 4, "F" * 4097], ids=str)
def test_wrong_patterns(pattern):
    assert set(faults(index_topk_pattern=pattern)) == {"model.index_topk_pattern"}


@pytest.mark.parametrize("length", [0, 3, 5, 78])
def test_indexer_types_of_the_wrong_length(length):
    assert "4, one a layer" in faults(indexer_types=["full"] * length)["model.indexer_types"]


def test_unknown_words_in_indexer_types():
    found = faults(indexer_types=["full", "Full", None, "shared"])
    assert set(found) == {"model.indexer_types[1]", "model.indexer_types[2]"}
    assert set(faults(indexer_types="full")) == {"model.indexer_types"}


def test_keys_that_contradict_each_other_are_no_fault():
    """Engines take such a file and differ in what they run; the ledger compares them instead of refusing."""
    sharing = parse(indexer_types=["full"] * 4, index_topk_freq=4, index_topk_pattern="SSSS").sharing
    assert (sharing.index_topk_freq, sharing.index_topk_pattern) == (4, "SSSS")


# Overrides.


def test_an_override_replaces_a_key_before_every_rule():
    assert parse({"num_hidden_layers": 6}).layers == 6
    assert parse({"hidden_size": 32}, hidden_size="wrong").hidden == 32
    assert "model.hidden_size" in faults({"hidden_size": "wrong"})


def test_a_sharing_override_keeps_what_the_checkpoint_has():
    """The checkpoint still carries the indexers that its own config names."""
    model = parse({"index_topk_freq": 4})
    assert model.sharing.index_topk_freq == 4
    assert model.published_sharing is not None
    assert model.published_sharing.index_topk_freq is None
    assert parse({"hidden_size": 32}).published_sharing is None
    trained = parse({"index_topk_pattern": "FFFF"}, indexer_types=["full", "shared", "shared", "shared"])
    assert trained.published_sharing is not None
    assert trained.published_sharing.indexer_types == ("full", "shared", "shared", "shared")


def test_a_null_override_is_an_explicit_null():
    model = parse({"indexer_types": None}, indexer_types=["full"] * 4)
    assert model.sharing.indexer_types is None
    assert model.sharing.nulls == ("indexer_types",)
    assert "model.hidden_size" in faults({"hidden_size": None})


def test_an_override_of_a_published_model():
    model = load_model("zai-org/GLM-5.2-FP8", {"index_topk_pattern": "F" * 78, "indexer_types": None})
    published = load_model("zai-org/GLM-5.2-FP8", {})
    assert model.published_sharing == published.sharing
    assert model.sharing.nulls == ("indexer_types",)
    assert model.quantization == published.quantization


@given(
    types=st.none() | st.lists(st.sampled_from(["full", "shared"]), min_size=4, max_size=4),
    freq=st.none() | st.integers(1, 9),
    pattern=st.none() | st.text("FS", max_size=6),
    stated=st.sets(st.sampled_from(["indexer_types", "index_topk_freq", "index_topk_pattern"])),
)
def test_sharing_round_trip(types, freq, pattern, stated):
    """What a file states about sharing is what the model holds: value, explicit null or silence."""
    given_keys = {"indexer_types": types, "index_topk_freq": freq, "index_topk_pattern": pattern}
    keys = {key: value for key, value in given_keys.items() if key in stated}
    sharing = json.loads(parse(**keys).sharing.model_dump_json())
    for key in SHARING:
        assert sharing[key] == keys.get(key)
        assert (key in sharing["nulls"]) == (key in keys and keys[key] is None)


# Neighbours.


@pytest.mark.parametrize(
    ("keys", "feature"),
    [
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "DeepSeek-V4"),
        ({"model_type": "deepseek_v4"}, "DeepSeek-V4"),
        ({"compress_ratios": [0, 4, 128]}, "DeepSeek-V4"),
        ({"architectures": ["Glm5NextForConditionalGeneration"]}, "GLM-5.3-Flash"),
        ({"model_type": "glm5_next"}, "GLM-5.3-Flash"),
        ({"architectures": ["LongcatFlashForCausalLM"]}, "LongCat"),
        ({"architectures": ["HYV4ForCausalLM"]}, "Hy4"),
        ({"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM"),
        ({"architectures": [], "model_type": ""}, "none named"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, "dense layers"),
    ],
)
def test_not_modelled(keys, feature):
    with pytest.raises(NotModelled, match=feature):
        parse(**keys)


def test_no_dsa_model():
    assert "not a DSA model" in faults(index_topk=None)["model.index_topk"]
    with pytest.raises(BadInput, match="not a DSA model"):
        parse_config({"architectures": ["LlamaForCausalLM"]}, name="x", provenance=HERE, overrides={})


def test_wrong_architectures():
    assert "model.architectures" in faults(architectures="GlmMoeDsaForCausalLM", model_type="glm_moe_dsa")
    assert "model.model_type" in faults(model_type=5)
    assert "model.mlp_layer_types" in faults(mlp_layer_types=["dense", 1])


@pytest.mark.parametrize("wrong", ["a\nb", 0, True, 1.0, [1]], ids=repr)
def test_wrong_moe_layer_freq(wrong):
    """Text with a line break came back as a "not modelled" of two lines (found by fuzz_config.py)."""
    assert set(faults(moe_layer_freq=wrong)) == {"model.moe_layer_freq"}


def test_a_path_with_a_line_break(tmp_path):
    folder = tmp_path / "a\nb"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY | {"tie_word_embeddings": True}), encoding="utf-8")
    with pytest.raises(NotModelled) as refused:
        load_model(str(folder), {})
    assert "\n" not in str(refused.value)


def test_dense_layers_from_the_list_alone():
    """Transformers 5 may write `mlp_layer_types` without `first_k_dense_replace`."""
    kinds = ["dense", "dense", "sparse", "sparse"]
    assert parse(first_k_dense_replace=None, mlp_layer_types=kinds).dense_layers == 2


# Whatever the values.

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 200)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["full", "shared", "FS", "fp8", "NVFP4", "modelopt", "*", "lm_head"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["quant_method", "weight_block_size", "ignore", "quant_algo", "config_groups", "weights"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), as_override=st.booleans())
def test_only_expected_errors(keys, as_override):
    """Whatever a key holds, the result is a Model, a fault with its path, or "not modelled"; never anything else."""
    try:
        model = parse(keys) if as_override else parse(**keys)
    except (BadInput, NotModelled) as refused:
        outcome: Model | BadInput | NotModelled = refused
    else:
        outcome = model
    if isinstance(outcome, BadInput):
        assert all(fault.path.startswith("model.") for fault in outcome.faults)
        assert all("\n" not in line for line in outcome.lines())
    elif isinstance(outcome, Model):
        assert Model.model_validate_json(outcome.model_dump_json()) == outcome
    else:
        assert "\n" not in str(outcome)
