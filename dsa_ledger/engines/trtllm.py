"""TensorRT-LLM by version: record, what the size estimate charges, layout, what a step reads.

Read as text, from pull requests and files of github.com/NVIDIA/TensorRT-LLM; the packages of the candidates were not.
Where a source says "inferred", the text leaves no other reading but nothing was run. A rule holds from the first
candidate that surely has it; the candidates that may have it already are refused in `trtllm_checks`.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from dsa_ledger.engines.base import PrefillRules, StepRules, WeightLayout
from dsa_ledger.engines.rules import Rule, engine_source, query_tile_rows, since
from dsa_ledger.ledger import Fact, Source

if TYPE_CHECKING:
    from dsa_ledger.engines.base import RecordLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

NAME = "tensorrt-llm"
PULL = "https://github.com/NVIDIA/TensorRT-LLM/pull"
LOADER = "pyexecutor/model_loader.py validate_and_set_kv_cache_quant"
KV_DTYPES = {
    "auto": "auto",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "fp8_ds_mla": "fp8_ds_mla",
}
LAYOUTS: dict[str, RecordLayout] = {
    "bfloat16": "bf16",
    "fp8": "raw_fp8",
    "nvfp4": "nvfp4",
    "fp8_ds_mla": "packed_fp8",
}
BLACKWELL, CONSUMER = 10, 12

FREE_FRACTION = 0.9
CHUNK_TOKENS = 8192
BATCH_REQUESTS = 2048
INDEXER_CHUNK_ROWS = 32768
GPUS_PER_NODE = 8

INDEX_K_CHARGED_IN_BYTES: Rule[bool] = Rule(
    NAME,
    "index-K in the size estimate",
    ("1.2.1", False, f"sparse/dsa.py get_cache_size_per_token, before {PULL}/15088: index-K x the KV element's bytes"),
    (
        "1.3.0rc21",
        True,
        f"{PULL}/15088: index-K counts as bytes (opened 2026-06-08, first in one of rc18 to rc21; inferred from dates)",
    ),
)


def kv_dtype(scenario: Scenario, model: Model, release: Release) -> Fact[str]:
    """Return the KV dtype after `auto` is resolved: the checkpoint's own KV quantisation, else bf16."""
    asked = KV_DTYPES[scenario.kv_dtype.lower()]
    if asked == "auto" and model.kv_quant:
        return Fact(model.kv_quant, engine_source(release, f"{LOADER}: auto keeps the checkpoint's KV quantisation"))
    if asked in ("auto", "bfloat16"):
        return Fact("bfloat16", engine_source(release, f"{LOADER}: no KV quantisation named, bf16"))
    return Fact(asked, Source("scenario", "kv_dtype", ""))


