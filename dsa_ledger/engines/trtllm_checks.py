"""What TensorRT-LLM refuses, and the candidates whose rules are not known because a change came in one of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.cuts import check_draft, check_experts, check_heads, check_roles, check_stages
from dsa_ledger.engines.layers import FREQUENCY, PATTERN
from dsa_ledger.engines.rules import since
from dsa_ledger.engines.trtllm import (
    BLACKWELL,
    CONSUMER,
    KV_DTYPES,
    LOADER,
    PULL,
    charged_layout,
    kv_dtype,
    record_layout,
)
from dsa_ledger.errors import Faults, NotModelled, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

ELSEWHERE = ("hisparse", "external-linker", "kv-sharding", "two-batch-overlap")
UNREAD = {
    "hicache": "its host tier is kv_cache_config.host_cache_size, whose bytes were not read",
    "deepep": "what it changes in TensorRT-LLM was not read",
}


class Window(NamedTuple):
    """Candidates [first, end) that may or may not have a change, and whether the answer depends on it."""

    feature: str
    first: str
    end: str
    reason: str
    matters: Callable[[Scenario, Model, Gpu, Release], bool]


def _sharing(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> bool:  # noqa: ARG001 - one signature
    reader = PATTERN if PATTERN.applies(model.sharing) else FREQUENCY
    return any(reader.shares(model.sharing, layer) for layer in range(1, model.layers))


def _two_bytes(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> bool:
    return charged_layout(record_layout(scenario, model, gpu, release), release).value == "bf16"


WINDOWS = (
    Window(
        "index reuse",
        "1.3.0rc21",
        "1.3.0rc23",
        f"{PULL}/15574 was in review on 2026-07-01, after trunk became rc21, and {PULL}/16558 built on it on "
        "2026-07-17: first in rc21 or rc22; 1.3.0rc20 is surely before it, 1.3.0rc23 surely after",
        _sharing,
    ),
    Window(
        "index-K of shared layers",
        "1.3.0rc23",
        "1.3.0rc25",
        f"{PULL}/16558 was in review on 2026-07-22, when trunk became rc23: first in one of rc23 to rc25; "
        "1.3.0rc25 has it",
        _sharing,
    ),
    Window(
        "index-K in the size estimate",
        "1.3.0rc18",
        "1.3.0rc21",
        f"{PULL}/15088 was opened on 2026-06-08 and came first in one of rc18 to rc21; with fp8 KV it changes nothing",
        _two_bytes,
    ),
    Window(
        "MTP in the size estimate",
        "1.2.1",
        "1.3.0rc11",
        f"{PULL}/12571, merged on 2026-03-31, ended an estimate that charged the draft the whole model's layers; "
        "whether this version had a separate draft cache was not read",
        lambda scenario, *_: scenario.draft.steps > 0,
    ),
    Window(
        "several draft steps",
        "1.3.0rc11",
        "1.4.0rc0",
        f"{PULL}/12571 counted a KV layer per draft step, newer text of speculative/utils.py one in all; "
        "when that changed was not read",
        lambda scenario, *_: scenario.draft.steps > 1,
    ),
    Window(
        "fp4-index-k",
        "1.2.1",
        "1.3.0rc23",
        f"{PULL}/13340 was in review on 2026-04-28; known to be in 1.3.0rc23 on",
        lambda scenario, *_: scenario.has("fp4-index-k"),
    ),
    Window(
        "fp8_ds_mla",
        "1.3.0rc21",
        "1.4.0rc0",
        f"{PULL}/16224 is of 2026-07-10; known to be in 1.4.0rc0 on",
        lambda scenario, *_: scenario.kv_dtype.lower() == "fp8_ds_mla",
    ),
)


def check(scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    """Raise BadInput with all faults, or NotModelled where no rule is known."""
    faults = Faults()
    _check_dtype(faults, scenario, model, gpu, release)
    _check_layout(faults, scenario, model, release)
    _check_features(faults, scenario, model, gpu, release)
    faults.stop_if_any()
    _check_known(scenario, model, release)
    for window in WINDOWS:
        inside = since(release, window.first) and not since(release, window.end)
        if inside and window.matters(scenario, model, gpu, release):
            raise NotModelled(window.feature, release.label, window.reason)


def _check_known(scenario: Scenario, model: Model, release: Release) -> None:
    """Raise NotModelled for what the engine may do, by rules that were not read."""
    label, sharding = release.label, scenario.sharding
    if sharding.cp > 1 or sharding.dcp > 1:
        raise NotModelled("context parallelism", label, "what Helix keeps on a rank for DSA was not read")
    if scenario.draft.steps and scenario.draft.topk > 1:
        raise NotModelled("draft.topk", label, f"only chains were read, not a tree of {scenario.draft.topk}")
    for name, reason in UNREAD.items():
        if scenario.has(name):
            raise NotModelled(name, label, reason)
    if model.index_kpool > 1:
        raise NotModelled("index_kpool", model.name, "only the plain index-K of one key a token is worked out")
    if model.index_head_dim != 128:  # noqa: PLR2004 - the engine's quantisation block
        raise NotModelled("index_head_dim", model.name, f"one scale block of 128, the model has {model.index_head_dim}")


def _check_dtype(faults: Faults, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    asked, major, label = scenario.kv_dtype.lower(), gpu.compute_capability[0], release.label
    if asked not in KV_DTYPES:
        faults.add("kv_dtype", scenario.kv_dtype, f"a word of {label} ({LOADER}): {nearest(asked, KV_DTYPES)}")
        return
    dtype = KV_DTYPES[asked]
    faults.require(
        not (dtype == "bfloat16" and model.kv_quant),
        "kv_dtype",
        scenario.kv_dtype,
        f"auto, fp8 or nvfp4: {label} has no word that undoes the checkpoint's {model.kv_quant} KV ({LOADER})",
    )
    stored = kv_dtype(scenario, model, release).value
    advice = f"a checkpoint without {stored} KV" if model.kv_quant else "bf16 or auto"
    faults.require(
        major >= BLACKWELL or stored == "bfloat16",
        "kv_dtype",
        scenario.kv_dtype,
        f"{advice} on {gpu.name}: below SM100 {label} runs sparse MLA on a bf16 cache alone (sparse/dsa/flash_mla.py; "
        "github.com/NVIDIA/Model-Optimizer/issues/763)",
    )
    if dtype == "fp8_ds_mla":
        faults.require(
            major == CONSUMER, "kv_dtype", asked, f"fp8 or auto on {gpu.name}: {label} has fp8_ds_mla on SM120 only"
        )
        faults.require(since(release, "1.3.0rc21"), "kv_dtype", asked, f"fp8 or auto: {label} is before {PULL}/16224")


def _check_layout(faults: Faults, scenario: Scenario, model: Model, release: Release) -> None:
    sharding, label = scenario.sharding, release.label
    faults.require(
        sharding.dp_attention in (1, sharding.tp),
        "sharding.dp_attention",
        sharding.dp_attention,
        f"1 or tp = {sharding.tp}: enable_attention_dp is on or off ({label}, mapping.py)",
    )
    attention = sharding.tp if sharding.dp_attention == 1 else 1
    check_heads(faults, scenario, model, attention)
    faults.require(
        sharding.tp % sharding.ep == 0,
        "sharding.ep",
        sharding.ep,
        f"a divisor of tp = {sharding.tp}: moe_tp x moe_ep = tp ({label}, mapping.py)",
    )
    check_experts(faults, scenario, model, max(sharding.tp // sharding.ep, 1), " (tp / ep)")
    check_stages(faults, scenario, model)
    faults.require(not sharding.layer_split, "sharding.layer_split", True, f"false: {label} has none, SGLang has")


def _check_features(faults: Faults, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> None:
    label = release.label
    for name in ELSEWHERE:
        faults.require(not scenario.has(name), "features", name, f"off: SGLang's, {label} has none")
    check_roles(faults, scenario)
    faults.require(
        not scenario.has("fp4-index-k") or gpu.compute_capability[0] >= BLACKWELL,
        "features",
        "fp4-index-k",
        f"off on {gpu.name}: {label} has indexer_k_dtype fp4 from SM100 on ({PULL}/13340)",
    )
    check_draft(faults, scenario, model)
