"""What vLLM refuses at start-up, named by its own rule and version: every fault at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.cuts import check_draft, check_experts, check_heads, check_roles, check_stages
from dsa_ledger.engines.layers import layers_of
from dsa_ledger.engines.rules import since
from dsa_ledger.engines.vllm import (
    BLACKWELL,
    CONSUMER,
    HOPPER,
    KV_DTYPES,
    batch,
    flashmla_workspace,
    record_layout,
    resolved_dtype,
)
from dsa_ledger.errors import Faults, NotModelled, nearest

if TYPE_CHECKING:
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

SGLANG_ONLY = ("hicache", "external-linker", "kv-sharding", "two-batch-overlap")
UNREAD = {
    "hisparse": "its host-resident main KV is experimental",
    "deepep": "its effect on shared experts was not read",
}


def check(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    """Raise BadInput with all faults, or NotModelled for a feature whose rules were not read."""
    faults = Faults()
    for name, reason in UNREAD.items():
        if scenario.has(name):
            raise NotModelled(name, release.label, reason)
    if scenario.model_overrides.get("use_index_cache") and since(release, "0.21.0") and not since(release, "0.23.0"):
        raise NotModelled("use_index_cache", release.label, "reuse behind this switch (0.21, 0.22) is not worked out")
    if model.index_kpool > 1 or model.index_head_dim != 128:  # noqa: PLR2004 - the engine's own record
        raise NotModelled("index-K record", model.name, "only one 128-wide key a token is worked out")
    for name in SGLANG_ONLY:
        faults.require(not scenario.has(name), "features", name, f"off: {release.label} has no such feature")
    faults.require(
        not scenario.has("fp4-index-k"), "features", "fp4-index-k", f"off: {release.label} has it for DeepSeek-V4 only"
    )
    _check_numbers(faults, scenario, model, release)
    tokens, requests = batch(scenario, gpu, release)
    faults.require(
        requests.value <= tokens.value,
        "limits.max_running_requests",
        requests.value,
        f"at most max_num_batched_tokens = {tokens.value} (limits.chunked_prefill), or {release.label} does not start",
    )
    _check_dtype(faults, scenario, model, gpu, release)
    _check_override(faults, model, release)
    faults.stop_if_any()


def _check_numbers(faults: Faults, scenario: Scenario, model: Model, release: Release) -> None:
    sharding, draft, label = scenario.sharding, scenario.draft, release.label
    check_heads(faults, scenario, model, sharding.tp)
    everyone = sharding.tp * sharding.dp_attention * sharding.cp
    faults.require(
        sharding.ep in (1, everyone),
        "sharding.ep",
        sharding.ep,
        f"1 or {everyone}: vLLM's expert parallel spans tp x data parallel x PCP",
    )
    way_out = f"; or --ep {everyone}" if model.experts % everyone == 0 else ""
    check_experts(faults, scenario, model, 1 if sharding.ep > 1 else everyone, way_out)
    check_stages(faults, scenario, model)
    check_draft(faults, scenario, model)
    check_roles(faults, scenario)
    faults.require(not sharding.layer_split, "sharding.layer_split", True, f"false: {label} has no layer split")
    faults.require(
        scenario.limits.max_total_tokens is None,
        "limits.max_total_tokens",
        scenario.limits.max_total_tokens,
        "none: vLLM has no such cap; --kv-bytes sets the pool",
    )
    if draft.steps:
        faults.require(draft.topk == 1, "draft.topk", draft.topk, f"1: {label} drafts a chain with MTP")
    if sharding.cp > 1:
        faults.require(
            since(release, "0.26.0"), "sharding.cp", sharding.cp, f"1: no DSA backend of {label} takes PCP (0.26 on)"
        )
        faults.require(
            sharding.dcp in (1, sharding.cp, sharding.tp * sharding.cp),
            "sharding.dcp",
            sharding.dcp,
            f"1, {sharding.cp} or {sharding.tp * sharding.cp} with cp = {sharding.cp} ({label})",
        )
    elif sharding.dcp > 1:
        faults.require(
            sharding.tp % sharding.dcp == 0, "sharding.dcp", sharding.dcp, f"a divisor of tp = {sharding.tp}"
        )


def _check_dtype(faults: Faults, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    label, major, dcp = release.label, gpu.compute_capability[0], scenario.sharding.dcp
    asked = scenario.kv_dtype.lower()
    if asked not in KV_DTYPES:
        faults.add("kv_dtype", scenario.kv_dtype, f"a KV dtype of vLLM's sparse MLA: {nearest(asked, KV_DTYPES)}")
        return
    dtype = resolved_dtype(scenario, model, gpu, release).value
    if major not in (HOPPER, BLACKWELL, CONSUMER):
        faults.add("gpu", gpu.name, f"SM90, SM10x or SM120: {label} has no sparse MLA backend for SM{major}x")
        return
    if dtype == "nvfp4_ds_mla":
        faults.require(
            since(release, "0.30.0") and major == BLACKWELL,
            "kv_dtype",
            scenario.kv_dtype,
            f"another word: nvfp4_ds_mla needs SM100 and vLLM 0.30, here are {gpu.name} and {label}",
        )
    if major == CONSUMER:
        faults.require(
            since(release, "0.24.0"), "gpu", gpu.name, f"SM90 or SM10x: {label} refuses DSA on SM120 (0.24 on)"
        )
        glm = model.architecture.startswith("GlmMoeDsa")
        faults.require(
            not (dtype == "bfloat16" and glm), "kv_dtype", scenario.kv_dtype, f"fp8 on SM120 for GLM ({label})"
        )
        faults.require(dcp == 1, "sharding.dcp", dcp, f"1 on SM120 ({label})")
        topk = model.index_topk
        faults.require(topk == 2048, "model.index_topk", topk, f"2048: SM120's one backend takes no other ({label})")  # noqa: PLR2004
    if major == HOPPER and dtype == "fp8_e4m3":
        faults.require(
            since(release, "0.30.0"),
            "kv_dtype",
            scenario.kv_dtype,
            f"fp8 or bfloat16 on {gpu.name}: {label} has no backend for fp8_e4m3 on Hopper (0.30 on)",
        )
    if dcp > 1 and major != CONSUMER:
        _check_dcp(faults, scenario, model, gpu, release)


def _check_dcp(faults: Faults, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    """Note what the backend that the record leads to does not do under DCP: FlashMLA asks for more than FlashInfer."""
    sharding, label = scenario.sharding, release.label
    dcp, local = sharding.dcp, model.heads // sharding.tp
    record = record_layout(scenario, model, gpu, release).value
    hopper = gpu.compute_capability[0] == HOPPER
    flashmla = hopper or flashmla_workspace(record, gpu, release, local) != "none"
    first = "0.29.0" if flashmla else "0.25.0"
    faults.require(since(release, first), "sharding.dcp", dcp, f"1: {label} has no DCP for DSA here ({first} on)")
    if not flashmla:
        return
    gathers_kv = sharding.cp > 1
    takes = ("packed_fp8",) if hopper or gathers_kv else ("packed_fp8", "nvfp4_ds_mla")
    word = "fp8" if hopper else "fp8_ds_mla" if gathers_kv else "fp8"
    faults.require(record in takes, "kv_dtype", scenario.kv_dtype, f"{word} with DCP on {gpu.name} ({label})")
    if record == "bf16" and not hopper:
        return  # fp8 goes to FlashInfer there, which has no rule about heads
    gathered = local * ((sharding.tp if dcp > sharding.cp else 1) if gathers_kv else dcp)
    pads_alike = (local <= 64) == (gathered <= 64) and gathered <= 128  # noqa: PLR2004 - FlashMLA pads heads to 64 or 128
    faults.require(
        (local < 32 or gathers_kv) and pads_alike,  # noqa: PLR2004 - FlashMLA's mixed path
        "sharding.dcp",
        dcp,
        f"local heads ({local}) under 32 and padded like the {gathered} gathered ones: FlashMLA's rule ({label})",
    )


def _check_override(faults: Faults, model: Model, release: Release) -> None:
    """Refuse an IndexCache override that the CUDA class of 0.29 on cannot load."""
    if model.published_sharing is None or not since(release, "0.29.0"):
        return
    built = set(layers_of(model, release).built)
    published = model.model_copy(update={"sharing": model.published_sharing, "published_sharing": None})
    orphaned = [layer for layer in layers_of(published, release).built if layer not in built]
    faults.require(
        not orphaned,
        "model.index_topk_pattern" if model.sharing.index_topk_pattern else "model.index_topk_freq",
        model.sharing.index_topk_pattern or model.sharing.index_topk_freq,
        f"no override: {release.label} raises KeyError on the checkpoint's indexer weights of layer {orphaned[:1]}",
    )
