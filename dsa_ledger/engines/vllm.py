"""vLLM by version: record, layouts, fixed buffers, what a step reads.

Each rule names the release it holds from and the file it was read in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.base import PrefillRules, StepRules, WeightLayout
from dsa_ledger.engines.rules import Rule, because, engine_source, query_tile_rows, since
from dsa_ledger.ledger import Fact, Source
from dsa_ledger.units import GIB

if TYPE_CHECKING:
    from dsa_ledger.engines.base import RecordLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

NAME = "vllm"
KV_DTYPES = {
    "auto": "auto",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_ds_mla": "fp8_ds_mla",
    "nvfp4_ds_mla": "nvfp4_ds_mla",
}
HOPPER, BLACKWELL, CONSUMER = 9, 10, 12

MEM_FRACTION: Rule[float] = Rule(
    NAME,
    "gpu_memory_utilization",
    ("0.19.0", 0.9, "config/cache.py: 0.9"),
    ("0.20.0", 0.92, "config/cache.py: 0.92"),
)
GLM_AUTO_IS_FP8: Rule[bool] = Rule(
    NAME,
    "KV dtype auto of GLM on SM100",
    ("0.19.0", False, "bf16"),
    ("0.32.0", True, "models/deepseek_v32/nvidia: fp8 kv-cache for GlmMoeDsaForCausalLM on SM10x"),
)
LOGGED_SIZE: Rule[str] = Rule(
    NAME,
    "logged KV cache size",
    ("0.19.0", "blocks", "v1/core/kv_cache_utils.py: blocks x block size x dcp"),
    ("0.20.2", "concurrency", "v1/core/kv_cache_utils.py: int(concurrency x max_model_len)"),
)
KEEPS_NULL_BLOCK: Rule[bool] = Rule(
    NAME,
    "start-up check",
    ("0.19.0", False, "v1/core/kv_cache_utils.py: one request against all blocks"),
    ("0.29.0", True, "v1/core/kv_cache_utils.py: one request against all blocks but the null block"),
)
WORKSPACE_FACTOR: Rule[int] = Rule(
    NAME,
    "sparse prefill workspace factor above 256K",
    ("0.19.0", 5, "config/attention.py: 5"),
    ("0.32.0", 2, "config/vllm.py: 2 above 256K tokens, else 5"),
)
PADS_QUERIES: Rule[bool] = Rule(
    NAME,
    "padded queries in the FlashMLA workspace",
    ("0.19.0", False, "mla/flashmla_sparse.py: queries and gathered records"),
    ("0.31.0", True, "mla/flashmla_sparse.py: padded queries and outputs too"),
)
PADS_BF16_QUERIES: Rule[bool] = Rule(
    NAME,
    "queries of FlashMLA with a bf16 cache",
    ("0.19.0", False, "mla/flashmla_sparse.py q_concat_shape: a rank's own heads"),
    ("0.30.0", True, "mla/flashmla_sparse.py q_concat_heads: padded to the prefill kernel's (0.30 by date: inferred)"),
)
INDEX_GROUPS: Rule[bool] = Rule(
    NAME,
    "index-group buffers",
    ("0.19.0", False, "none"),
    ("0.30.0", True, "models/deepseek_v32: one physical top-k buffer per full layer"),
)
NATIVE_ROWS_SM90: Rule[tuple[int, ...]] = Rule(
    NAME,
    "native verify rows on SM90",
    ("0.19.0", (1, 2), "mla/indexer.py _supports_native_decode: 1, 2"),
    ("0.28.0", (1, 2, 4), "mla/indexer.py _supports_native_decode: 1, 2, 4"),
)
FUSED_INDEX_KEY: Rule[bool] = Rule(
    NAME,
    "indexer weights",
    ("0.19.0", False, "models/deepseek_v2.py: wk as in the checkpoint, weights_proj in bf16"),
    (
        "0.22.0",
        True,
        "models/deepseek_v2.py: wk_weights_proj fused in bf16 (PR #38684; FP8 by date, May 2026: inferred)",
    ),
)
TRACKS_FLASHMLA_BF16: Rule[bool] = Rule(
    NAME,
    "bf16 backend on Hopper",
    ("0.19.0", True, "FLASHMLA_SPARSE"),
    ("0.25.0", False, "FLASH_ATTN_MLA_SPARSE"),
)


def resolved_dtype(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[str]:
    """Return the KV dtype after `auto` is resolved."""
    asked = KV_DTYPES[scenario.kv_dtype.lower()]
    if asked != "auto":
        return Fact(asked, Source("scenario", "kv_dtype", ""))
    if gpu.compute_capability[0] == CONSUMER:
        return Fact("fp8_ds_mla", engine_source(release, "FLASHINFER_MLA_SPARSE_SM120: auto is packed"))
    if model.kv_quant == "fp8" and model.quant_method == "modelopt":
        return Fact("fp8_e4m3", engine_source(release, "auto reads a ModelOpt checkpoint's FP8 KV"))
    glm = GLM_AUTO_IS_FP8.at(release)
    if gpu.compute_capability[0] == BLACKWELL and model.architecture.startswith("GlmMoeDsa"):
        return Fact("fp8_e4m3" if glm.value else "bfloat16", glm.source)
    return Fact("bfloat16", engine_source(release, "auto is bf16 where neither model nor checkpoint says fp8"))


def record_layout(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[RecordLayout]:
    """Return how a main-KV record is stored."""
    dtype = resolved_dtype(scenario, model, gpu, release)
    if gpu.compute_capability[0] == CONSUMER:
        return Fact("packed_fp8", engine_source(release, "FLASHINFER_MLA_SPARSE_SM120 stores fp8_ds_mla"))
    if dtype.value == "bfloat16":
        return Fact("bf16", dtype.source)
    if dtype.value == "nvfp4_ds_mla":
        return Fact("nvfp4_ds_mla", engine_source(release, "mla/flashmla_sparse.py: nvfp4_ds_mla"))
    if dtype.value == "fp8_ds_mla" or (dtype.value == "fp8" and gpu.compute_capability[0] == HOPPER):
        return Fact("packed_fp8", engine_source(release, "FLASHMLA_SPARSE: fp8 becomes fp8_ds_mla"))
    one_byte = engine_source(release, "FLASHINFER_MLA_SPARSE: one byte an element")
    return Fact("raw_fp8", because(dtype.source, one_byte))


def index_k_bits(scenario: Scenario, gpu: Gpu, release: Release) -> Fact[int]:  # noqa: ARG001 - one signature per engine
    """Return the bits of one element of an indexer key."""
    return Fact(8, engine_source(release, "models/deepseek_v32/attention.py: uint8 keys and 4 scale bytes"))


def replicas(scenario: Scenario, release: Release) -> Fact[int]:
    """Return how many data-parallel engines have requests and a pool of their own."""
    return Fact(
        scenario.sharding.dp_attention, engine_source(release, "each data-parallel rank has its own engine and pool")
    )


def stage_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Return layers per stage: the remainder goes one by one to the stages before the last, never to it."""
    base, more = divmod(layers, stages)
    return tuple(base + (stages - 1 - more <= index < stages - 1) for index in range(stages))


