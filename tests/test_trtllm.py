"""TensorRT-LLM against public figures of pull requests and a start-up log, and a walk over what can be asked."""

from __future__ import annotations

import itertools

import pytest

from dsa_ledger.account import estimate
from dsa_ledger.engines.releases import READ, resolve
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.ledger import as_table
from dsa_ledger.schema import Engine, Scenario

# A number with # is a pull request of https://github.com/NVIDIA/TensorRT-LLM/pull, an issue one of its issues.
VERSIONS = tuple(READ["tensorrt-llm"])
GIB = 1 << 30
CONSUMER = {
    "name": "SM120",
    "hbm": {"capacity_bytes": 96 * GIB, "peak_bytes_per_s": 1.8e12},
    "sms": 188,
    "l2_bytes": 128 << 20,
    "compute_capability": (12, 0),
    "provenance": {"hbm.capacity_bytes": {"kind": "prior", "ref": "made up for this test"}},
}


def scenario(version="1.4.0rc2", model="zai-org/GLM-5.3", gpu="B200", **fields: object):
    fields.setdefault("sharding", {"tp": 8})
    return Scenario.model_validate({"model": model, "gpu": gpu, "engine": f"tensorrt-llm@{version}", **fields})


def ledger_of(version="1.4.0rc2", model="zai-org/GLM-5.3", gpu="B200", **fields: object):
    return estimate(scenario(version, model, gpu, **fields))


MTP, NONE = {"steps": 1}, {"steps": 0}

# Bytes a token that divide the budget. The sums are written out by hand, with the public figure they come from.
CELLS = [
    # #15088's description: the log before it prints 110448, 78 x (1152 + 132 x 2); after it 78 x (1152 + 132)
    ("1.3.0rc17", "zai-org/GLM-5-FP8", "auto", NONE, (), 110_448),
    ("1.3.0rc25", "zai-org/GLM-5-FP8", "auto", NONE, (), 100_152),
    ("1.3.0rc21", "zai-org/GLM-5-FP8", "bf16", NONE, (), 100_152),
    ("1.3.0rc17", "zai-org/GLM-5.3", "auto", MTP, (), 111_864),  # 79 x 1416
    ("1.3.0rc17", "zai-org/GLM-5.3", "fp8", MTP, (), 55_932),  # 79 x (576 + 132): fp8 was always right
    # #16558's own test: 78 x 576 + 21 x 132 of GLM-5.2
    ("1.3.0rc25", "zai-org/GLM-5.2", "fp8", NONE, (), 47_700),
    ("1.4.0rc2", "zai-org/GLM-5.3", "fp8", MTP, (), 48_408),  # + 576 + 132
    ("1.4.0rc2", "zai-org/GLM-5.3", "auto", MTP, (), 93_912),  # 79 x 1152 + 22 x 132
    ("1.4.0rc2", "zai-org/GLM-5.3", "fp8", MTP, ("fp4-index-k",), 47_000),  # 22 x 68, #13340
    ("1.3.0rc11", "deepseek-ai/DeepSeek-V3.2", "fp8", NONE, (), 43_188),  # 61 x 708; #12571 prints 2 x it, "~86K"
    # ModelOpt's NVFP4 checkpoints name FP8 KV, and auto keeps it (model_loader.py validate_and_set_kv_cache_quant)
    ("1.4.0rc2", "nvidia/GLM-5.2-NVFP4", "auto", NONE, (), 47_700),
]


@pytest.mark.parametrize("case", CELLS, ids=lambda case: f"{case[0]}-{case[-1]}")
def test_a_token_is_charged_what_the_pull_requests_say(case):
    version, model, dtype, draft, features, cell = case
    ledger = ledger_of(version, model, kv_dtype=dtype, draft=draft, features=features)
    assert ledger["cell.bytes"] == cell
    assert ledger["cell.target_bytes"] + ledger["cell.draft_bytes"] == cell


def test_the_log_of_15088_shows_less_stored_than_charged():
    """#15088: 133.44 GiB held for 1,430,656 tokens, which is 100,150 B a token within rounding: 78 x 1284."""
    ledger = ledger_of(
        "1.3.0rc17",
        "zai-org/GLM-5-FP8",
        "B300",
        limits={"max_total_tokens": 1_430_656},
        observed={"kv_bytes": 160 * GIB},
    )
    assert round(ledger["pool.target_bytes"] / GIB, 2) == 133.44
    assert any("charges an index-K record as 264 B" in sentence for sentence in ledger.warnings)


