"""Which layers are full, by engine and release: lists from the engines' own code and from published configs."""

from __future__ import annotations

import pytest
from golden_cases import ledger_of

from dsa_ledger import BadInput, load_model
from dsa_ledger.engines.base import Stage, stage_list
from dsa_ledger.engines.layer_table import layer_table
from dsa_ledger.engines.layers import layers_of, published_full_layers
from dsa_ledger.engines.releases import resolve
from dsa_ledger.engines.sglang import stage_cuts
from dsa_ledger.schema import Engine

# GLM-5.2's indexer_types and freq 4 with offset 3 alike: ai-dynamo/aiconfigurator 095f58a, GLM-5.2-FP8 config.json;
# sglang 0.5.23 configs/model_config.py dsa_layer_skips_topk; vllm 0.33.0 models/deepseek_v2.py l.1143-1168.
GLM_5_2 = (0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74)
WITHOUT_OFFSET = (0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 65, 69, 73, 77)
# THUDM/IndexCache README at 08d22d69: the greedy pattern for GLM-5 and the ids of its 40 F.
GREEDY = "FFSFSSSFSSFFFSSSFFFSFSSSSSSFFSFFSFFSSFFFFFFSFFFFFSFFSSSSSSFSFFFSFSSSFSFFSFFSSS"
GREEDY_FULL = (
    *(0, 1, 3, 7, 10, 11, 12, 16, 17, 18, 20, 27, 28, 30, 31, 33, 34, 37, 38, 39, 40, 41, 42, 44, 45, 46, 47, 48),
    *(50, 51, 58, 60, 61, 62, 64, 68, 70, 71, 73, 74),
)


def full(model: str, engine: str, **overrides: object) -> tuple[int, ...]:
    release, _ = resolve(Engine.model_validate(engine))
    return layers_of(load_model(model, overrides), release).full  # type: ignore[arg-type]


ALL_ENGINES = ["sglang@0.5.14", "sglang@0.5.18", "sglang@0.5.23", "vllm@0.23.0", "vllm@0.33.0", "tensorrt-llm@1.4.0rc2"]


@pytest.mark.parametrize("engine", ALL_ENGINES)
@pytest.mark.parametrize("model", ["zai-org/GLM-5.2", "zai-org/GLM-5.3", "nvidia/GLM-5.2-NVFP4"])
def test_glm_5_2_has_21_full_layers(model, engine):
    assert full(model, engine) == GLM_5_2


@pytest.mark.parametrize("engine", ["sglang@0.5.9", "vllm@0.19.0", "vllm@0.22.0", "tensorrt-llm@1.3.0rc22"])
def test_engines_without_reuse_run_every_layer(engine):
    assert full("zai-org/GLM-5.2", engine) == tuple(range(78))


@pytest.mark.parametrize("engine", ALL_ENGINES)
@pytest.mark.parametrize(("model", "layers"), [("zai-org/GLM-5.1", 78), ("deepseek-ai/DeepSeek-V3.2", 61)])
def test_models_without_sharing_keys_run_every_layer(model, layers, engine):
    assert full(model, engine) == tuple(range(layers))


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_frequency_alone_means_offset_2(engine):
    assert full("zai-org/GLM-5.1", engine, index_topk_freq=4) == WITHOUT_OFFSET


def test_sglang_0_5_10_ignores_the_offset():
    """SGLang 0.5.10 models/deepseek_v2.py: GLM-5.2 runs 21 layers, but the wrong ones."""
    assert full("zai-org/GLM-5.2", "sglang@0.5.10") == WITHOUT_OFFSET


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_61_layers(engine):
    model = "deepseek-ai/DeepSeek-V3.2"
    assert full(model, engine, index_topk_freq=4) == (0, *range(1, 58, 4))
    assert len(full(model, engine, index_topk_freq=4)) == 16
    both = full(model, engine, index_topk_freq=4, index_skip_topk_offset=3)
    assert both == (0, 1, 2, *range(6, 59, 4))
    assert len(both) == 17


@pytest.mark.parametrize("engine", [*ALL_ENGINES, "sglang@0.5.10"])
def test_the_greedy_pattern(engine):
    assert full("zai-org/GLM-5", engine, index_topk_pattern=GREEDY) == GREEDY_FULL
    assert len(GREEDY_FULL) == 40


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_past_the_end_of_a_pattern_layers_are_full(engine):
    assert full("zai-org/GLM-5", engine, index_topk_pattern="FSS") == (0, *range(3, 78))


def test_sglang_0_5_10_fails_on_a_short_pattern():
    """SGLang 0.5.10 indexes the pattern directly: IndexError."""
    with pytest.raises(BadInput, match="index_topk_pattern"):
        full("zai-org/GLM-5", "sglang@0.5.10", index_topk_pattern="FSS")


def test_a_pattern_beats_a_frequency():
    keys = {"index_topk_pattern": GREEDY, "index_topk_freq": 2}
    for engine in ALL_ENGINES:
        assert full("zai-org/GLM-5", engine, **keys) == GREEDY_FULL


