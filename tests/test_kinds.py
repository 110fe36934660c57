"""Kinds of cache: plain DSA, pooled index keys, LongCat, Hy4, IndexCache overrides, DeepSeek-V4.

Figures are typed from public sources, named where they stand: SGLang's own packages (0.5.16 to 0.5.23:
pool_configurator.py, memory_pool.py, index_key_cache.py), configurations published or transcribed in public
repositories, arXiv:2603.12201.
"""

from __future__ import annotations

from typing import Any

import pytest
from golden_cases import ledger_of
from hypothesis import given
from hypothesis import strategies as st
from kin_models import FLASH, HY4, LITE, POOL, local, nested, question

from dsa_ledger import BadInput, NotModelled
from dsa_ledger.account.deploy import deploy
from dsa_ledger.catalog import load_model, unmodelled_names
from dsa_ledger.engines.index_cache import SEARCHED_FULL, SEARCHED_PATTERN
from dsa_ledger.engines.registry import ENGINES
from dsa_ledger.engines.releases import READ
from dsa_ledger.formulas import pool, records
from dsa_ledger.schema import Scenario

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
