"""Kinds of cache: plain DSA, pooled index keys, GLM-5.3-Flash, LongCat, Hy4, IndexCache overrides, DeepSeek-V4.

Figures are typed from public sources, named where they stand: SGLang's own packages (0.5.16 to 0.5.23:
pool_configurator.py, memory_pool.py, index_key_cache.py), configurations published or transcribed in public
repositories, arXiv:2603.12201.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from golden_cases import ledger_of
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger import BadInput, NotModelled
from dsa_ledger.account.deploy import deploy
from dsa_ledger.catalog import cache_model_names, load_model, model_names, unmodelled_names
from dsa_ledger.engines.index_cache import SEARCHED_FULL, SEARCHED_PATTERN
from dsa_ledger.engines.registry import ENGINES
from dsa_ledger.engines.releases import READ
from dsa_ledger.formulas import pool, prefill, records
from dsa_ledger.schema import Scenario

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


# Plain DSA: the simple case.


@pytest.mark.parametrize("name", ["zai-org/GLM-5.2-FP8", "deepseek-ai/DeepSeek-V3.2"])
@pytest.mark.parametrize("engine", ["sglang@0.5.23", "vllm@0.33.0", "tensorrt-llm@1.4.0rc2"])
def test_plain_dsa_keeps_one_key_a_token(name, engine):
    """SGLang index_key_cache.py, vLLM attention.py, TensorRT-LLM sparse/dsa: 132 B a token, pages of 64."""
    asked = {"model": name, "gpu": "B200", "engine": engine, "sharding": {"tp": 8}}
    kinds = deploy(Scenario.model_validate(asked)).caches
    for kind in kinds:
        assert (kind.tokens_per_state, kind.fixed_bytes_per_request, kind.page_align) == (1, None, 64)
        assert kind.source.ref
    ledger = ledger_of(asked)
    assert ledger["record.index_k_bytes"] == 132
    assert ledger["engine.page_tokens"] == 64
    assert not [key for key in ledger.entries if "state" in key or "tail" in key or key == "step.selected_tokens"]


def test_what_cuts_a_cache():
    """SGLang replicates index-K over DCP, vLLM interleaves it (0.5.23 pool_configurator.py, vllm 0.33.0)."""
    asked = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "sharding": {"tp": 8}}
    sglang = deploy(Scenario.model_validate(asked | {"engine": "sglang@0.5.23"})).caches
    assert "dcp" in sglang.main_kv.sharded_by
    assert "dcp" not in sglang.index_k.sharded_by
    assert "dcp" in deploy(Scenario.model_validate(asked | {"engine": "vllm@0.33.0"})).caches.index_k.sharded_by


@given(st.integers(1, 64), st.integers(0, 1 << 30), st.integers(1, 100))
def test_pooled_pool_of_one_token_a_key_is_the_plain_pool(layers, tokens, owners):
    """A key for each token is the plain pool: both formulas give the same bytes."""
    held = {"tokens": tokens, "pad_tokens": 64, "main_kv_record_bytes": 576, "main_kv_layers": layers}
    held |= {"index_k_layers": owners, "main_rows_per_token": 1, "index_rows_per_token": 1}
    plain = pool.pool_bytes(index_k_record_bytes=132, **held)
    assert pool.pooled_pool_bytes(index_k_state_bytes=132, state_tokens=1, **held) == plain


@given(st.integers(1, 4096))
def test_a_pooled_key_costs_a_token_at_most_a_byte_too_much(kpool):
    """Rounded up: a token's share covers the key, and by less than a byte a token."""
    share = records.index_k_token_bytes(state_bytes=132, state_tokens=kpool)
    assert 0 <= share * kpool - 132 < kpool


# GLM-5.3-Flash.


def test_flash_is_in_the_catalog_with_its_source():
    """FlashML-org/FreeToken@128b4292 tests/models/test_glm5_next_config.py: the published text_config."""
    model = load_model(FLASH, {})
    assert model.sparse_layers == (3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43)
    assert (len(model.linear_layers), model.qk_rope, model.kv_lora, model.index_kpool) == (34, 0, 512, 4)
    assert not model.weights_modelled
    assert "FreeToken@128b4292" in model.provenance.ref
    assert FLASH in cache_model_names()
    assert FLASH not in model_names()


