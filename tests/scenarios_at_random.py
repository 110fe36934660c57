"""Random scenarios, many of them possible, some contradictory, for every engine that the account knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from dsa_ledger import BadInput, NotModelled, Scenario, estimate
from dsa_ledger.catalog import gpu_names, model_names
from dsa_ledger.engines.registry import ENGINES
from dsa_ledger.engines.releases import READ
from dsa_ledger.schema import FEATURES

if TYPE_CHECKING:
    from dsa_ledger import Ledger

SGLANG = tuple(READ["sglang"])
OVERRIDES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"index_topk_freq": 4},
    {"index_topk_freq": 3, "index_skip_topk_offset": 5},
    {"index_topk_pattern": "FSSF" * 20},
)


def mostly(usual: object, *others: object) -> st.SearchStrategy[Any]:
    """Return the usual value three times in four."""
    return st.sampled_from([usual, usual, usual] * len(others) + [*others])


@st.composite
def engines(draw: st.DrawFn) -> str:
    """Return an engine at a release that was read, at one between or outside, or without a version."""
    name = draw(st.sampled_from(sorted(ENGINES)))
    version = draw(st.sampled_from([*READ[name], *READ[name], "0.5.11", "0.5.10.post1", "0.4.0", "99.0", ""]))
    return f"{name}@{version}" if version else name


@st.composite
def loads(draw: st.DrawFn) -> dict[str, Any]:
    """Return a load: nothing, a decode step, or a prefill as well."""
    if draw(st.booleans()):
        return {}
    context = draw(st.integers(1, 200_000))
    load: dict[str, Any] = {"batch": draw(st.integers(1, 300)), "context": context}
    if draw(st.booleans()):
        load["new_tokens"] = draw(st.integers(1, context))
    return load


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 16, "ep": 16},
    {"dp_attention": 8, "ep": 8},
    {"pp": 2},
    {"tp": 16, "pp": 3},
    {"cp": 8},
    {"cp": 8, "layer_split": True},
    {"tp": 4, "cp": 4, "layer_split": True},
    {"dcp": 8},
    {"dcp": 2},
)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Return a layout that exists, or any mixture of fields."""
    if draw(mostly("known", "mixed")) == "known":
        return {"tp": 8} | draw(st.sampled_from(SHAPES))
    return {
        "tp": draw(st.sampled_from([8, 4, 32, 1, 6])),
        "pp": draw(mostly(1, 2, 4)),
        "ep": draw(mostly(1, 4, 8)),
        "cp": draw(mostly(1, 2, 8)),
        "dcp": draw(mostly(1, 2, 8)),
        "dp_attention": draw(mostly(1, 2, 8)),
        "layer_split": draw(st.sampled_from([False, False, False, True])),
    }


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Return a scenario as tables."""
    sharding = draw(shapes())
    features = draw(mostly([], *([name] for name in FEATURES)))
    if "cp" in sharding and draw(mostly("prefill", "as drawn")) == "prefill":
        features = draw(st.sampled_from([["pd-prefill"], ["pd-prefill", "kv-sharding"], ["pd-prefill", "hicache"]]))
    return {
        "model": draw(st.sampled_from(model_names())),
        "model_overrides": draw(st.sampled_from(OVERRIDES)),
        "gpu": draw(st.sampled_from(gpu_names())),
        "engine": draw(engines()),
        "kv_dtype": draw(mostly("auto", "bf16", "fp8_e4m3", "fp8")),
        "features": features,
        "sharding": sharding,
        "draft": {"steps": draw(st.sampled_from([0, 0, 1, 3, 5]))},
        "load": draw(loads()),
        "limits": draw(
            mostly(
                {},
                {"mem_fraction": 0.85},
                {"max_running_requests": 48},
                {"max_total_tokens": 100_000},
                {"context_length": 131_072, "chunked_prefill": 4096},
            )
        ),
    }


@st.composite
def plain_sglang(draw: st.DrawFn) -> dict[str, Any]:
    """Return an SGLang scenario that every release accepts: one stage, no feature."""
    return {
        "model": draw(st.sampled_from(model_names())),
        "gpu": draw(st.sampled_from(gpu_names())),
        "engine": f"sglang@{draw(st.sampled_from(SGLANG))}",
        "kv_dtype": draw(st.sampled_from(["auto", "bf16", "fp8_e4m3"])),
        "sharding": {"tp": draw(st.sampled_from([4, 8, 16]))},
        "draft": {"steps": draw(st.integers(0, 5))},
    }


def outcome(scenario: dict[str, Any]) -> Ledger | None:
    """Return the ledger, or None where the scenario is refused; any other error is a bug and goes through."""
    try:
        return estimate(Scenario.model_validate(scenario))
    except (BadInput, NotModelled):
        return None


def must(scenario: dict[str, Any]) -> Ledger:
    """Return the ledger of a scenario that has one."""
    return estimate(Scenario.model_validate(scenario))
