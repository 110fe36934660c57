"""What SGLang refuses at start-up, named by its own rule and version: every fault at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.caches import GLM5_NEXT, check_scenario
from dsa_ledger.engines.cuts import check_draft, check_experts, check_heads, check_roles, check_stages
from dsa_ledger.engines.rules import since
from dsa_ledger.engines.sglang import check_dtype, record_layout
from dsa_ledger.errors import Faults, NotModelled

if TYPE_CHECKING:
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

# First release that has a feature; asked for earlier it is not modelled, since there is no rule to apply.
FIRST = {
    "hisparse": "0.5.10",
    "external-linker": "0.5.20",
    "kv-sharding": "0.5.23",
}


def check(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    """Raise BadInput with all faults, or NotModelled for a feature the release does not have."""
    faults = Faults()
    check_dtype(faults, scenario)
    _check_layout(faults, scenario, model, release)
    _check_features(faults, scenario, model, gpu, release)
    _check_pooled_keys(faults, scenario, model, release)
    faults.stop_if_any()
    if model.qk_rope == 0 and record_layout(scenario, model, gpu, release).value == "packed_fp8":
        raise NotModelled(
            "packed fp8 record without RoPE",
            f"{model.name}, {release.label}",
            "SGLang's formula gives 528 bytes, vLLM keeps 656 for the same model; take --kv-dtype bf16",
        )
    check_scenario(scenario, model, release)
    if model.index_head_dim != 128:  # noqa: PLR2004 - asserted by the engine
        raise NotModelled("index_head_dim", model.name, f"SGLang asserts 128, the model has {model.index_head_dim}")


def _check_pooled_keys(faults: Faults, scenario: Scenario, model: Model, release: Release) -> None:
    """Note where keys pooled over several tokens (index_kpool) are refused."""
    pooled, label = model.index_kpool, release.label
    if pooled == 1:
        return
    faults.require(
        model.architecture.startswith(GLM5_NEXT),
        "model.index_kpool",
        pooled,
        f"1: {label} pools keys for the {GLM5_NEXT} class alone, another checkpoint has no index_kpool_compress_gate",
    )
    faults.require(
        model.index_topk % pooled == 0,
        "model.index_kpool",
        pooled,
        f"a divisor of index_topk = {model.index_topk} (transformers configuration_glm5_next.py)",
    )
    dcp = scenario.sharding.dcp
    faults.require(dcp == 1, "sharding.dcp", dcp, f"1 with index_kpool = {pooled} ({label})")
    faults.require(
        not scenario.has("kv-sharding"), "features", "kv-sharding", f"off with index_kpool = {pooled} ({label})"
    )


def _check_layout(faults: Faults, scenario: Scenario, model: Model, release: Release) -> None:
    sharding, label = scenario.sharding, release.label
    cut = sharding.dp_attention * sharding.cp
    faults.require(
        sharding.tp % cut == 0,
        "sharding.tp",
        sharding.tp,
        f"a multiple of attention DP x CP = {sharding.dp_attention} x {sharding.cp}",
    )
    check_heads(faults, scenario, model, max(sharding.tp // cut, 1))
    faults.require(sharding.tp % sharding.ep == 0, "sharding.ep", sharding.ep, f"a divisor of tp = {sharding.tp}")
    check_experts(faults, scenario, model, max(sharding.tp // sharding.ep, 1), " (tp / ep)")
    check_stages(faults, scenario, model)
    some = len(model.sparse_layers) > 0
    faults.require(some, "model.linear_layers", model.linear_layers, f"at most {model.layers - 1} of {model.layers}")
    if sharding.dcp > 1:
        faults.require(
            since(release, "0.5.22"), "sharding.dcp", sharding.dcp, f"1: {label} has no DCP for DSA (0.5.22 on)"
        )
        faults.require(
            sharding.tp % sharding.dcp == 0, "sharding.dcp", sharding.dcp, f"a divisor of tp = {sharding.tp}"
        )
        faults.require(sharding.cp == 1, "sharding.dcp", sharding.dcp, f"1 with cp = {sharding.cp} ({label})")
    if sharding.layer_split:
        faults.require(since(release, "0.5.16"), "sharding.layer_split", True, f"false: {label} has none (0.5.16 on)")
        faults.require(sharding.cp > 1, "sharding.layer_split", True, "cp > 1: layers are split over the CP group")
        faults.require(sharding.pp == 1, "sharding.layer_split", True, f"pp = 1 ({label})")
        faults.require(scenario.has("pd-prefill"), "sharding.layer_split", True, f"--feature pd-prefill ({label})")


def _check_features(faults: Faults, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    label, sharding, draft = release.label, scenario.sharding, scenario.draft
    major = gpu.compute_capability[0]
    for name, first in FIRST.items():
        if scenario.has(name) and not since(release, first):
            raise NotModelled(name, label, f"first in {first}")
    check_roles(faults, scenario)
    check_draft(faults, scenario, model)
    faults.require(
        not (scenario.has("pd-decode") and sharding.cp > 1),
        "sharding.cp",
        sharding.cp,
        f"1 on a PD decode worker ({label})",
    )
    faults.require(
        not scenario.has("fp4-index-k"), "features", "fp4-index-k", f"off: {label} has it for DeepSeek-V4 only"
    )
    if draft.steps:
        faults.require(draft.topk == 1, "draft.topk", draft.topk, f"1: with DSA's page of 64 {label} refuses more")
        allowed = since(release, "0.5.21")
        faults.require(
            sharding.pp == 1 or allowed, "draft.steps", draft.steps, f"0 with pp > 1: {label} refuses (0.5.21 on)"
        )
    sharing = model.sharing
    raw = (sharing.index_topk_freq or 1) > 1 or "S" in (sharing.index_topk_pattern or "")
    raw = raw or (since(release, "0.5.20") and "shared" in (sharing.indexer_types or ()))
    faults.require(
        not (scenario.has("two-batch-overlap") and raw and since(release, "0.5.14")),
        "features",
        "two-batch-overlap",
        f"off: {label} raises ValueError for a model with shared layers",
    )
    if sharding.dcp > 1:
        for name in ("hicache", "hisparse", "pd-prefill", "pd-decode"):
            faults.require(not scenario.has(name), "features", name, f"off with dcp = {sharding.dcp} ({label})")
        faults.require(major == 10, "sharding.dcp", sharding.dcp, f"1 on {gpu.name}: DCP takes trtllm, SM100 only")  # noqa: PLR2004
    if scenario.has("kv-sharding"):
        faults.require(scenario.has("pd-prefill"), "features", "kv-sharding", f"pd-prefill with it ({label})")
        faults.require(sharding.cp > 1, "features", "kv-sharding", f"cp > 1 ({label})")
        faults.require(sharding.pp == 1, "features", "kv-sharding", f"pp = 1 ({label})")
        if scenario.kv_dtype.lower() in ("auto", "fp8_e4m3"):
            raw_fp8 = record_layout(scenario, model, gpu, release).value == "raw_fp8"
            faults.require(raw_fp8, "features", "kv-sharding", f"trtllm with fp8_e4m3 KV, SM100 ({label})")
        else:
            faults.add("kv_dtype", scenario.kv_dtype, f"fp8_e4m3 with kv-sharding ({label})")
    if scenario.has("hisparse") and draft.steps:
        faults.require(
            since(release, "0.5.22"), "features", "hisparse", f"off with MTP: {label} has no HiSparse MTP (0.5.22 on)"
        )
        faults.require(1 <= draft.steps <= 3, "draft.steps", draft.steps, f"1 to 3 with hisparse ({label})")  # noqa: PLR2004
