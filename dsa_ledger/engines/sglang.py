"""SGLang by version: record, pool arithmetic, default memory fraction, workspaces, what a step reads.

Each rule names the release it holds from and the file it was read in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.base import PrefillRules, StepRules, WeightLayout
from dsa_ledger.engines.rules import Rule, because, engine_source, since
from dsa_ledger.errors import Faults, Said, nearest
from dsa_ledger.ledger import Fact, Source
from dsa_ledger.units import MIB

if TYPE_CHECKING:
    from dsa_ledger.engines.base import RecordLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

NAME = "sglang"
SM100, SM120 = 10, 12
BACKENDS = (
    "trtllm",
    "flashmla_kv",
    "flashmla_sparse",
    "flashmla_auto",
    "flashinfer_sparse_mla",
    "fa3",
    "tilelang",
    "aiter",
    "triton",
)
KV_DTYPES = {"auto": "auto", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp8_e4m3": "fp8_e4m3"}

CHARGES_REAL_RECORD: Rule[bool] = Rule(
    NAME,
    "cell width",
    ("0.5.9", False, "pool_configurator.py: 576 elements of the KV dtype, whatever the layout"),
    ("0.5.17", True, "pool_configurator.py: the layout's real width"),
)
DRAFT_CHARGE: Rule[str] = Rule(
    NAME,
    "draft pool in the cell",
    ("0.5.9", "none", "pool_configurator.py has no draft term; the draft pool comes out of the slack"),
    ("0.5.14", "ratio", "pool_configurator.py: int(cell * (1 + draft layers / layers))"),
    ("0.5.18", "exact", "pool_configurator.py, PR #30531: record by record"),
)
DRAFT_WEIGHTS_FIRST: Rule[bool] = Rule(
    NAME,
    "order of loading",
    ("0.5.9", False, "model_runner.py: draft weights load after the pool is sized"),
    ("0.5.14", True, "model_runner.py: draft weights load before the pool is sized"),
)
BLACKWELL_FP8: Rule[RecordLayout] = Rule(
    NAME,
    "fp8 layout on SM100",
    ("0.5.9", "packed_fp8", "server_args.py: flashmla_auto / flashmla_kv"),
    ("0.5.10", "raw_fp8", "server_args.py: trtllm / trtllm"),
)
SM120_GLM_FP8: Rule[RecordLayout] = Rule(
    NAME,
    "fp8 layout on SM120",
    ("0.5.9", "packed_fp8", "server_args.py: flashmla_auto / flashmla_kv"),
    ("0.5.10", "raw_fp8", "server_args.py: trtllm / trtllm"),
    ("0.5.17", "packed_fp8", "arg_groups/overrides.py: GLM on SM12x takes flashinfer_sparse_mla"),
)
FUSED_INDEX_KEY: Rule[bool] = Rule(
    NAME,
    "indexer weights",
    ("0.5.9", False, "dsa_indexer.py: wk as in the checkpoint, weights_proj in bf16"),
    ("0.5.15", True, "dsa_indexer.py: wk_weights_proj fused in bf16 where the indexer's RoPE interleaves"),
)
HISPARSE_CHARGED: Rule[bool] = Rule(
    NAME,
    "HiSparse ratio in the cell",
    ("0.5.10", False, "pool_configurator.py: allocated, not charged"),
    ("0.5.17", True, "pool_configurator.py: index-K x host_to_device_ratio"),
)
HISPARSE_SCALES_DRAFT: Rule[bool] = Rule(
    NAME,
    "HiSparse ratio on the draft record",
    ("0.5.10", False, "pool_configurator.py: draft main KV as it is"),
    ("0.5.22", True, "pool_configurator.py: draft main KV x ratio too"),
)
LAYER_SPLIT_INDEX: Rule[str] = Rule(
    NAME,
    "index-K layers charged under layer split",
    ("0.5.16", "all split", "pool_configurator.py: the main KV's layer count for both"),
    ("0.5.18", "elided", "pool_configurator.py: owned full layers + 1, or every layer where elision is off"),
)
LOGITS_BUDGET: Rule[str] = Rule(
    NAME,
    "prefill logits budget",
    ("0.5.9", "half free", "nsa_indexer.py: cut where twice the logits exceed free memory, or 30% of it all"),
    ("0.5.14", "share", "dsa_indexer.py, from 0.5.21 mqa_logits_utils.py: 0.2 of what mem_fraction leaves"),
)


class Chunks(NamedTuple):
    """Defaults that depend on the GPU's size."""

    chunk_tokens: int
    graph_requests: int


