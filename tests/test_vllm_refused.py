"""What vLLM refuses, what it limits by itself, and what its ledger warns of, by release and GPU.

Rules read in the release packages' engine/arg_utils.py, config and v1/attention, unless a source is named.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_vllm import ledger_of

from dsa_ledger import BadInput, NotModelled
from dsa_ledger.audit.launch import Source, read_launch

WORKSTATION = {
    "name": "SM120",
    "hbm": {"capacity_bytes": 48 << 30, "peak_bytes_per_s": 1.3e12},
    "sms": 110,
    "l2_bytes": 96 << 20,
    "compute_capability": (12, 0),
    "provenance": {"hbm.capacity_bytes": {"kind": "prior", "ref": "made up for this test"}},
}


@pytest.mark.parametrize(
    ("engine", "changes", "path"),
    [
        ("0.29.0", {"kv_dtype": "fp8_e4m3"}, "kv_dtype"),
        ("0.33.0", {"kv_dtype": "nvfp4_ds_mla"}, "kv_dtype"),
        ("0.28.0", {"sharding": {"tp": 8, "dcp": 2}}, "sharding.dcp"),
        ("0.33.0", {"kv_dtype": "auto", "sharding": {"tp": 8, "dcp": 8}}, "kv_dtype"),
        ("0.33.0", {"model": "deepseek-ai/DeepSeek-V3.2", "sharding": {"tp": 8, "dcp": 8}}, "sharding.dcp"),
        ("0.25.0", {"sharding": {"tp": 4, "cp": 2}}, "sharding.cp"),
        (
            "0.33.0",
            {"model": "zai-org/GLM-5.1-FP8", "model_overrides": {"index_topk_freq": 4}},
            "model.index_topk_freq",
        ),
        ("0.33.0", {"model_overrides": {"index_topk_freq": None}}, "model.index_topk_freq"),
        ("0.33.0", {"features": ["hicache"]}, "features"),
        ("0.33.0", {"draft": {"steps": 2, "topk": 2}}, "draft.topk"),
    ],
)
def test_what_vllm_itself_refuses(engine: str, changes: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput) as refused:
        ledger_of(f"vllm@{engine}", **changes)
    assert path in {fault.path for fault in refused.value.faults}


def test_dcp_on_hopper_pads_heads_alike() -> None:
    """DeepSeek-V3.2 has 128 heads: at TP8 dcp 4 gathers 64 and starts, dcp 8 gathers 128 and does not."""
    limits = {"context_length": 65536}
    ledger = ledger_of("vllm@0.33.0", model="deepseek-ai/DeepSeek-V3.2", sharding={"tp": 8, "dcp": 4}, limits=limits)
    assert ledger["pool.tokens"] % 256 == 0


def test_stages_that_start_on_a_shared_layer_are_warned_of_with_a_cut() -> None:
    ledger = ledger_of("vllm@0.33.0", sharding={"tp": 8, "pp": 2}, draft={"steps": 1})
    assert any("VLLM_PP_LAYER_PARTITION=38,40" in sentence for sentence in ledger.warnings)
    assert ledger["stage[0].cell.bytes"] == 27168
    assert ledger["stage[1].cell.bytes"] == 27560
    cut = ledger_of("vllm@0.33.0", sharding={"tp": 8, "pp": 2, "pp_partition": [38, 40]}, draft={"steps": 1})
    assert (cut["stage[0].cell.bytes"], cut["stage[1].cell.bytes"]) == (26380, 28348)
    assert cut["pool.blocks"] * 64 == 1515072
    assert not any("shared layer" in sentence for sentence in cut.warnings)


def test_features_whose_rules_were_not_read() -> None:
    with pytest.raises(NotModelled, match="hisparse"):
        ledger_of("vllm@0.33.0", features=["hisparse"])


@pytest.mark.parametrize(
    ("gpu", "version", "limits", "tokens", "requests"),
    [
        ("H200", "0.33.0", {}, 8192, 1024),
        ("B200", "0.33.0", {}, 16384, 1024),
        ("B200", "0.27.0", {}, 8192, 1024),
        (WORKSTATION, "0.33.0", {}, 2048, 256),
        ("H200", "0.33.0", {"chunked_prefill": 512}, 512, 512),
        ("H200", "0.33.0", {"max_running_requests": 1, "context_length": 4096}, 4096, 1),
        ("B200", "0.33.0", {"max_running_requests": 2, "context_length": 4096}, 8192, 2),
    ],
)
def test_batch_limits_by_memory_and_by_each_other(
    gpu: Any, version: str, limits: dict[str, int], tokens: int, requests: int
) -> None:
    """engine/arg_utils.py get_batch_defaults, PR #51726: 70 and 160 GiB; no more requests than tokens."""
    ledger = ledger_of(f"vllm@{version}", gpu=gpu, sharding={"tp": 16}, limits={"context_length": 65536} | limits)
    assert (ledger["limits.batched_tokens"], ledger["limits.sequences"]) == (tokens, requests)