@pytest.mark.parametrize(
    ("version", "gpu", "kv_dtype", "cell", "record"),
    [
        # 11 layers of 512 x 2 B, or 512; a key of 132 B for 4 tokens: charged 33 a token from 0.5.22, 132 before.
        ("0.5.23", "H200", "bf16", (11_264, 363, 11_627), 1_024),
        ("0.5.22", "H200", "bf16", (11_264, 363, 11_627), 1_024),
        ("0.5.21", "H200", "bf16", (11_264, 1_452, 12_716), 1_024),
        ("0.5.20", "H200", "auto", (11_264, 1_452, 12_716), 1_024),
        ("0.5.23", "B200", "fp8_e4m3", (5_632, 363, 5_995), 512),
        ("0.5.20", "B200", "auto", (5_632, 1_452, 7_084), 512),
    ],
)
def test_flash_cells(version, gpu, kv_dtype, cell, record):
    ledger = ledger_of(question(FLASH, version, gpu=gpu, kv_dtype=kv_dtype, **POOL))
    assert ledger["record.main_kv_bytes"] == record
    assert ledger["record.index_k_bytes"] == 33
    assert ledger["record.index_k_state_bytes"] == 132
    assert tuple(ledger[f"cell.{name}bytes"] for name in ("main_kv_", "index_k_", "")) == cell
    assert ledger["engine.page_tokens"] == 256
    layers = ("model.layers", "model.linear_layers", "model.sparse_layers", "model.full_layers", "model.shared_layers")
    assert [ledger[key] for key in layers] == [45, 34, 11, 11, 0]
    assert any("upgrade to 0.5.22" in sentence for sentence in ledger.warnings) == (cell[1] == 1_452)


def test_flash_pool():
    """50 GiB // 11,627 = 4,617,450, in pages of 256; one pad page more, a key for 4 tokens stored."""
    ledger = ledger_of(question(FLASH, **POOL))
    assert ledger["pool.tokens"] == 4_617_216
    assert ledger["pool.target_bytes"] == 52_011_204_608 + 1_154_368 * 132 * 11 == 53_687_346_944
    old = ledger_of(question(FLASH, "0.5.20", limits={"max_total_tokens": 4_000_000}, **POOL))
    new = ledger_of(question(FLASH, "0.5.22", limits={"max_total_tokens": 4_000_000}, **POOL))
    assert old["pool.target_bytes"] == new["pool.target_bytes"]  # the stored rows shrink in both


def test_flash_tail_outside_the_cell():
    """memory_pool.py: 2 x (rows + 1) x (kpool + draft tokens) x 128 x 2 B a full layer; 49 rows at 48 requests."""
    capped = {"limits": {"max_running_requests": 48}}
    assert ledger_of(question(FLASH, **capped, **POOL))["workspace.index_tail_bytes"] == 11 * 50 * 2_048
    drafting = ledger_of(question(FLASH, draft={"steps": 3}, **capped, **POOL))
    assert drafting["workspace.index_tail_bytes"] == 11 * 50 * 4_096
    assert drafting["cell.draft_bytes"] == 1_024 + 33
    tailless = {"model_overrides": {"index_kpool_compress": False}}
    assert "workspace.index_tail_bytes" not in ledger_of(question(FLASH, **tailless, **POOL))


def test_flash_step():
    """100,002 tokens are 25,000 whole pools; a row selects at most 2,048 + 3 tokens in each of 11 layers."""
    ledger = ledger_of(question(FLASH, load={"context": 100_002}, **POOL))
    assert ledger["step.index_k_read_bytes"] == 11 * 25_000 * 132
    assert ledger["step.logits_write_bytes"] == 11 * 25_000 * 4
    assert ledger["step.page_table_read_bytes"] == 11 * 391 * 4
    assert ledger["step.selected_tokens"] == 2_051
    assert ledger["step.main_kv_read_bytes"] == 11 * 2_051 * 1_024
    assert prefill.seed_bytes(index_topk=2048, index_kpool=4, draft_layers=1) == 2_051 * 4