def record_layout(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[RecordLayout]:  # noqa: ARG001 - one signature per engine
    """Return how a main-KV record is stored."""
    dtype = kv_dtype(scenario, model, release)
    return Fact(LAYOUTS[dtype.value], dtype.source)


def charged_layout(stored: Fact[RecordLayout], release: Release) -> Fact[RecordLayout]:
    """Return the layout that the size estimate divides by: it knows 1 byte, 656 bytes a record, else 2 bytes."""
    where = "sparse/dsa/cache_manager.py get_cache_size_per_token: 2 bytes an element, 1 with FP8 KV, 656 B a record"
    if stored.value != "nvfp4":
        return Fact(stored.value, engine_source(release, where))
    return Fact("bf16", engine_source(release, f"{where}; it has no NVFP4 case (inferred, not run)"))


def charged_element_bytes(charged: Fact[RecordLayout], release: Release) -> Fact[int]:
    """Return the factor on an index-K record in the size estimate."""
    rule = INDEX_K_CHARGED_IN_BYTES.at(release)
    return Fact(1 if rule.value or charged.value != "bf16" else 2, rule.source)


def draft_layers_charged(scenario: Scenario, draft_layers: int, release: Release) -> Fact[int]:
    """Return the MTP layers that the last stage's estimate adds to the target's."""
    if scenario.sharding.dp_attention > 1:
        where = "with attention DP no separate draft cache: the estimate counts the target's layers only (inferred)"
        return Fact(0, engine_source(release, f"pyexecutor/_util.py: {where}"))
    where = (
        f"pyexecutor/_util.py, {PULL}/12188: a separate draft cache, charged on the last pipeline stage; one MTP layer "
        "repeated (speculative/utils.py get_num_spec_layers)"
    )
    return Fact(draft_layers, engine_source(release, where))


def index_k_bits(scenario: Scenario, gpu: Gpu, release: Release) -> Fact[int]:  # noqa: ARG001 - one signature per engine
    """Return the bits of one element of an indexer key."""
    if scenario.has("fp4-index-k"):
        return Fact(4, engine_source(release, f"{PULL}/13340, sparse/dsa/params.py: indexer_k_dtype fp4"))
    return Fact(8, engine_source(release, "sparse/dsa/params.py: indexer_k_dtype fp8"))


def replicas(scenario: Scenario, release: Release) -> Fact[int]:
    """Return how many groups of ranks have requests and a pool of their own."""
    where = "mapping.py enable_attention_dp: each rank has its own requests and pool"
    return Fact(scenario.sharding.dp_attention, engine_source(release, where))


def stage_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Return layers per stage: the first `layers mod stages` get one more (mapping.py pp_layers)."""
    base, more = divmod(layers, stages)
    return tuple(base + (index < more) for index in range(stages))


def weight_layout(scenario: Scenario, model: Model, release: Release) -> WeightLayout:
    """Return how a rank holds the weights."""
    sharding = scenario.sharding
    code = "models/modeling_deepseekv3.py"
    whole = sharding.dp_attention > 1
    block = {"fp8": 128, "modelopt": 16}.get(model.quant_method, 1)
    shared = gcd(model.expert_intermediate * model.shared_experts // block, sharding.tp)
    dense = gcd(model.dense_intermediate // block, sharding.tp)
    dense = gcd(dense, GPUS_PER_NODE) if dense > GPUS_PER_NODE else dense

    def cut(shards: int, where: str) -> Fact[int]:
        return Fact(shards, engine_source(release, f"{code}: {where}"))

    capped = "as many as leave whole scale blocks"
    return WeightLayout(
        attention_shards=cut(sharding.tp // sharding.dp_attention, "attention over tp, whole under attention DP"),
        expert_shards=cut(sharding.tp, "slices under MoE TP, whole experts under EP; moe_tp x moe_ep = tp"),
        shared_shards=cut(1 if whole else shared, f"shared expert whole under attention DP, else over tp, {capped}"),
        dense_shards=cut(1 if whole else dense, f"dense MLP whole under attention DP, else within a node, {capped}"),
        embedding_shards=cut(1, "embedding table whole on every rank"),
        head_shards=cut(1 if whole else sharding.tp, "lm_head over tp, whole under attention DP"),
        fused_index_key=Fact(False, engine_source(release, "sparse/dsa.py: wk as in the checkpoint (inferred)")),
        index_norm_element_bytes=cut(4, "k_norm in fp32 (inferred)"),
        rope_element_bytes=cut(4, "one fp32 table (inferred)"),
    )


def step_rules(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> StepRules:  # noqa: ARG001 - one signature per engine
    """Return how a step reads index-K: which draft forwards score, and where rows are flattened."""
    loop = max(scenario.draft.steps - 1, 0)
    draft = "speculative/mtp.py: every draft forward runs the MTP layer's indexer"
    if model.index_share_for_mtp and since(release, "1.4.0rc0"):
        loop, draft = 0, f"{PULL}/15806: draft forwards after the first reuse its top-k (1.4.0rc0 by date: inferred)"
    rows = "sparse/dsa/metadata.py: block table expanded to one row a draft token (inferred: each may read anew)"
    return StepRules(
        scoring_draft_forwards=Fact(loop, engine_source(release, draft)),
        verify_flattens=Fact(True, engine_source(release, rows)),
        extend_flattens=Fact(True, engine_source(release, rows)),
        tile_rows=query_tile_rows(model),
        read_tokens=Fact(64, engine_source(release, "pages of 64")),
        dcp_scoring_shards=Fact(1, engine_source(release, "no decode context parallelism")),
        request_shards=Fact(1, engine_source(release, "every rank of an attention group decodes all its requests")),
    )


def prefill_rules(scenario: Scenario, gpu: Gpu, release: Release) -> PrefillRules:  # noqa: ARG001 - one signature per engine
    """Return how a rank's prefill is cut into forwards."""
    chunk = scenario.limits.chunked_prefill or CHUNK_TOKENS
    return PrefillRules(
        chunk_tokens=Fact(chunk, engine_source(release, "llmapi/llm_args.py: max_num_tokens, default 8,192")),
        unchecked_elements=Fact(0, engine_source(release, "sparse/dsa: rows are bounded, not bytes")),
        skips_short=Fact(True, engine_source(release, "sparse/dsa/params.py: skip_indexer_for_short_seqs")),
    )
