"""The kinds of cache as data: what one state takes, how many tokens it stands for, what cuts it over ranks.

Plain DSA is the simple case, one state a token. The account reads records, cells and pools from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.engines.rules import Rule, engine_source, since
from dsa_ledger.errors import NotModelled
from dsa_ledger.formulas import records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsa_ledger.engines.base import RecordLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.ledger import Fact, Source
    from dsa_ledger.schema import Model, Scenario

PAGE_STATES = 64
GLM5_NEXT, LONGCAT, HYV4 = "Glm5Next", "Longcat", "HYV4"


class Bytes(NamedTuple):
    """Bytes as the ledger works them out: a formula, and the entries that are its parameters."""

    formula: Callable[..., Any]
    inputs: Mapping[str, str]


class CacheKind(NamedTuple):
    """One cache of a layer.

    `bytes_per_state` is stored for each `tokens_per_state` tokens; `fixed_bytes_per_request` beside it, whatever a
    request's length; pages hold a multiple of `page_align` tokens; `sharded_by` names what cuts it over ranks.
    """

    name: str
    source: Source
    bytes_per_state: Bytes
    tokens_per_state: int = 1
    fixed_bytes_per_request: Bytes | None = None
    page_align: int = PAGE_STATES
    sharded_by: tuple[str, ...] = ("pp",)


class Caches(NamedTuple):
    """The caches of a sparse-attention layer."""

    main_kv: CacheKind
    index_k: CacheKind


WIDTHS = {"kv_lora": "config.kv_lora", "qk_rope": "config.qk_rope"}
SCALES = {"scale_block": "engine.scale_block", "scale_bytes": "engine.scale_bytes"}
MAIN_KV: dict[RecordLayout, Bytes] = {
    "bf16": Bytes(records.bf16_record_bytes, WIDTHS),
    "raw_fp8": Bytes(records.raw_fp8_record_bytes, WIDTHS),
    "packed_fp8": Bytes(records.packed_fp8_record_bytes, WIDTHS | SCALES),
    "nvfp4_ds_mla": Bytes(records.nvfp4_ds_mla_record_bytes, WIDTHS | {"scale_block": "engine.fp4_block"}),
    "nvfp4": Bytes(records.nvfp4_record_bytes, WIDTHS | {"scale_block": "engine.fp4_block"}),
}
INDEX_K = Bytes(
    records.index_k_record_bytes, {"index_head_dim": "config.index_head_dim", "bits": "engine.index_k_bits"} | SCALES
)
INDEX_TAIL = Bytes(
    records.index_tail_request_bytes,
    {"index_kpool": "config.index_kpool", "draft_tokens": "draft.tokens", "index_head_dim": "config.index_head_dim"},
)
# What cuts main KV, then index-K, over the ranks of a server; attention DP splits requests, so it cuts every cache.
SHARDED_BY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sglang": (("pp", "layer split", "kv sharding", "dcp"), ("pp", "layer split", "kv sharding")),
    "vllm": (("pp", "dcp"), ("pp", "dcp")),
    "tensorrt-llm": (("pp",), ("pp",)),
}
# The cell's index-K of a pooled cache: 132 a token, or ceil(132 / index_kpool).
CHARGES_POOLED_KEYS: Rule[bool] = Rule(
    "sglang",
    "index_kpool in the cell",
    ("0.5.20", False, "pool_configurator.py: the cell does not divide index-K by index_kpool"),
    ("0.5.22", True, "pool_configurator.py: the cell divides index-K by index_kpool, rounded up"),
)


def cache_kinds(model: Model, release: Release, record: Fact[RecordLayout], bits: Fact[int]) -> Caches:
    """Return the caches that a release keeps for a model, main KV in the layout of its record."""
    main_cut, index_cut = SHARDED_BY[release.engine]
    pooled = model.index_kpool > 1
    where = "memory_pool.py DSATokenToKVPool: a stored key for each index_kpool tokens, pages of 64 keys"
    return Caches(
        main_kv=CacheKind(
            "main KV",
            record.source,
            MAIN_KV[record.value],
            page_align=PAGE_STATES * model.index_kpool,
            sharded_by=main_cut,
        ),
        index_k=CacheKind(
            "index-K",
            engine_source(release, where) if pooled else bits.source,
            INDEX_K,
            tokens_per_state=model.index_kpool,
            fixed_bytes_per_request=INDEX_TAIL if pooled and model.index_kpool_compress else None,
            page_align=PAGE_STATES * model.index_kpool,
            sharded_by=index_cut,
        ),
    )


class Support(NamedTuple):
    """A kin of DSA: what it is called, SGLang's first release with it, why its weights or more are not known."""

    feature: str
    first: str
    weights: str


