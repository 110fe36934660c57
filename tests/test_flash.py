"""GLM-5.3-Flash: one index key stands for four tokens, and layers of linear attention cache none.

Figures are typed from public sources, named where they stand: SGLang's own packages (0.5.16 to 0.5.23:
pool_configurator.py, memory_pool.py, index_key_cache.py), configurations published or transcribed in public
repositories, arXiv:2603.12201.
"""

from __future__ import annotations

import pytest
from golden_cases import ledger_of
from kin_models import FLASH, FLASH_TEXT, POOL, local, nested, question

from dsa_ledger import BadInput, NotModelled
from dsa_ledger.catalog import cache_model_names, load_model, model_names
from dsa_ledger.formulas import prefill


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
