"""vLLM's records, blocks and buffers against what its own planner and functions give.

Figures executed in the release packages (planner and buffer functions of 0.19 to 0.33 on a CPU, no server), unless a
thread is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dsa_ledger import Scenario, estimate

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger

GIB_40 = 40 * 2**30
MIB = 2**20


def ledger_of(engine: str, **changes: Any) -> Ledger:
    base: dict[str, Any] = {
        "model": "zai-org/GLM-5.3",
        "gpu": "H200",
        "engine": engine,
        "kv_dtype": "fp8",
        "sharding": {"tp": 8},
        "limits": {"context_length": 202752},
        "observed": {"kv_bytes": GIB_40},
    }
    return estimate(Scenario.model_validate(base | changes))


@pytest.mark.parametrize(
    ("dtype", "gpu", "steps", "blocks", "tokens"),
    [
        ("nvfp4_ds_mla", "B200", 0, 22200, 1420800),
        ("nvfp4_ds_mla", "B200", 1, 21851, 1398464),
        ("fp8", "B200", 0, 14068, 900352),
        ("fp8", "B200", 1, 13863, 887232),
        ("fp8", "H200", 0, 12441, 796224),
        ("fp8", "H200", 1, 12262, 784768),
        ("bfloat16", "H200", 0, 7244, 463616),
        ("bfloat16", "H200", 1, 7145, 457280),
    ],
)
def test_forty_gibibytes_hold_the_planners_blocks(dtype: str, gpu: str, steps: int, blocks: int, tokens: int) -> None:
    ledger = ledger_of("vllm@0.33.0", kv_dtype=dtype, gpu=gpu, draft={"steps": steps})
    assert ledger["pool.blocks"] == blocks
    assert ledger["pool.blocks"] * 64 == tokens
    assert ledger["pool.tokens"] == (blocks - 1) * 64


def test_the_logged_size_is_a_truncated_product_of_doubles() -> None:
    """At 202,752 a pool of 4,001 blocks prints 256,063 tokens, not 256,064."""
    budget = 4001 * 64 * 53940
    ledger = ledger_of("vllm@0.33.0", observed={"kv_bytes": budget})
    assert ledger["pool.blocks"] == 4001
    assert ledger["pool.reported_tokens"] == 256063
    assert ledger_of("vllm@0.20.0", observed={"kv_bytes": 4001 * 64 * 61464})["pool.reported_tokens"] == 256064


def test_dcp_multiplies_usable_tokens_and_concurrency() -> None:
    ledger = ledger_of(
        "vllm@0.33.0", sharding={"tp": 8, "dcp": 8}, draft={"steps": 1}, limits={"context_length": 1048576}
    )
    assert ledger["pool.reported_tokens"] == 6278144
    assert round(ledger["pool.concurrency"], 2) == 5.99


@pytest.mark.parametrize(
    ("context", "version", "batched", "tp", "mebibytes"),
    [
        (202752, "0.33.0", 8192, 8, 2338),
        (163840, "0.33.0", 8192, 8, 2124),
        (1048576, "0.33.0", 8192, 8, 3528),
        (1048576, "0.33.0", 16384, 4, 5024),
        (1048576, "0.30.0", 8192, 8, 5832),
    ],
)
def test_flashmla_reserves_its_prefill_workspace(
    context: int, version: str, batched: int, tp: int, mebibytes: int
) -> None:
    ledger = ledger_of(
        f"vllm@{version}",
        sharding={"tp": tp},
        limits={"context_length": context, "chunked_prefill": batched},
    )
    assert round(ledger["workspace.sparse_prefill_bytes"] / MIB) == mebibytes


@pytest.mark.parametrize(
    ("context", "version", "mebibytes"),
    [(202752, "0.33.0", 1021), (163840, "0.33.0", 825), (1048576, "0.33.0", 2112), (1048576, "0.31.0", 5280)],
)
def test_the_gather_arena_scales_with_the_configured_length(context: int, version: str, mebibytes: int) -> None:
    ledger = ledger_of(f"vllm@{version}", limits={"context_length": context})
    assert round(ledger["workspace.gather_arena_bytes"] / MIB) == mebibytes


@pytest.mark.parametrize(
    ("sequences", "steps", "mebibytes"), [(1024, 0, 168), (1024, 3, 704), (1024, 5, 1056), (256, 5, 264), (64, 3, 44)]
)
def test_index_groups_hold_physical_topk(sequences: int, steps: int, mebibytes: int) -> None:
    ledger = ledger_of(
        "vllm@0.33.0",
        draft={"steps": steps},
        limits={"context_length": 202752, "max_running_requests": sequences},
    )
    assert round(ledger["workspace.index_group_bytes"] / MIB) == mebibytes


@pytest.mark.parametrize(
    ("context", "batched", "mebibytes"), [(202752, 8192, 99), (1048576, 8192, 512), (1048576, 16384, 1024)]
)
def test_the_expanded_block_table(context: int, batched: int, mebibytes: int) -> None:
    ledger = ledger_of("vllm@0.33.0", limits={"context_length": context, "chunked_prefill": batched})
    assert round(ledger["workspace.page_table_bytes"] / MIB) == mebibytes


@pytest.mark.parametrize(
    ("gpu", "rows", "context", "gibibytes"),
    [("H200", 1, 1048576, 1.0), ("B200", 1, 1048576, 1.5), ("H200", 6, 1048576, 6.0), ("B200", 6, 1048576, 9.0)],
)
def test_decode_logits_are_as_wide_as_max_model_len(gpu: str, rows: int, context: int, gibibytes: float) -> None:
    """256 requests: 4 B an element on SM90, 6 on SM100 from 0.33 (bf16 and an fp32 copy)."""
    ledger = ledger_of(
        "vllm@0.33.0",
        gpu=gpu,
        draft={"steps": rows - 1},
        limits={"context_length": context, "max_running_requests": 256},
    )
    assert ledger["workspace.decode_logits_bytes"] / 2**30 == gibibytes


@pytest.mark.parametrize(("keys", "chunks"), [(131072, 8), (202752, 13), (1048576, 64)])
def test_an_8192_token_chunk_is_cut_into_pieces(keys: int, chunks: int) -> None:
    ledger = ledger_of(
        "vllm@0.33.0",
        limits={"context_length": 1048576, "chunked_prefill": 8192},
        load={"context": keys, "new_tokens": 8192},
    )
    assert ledger["workspace.prefill_chunks"] == chunks


@pytest.mark.parametrize(
    ("engine", "gpu", "model", "dtype", "record"),
    [
        ("0.33.0", "H200", "zai-org/GLM-5.2-FP8", "auto", 1152),
        ("0.33.0", "H200", "zai-org/GLM-5.2-FP8", "fp8", 656),
        ("0.33.0", "H200", "zai-org/GLM-5.2-FP8", "fp8_e4m3", 576),
        ("0.33.0", "H200", "nvidia/GLM-5.2-NVFP4", "auto", 576),
        ("0.33.0", "B200", "zai-org/GLM-5.2-FP8", "auto", 576),
        ("0.31.0", "B200", "zai-org/GLM-5.2-FP8", "auto", 1152),
        ("0.31.0", "B200", "nvidia/GLM-5.2-NVFP4", "auto", 576),
        ("0.33.0", "B200", "deepseek-ai/DeepSeek-V3.2", "auto", 1152),
        ("0.33.0", "B200", "nvidia/DeepSeek-V3.2-NVFP4", "auto", 576),
        ("0.19.0", "B200", "zai-org/GLM-5.2-FP8", "fp8", 576),
        ("0.33.0", "B200", "zai-org/GLM-5.2-FP8", "fp8_ds_mla", 656),
        ("0.33.0", "B200", "zai-org/GLM-5.2-FP8", "nvfp4_ds_mla", 352),
    ],
)
def test_which_record_a_box_gets(engine: str, gpu: str, model: str, dtype: str, record: int) -> None:
    ledger = ledger_of(f"vllm@{engine}", gpu=gpu, model=model, kv_dtype=dtype, limits={"context_length": 65536})
    assert ledger["record.main_kv_bytes"] == record


def test_the_start_up_check_keeps_the_null_block_from_0_29() -> None:
    """784,704 tokens start, 784,705 do not; through 0.28 the null block counted too."""
    common: dict[str, Any] = {"draft": {"steps": 1}}
    assert not ledger_of("vllm@0.33.0", limits={"context_length": 784704}, **common).shortfalls
    assert ledger_of("vllm@0.33.0", limits={"context_length": 784705}, **common).shortfalls
    assert not ledger_of("vllm@0.28.0", limits={"context_length": 784705}, **common).shortfalls


@pytest.mark.parametrize(
    ("gpu", "version", "steps", "most"),
    [("H200", "0.33.0", 2, 66), ("H200", "0.33.0", 3, 22), ("H200", "0.27.0", 3, 88), ("B200", "0.33.0", 5, 44)],
)
def test_flattened_rows_read_index_k_again(gpu: str, version: str, steps: int, most: int) -> None:
    """SM90 verifies 1, 2 and (from 0.28) 4 rows in one pass; SM100 any number, in tiles of 4 rows at 32 heads."""
    limits = {"context_length": 202752}
    ledger = ledger_of(f"vllm@{version}", gpu=gpu, draft={"steps": steps}, limits=limits, load={"context": 100000})
    assert ledger["step.index_k_passes"] == 22
    assert ledger["step.index_k_passes_high"] == most


def test_load_line_of_an_8xh200_server() -> None:
    """vllm-project/recipes PR #893, vLLM 0.28.0, GLM-5.3 FP8, native 1M: "Model loading took" 94.46 GiB.

    The line counts weights and the buffers made with the model; 0.4 GiB of it is unexplained there.
    """
    ledger = ledger_of("vllm@0.28.0", limits={"context_length": 1048576})
    line = (
        ledger["weights.rank_bytes"] + ledger["workspace.topk_index_bytes"] + ledger["workspace.sparse_prefill_bytes"]
    )
    assert line / 2**30 == pytest.approx(94.46, rel=0.005)


def test_flashmla_and_the_indexers_gather_share_one_arena() -> None:
    """v1/worker/workspace.py keeps one buffer, grown to the largest request: the gather lies in FlashMLA's.

    At 202,752: 8192 x 8 x 1152 + 5 x 202,752 x 1152 + 8192 x (64 x 2176 + 8 x 1024), a gather of 8 x 5 x 132 x 202,752.
    """
    ledger = ledger_of("vllm@0.33.0")
    assert ledger["workspace.sparse_prefill_bytes"] == 2_451_308_544 == ledger["workspace.arena_bytes"]
    assert ledger["workspace.gather_arena_bytes"] == 1_070_530_560
    # top-k 8192 x 2048 x 4, 21 groups of 1025 x 2048 x 4, the arena, 512 MiB of logits
    assert ledger["workspace.reserved_bytes"] == 67_108_864 + 176_332_800 + 2_451_308_544 + 536_870_912
    assert ledger_of("vllm@0.33.0", kv_dtype="bf16")["workspace.arena_bytes"] == 1_070_530_560


def test_the_workspace_that_a_64_rank_server_kept_twice() -> None:
    """PR #56902: 5,904 MiB of FlashMLA workspace in vLLM 0.29, GLM-5.3, DP/EP64, TP1, the model's own 1M of context."""
    ledger = ledger_of(
        "vllm@0.29.0",
        sharding={"dp_attention": 64, "ep": 64},
        limits={"context_length": 1_048_576, "chunked_prefill": 2048},
    )
    assert ledger["workspace.sparse_prefill_bytes"] == 5904 * MIB


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "dtype", "mebibytes"),
    [
        ("0.24.0", "H200", 8, "bf16", 144),  # a rank's own 8 heads: q_concat_shape
        ("0.29.0", "B200", 2, "bf16", 576),  # its own 32
        ("0.33.0", "B200", 2, "bf16", 2304),  # q_concat_heads: padded to 128, what SM100's prefill kernel takes
        ("0.33.0", "B200", 8, "fp8_ds_mla", 144 + 2304 + 4352 + 128),
    ],
)
def test_flashmla_pads_queries_to_the_prefill_kernels_heads(
    version: str, gpu: str, tp: int, dtype: str, mebibytes: int
) -> None:
    """mla/flashmla_sparse.py prefill_padding: 64 heads on SM90, 128 on SM100; queries of 1152 B, outputs of 1024."""
    limits = {"context_length": 1_048_576, "chunked_prefill": 16384}
    ledger = ledger_of(f"vllm@{version}", gpu=gpu, kv_dtype=dtype, sharding={"tp": tp}, limits=limits)
    assert ledger["workspace.sparse_prefill_bytes"] == mebibytes * MIB