def test_forty_gib_at_nine_tenths_hold_12476_blocks():
    """40 GiB free after the peak, 0.9 of it: 38,654,705,664 B, whole blocks of 64 at 48,408 B a token."""
    ledger = ledger_of(kv_dtype="fp8", draft=MTP, observed={"free_after": 40})
    assert ledger["pool.budget_bytes"] == 38_654_705_664
    assert ledger["pool.tokens"] == 12_476 * 64 == ledger["pool.reported_tokens"]
    assert ledger.warnings == []
    given = ledger_of(kv_dtype="fp8", draft=MTP, observed={"kv_bytes": 38_654_705_664})
    assert given["pool.tokens"] == 798_464


def test_the_start_up_log_of_issue_18662_names_its_owners():
    """1.3.0rc25, pp 2, MTP 1: "12 of 42 local layers own an indexer k-cache": the first of a 42,36 cut."""
    fields = {"sharding": {"tp": 4, "pp": 2, "ep": 4, "pp_partition": (42, 36)}, "draft": MTP}
    ledger = ledger_of("1.3.0rc25", gpu="H200", observed={"kv_bytes": GIB}, **fields)
    assert (ledger["stage[0].pool.main_kv_layers"], ledger["stage[0].pool.index_k_layers"]) == (42, 12)
    # 12188: a draft cache costs its last pipeline rank only
    assert (ledger["stage[0].cell.draft_bytes"], ledger["stage[1].cell.draft_bytes"]) == (0, 1284)


def test_the_first_stages_get_the_remainder():
    """mapping.py pp_layers: torch.tensor_split, so 78 layers over 4 stages are 20, 20, 19, 19."""
    ledger = ledger_of(sharding={"tp": 4, "pp": 4}, kv_dtype="fp8")
    assert [ledger[f"stage[{index}].model.layers"] for index in range(4)] == [20, 20, 19, 19]
    assert any("starts on a layer that reuses" in sentence for sentence in ledger.warnings)


def test_a_cut_before_full_layers_is_advised():
    """sparse/dsa/module.py initialize_sparse_attn: shared top-k is local to a stage. 39 is shared, 38 is full."""
    ledger = ledger_of(sharding={"tp": 4, "pp": 2}, kv_dtype="fp8")
    assert any(sentence.endswith("cut on full layers: pp_partition 38,40") for sentence in ledger.warnings)


def test_draft_forwards_share_topk_where_the_checkpoint_says_so():
    """#15806: the first draft step scores, the others reuse its top-k; V3.2 has no index_share_for_mtp_iteration."""
    fields = {"kv_dtype": "fp8", "draft": {"steps": 3}, "load": {"context": 1000}}
    assert ledger_of(**fields)["step.index_k_passes"] == 21 + 1
    assert ledger_of(model="deepseek-ai/DeepSeek-V3.2", **fields)["step.index_k_passes"] == 61 + 1 + 2


def test_a_budget_without_observation_is_said_to_be_an_upper_bound():
    ledger = ledger_of(kv_dtype="fp8")
    assert ledger["engine.mem_fraction"] == 0.9
    assert ledger["pool.budget_bytes"] == int(ledger["memory.free_after_bytes"] * 0.9)
    assert any("upper bound" in sentence for sentence in ledger.warnings)


def test_a_cap_never_raises_the_pool():
    few = ledger_of(kv_dtype="fp8", limits={"max_total_tokens": 1000}, observed={"kv_bytes": GIB})
    many = ledger_of(kv_dtype="fp8", limits={"max_total_tokens": 1 << 40}, observed={"kv_bytes": GIB})
    assert few["pool.tokens"] == 960
    assert many["pool.tokens"] == GIB // 47_700 // 64 * 64


def test_nvfp4_is_charged_as_two_bytes_and_stored_as_324():
    """resource_manager.py: half a byte an element and a byte per 16, 288 + 36; the estimate knows no such width."""
    ledger = ledger_of(kv_dtype="nvfp4", draft=MTP, observed={"kv_bytes": 93_912 * 64})
    assert ledger["record.main_kv_bytes"] == 324
    assert ledger["cell.bytes"] == 93_912
    assert ledger["pool.target_bytes"] + ledger["pool.draft_bytes"] == 28_500 * 64
    assert any("1152" in sentence and "324" in sentence and "inferred" in sentence for sentence in ledger.warnings)
    assert "inferred" in ledger.entries["record.charged_main_kv_bytes"].source.ref


