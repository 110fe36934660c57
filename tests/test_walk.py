"""Engine x version x GPU x dtype x layout x feature: each a ledger, a refusal with its reason, or "not modelled"."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from dsa_ledger import BadInput, NotModelled, Scenario, estimate
from dsa_ledger.engines.releases import READ
from dsa_ledger.units import IN_BYTES

GPUS = ("H100", "H200", "B200", "GB300")
DTYPES = {
    "sglang": ("auto", "bf16", "fp8_e4m3", "nvfp4"),
    "vllm": ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"),
    "tensorrt-llm": ("auto", "bf16", "fp8", "nvfp4"),
}
MODELS = ("zai-org/GLM-5.2-FP8", "nvidia/GLM-5.1-NVFP4", "deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
LAYOUTS = (
    *({"tp": 8},) * 4,
    {"tp": 16},
    {"tp": 8, "pp": 2},
    {"tp": 4, "pp": 4},
    {"tp": 8, "dp_attention": 8},
    {"tp": 8, "dp_attention": 2, "ep": 8},
    {"tp": 8, "dcp": 8},
    {"tp": 8, "dcp": 4},
    {"tp": 8, "cp": 8},
    {"tp": 8, "cp": 4, "layer_split": True},
    {"tp": 8, "cp": 8, "layer_split": True},
    {"tp": 7},
    {"tp": 8, "pp": 200},
)
FEATURES = (
    *((),) * 8,
    ("hicache",),
    ("hisparse",),
    ("pd-prefill",),
    ("pd-decode",),
    ("external-linker",),
    ("pd-prefill", "kv-sharding"),
    ("deepep",),
    ("two-batch-overlap",),
    ("fp4-index-k",),
    ("hicache", "pd-decode"),
)
LOADS = (
    {},
    {"context": 131072},
    {"context": 8192, "batch": 9},
    {"context": 30000, "new_tokens": 20000},
    {"context": 64},
)
STEPS = (0, 0, 3, 5, 1)


def combinations() -> list[tuple[str, str, str, str]]:
    """Return every engine, version, GPU and dtype."""
    return [
        (engine, version, gpu, dtype)
        for engine in READ
        for version, gpu, dtype in product(READ[engine], GPUS, DTYPES[engine])
    ]


def scenarios(engine: str) -> list[Scenario]:
    """Return each combination six times, with layout, feature, load, steps and model drawn anew; the seed is fixed."""
    draw = random.Random(20261129)  # noqa: S311 - a walk, no secret
    return [
        Scenario(
            model=draw.choice(MODELS),
            gpu=gpu,
            engine=f"{engine}@{version}",
            kv_dtype=dtype,
            sharding=draw.choice(LAYOUTS),
            features=draw.choice(FEATURES),
            load=draw.choice(LOADS),
            draft={"steps": draw.choice(STEPS)},
            observed=draw.choice(({}, {}, {"kv_bytes": 40 * 2**30})),
        )
        for named, version, gpu, dtype in combinations() * 6
        if named == engine
    ]


def check_identities(scenario: Scenario) -> None:
    """Assert what holds in every ledger, whatever the engine."""
    ledger = estimate(scenario)
    stages = [""] if scenario.sharding.pp == 1 else [f"stage[{index}]." for index in range(scenario.sharding.pp)]
    for prefix in stages:
        get = lambda key: ledger[prefix + key]  # noqa: B023, E731 - used within this turn alone
        if not ledger.entries[f"{prefix}cell.bytes"].note:
            assert get("cell.main_kv_bytes") + get("cell.index_k_bytes") == get("cell.target_bytes")
            assert get("cell.target_bytes") + get("cell.draft_bytes") == get("cell.bytes")
        assert get("pool.tokens") >= 0
        assert get("pool.tokens") % 64 == 0
    for entry in ledger:
        if entry.unit in IN_BYTES:
            assert isinstance(entry.value, int), entry.key
            signed = ("pool.budget_bytes", "memory.free_after_bytes", "headroom_bytes")
            assert entry.value >= 0 or entry.key.endswith(signed), entry.key
    if len(stages) > 1:
        sums = sum(ledger[f"{prefix}model.full_layers"] for prefix in stages)
        assert sums == ledger["model.full_layers"]
        assert ledger["pool.tokens"] == min(ledger[f"{prefix}pool.tokens"] for prefix in stages)
        assert ledger["cell.bytes"] == max(ledger[f"{prefix}cell.bytes"] for prefix in stages)
    if "step.index_k_read_bytes" in ledger:
        assert ledger["step.index_k_read_bytes"] <= ledger["step.index_k_read_bytes_high"]


def outcome(scenario: Scenario) -> str:
    """Return what came of a scenario: a ledger that holds together, a refusal or a gap, both with a reason."""
    reasons: tuple[str, ...] = ()
    try:
        check_identities(scenario)
        kind = "ledger"
    except BadInput as refused:
        kind = "refused"
        reasons = tuple(word for fault in refused.faults for word in (fault.path, fault.expected))
    except NotModelled as unknown:
        kind, reasons = "not modelled", (unknown.feature, unknown.reason)
    assert all(reasons), scenario
    return kind


@pytest.mark.parametrize("engine", list(READ))
def test_every_combination_is_a_ledger_or_a_reason(engine: str) -> None:
    seen = Counter(outcome(scenario) for scenario in scenarios(engine))
    # Each outcome occurs: a walk in which everything is refused would prove nothing.
    assert seen["ledger"] > 100, seen
    assert seen["refused"] > 100, seen