@pytest.mark.parametrize("flat", [False, True])
def test_a_local_flash_config(flat, tmp_path):
    """Absent layer_types and indexer_types mean transformers' defaults: every fourth layer sparse, all of them full."""
    config = nested()
    if flat:
        config = config["text_config"] | {"architectures": config["architectures"], "model_type": "glm5_next"}
    ledger = ledger_of(question(local(tmp_path, config), **POOL))
    assert (ledger["model.sparse_layers"], ledger["model.full_layers"], ledger["cell.bytes"]) == (11, 11, 11_627)


def test_a_local_flash_config_with_other_layers(tmp_path):
    text = {"layer_types": ["linear_attention"] * 40 + ["full_attention"] * 5, "index_kpool": 8}
    text |= {"indexer_types": ["full"] * 43 + ["shared", "shared"]}
    ledger = ledger_of(question(local(tmp_path, nested(**text)), **POOL))
    assert ledger["cell.bytes"] == 5 * 1_024 + 3 * 17  # ceil(132 / 8) = 17, and 3 of the 5 run an indexer
    assert (ledger["engine.page_tokens"], ledger["model.shared_layers"]) == (512, 2)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ({"layer_types": ["linear_attention"] * 45}, "model.layer_types"),
        ({"layer_types": ["linear_attention"]}, "model.layer_types"),
        ({"layer_types": 7}, "model.layer_types"),
        ({"index_kpool": 0}, "model.index_kpool"),
        ({"qk_rope_head_dim": -1}, "model.qk_rope_head_dim"),
    ],
)
def test_wrong_flash_configs(text, path, tmp_path):
    with pytest.raises(BadInput, match=path):
        load_model(local(tmp_path, nested(**text)), {})


def test_flash_without_its_pool_width_is_not_guessed(tmp_path):
    """Transformers' class default is 16, the published file says 4: a config that is silent is not modelled."""
    text = {key: value for key, value in FLASH_TEXT.items() if key != "index_kpool"}
    with pytest.raises(NotModelled, match="index_kpool"):
        load_model(local(tmp_path, nested() | {"text_config": text}), {})
    with pytest.raises(BadInput, match=r"model\.text_config"):
        load_model(local(tmp_path, nested() | {"text_config": 5}), {})


@pytest.mark.parametrize(
    ("more", "feature"),
    [
        ({}, "KDA state pool"),
        ({"observed": {"free_after": 50}}, "KDA state pool"),
        (POOL | {"kv_dtype": "fp8_e4m3"}, "packed fp8 record without RoPE"),
        (POOL | {"features": ["hicache"]}, "hicache"),
        (POOL | {"features": ["hisparse"], "kv_dtype": "bf16"}, "hisparse"),
        (POOL | {"features": ["pd-prefill"]}, "pd-prefill"),
        (POOL | {"sharding": {"tp": 8, "pp": 2}}, "pipeline stages"),
        (POOL | {"load": {"context": 9000, "new_tokens": 9000}}, "prefill with index_kpool"),
        (POOL | {"engine": "sglang@0.5.19"}, "first in SGLang 0.5.20"),
        (POOL | {"engine": "vllm@0.33.0"}, "GLM-5.3-Flash"),
        (POOL | {"engine": "tensorrt-llm@1.4.0rc2"}, "GLM-5.3-Flash"),
    ],
)
def test_what_is_not_known_of_flash_is_named(more, feature):
    with pytest.raises(NotModelled, match=feature):
        ledger_of(question(FLASH) | more)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"gpu": "B200", "sharding": {"tp": 8, "dcp": 2}}, "sharding.dcp"),
        ({"gpu": "B200", "features": ["pd-prefill", "kv-sharding"], "sharding": {"tp": 8, "cp": 8}}, "kv-sharding"),
        ({"model_overrides": {"index_kpool": 3}}, "model.index_kpool"),
        ({"model": "zai-org/GLM-5.2-FP8", "model_overrides": {"index_kpool": 4}}, "model.index_kpool"),
        ({"model": "deepseek-ai/DeepSeek-V3.2", "model_overrides": {"index_kpool": 2}}, "index_kpool_compress_gate"),
    ],
)
def test_pooled_keys_are_refused_where_the_engine_refuses(more, path):
    with pytest.raises(BadInput, match=path):
        ledger_of(question(FLASH, **POOL) | more)