def test_attention_dp_leaves_the_mtp_layer_uncharged():
    ledger = ledger_of(kv_dtype="fp8", draft=MTP, sharding={"tp": 8, "dp_attention": 8}, observed={"kv_bytes": GIB})
    assert ledger["cell.bytes"] == 47_700
    assert ledger["cell.draft_bytes"] == 0
    assert ledger["pool.draft_bytes"] == 708 * ledger["pool.tokens"]
    assert ledger["pool.system_tokens"] == 8 * ledger["pool.tokens"]
    assert any("uncharged" in sentence for sentence in ledger.warnings)


def test_under_attention_dp_shared_experts_and_dense_layers_are_whole():
    """modeling_deepseekv3.py: with attention DP the MLP and the shared experts use DP instead of TP."""
    cut = ledger_of(observed={"kv_bytes": GIB})
    whole = ledger_of(sharding={"tp": 8, "dp_attention": 8}, observed={"kv_bytes": GIB})
    for name, shards in (("shared", 8), ("dense", 8), ("attention", 8), ("head", 8), ("embedding", 1)):
        assert cut[f"layout.{name}_shards"] == shards
        assert whole[f"layout.{name}_shards"] == 1
    assert whole["layout.expert_shards"] == 8


def test_layer_0_is_full_whatever_the_pattern_says():
    pattern = "S" * 39 + "F" * 39
    ledger = ledger_of(model_overrides={"index_topk_pattern": pattern}, kv_dtype="fp8", observed={"free_after": 40})
    assert ledger["model.full_layers"] == 40
    assert any("runs layer 0 as full" in sentence for sentence in ledger.warnings)


def test_indexer_types_alone_are_not_read():
    """#15574: a reviewer asked for indexer_types, the author kept pattern and freq."""
    types = ["full", "shared", "shared", "shared"] * 19 + ["full", "shared"]
    overrides = {"index_topk_freq": None, "index_topk_pattern": None, "indexer_types": types}
    ledger = ledger_of(model_overrides=overrides, kv_dtype="fp8")
    assert ledger["model.full_layers"] == 78
    assert any("publishes no weights" in sentence for sentence in ledger.warnings)


def test_a_null_frequency_is_a_default_and_a_null_offset_is_refused():
    assert ledger_of(model_overrides={"index_topk_freq": None}, kv_dtype="fp8")["model.full_layers"] == 78
    with pytest.raises(BadInput, match="index_skip_topk_offset"):
        ledger_of(model_overrides={"index_skip_topk_offset": None})


def test_the_indexers_buffers():
    """sparse/dsa/metadata.py: an int32 top-k row a token, a block table row a draft token and sequence."""
    ledger = ledger_of(draft={"steps": 3}, kv_dtype="fp8", limits={"max_running_requests": 16, "chunked_prefill": 4096})
    assert ledger["workspace.page_table_bytes"] == 16 * 4 * 16_384 * 4
    assert ledger["workspace.topk_bytes"] == 4096 * 2048 * 4
    assert ledger_of(kv_dtype="fp8")["workspace.page_table_bytes"] == 2048 * 16_384 * 4
    assert "workspace.decode_logits_bytes" not in ledger


def test_prefill_is_cut_by_rows():
    load = {"context": 200_000, "new_tokens": 150_000}
    ledger = ledger_of(kv_dtype="fp8", load=load)
    assert ledger["limits.chunk_tokens"] == 8192
    assert ledger["workspace.prefill_chunks"] == 1
    assert ledger["workspace.prefill_logits_bytes"] == 4 * (150_000 - 18 * 8192) * 200_000
    assert "workspace.prefill_logits_budget_bytes" not in ledger
    wide = ledger_of(kv_dtype="fp8", load=load, limits={"chunked_prefill": 150_000})
    assert wide["workspace.prefill_chunks"] == 5  # 150,000 rows, 32,768 at a time
    assert wide["prefill.keys_by_chunk"] == 5 * 200_000


def test_short_prompts_skip_the_indexer():
    assert ledger_of(kv_dtype="fp8", load={"context": 2048, "new_tokens": 2048})["prefill.score_flops"] == 0
    assert ledger_of(kv_dtype="fp8", load={"context": 2049, "new_tokens": 2049})["prefill.score_flops"] > 0