KIN: dict[str, Support] = {
    GLM5_NEXT: Support(
        "GLM-5.3-Flash cache (Glm5Next)",
        "0.5.20",
        "the tensors of its linear attention, residual streams and vision tower are not counted",
    ),
    LONGCAT: Support(
        "LongCat sparse attention",
        "0.5.16",
        "its identity experts and n-gram embedding tables are not counted",
    ),
    HYV4: Support("Hy4 gated DSA", "0.5.20", "its attention gate's tensors are not public"),
}


def kin_of(model: Model) -> Support | None:
    """Return what is known of a kin of DSA; None for DSA's own family."""
    return next((kin for name, kin in KIN.items() if model.architecture.startswith(name)), None)


def check_known(model: Model, release: Release) -> None:
    """Raise NotModelled where a release's caches for a kin of DSA were not read."""
    kin = kin_of(model)
    if kin is None and model.weights_modelled and not model.linear_layers:
        return
    if release.engine != "sglang":
        feature = kin.feature if kin else f"architecture {model.architecture!r}"
        raise NotModelled(feature, release.label, f"what it stores for {model.name} was not read; SGLang is modelled")
    if kin is None:
        raise NotModelled(f"architecture {model.architecture!r}", release.label, f"only {', '.join(KIN)} were read")
    if model.weights_modelled:
        reason = f"{kin.weights}; set model.weights_modelled = false for its caches alone"
        raise NotModelled(f"weights of {model.name}", release.label, reason)
    if not since(release, kin.first):
        raise NotModelled(kin.feature, release.label, f"first in SGLang {kin.first}")


def check_scenario(scenario: Scenario, model: Model, release: Release) -> None:
    """Raise NotModelled for what SGLang may do with a kin of DSA, by rules that were not read."""
    linear, longcat = bool(model.linear_layers), model.architecture.startswith(LONGCAT)
    kin = kin_of(model)
    if kin is None:
        return
    if scenario.sharding.pp > 1 and (linear or longcat):
        why = "linear layers" if linear else "blocks of two attentions"
        raise NotModelled("pipeline stages", f"{model.name}, {release.label}", f"how {why} are cut was not read")
    if longcat and scenario.draft.steps:
        raise NotModelled("LongCat MTP", release.label, "what its mtp_num_layers cost in the draft pool was not read")
    if linear:
        asked = [name for name in (*scenario.features,) if name not in ("deepep", "two-batch-overlap", "kv-sharding")]
        asked += ["layer split"] if scenario.sharding.layer_split else []
        if asked:
            reason = "what it does with the state of linear layers was not read"
            raise NotModelled(f"{asked[0]} with {kin.feature}", release.label, reason)
    observed = scenario.observed
    if linear and observed.kv_bytes is None:
        raise NotModelled(
            "KDA state pool",
            f"{model.name}, {release.label}",
            "the bytes of linear-attention state are taken before the KV pool and are not worked out; "
            "give --kv-bytes, what the log leaves for the KV pool after the linear-state pool",
        )
    if observed.kv_bytes is None and observed.free_after is None:
        raise NotModelled(
            f"weights of {model.name}",
            release.label,
            f"{kin.weights}; give --free-after (and --free-before) from a log, or --kv-bytes",
        )