def test_a_flash_pool_larger_than_the_gpu_does_not_fit():
    ledger = ledger_of(question(FLASH, observed={"kv_bytes": "500 GiB"}))
    assert any("exceed the GPU" in sentence for sentence in ledger.shortfalls)


# LongCat.


@pytest.mark.parametrize(
    ("version", "gpu", "kv_dtype", "cell", "owners"),
    [
        # 28 MLA layers of 512 + 64; cli_factor 2: 14 run an indexer, and own its keys alone from 0.5.18.
        ("0.5.16", "H200", "bf16", 28 * 1_152 + 28 * 132, 28),
        ("0.5.17", "H200", "bf16", 35_952, 28),
        ("0.5.18", "H200", "bf16", 34_104, 14),
        ("0.5.23", "H200", "bf16", 34_104, 14),
        ("0.5.23", "H200", "fp8_e4m3", 20_216, 14),
        ("0.5.23", "B200", "fp8_e4m3", 17_976, 14),
    ],
)
def test_longcat_cells(version, gpu, kv_dtype, cell, owners):
    """unslothai/unsloth@07995f74 tests/test_longcat_lsa.py (published config); sglang 0.5.16, 0.5.18 model_config."""
    ledger = ledger_of(question(LITE, version, gpu=gpu, kv_dtype=kv_dtype, **POOL))
    assert (ledger["model.layers"], ledger["model.full_layers"], ledger["model.index_k_layers"]) == (28, 14, owners)
    assert ledger["cell.bytes"] == cell
    assert ledger["config.max_position"] == 983_040


def test_longcat_pool_needs_what_was_observed():
    with pytest.raises(NotModelled, match=r"--free-after.*--kv-bytes"):
        ledger_of(question(LITE))
    observed = {"free_before": 139.0, "free_after": 100.0}
    ledger = ledger_of(question(LITE, observed=observed, limits={"mem_fraction": 0.9}))
    assert ledger["pool.budget_bytes"] == int((100 - (1 - 0.9) * 139) * 2**30)
    assert not [key for key in ledger.entries if key.startswith(("weights.", "checkpoint.", "step.weights_"))]
    assert "model.parameters" not in ledger
    assert any("identity experts" in sentence for sentence in ledger.warnings)


@pytest.mark.parametrize(
    ("more", "feature"),
    [
        ({"engine": "sglang@0.5.15"}, "first in SGLang 0.5.16"),
        ({"engine": "vllm@0.33.0"}, "LongCat"),
        ({"engine": "tensorrt-llm@1.4.0rc2"}, "LongCat"),
        ({"draft": {"steps": 3}}, "LongCat MTP"),
        ({"sharding": {"tp": 4, "pp": 2}}, "pipeline stages"),
    ],
)
def test_what_is_not_known_of_longcat_is_named(more, feature):
    with pytest.raises(NotModelled, match=feature):
        ledger_of(question(LITE, **POOL) | more)


# Hy4, and what stays out.


def test_a_local_hy4_config(tmp_path):
    """78 x 1,152 + 21 x 132, as GLM-5.2 in SGLang 0.5.18 on: the same widths, layers and owners."""
    asked = question(local(tmp_path, HY4), **POOL)
    assert ledger_of(asked)["cell.bytes"] == 92_628
    for version in ("sglang@0.5.19", "vllm@0.33.0", "tensorrt-llm@1.4.0rc2"):
        with pytest.raises(NotModelled, match="Hy4"):
            ledger_of(asked | {"engine": version})
    with pytest.raises(NotModelled, match="--kv-bytes"):
        ledger_of(question(asked["model"]))


@pytest.mark.parametrize(
    ("lacks", "more", "reason"),
    [
        ("indexer_types", {}, "indexer_types"),
        ("kv_lora_rank", {}, "kv_lora_rank"),
        ("mlp_layer_types", {}, "first_k_dense_replace"),
        ("", {"layer_types": ["full_attention", "sparse_attention"]}, "full attention"),
    ],
)
def test_an_incomplete_hy4_config(lacks, more, reason, tmp_path):
    config = {key: value for key, value in (HY4 | more).items() if key != lacks}
    with pytest.raises(NotModelled, match=reason):
        load_model(local(tmp_path, config), {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("meituan-longcat/LongCat-2.0", "which attention layers run an indexer"),
        ("tencent/Hy4-preview", "which layers run an indexer is not public"),
        ("deepseek-ai/DeepSeek-V4-Pro", "compress KV and index layer by layer"),
        ("deepseek-ai/DeepSeek-V4-Flash", "not 132 bytes a token"),
    ],
)
def test_neighbours_not_modelled(name, reason):
    assert name in unmodelled_names()
    with pytest.raises(NotModelled, match=reason):
        load_model(name, {})