def test_only_sglang_from_0_5_20_reads_indexer_types():
    """SGLang 0.5.20 adds the branch; vllm 0.33.0 and TensorRT-LLM PR #15574 do not read the key for GLM."""
    types = ["full", *["shared"] * 77]
    for engine, expected in {
        "sglang@0.5.20": (0,),
        "sglang@0.5.23": (0,),
        "sglang@0.5.19": tuple(range(78)),
        "vllm@0.33.0": tuple(range(78)),
        "tensorrt-llm@1.4.0rc2": tuple(range(78)),
    }.items():
        assert full("zai-org/GLM-5", engine, indexer_types=types) == expected, engine


def test_tensorrt_llm_forces_layer_0():
    """TensorRT-LLM _is_full_indexer_layer: layer 0 is full, with a warning."""
    assert full("zai-org/GLM-5", "tensorrt-llm@1.4.0rc2", index_topk_pattern="S" * 78) == (0,)


@pytest.mark.parametrize("key", ["index_topk_freq", "index_skip_topk_offset"])
def test_explicit_nulls_stop_vllm(key):
    """VLLM 0.23.0 to 0.33.0: the attribute is there with the value None, a TypeError; sglang reads null as absent."""
    with pytest.raises(BadInput, match=key):
        full("zai-org/GLM-5", "vllm@0.33.0", **{key: None})
    assert full("zai-org/GLM-5", "sglang@0.5.23", **{key: None}) == tuple(range(78))


def test_an_explicit_null_offset_stops_tensorrt_llm_and_a_null_frequency_does_not():
    with pytest.raises(BadInput, match="index_skip_topk_offset"):
        full("zai-org/GLM-5", "tensorrt-llm@1.4.0rc2", index_skip_topk_offset=None)
    assert full("zai-org/GLM-5", "tensorrt-llm@1.4.0rc2", index_topk_freq=None) == tuple(range(78))


def test_layers_6_and_7():
    """VLLM's rule by hand, offset 3: max(6-3+1, 0) = 4 divides by 4; 5 does not."""
    assert 6 in GLM_5_2
    assert 7 not in GLM_5_2
    assert 6 in full("zai-org/GLM-5.2", "vllm@0.33.0")
    assert 7 not in full("zai-org/GLM-5.2", "vllm@0.33.0")


def test_published_indexers_do_not_follow_an_override():
    """GLM-5.2-FP8 names indexer.k_norm in 21 layers and the MTP one; an override changes what runs, not the files."""
    assert published_full_layers(load_model("zai-org/GLM-5.2-FP8", {})) == GLM_5_2
    assert published_full_layers(load_model("zai-org/GLM-5", {"index_topk_freq": 4})) == tuple(range(78))


def test_local_full_layers_of_stages():
    """SGLang unit test of IndexKeyCache: of [3,6) none, of [6,14) the local ids 0 and 4."""
    assert Stage(0, 3, 6, "", last=True).of(GLM_5_2) == ()
    assert tuple(layer - 6 for layer in Stage(0, 6, 14, "", last=True).of(GLM_5_2)) == (0, 4)


@pytest.mark.parametrize(
    ("layers", "stages", "cuts"), [(78, 2, (39, 39)), (78, 4, (19, 19, 20, 20)), (61, 2, (30, 31))]
)
def test_the_last_stages_take_the_remainder(layers, stages, cuts):
    """SGLang distributed/utils.py: the last `layers mod stages` get one more."""
    assert stage_cuts(layers, stages) == cuts
    assert [stage.end - stage.first for stage in stage_list(cuts)] == list(cuts)


def test_layer_split_of_78_by_8_owns_4_3_2_3_2_3_2_2():
    """SGLang 0.5.22 layers/cp/utils.py: the first `layers mod ranks` ranks own one more layer."""
    cuts = (10, 10, 10, 10, 10, 10, 9, 9)
    assert [len(stage.of(GLM_5_2)) for stage in stage_list(cuts)] == [4, 3, 2, 3, 2, 3, 2, 2]


def test_disagreements_name_the_release_and_the_key():
    releases = [resolve(Engine.model_validate(name))[0] for name in ("sglang@0.5.23", "vllm@0.33.0", "sglang@0.5.9")]
    assert layer_table(load_model("zai-org/GLM-5", {}), releases)[1] == []
    types = {"indexer_types": ["full", *["shared"] * 77]}
    said = layer_table(load_model("zai-org/GLM-5", types), releases)[1]  # type: ignore[arg-type]
    assert len(said) == 2
    assert "vllm@0.33.0 runs 78 full layers where sglang@0.5.23 runs 1" in said[0]
    assert "indexer_types" in said[0]


def test_two_batch_overlap_is_refused_with_shared_layers():
    """SGLang 0.5.14 arg_groups/model_hook.py: ValueError for raw sharing keys; before that it starts."""
    scenario = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "sharding": {"tp": 8}, "features": ["two-batch-overlap"]}
    with pytest.raises(BadInput, match="two-batch-overlap"):
        ledger_of(scenario | {"engine": "sglang@0.5.14"})
    assert ledger_of(scenario | {"engine": "sglang@0.5.10"})["model.full_layers"] == 21
    assert ledger_of(scenario | {"engine": "sglang@0.5.23", "model": "zai-org/GLM-5-FP8"})["model.full_layers"] == 78