def defaults_by_size(gpu: Gpu, tp: int) -> Chunks:
    """Return chunked_prefill_size [tokens] and the largest captured batch [requests]."""
    gib = gpu.hbm.capacity_bytes // MIB / 1024
    if gib < 90:  # noqa: PLR2004 - the engine's own thresholds in GiB
        return Chunks(8192, 512 if tp >= 4 else 256)  # noqa: PLR2004
    return Chunks(8192 if gib < 160 else 16384, 512)  # noqa: PLR2004


def kv_dtype(scenario: Scenario, gpu: Gpu, release: Release) -> Fact[str]:
    """Return the KV dtype after `auto` is resolved."""
    asked = KV_DTYPES[scenario.kv_dtype.lower()]
    if asked != "auto":
        return Fact(asked, Source("scenario", "kv_dtype", ""))
    chosen = "fp8_e4m3" if gpu.compute_capability[0] >= SM100 else "bfloat16"
    where = f"server_args.py: KV dtype auto on SM{gpu.compute_capability[0]}{gpu.compute_capability[1]} is {chosen}"
    return Fact(chosen, engine_source(release, where))


def record_layout(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[RecordLayout]:
    """Return how a main-KV record is stored."""
    dtype = kv_dtype(scenario, gpu, release)
    if dtype.value == "bfloat16":
        return Fact("bf16", dtype.source)
    prefill, decode = scenario.backends.prefill, scenario.backends.decode
    forced = since(release, "0.5.10") and not since(release, "0.5.14") and gpu.compute_capability[0] >= SM100
    layout = _default_layout(scenario, model, gpu, release)
    if (prefill or decode) and not forced:
        layout = _layout_of_backends(scenario, layout, release)
    return Fact(layout.value, because(dtype.source, layout.source))


def _default_layout(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[RecordLayout]:
    """Return the fp8 layout of the backends that SGLang chooses itself."""
    major = gpu.compute_capability[0]
    if scenario.has("hisparse"):
        return Fact("packed_fp8", engine_source(release, "overrides.py: HiSparse takes flashmla_kv"))
    if major == SM120 and model.architecture.startswith("GlmMoeDsa"):
        return SM120_GLM_FP8.at(release)
    if major >= SM100:
        return BLACKWELL_FP8.at(release)
    return Fact("packed_fp8", engine_source(release, "overrides.py: fp8 on Hopper takes flashmla_kv"))


def _layout_of_backends(scenario: Scenario, default: Fact[RecordLayout], release: Release) -> Fact[RecordLayout]:
    """Return the layout that named backends make: raw where a reader of raw records is among those that count."""
    unnamed = "trtllm" if default.value == "raw_fp8" else "flashmla_kv"
    prefill, decode = scenario.backends.prefill or unnamed, scenario.backends.decode or unnamed
    counted = (prefill, decode)
    where = "raw if either backend is trtllm"
    if since(release, "0.5.20") and scenario.has("pd-prefill"):
        counted, where = (prefill, prefill), "PD prefill looks at the prefill backend alone"
    elif since(release, "0.5.20") and scenario.has("pd-decode"):
        counted, where = (decode, decode), "PD decode looks at the decode backend alone"
    raw = "trtllm" in counted or (since(release, "0.5.22") and set(counted) == {"tilelang"})
    source = engine_source(release, f"kv_cache_configurator.py: {where}; packed else")
    return Fact("raw_fp8" if raw else "packed_fp8", source)


def index_k_bits(scenario: Scenario, gpu: Gpu, release: Release) -> Fact[int]:  # noqa: ARG001 - one signature per engine
    """Return the bits of one element of an indexer key."""
    return Fact(8, engine_source(release, "mem_cache/index_key_cache.py: fp8_e4m3 keys"))


def replicas(scenario: Scenario, release: Release) -> Fact[int]:
    """Return how many groups of ranks have requests and a pool of their own."""
    where = "attention DP: each group has its own requests and pool"
    return Fact(scenario.sharding.dp_attention, engine_source(release, where))


def stage_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Return layers per stage: the last `layers mod stages` get one more."""
    base, more = divmod(layers, stages)
    return tuple(base + (index >= stages - more) for index in range(stages))


def weight_layout(scenario: Scenario, model: Model, release: Release) -> WeightLayout:
    """Return how a rank holds the weights."""
    sharding = scenario.sharding
    code = "models/deepseek_v2.py"
    attention = sharding.tp // (sharding.dp_attention * sharding.cp)
    whole = sharding.dp_attention > 1
    fused = FUSED_INDEX_KEY.at(release)

    def cut(shards: int, where: str) -> Fact[int]:
        return Fact(shards, engine_source(release, where))

    return WeightLayout(
        attention_shards=cut(attention, f"{code}: attention TP = tp / (attention DP x CP)"),
        expert_shards=cut(sharding.tp, f"{code}: slices under TP, whole experts under EP, tp shares either way"),
        shared_shards=cut(
            1 if scenario.has("deepep") else sharding.tp,
            f"{code}: the shared expert is whole under DeepEP, else over tp",
        ),
        dense_shards=cut(sharding.tp, f"{code}: dense MLP over tp"),
        embedding_shards=cut(1 if whole else sharding.tp, f"{code}: embedding whole under attention DP"),
        head_shards=cut(sharding.tp, f"{code}: lm_head over tp"),
        fused_index_key=Fact(fused.value and model.indexer_rope_interleave, fused.source),
        index_norm_element_bytes=cut(4, "dsa_indexer.py: k_norm in fp32"),
        rope_element_bytes=cut(4, "rotary_embedding.py: one fp32 table"),
    )


def step_rules(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> StepRules:
    """Return how a step reads index-K: which draft forwards score, and where rows are flattened."""
    loop = max(scenario.draft.steps - 1, 0)
    if not model.index_share_for_mtp or not since(release, "0.5.14"):
        scoring, where = loop, "eagle_worker_v2.py: every draft forward scores"
    elif since(release, "0.5.15"):
        scoring, where = 0, "eagle_worker_v2.py: the draft loop reuses the top-k that draft-extend seeds"
    else:
        scoring, where = min(loop, 1), "eagle_worker_v2.py: no seed, the first draft forward scores too"
    native = gpu.compute_capability[0] == SM100 and since(release, "0.5.14")
    verify = "native next_n verify on SM100" if native else "verify rows flattened, one schedule entry each"
    return StepRules(
        scoring_draft_forwards=Fact(scoring, engine_source(release, where)),
        verify_flattens=Fact(not native, engine_source(release, f"dsa_backend.py: {verify}")),
        extend_flattens=Fact(True, engine_source(release, "dsa_backend.py: draft-extend rows flattened")),
        tile_rows=Fact(
            scenario.draft.steps + 1,
            engine_source(release, "SM100 verify: 4,096 keys stay in L2 while all rows score them (inferred)"),
        ),
        read_tokens=Fact(
            256 if native else 64, engine_source(release, "paged_mqa_logits.py: pages of 64, splits of 256 on SM100")
        ),
        dcp_scoring_shards=Fact(
            1, engine_source(release, "index-K is replicated over DCP: each rank scores all tokens")
        ),
        request_shards=Fact(1, engine_source(release, "every rank of an attention group decodes all its requests")),
    )


def prefill_rules(scenario: Scenario, gpu: Gpu, release: Release) -> PrefillRules:
    """Return how a rank's prefill is cut into forwards and logits chunks."""
    sharding, asked = scenario.sharding, scenario.limits.chunked_prefill
    chunk = (asked or defaults_by_size(gpu, sharding.tp).chunk_tokens) // sharding.dp_attention
    where = "server_args.py: chunked_prefill_size by GPU size, divided by attention DP"
    checked = 8_000_000 if since(release, "0.5.14") else 0
    short = sharding.cp == 1
    return PrefillRules(
        chunk_tokens=Fact(max(chunk, 1), engine_source(release, where)),
        unchecked_elements=Fact(
            checked, engine_source(release, "dsa_indexer.py: the budget is asked from so many logits on")
        ),
        skips_short=Fact(
            short, engine_source(release, "dsa_indexer.py: no scoring up to index_topk keys, but not under CP")
        ),
    )


def check_dtype(faults: Faults, scenario: Scenario) -> None:
    """Note a KV dtype that SGLang refuses for DSA models."""
    if scenario.kv_dtype.lower() not in KV_DTYPES:
        faults.add(
            "kv_dtype",
            scenario.kv_dtype,
            Said(
                f"SGLang takes only bf16 and fp8_e4m3 for DSA models; expected {nearest(scenario.kv_dtype, KV_DTYPES)}"
            ),
        )
    for role in ("prefill", "decode"):
        backend = getattr(scenario.backends, role)
        if backend is not None and backend not in BACKENDS:
            faults.add(f"backends.{role}", backend, f"a sparse attention backend: {nearest(backend, BACKENDS)}")