# What depends on a change that came in one of several candidates: (version, fields, what the answer names).
UNKNOWN = [
    ("1.3.0rc21", {"kv_dtype": "fp8"}, "15574"),
    ("1.3.0rc22", {"kv_dtype": "fp8"}, "15574"),
    ("1.3.0rc23", {"kv_dtype": "fp8"}, "16558"),
    ("1.3.0rc24", {}, "16558"),
    ("1.3.0rc18", {}, "15088"),
    ("1.3.0rc20", {"model": "zai-org/GLM-5-FP8", "kv_dtype": "nvfp4"}, "15088"),
    ("1.3.0rc10", {"kv_dtype": "fp8", "draft": MTP}, "12571"),
    ("1.2.1", {"kv_dtype": "fp8", "draft": MTP}, "12571"),
    ("1.3.0rc25", {"kv_dtype": "fp8", "draft": {"steps": 3}}, "several draft steps"),
    ("1.3.0rc20", {"kv_dtype": "fp8", "features": ("fp4-index-k",)}, "13340"),
    ("1.4.0rc2", {"sharding": {"tp": 8, "dcp": 2}}, "context parallelism"),
    ("1.4.0rc2", {"draft": {"steps": 2, "topk": 2}}, "draft.topk"),
    ("1.4.0rc2", {"features": ("hicache",)}, "hicache"),
    ("1.4.0", {}, "1.4.0rc2"),
    ("1.1.0", {}, "1.2.1"),
]


@pytest.mark.parametrize(("version", "fields", "named"), UNKNOWN)
def test_what_is_not_known_is_not_guessed(version, fields, named):
    with pytest.raises(NotModelled, match=named):
        ledger_of(version, **fields)


@pytest.mark.parametrize("version", ["1.3.0rc18", "1.3.0rc20", "1.3.0rc23", "1.3.0rc24"])
def test_an_unsure_candidate_answers_what_does_not_depend_on_it(version):
    """A model without shared layers does not ask who owns an index-K, and with fp8 the estimate never was wrong."""
    ledger = ledger_of(version, "deepseek-ai/DeepSeek-V3.2", kv_dtype="fp8", observed={"free_after": 40})
    assert ledger["cell.bytes"] == 61 * 708


