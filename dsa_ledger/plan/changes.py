"""Single changes of a deployment, nearest first, each with its price in quality, speed or compatibility."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.releases import READ, key_of, resolve
from dsa_ledger.formulas.helpers import quotient
from dsa_ledger.plan.growth import running_cap
from dsa_ledger.plan.outcome import HEADROOM, PREFILL, Outcome, attempt, changed
from dsa_ledger.schema import Engine, Observed
from dsa_ledger.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

FORMATS = {
    "sglang": ("fp8_e4m3",),
    "vllm": ("fp8", "fp8_e4m3", "nvfp4_ds_mla"),
    "tensorrt-llm": ("fp8", "nvfp4"),
}
DCP = (2, 4, 8)
MOST_FRACTION = 0.97
LEAST_CHUNK = 512  # tokens; below it a forward's weights are read for too few rows
# What an engine's fraction is a share of: SGLang free memory before the weights, TensorRT-LLM after them.
SHARE_OF = {
    "sglang": "memory.free_before_bytes",
    "vllm": "gpu.capacity_bytes",
    "tensorrt-llm": "memory.free_after_bytes",
}
SPARE_BYTES = 3 * GIB  # kept for CUDA graphs: 1.2 to 2.4 GiB in public logs of 8 x RTX PRO 6000 (rtx6kpro)


class Near(IntEnum):
    """How far a change is from what runs: a flag, the bytes of the cache, a feature, a release, a layout, a machine."""

    FLAG = 0
    FORMAT = 1
    FEATURE = 2
    RELEASE = 3
    LAYOUT = 4
    RELEASE_AND_LAYOUT = 5
    MORE_GPUS = 6
    OTHER_GPU = 7


class Change(NamedTuple):
    """One change: what to do, what it costs, and the scenario after it."""

    name: str
    price: str
    near: Near
    scenario: Scenario


class Tried(NamedTuple):
    """A change and what came of it."""

    change: Change
    outcome: Outcome


def changes(scenario: Scenario) -> Iterator[Change]:
    """Yield each single change that alters something, whether or not the engine takes it."""
    yield from _flags(scenario)
    yield from _formats(scenario)
    yield from _features(scenario)
    yield from _releases(scenario)
    yield from _layouts(scenario)
    yield from _machines(scenario)


def _flags(scenario: Scenario) -> Iterator[Change]:
    ledger = attempt(scenario).ledger
    if ledger is None:
        return
    context = scenario.load.context
    if context is not None and ledger["limits.context_length"] > context:
        after = changed(scenario, limits={"context_length": context})
        yield Change(f"--context-length {context}", "longer requests are refused", Near.FLAG, after)
    cap, held = running_cap(ledger), int(ledger["pool.requests_at_context"]) if context is not None else 0
    if cap is not None and cap < held:
        asked = held * (int(ledger["sharding.replicas"]) if scenario.engine.name == "sglang" else 1)
        after = changed(scenario, limits={"max_running_requests": asked})
        price = "larger graphs and tables outside the pool; slower steps"
        yield Change(f"--max-running-requests {asked}", price, Near.FLAG, after)
    left = [int(ledger[key]) for key in (HEADROOM, PREFILL) if key in ledger]
    if left and min(left) < 0:
        yield from _room(scenario, ledger, -min(left))
    fraction = float(ledger["engine.mem_fraction"])
    if not left or scenario.observed.kv_bytes is not None or scenario.engine.name == "tensorrt-llm":
        return
    spare = quotient(min(left) - SPARE_BYTES, int(ledger["gpu.capacity_bytes"]))
    more = int(1000 * min(fraction + spare, MOST_FRACTION)) / 1000
    if more > fraction:
        after = changed(scenario, limits={"mem_fraction": more})
        price = "less is left outside the pool; graphs and activations are priors"
        yield Change(f"--mem-fraction {more}", price, Near.FLAG, after)


def _room(scenario: Scenario, ledger: Ledger, short_bytes: int) -> Iterator[Change]:
    """Yield what leaves more memory outside the pool: a smaller prefill chunk, a smaller share for the pool."""
    chunk = int(ledger["limits.chunk_tokens"]) if "limits.chunk_tokens" in ledger else 0
    for part in (2, 4, 8):
        if chunk // part >= LEAST_CHUNK:
            after = changed(scenario, limits={"chunked_prefill": chunk // part})
            price = f"a prompt takes {part} x the forwards"
            yield Change(f"--set limits.chunked_prefill={chunk // part}", price, Near.FLAG, after)
    whole = int(ledger[SHARE_OF[scenario.engine.name]])
    less = math.floor(1000 * (float(ledger["engine.mem_fraction"]) - quotient(short_bytes, whole))) / 1000
    # A share of what weights leave, where they leave nothing, would have to grow: no smaller one helps.
    if 0 < less < float(ledger["engine.mem_fraction"]) and scenario.observed.kv_bytes is None:
        after = changed(scenario, limits={"mem_fraction": less})
        yield Change(f"--mem-fraction {less}", "a smaller pool: more is left outside it", Near.FLAG, after)


def _formats(scenario: Scenario) -> Iterator[Change]:
    for word in FORMATS[scenario.engine.name]:
        if word != scenario.kv_dtype.lower():
            price = "fewer bits a value: check quality on your own prompts"
            yield Change(f"--kv-dtype {word}", price, Near.FORMAT, changed(scenario, kv_dtype=word))
    if not scenario.has("fp4-index-k"):
        price = "4-bit index keys: check top-k recall on long prompts"
        after = changed(scenario, features=(*scenario.features, "fp4-index-k"))
        yield Change("--feature fp4-index-k", price, Near.FORMAT, after)


def _features(scenario: Scenario) -> Iterator[Change]:
    if scenario.draft.steps:
        after = _unobserved(changed(scenario, draft={"steps": 0, "accepted": None}), "free_after")
        yield Change("--draft-steps 0", "no speculative decoding: fewer tokens a step", Near.FEATURE, after)
    for name in scenario.features:
        if name == "hisparse":
            after = changed(scenario, features=tuple(other for other in scenario.features if other != name))
            yield Change(f"without {name}", f"what {name} was there for", Near.FEATURE, after)


def _releases(scenario: Scenario) -> Iterator[Change]:
    for version in later(scenario):
        after = changed(scenario, engine=Engine(name=scenario.engine.name, version=version))
        yield Change(f"--engine {scenario.engine.name}@{version}", "an upgrade", Near.RELEASE, after)


def later(scenario: Scenario) -> list[str]:
    """Return the releases read after the scenario's own, oldest first."""
    release, _ = resolve(scenario.engine)
    return [version for version in READ[release.engine] if key_of(version) > release.key]


