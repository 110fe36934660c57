"""A start that ended for want of memory: how much was short, and the engine's own flag that would have let it go on.

Texts: sglang srt/model_executor/model_runner.py, kv_cache_configurator.py and pool_configurator.py; vllm
v1/core/kv_cache_utils.py, v1/worker/utils.py; tensorrt_llm _torch/pyexecutor/resource_manager.py and
py_executor_creator.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.audit.oom import FRACTION_FLAGS
from dsa_ledger.formulas.pool import static_budget_bytes
from dsa_ledger.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.audit.figures import Figure
    from dsa_ledger.audit.predict import Prediction
    from dsa_ledger.audit.seen import Seen
    from dsa_ledger.audit.startup import Start

_ELSE = "more GPUs or a smaller checkpoint format would leave more too"
_MOST = 4


class Stop(NamedTuple):
    """Why a start ended: the line that says so, what was short, what to change."""

    line: int
    says: str
    change: str


def stops_of(start: Start, seen: Seen, prediction: Prediction | None) -> list[Stop]:
    """Return why a start ended for want of memory, each reason once; none where it did not."""
    found = {(stop.says, stop.change): stop for stop in reversed(list(_FIND[start.engine](start, seen, prediction)))}
    return list(reversed(found.values()))[:_MOST]


def _fraction(start: Start, prediction: Prediction | None) -> float | None:
    """Return the share of memory that the server ran with [share]: as the log prints it, else as the ledger has it."""
    printed = (start.first(f"{name}.fraction") for name in ("no_room", "no_memory", "no_free", "summary", "peak"))
    told = next((value for value in printed if value is not None), None)
    if told is None and start.arguments.get(FRACTION_FLAGS[start.engine]):
        try:
            told = float(start.arguments[FRACTION_FLAGS[start.engine]])
        except ValueError:
            told = None
    if told is None and prediction is not None:
        told = prediction.ledger["engine.mem_fraction"]
    return float(told) if told is not None else None


def _sglang(start: Start, seen: Seen, prediction: Prediction | None) -> Iterator[Stop]:
    for figures in (*start.each("no_room"), *start.each("no_memory")):
        yield Stop(_line(figures), *_no_pool(seen, prediction, _fraction(start, prediction)))


def _no_pool(seen: Seen, prediction: Prediction | None, fraction: float | None) -> tuple[str, str]:
    """Return what SGLang's pool lacks by the ledger's own rule, and the least fraction that leaves one."""
    flag, told = FRACTION_FLAGS["sglang"], ""
    before, after = seen.free_before, seen.free_after
    ledger, key = (prediction.ledger if prediction is not None else None), "memory.free_after_bytes"
    if (not before or after is None) and ledger is not None and key in ledger and ledger[key] > 0:
        told = " by the ledger, as the log does not print it"
        before, after = ledger["memory.free_before_bytes"], ledger["memory.free_after_bytes"]
    if not before or after is None or fraction is None:
        return "weights leave no pool", f"{flag} higher; {_ELSE}"
    budget = static_budget_bytes(free_after_bytes=after, free_before_bytes=before, mem_fraction=fraction)
    if budget > 0:
        left = f"{budget / GIB:.2f} GiB{told}"
        return f"{flag} {fraction:g} leaves {left} for the pool, and no token fits in it", f"{flag} higher; {_ELSE}"
    says = (
        f"weights leave no pool: {after / GIB:.2f} GiB are free after them{told}, and {flag} {fraction:g} keeps "
        f"{(after - budget) / GIB:.2f} GiB of the {before / GIB:.2f} GiB before them out of it: "
        f"{-budget / GIB:.2f} GiB short"
    )
    least = math.ceil(1000 * (1 - after / before)) / 1000
    if least >= 1:
        return says, f"no {flag} leaves a pool: more GPUs, or a smaller checkpoint format"
    more = f"each 0.01 more is {0.01 * before / GIB:.2f} GiB of pool"
    return says, f"{flag} above {least:.3f} ({more}); {_ELSE}"


def _vllm(start: Start, seen: Seen, prediction: Prediction | None) -> Iterator[Stop]:
    flag, fraction = FRACTION_FLAGS["vllm"], _fraction(start, prediction)
    total = start.first("no_free.total_bytes") or seen.total_bytes
    if not total and prediction is not None:
        total = prediction.ledger["gpu.capacity_bytes"]
    for figures in start.each("no_free"):
        free, all_of_it, wanted = (_value(figures, f"no_free.{key}_bytes") for key in ("free", "total", "wanted"))
        most = math.floor(1000 * free / all_of_it) / 1000 if all_of_it else 0
        says = (
            f"{free / GIB:.2f} of {all_of_it / GIB:.2f} GiB are free at the start, {flag} asks for {wanted / GIB:.2f}"
        )
        yield Stop(_line(figures), says, f"end what else holds the GPU's memory, or {flag} at most {most:.3f}")
    for figures in start.each("no_blocks"):
        short = -seen.kv_bytes if seen.kv_bytes is not None and seen.kv_bytes <= 0 else None
        lacks = f": {short / GIB:.2f} GiB short" if short is not None else ""
        says = f"weights, activations and graphs leave no pool{lacks}"
        yield Stop(_line(figures), says, f"{_raised(flag, fraction, short, total)}; {_ELSE}")
    for figures in start.each("refused"):
        context, needed, has = (_value(figures, f"refused.{key}") for key in ("context", "needed_bytes", "bytes"))
        says = (
            f"one request of {context:,} tokens needs {needed / GIB:.2f} GiB of pool, it has {has / GIB:.2f} GiB: "
            f"{(needed - has) / GIB:.2f} GiB short"
        )
        longest = _value(figures, "refused.longest")
        shorter = f"--max-model-len at most {longest:,}" if longest else "--max-model-len lower"
        yield Stop(_line(figures), says, f"{shorter}, or {_raised(flag, fraction, needed - has, total)}")
    for figures in start.each("v0_refused"):
        context, tokens = _value(figures, "v0_refused.context"), _value(figures, "v0_refused.tokens")
        says = f"one request of {context:,} tokens does not fit: the pool holds {tokens:,}"
        yield Stop(_line(figures), says, f"--max-model-len at most {tokens:,}, or {flag} higher")


def _raised(flag: str, fraction: float | None, short: int | None, total: int | None) -> str:
    """Return the least fraction of the whole GPU that closes a gap, or that none does."""
    if fraction is None or short is None or not total:
        return f"{flag} higher"
    least = math.ceil(1000 * (fraction + short / total)) / 1000
    return f"{flag} above {least:.3f}" if least < 1 else f"more GPUs, as {flag} {fraction:g} cannot rise so far"


def _tensorrt(start: Start, seen: Seen, prediction: Prediction | None) -> Iterator[Stop]:
    flag = FRACTION_FLAGS["tensorrt-llm"]
    for figures in start.each("no_sequence"):
        left = f" of {seen.kv_bytes / GIB:.2f} GiB" if seen.kv_bytes is not None else ""
        fraction = _fraction(start, prediction)
        at = f", a share of {fraction:g} of what weights and activations leave," if fraction is not None else ""
        change = f"{flag} higher, a smaller max_num_tokens, or more GPUs"
        yield Stop(_line(figures), f"the pool{left}{at} holds not one block", change)
    for figures in start.each("not_created"):
        name, free = str(start.first("component.name") or "a component").strip(), start.first("component_free.bytes")
        had = f", with {free / GIB:.2f} GiB free before it" if free is not None else ""
        pool = name.lower() == "kv cache"
        change = f"{flag} lower" if pool else "a smaller max_num_tokens, or more GPUs"
        yield Stop(_line(figures), f"out of memory while making: {name}{had}", change)


_FIND = {"sglang": _sglang, "vllm": _vllm, "tensorrt-llm": _tensorrt}


def _line(figures: dict[str, Figure]) -> int:
    return min(figure.line for figure in figures.values())


def _value(figures: dict[str, Figure], key: str) -> int:
    return int(figures[key].value) if key in figures else 0