def test_each_stage_has_its_own_index_groups_and_the_last_one_the_drafters() -> None:
    """mla/index_group.py: a group per full layer of the stage, one more where it starts on a shared layer; + MTP.

    39 + 39: layers 0 to 38 have 12 full, 39 to 77 have 9. A group is min(8192, 1024 x 2) + 1 rows of 2048 x 4 B.
    """
    ledger = ledger_of("vllm@0.33.0", sharding={"tp": 8, "pp": 2}, draft={"steps": 1})
    assert ledger["stage[0].workspace.index_group_bytes"] == 12 * 16_785_408
    assert ledger["stage[1].workspace.index_group_bytes"] == (9 + 1 + 1) * 16_785_408
    assert (ledger["stage[0].workspace.topk_copies"], ledger["stage[1].workspace.topk_copies"]) == (1, 2)
    assert ledger["workspace.index_group_bytes"] == 12 * 16_785_408


def test_the_drafters_block_table_is_a_second_one() -> None:
    plain, drafting = ledger_of("vllm@0.33.0"), ledger_of("vllm@0.33.0", draft={"steps": 1})
    assert "workspace.draft_page_table_bytes" not in plain
    assert drafting["workspace.draft_page_table_bytes"] == 8192 * 3168 * 4 == drafting["workspace.page_table_bytes"]


def test_pcp_scores_in_every_draft_step() -> None:
    """v1/worker/gpu/spec_decode/mtp/speculator.py shares top-k over draft steps only where PCP is 1."""
    limits = {"context_length": 131072}
    common: dict[str, Any] = {"draft": {"steps": 3}, "load": {"context": 100_000}, "limits": limits}
    assert ledger_of("vllm@0.33.0", **common)["step.index_k_passes"] == 21 + 1
    assert ledger_of("vllm@0.33.0", sharding={"tp": 8, "cp": 2}, **common)["step.index_k_passes"] == 21 + 1 + 2
