"""Public whole-step times, and what of a step is no attention, as they show it.

The rest of a step (experts, collectives, launches, sampling) has no public per-layer data: only these bound it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES, Wanted
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.timing.tables import machine_of, versions

MICROSECONDS = 1e6


class Step(NamedTuple):
    """One published step: one request, no speculation."""

    id: str
    family: str
    model: str
    engine: str
    version: str | None
    gpu: str
    tp: int
    heads: int
    weight_dtype: str
    kv_dtype: str
    layers: int
    full_layers: int
    batch: int
    context: int
    step_s: float
    rest_s_per_layer: float
    source: str
    date: str
    says: str


@cache
def steps() -> tuple[Step, ...]:
    """Return the list."""
    text = resources.files(__package__).joinpath("steps.json").read_text(encoding="utf-8")
    return tuple(Step(**entry) for entry in json.loads(text)["steps"])


def largest_rest(without: str = "") -> Step:
    """Return the step with the largest rest per layer, one left out by id."""
    return max((step for step in steps() if step.id != without), key=lambda step: step.rest_s_per_layer)


def anchor(family: str, engine: str, gpu: str, *, tp: int, layers: tuple[int, int], kv_dtype: str) -> Step | None:
    """Return the published step of this model family, engine, GPU and layout at batch 1, if there is one.

    `layers` are all and full layers: another sharing of the indexers is another model here.
    """
    wanted = (family, engine, gpu, tp, layers, kv_dtype)
    for step in steps():
        if (step.family, step.engine, step.gpu, step.tp, (step.layers, step.full_layers), step.kv_dtype) == wanted:
            return step
    return None


def attention_s(step: Step) -> tuple[float, float]:
    """Return the attention layers' time of a published step by the kernel tables, and its high end [s]."""
    machine = machine_of(step.gpu)
    wanted = Wanted(step.family, step.kv_dtype, step.weight_dtype, step.heads, machine.peak)
    version = step.version or versions(step.engine)[-1]
    times = layer_times(step.engine, version, machine, wanted, Load(step.batch, step.batch, step.context))
    if times is None:
        raise LookupError(step.id)
    scan = SCORE_BYTES * step.batch * step.context / (PRIOR_ETA * machine.peak) / MICROSECONDS
    full = times.floor_s + times.gather_s + times.topk_s + scan * times.bytes_seen_share
    full_high = (full + times.topk_high_s - times.topk_s + scan * (1 - times.bytes_seen_share)) * times.full_ends[1]
    shared = times.shared_floor_s + times.shared_gather_s
    rest = step.layers - step.full_layers
    return step.full_layers * full + rest * shared, step.full_layers * full_high + rest * shared * times.shared_ends[1]