def weight_layout(scenario: Scenario, model: Model, release: Release) -> WeightLayout:  # noqa: ARG001 - one signature per engine
    """Return how a rank holds the weights."""
    sharding = scenario.sharding
    code = "models/deepseek_v2.py"
    fused = FUSED_INDEX_KEY.at(release)

    def cut(shards: int, where: str) -> Fact[int]:
        return Fact(shards, engine_source(release, where))

    tensor = cut(sharding.tp, f"{code}: over tensor parallel ranks")
    experts = sharding.tp * sharding.dp_attention * sharding.cp
    return WeightLayout(
        attention_shards=tensor,
        expert_shards=cut(experts, "fused_moe/config.py: over tp x data parallel x PCP, whole experts under EP"),
        shared_shards=tensor,
        dense_shards=tensor,
        embedding_shards=tensor,
        head_shards=tensor,
        fused_index_key=fused,
        index_norm_element_bytes=cut(4, f"{code}: k_norm in fp32"),
        rope_element_bytes=cut(4, "rotary_embedding: two bf16 tables"),
    )


def step_rules(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> StepRules:
    """Return how a step reads index-K: which draft steps score, and where rows are flattened."""
    loop, rows = max(scenario.draft.steps - 1, 0), scenario.draft.steps + 1
    shares = model.index_share_for_mtp and since(release, "0.23.0") and scenario.sharding.cp == 1
    where = "draft steps after the first reuse its top-k" if shares else "every draft step scores (always under PCP)"
    major = gpu.compute_capability[0]
    if major == BLACKWELL and since(release, "0.20.0"):
        native = Fact(True, engine_source(release, "mla/indexer.py: varlen rows, any number on SM100"))
    elif major == HOPPER:
        rule = NATIVE_ROWS_SM90.at(release)
        native = Fact(rows in rule.value, rule.source)
    else:
        native = Fact(rows <= 2, engine_source(release, "mla/indexer.py _supports_native_decode: 1, 2"))  # noqa: PLR2004
    flattens = Fact(not native.value, native.source)
    split = scenario.sharding.cp if since(release, "0.32.0") and scenario.sharding.dcp == 1 else 1
    return StepRules(
        scoring_draft_forwards=Fact(0 if shares else loop, engine_source(release, f"spec_decode/mtp: {where}")),
        verify_flattens=flattens,
        extend_flattens=flattens,
        tile_rows=query_tile_rows(model) if major == BLACKWELL else Fact(4, native.source),
        read_tokens=Fact(64, engine_source(release, "mla/indexer.py: kernel blocks of 64")),
        dcp_scoring_shards=Fact(
            scenario.sharding.dcp, engine_source(release, "DCP interleaves index-K over its ranks")
        ),
        request_shards=Fact(split, engine_source(release, "PCP: from 0.32 a decode request runs on one PCP rank")),
    )


class Batch(NamedTuple):
    """What one forward takes: max_num_batched_tokens [tokens] and max_num_seqs [requests]."""

    tokens: Fact[int]
    requests: Fact[int]


def batch(scenario: Scenario, gpu: Gpu, release: Release) -> Batch:
    """Return the batch limits as given; what is not given follows the GPU's memory and then the other limit."""
    limits, memory = scenario.limits, gpu.hbm.capacity_bytes
    where = (
        "engine/arg_utils.py get_batch_defaults: 8,192 tokens and 1,024 requests, from 0.28 16,384 tokens at 160 GiB"
    )
    source = engine_source(release, f"{where}, 2,048 and 256 below 70 GiB; neither beyond the other")
    tokens, requests = (8192, 1024) if memory >= 70 * GIB else (2048, 256)
    if memory >= 160 * GIB and since(release, "0.28.0"):
        tokens = 16384
    if limits.context_length:
        tokens = min(tokens, (limits.max_running_requests or requests) * limits.context_length)
    tokens = limits.chunked_prefill or tokens
    requests = limits.max_running_requests or min(requests, tokens)
    return Batch(
        Fact(tokens, Source("scenario", "limits.chunked_prefill", "") if limits.chunked_prefill else source),
        Fact(
            requests, Source("scenario", "limits.max_running_requests", "") if limits.max_running_requests else source
        ),
    )


def prefill_rules(scenario: Scenario, gpu: Gpu, release: Release) -> PrefillRules:
    """Return how a prefill is cut into forwards and logits chunks."""
    return PrefillRules(
        chunk_tokens=batch(scenario, gpu, release).tokens,
        unchecked_elements=Fact(0, engine_source(release, "mla/indexer.py: every forward is held to the budget")),
        skips_short=Fact(False, engine_source(release, "mla/indexer.py: prompts are scored whatever their length")),
    )


def workspace_factor(context_length: int, release: Release) -> Fact[int]:
    """Return sparse_mla_prefill_workspace_factor where none is given."""
    rule = WORKSPACE_FACTOR.at(release)
    return Fact(5 if context_length <= 262144 else rule.value, rule.source)  # noqa: PLR2004 - the engine's own threshold


FEW_HEADS = 16  # SM100, bf16: FA4 (whose prefill is FlashInfer's) and FlashInfer take at most so many


def flashmla_workspace(record: RecordLayout, gpu: Gpu, release: Release, local_heads: int) -> str:
    """Return which FlashMLA workspace is reserved: "packed", "bf16" or "none"."""
    if record in ("packed_fp8", "nvfp4_ds_mla"):
        return "packed" if gpu.compute_capability[0] != CONSUMER else "none"
    if record != "bf16":
        return "none"
    if gpu.compute_capability[0] == HOPPER:
        return "bf16" if TRACKS_FLASHMLA_BF16.of(release) else "none"
    return "none" if local_heads <= FEW_HEADS else "bf16"


def prefill_heads(gpu: Gpu, release: Release) -> Fact[int]:
    """Return the number of heads whose multiples FlashMLA's bf16 prefill kernel takes."""
    where = "mla/flashmla_sparse.py prefill_padding: 128 heads on SM100, else 64"
    return Fact(128 if gpu.compute_capability[0] == BLACKWELL else 64, engine_source(release, where))