REFUSED = [
    ({"kv_dtype": "fp8_e4m3"}, "kv_dtype"),
    ({"kv_dtype": "fp8_ds_mla"}, "SM120 only"),
    ({"kv_dtype": "nvfp4", "gpu": "H200"}, "SM100"),
    ({"kv_dtype": "bf16", "model": "nvidia/GLM-5.2-NVFP4"}, "fp8 KV"),
    # below SM100 sparse MLA runs FlashMLA on a bf16 cache (sparse/dsa/flash_mla.py; NVIDIA/Model-Optimizer issue 763)
    ({"kv_dtype": "fp8", "gpu": "H200"}, "bf16 or auto on H200"),
    ({"model": "nvidia/GLM-5.2-NVFP4", "gpu": "H200"}, "a checkpoint without fp8 KV on H200"),
    ({"features": ("fp4-index-k",), "gpu": "H200"}, "fp4"),
    ({"features": ("hisparse",)}, "hisparse"),
    ({"features": ("kv-sharding", "two-batch-overlap")}, "two-batch-overlap"),
    ({"features": ("pd-prefill", "pd-decode")}, "one role"),
    ({"sharding": {"tp": 8, "dp_attention": 4}}, "enable_attention_dp"),
    ({"sharding": {"tp": 8, "ep": 3}}, "moe_tp x moe_ep"),
    ({"sharding": {"tp": 8, "layer_split": True}}, "layer_split"),
    ({"sharding": {"tp": 8, "pp": 2, "pp_partition": (40, 40)}}, "pp_partition"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_what_the_engine_refuses_is_refused_by_name(fields, named):
    with pytest.raises(BadInput, match=named):
        ledger_of(**fields)


def test_all_faults_are_reported_at_once():
    with pytest.raises(BadInput) as refused:
        ledger_of(kv_dtype="nvfp4", gpu="H200", sharding={"tp": 8, "dp_attention": 2, "layer_split": True})
    assert {fault.path for fault in refused.value.faults} == {
        "kv_dtype",
        "sharding.dp_attention",
        "sharding.layer_split",
    }


def test_packed_records_are_sm120s_alone():
    """#16224: 512 fp8 + 4 fp32 scales + 64 bf16 = 656 B."""
    ledger = ledger_of(gpu=CONSUMER, kv_dtype="fp8_ds_mla", sharding={"tp": 16}, observed={"free_after": 10})
    assert ledger["record.main_kv_bytes"] == 656
    assert ledger["cell.bytes"] == 78 * 656 + 21 * 132


def test_a_transfer_moves_owned_index_k_only():
    ledger = ledger_of(kv_dtype="fp8", features=("pd-prefill",), load={"context": 1000})
    assert ledger["transfer.index_k_bytes"] == 132 * 21 * 1000
    assert ledger["transfer.main_kv_bytes"] == 576 * 78 * 1000


def test_weights_that_leave_no_pool_and_a_load_too_large_are_said():
    assert ledger_of(gpu="H100", sharding={"tp": 8}).shortfalls
    late = ledger_of(kv_dtype="fp8", load={"context": 1 << 20, "batch": 50}, observed={"free_after": 40})
    assert len(late.shortfalls) == 1
    assert ledger_of(kv_dtype="fp8", load={"context": 1 << 17}, observed={"free_after": 40}).shortfalls == []
    given = ledger_of(kv_dtype="fp8", observed={"free_after": 10, "kv_bytes": 20 * GIB})
    assert any("exceed the GPU" in sentence for sentence in given.shortfalls)


def test_1_3_0_has_the_last_candidates_rules_and_says_so():
    release, warnings = resolve(Engine.model_validate("tensorrt-llm@1.3.0"))
    assert release.rules == "1.3.0rc25"
    assert "1.3.0rc25" in warnings[0]


WALK = tuple(
    itertools.product(
        ("zai-org/GLM-5.3", "deepseek-ai/DeepSeek-V3.2", "nvidia/GLM-5.2-NVFP4"),
        ("H200", "B300"),
        ("auto", "bf16", "fp8", "nvfp4", "fp8_ds_mla"),
        (
            {"tp": 8},
            {"tp": 8, "dp_attention": 8},
            {"tp": 8, "dp_attention": 2},
            {"tp": 4, "pp": 3, "ep": 4},
            {"tp": 8, "dcp": 2},
        ),
        (0, 1, 3),
        ((), ("fp4-index-k",), ("pd-decode",), ("deepep",)),
    )
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_question_gets_a_ledger_a_refusal_or_not_modelled(version):
    """A rule for all: whole, non-negative bytes, and the identities of cells and pool; or an expected refusal."""
    answers = {"ledger": 0, "refused": 0, "not modelled": 0}
    # Each version takes its own slice of the walk (23 shares no factor with it); together they ask nearly all of it.
    place = VERSIONS.index(version)
    for model, gpu, dtype, sharding, steps, features in WALK[place::23]:
        load = {"context": 100_000, "new_tokens": 20_000, "batch": 9}
        fields = {"sharding": sharding, "draft": {"steps": steps}, "features": features, "load": load}
        try:
            ledger = ledger_of(version, model, gpu, kv_dtype=dtype, **fields)
        except BadInput:
            answers["refused"] += 1
        except NotModelled:
            answers["not modelled"] += 1
        else:
            answers["ledger"] += 1
            check_identities(ledger, len(sharding) == 3)
    assert all(answers.values()), answers


def check_identities(ledger, staged):
    table = as_table(ledger)
    for key, value in table.items():
        if key.endswith("_bytes") and not key.startswith("memory."):
            assert isinstance(value, int), key
            assert value >= 0, key
    for prefix in [f"stage[{index}]." for index in range(3)] if staged else [""]:
        cell = {name: table[f"{prefix}cell.{name}"] for name in ("main_kv_bytes", "index_k_bytes", "target_bytes")}
        assert cell["main_kv_bytes"] + cell["index_k_bytes"] == cell["target_bytes"]
        assert cell["target_bytes"] + table[f"{prefix}cell.draft_bytes"] == table[f"{prefix}cell.bytes"]
        assert table[f"{prefix}cell.bytes"] * table["pool.rows"] <= table[f"{prefix}pool.budget_bytes"]
    assert table["pool.tokens"] % 64 == 0