def _layouts(scenario: Scenario) -> Iterator[Change]:
    cut = scenario.sharding
    width = cut.tp if scenario.engine.name == "vllm" else cut.tp // cut.dp_attention  # ranks that share a request
    for dcp in DCP:
        if dcp > cut.dcp and width % dcp == 0:
            price = f"decode exchanges partial attention over {dcp} ranks in every layer"
            yield Change(f"--dcp {dcp}", price, Near.LAYOUT, changed(scenario, sharding={"dcp": dcp}))
    if scenario.engine.name != "vllm" and cut.dp_attention < cut.tp and cut.dcp == 1:
        price = "attention weights whole on each rank; each request on one rank's pool"
        after = changed(_unobserved(scenario, "kv_bytes", "free_after"), sharding={"dp_attention": cut.tp})
        yield Change(f"--dp-attention {cut.tp}", price, Near.LAYOUT, after)


def _machines(scenario: Scenario) -> Iterator[Change]:
    cut, bare = scenario.sharding, _unobserved(scenario, "kv_bytes", "free_after")
    bare = changed(bare, gpus=None)
    whole = cut.ep > 1
    for factor in (2, 4):
        tp, pp = cut.tp * factor, cut.pp * factor
        wide = {"tp": tp, "ep": cut.ep * factor if whole else 1}
        price = f"{factor} x the GPUs; tensor parallelism over {tp} of them"
        yield Change(f"--tp {tp}", price, Near.MORE_GPUS, changed(bare, sharding=wide))
        price = f"{factor} x the GPUs; {pp} pipeline stages, each request passes all"
        yield Change(f"--pp {pp}", price, Near.MORE_GPUS, changed(bare, sharding={"pp": pp, "pp_partition": None}))
    yield from _gpus(changed(bare, observed=Observed()))


def _gpus(scenario: Scenario) -> Iterator[Change]:
    from dsa_ledger.catalog import gpu_names, load_gpu

    gpu = load_gpu(scenario.gpu) if isinstance(scenario.gpu, str) else scenario.gpu
    larger = [load_gpu(name) for name in gpu_names()]
    larger = [other for other in larger if other.hbm.capacity_bytes > gpu.hbm.capacity_bytes]
    for other in sorted(larger, key=lambda one: one.hbm.capacity_bytes):
        yield Change(f"--gpu {other.name}", "another machine", Near.OTHER_GPU, changed(scenario, gpu=other.name))


def _unobserved(scenario: Scenario, *fields: str) -> Scenario:
    """Return the scenario without figures that were seen on the machine as it is and would not hold after a change."""
    return changed(scenario, observed=dict.fromkeys(fields))


def nearest(scenario: Scenario, suits: Callable[[Outcome], bool]) -> list[Tried]:
    """Return the single changes after which the scenario suits, nearest first; one of each kind that does.

    A layout or format that this release refuses is tried in later ones: the first that takes it is told.
    """
    found: list[Tried] = []
    done: set[tuple[Near, str]] = set()
    for change in changes(scenario):
        kind = (change.near, change.name.split()[0])
        if kind in done and change.near is not Near.FORMAT:
            continue
        outcome = attempt(change.scenario)
        if suits(outcome):
            found.append(Tried(change, outcome))
            done.add(kind)
        elif outcome.ledger is None and change.near in (Near.FORMAT, Near.LAYOUT):
            found += _in_a_later_release(change, suits)
            done |= {kind} if found and found[-1].change.near is Near.RELEASE_AND_LAYOUT else set()
    return sorted(found, key=lambda tried: tried.change.near)


def _in_a_later_release(change: Change, suits: Callable[[Outcome], bool]) -> list[Tried]:
    for version in later(change.scenario):
        engine = Engine(name=change.scenario.engine.name, version=version)
        outcome = attempt(changed(change.scenario, engine=engine))
        if outcome.ledger is None:
            continue
        if not suits(outcome):
            return []
        name = f"{change.name} --engine {engine.name}@{version}"
        price = f"an upgrade; {change.price}"
        return [Tried(Change(name, price, Near.RELEASE_AND_LAYOUT, outcome.scenario), outcome)]
    return []