@pytest.mark.parametrize(
    ("engine", "changes", "path"),
    [
        ("0.33.0", {"limits": {"max_running_requests": 8193}}, "limits.max_running_requests"),
        ("0.33.0", {"gpu": WORKSTATION, "model_overrides": {"index_topk": 1024}}, "model.index_topk"),
        # FlashMLA's DCP on SM100: from 0.29, no bf16, fewer than 32 local heads
        ("0.28.0", {"gpu": "B200", "kv_dtype": "fp8_ds_mla", "sharding": {"tp": 8, "dcp": 2}}, "sharding.dcp"),
        ("0.33.0", {"gpu": "B200", "kv_dtype": "bf16", "sharding": {"tp": 2, "dcp": 2}}, "kv_dtype"),
        ("0.33.0", {"gpu": "B200", "kv_dtype": "fp8_ds_mla", "sharding": {"tp": 2, "dcp": 2}}, "sharding.dcp"),
        # PCP with DCP gathers the KV through the packed format alone
        ("0.33.0", {"gpu": "B200", "kv_dtype": "nvfp4_ds_mla", "sharding": {"tp": 8, "cp": 2, "dcp": 2}}, "kv_dtype"),
    ],
)
def test_what_flashmla_and_the_scheduler_refuse(engine: str, changes: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput) as refused:
        ledger_of(f"vllm@{engine}", **changes)
    assert [fault.path for fault in refused.value.faults] == [path]


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("0.29.0", {"gpu": "B200", "kv_dtype": "fp8_ds_mla", "sharding": {"tp": 8, "dcp": 2}}),
        ("0.25.0", {"gpu": "B200", "kv_dtype": "bf16", "sharding": {"tp": 4, "dcp": 4}}),  # 16 heads: FlashInfer
        ("0.33.0", {"sharding": {"tp": 2, "cp": 2, "dcp": 2}}),  # PCP takes 32 local heads and more
        ("0.33.0", {"sharding": {"tp": 2, "cp": 2, "dcp": 4}}),
    ],
)
def test_where_dcp_starts(engine: str, changes: dict[str, Any]) -> None:
    dcp = changes["sharding"]["dcp"]
    assert ledger_of(f"vllm@{engine}", **changes)["pool.tokens"] % (64 * dcp) == 0


def test_sequence_parallel_moe_is_said_to_hold_shared_experts_whole() -> None:
    """config/parallel.py use_sequence_parallel_moe, models/deepseek_v2.py disable_tp: 3/4 of 75 x 37,757,952 B more."""
    split = ledger_of("vllm@0.33.0", sharding={"tp": 4, "dp_attention": 2, "ep": 8})
    assert any("1.98 GiB more than weights.rank_bytes" in sentence for sentence in split.warnings)
    for sharding in ({"tp": 8, "ep": 8}, {"tp": 4, "dp_attention": 2}):
        assert not any("shared experts" in line for line in ledger_of("vllm@0.33.0", sharding=sharding).warnings)


def test_more_stages_than_full_layers_get_no_cut() -> None:
    ledger = ledger_of("vllm@0.33.0", sharding={"tp": 8, "pp": 26})
    assert any("the 21 full layers cannot start 26 stages" in sentence for sentence in ledger.warnings)


def test_the_switch_of_0_21_and_0_22_is_known_and_later_means_nothing() -> None:
    """docs/features/index_cache.md: `use_index_cache` turns reuse on; from 0.23 it is not read."""
    switch = {"model_overrides": {"use_index_cache": True}}
    for version in ("0.21.0", "0.22.0"):
        with pytest.raises(NotModelled, match="use_index_cache"):
            ledger_of(f"vllm@{version}", **switch)
    for version, owners in (("0.20.0", 78), ("0.33.0", 21)):
        assert ledger_of(f"vllm@{version}", **switch)["model.index_k_layers"] == owners


def test_overrides_key_by_key_and_variables_of_a_command() -> None:
    """utils/argparse_utils.py: `--hf-overrides.KEY VALUE` is one key of the JSON object."""
    text = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=128 vllm serve zai-org/GLM-5.1-FP8 -tp 8 --hf-overrides.index_topk_freq 4"
    reading = read_launch([Source(text)])
    assert reading.settings["model_overrides.index_topk_freq"].value == 4
    assert not reading.ignored
    assert any("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=128: the default of 512 MiB" in note for note in reading.notes)