# IndexCache overrides.


def test_the_searched_pattern():
    """github.com/THUDM/IndexCache@08d22d69 README: 78 letters, 40 F, from 0, 1, 3, 7 to 74."""
    assert len(SEARCHED_PATTERN) == 78
    assert SEARCHED_PATTERN.count("F") == len(SEARCHED_FULL) == 40
    assert SEARCHED_PATTERN.startswith("FFSFSSSFSSFFF")
    assert SEARCHED_PATTERN.endswith("FSFFSFFSSS")


def warned(model: str, overrides: dict[str, Any], engine: str = "sglang@0.5.23") -> list[str]:
    ledger = ledger_of(question(model) | {"engine": engine, "model_overrides": overrides})
    return [sentence for sentence in ledger.warnings if "2603.12201" in sentence]


@pytest.mark.parametrize("model", ["zai-org/GLM-5-FP8", "zai-org/GLM-5.1-FP8", "deepseek-ai/DeepSeek-V3.2"])
def test_sharing_that_was_not_trained_costs_quality(model):
    """arXiv:2603.12201, GLM-5 without training, long average: 78.4; uniform 1/4 72.7, searched 1/4 78.0."""
    (sentence,) = warned(model, {"index_topk_freq": 4})
    for figure in ("78.4", "72.7", "78.0", "08d22d69"):
        assert figure in sentence
    assert (SEARCHED_PATTERN in sentence) == model.startswith("zai-org")
    assert warned(model, {"index_topk_freq": 4}, "sglang@0.5.9") == []  # it knows no reuse
    assert warned(model, {"index_topk_freq": 1}) == []


def test_no_warning_where_sharing_was_trained_or_searched():
    for model in ("zai-org/GLM-5.2-FP8", "zai-org/GLM-5.3"):
        assert warned(model, {}) == []
        assert warned(model, {"index_topk_freq": 4}) == []
    assert warned("zai-org/GLM-5-FP8", {"index_topk_pattern": SEARCHED_PATTERN}) == []
    assert warned("zai-org/GLM-5.2-FP8", {"indexer_types": ["full"] + ["shared"] * 77}) != []


# Everything against everything.

MORE: tuple[dict[str, Any], ...] = (
    {},
    POOL,
    POOL | {"draft": {"steps": 3}, "load": {"context": 50_000, "new_tokens": 5_000}},
    {"observed": {"free_after": 40}, "sharding": {"tp": 4, "pp": 2}, "load": {"context": 1}},
    POOL | {"features": ["pd-decode"], "load": {"context": 3}},
    POOL | {"features": ["external-linker", "hicache"], "gpu": "B200"},
)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_architecture_on_every_engine_ends_well(engine, tmp_path):
    """A ledger, a refusal or "not modelled": no other error, and no byte below nothing."""
    (tmp_path / "hy4").mkdir()
    (tmp_path / "flash").mkdir()
    names = [FLASH, LITE, "zai-org/GLM-5.2-FP8", "deepseek-ai/DeepSeek-V3.2", *unmodelled_names()]
    names += [local(tmp_path / "hy4", HY4), local(tmp_path / "flash", nested())]
    versions = [*READ[engine]]
    seen = set()
    for name in names:
        for version in {versions[0], versions[len(versions) // 2], *versions[-2:]}:
            for more in MORE:
                asked = question(name) | {"engine": f"{engine}@{version}"} | more
                try:
                    ledger = ledger_of(asked)
                except (BadInput, NotModelled) as refused:
                    seen.add(type(refused))
                    continue
                seen.add(type(ledger))
                assert ledger["cell.bytes"] > 0
                assert min(ledger["pool.tokens"], ledger["pool.target_bytes"]) >= 0
    assert len(seen) == 3
