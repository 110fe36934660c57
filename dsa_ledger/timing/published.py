"""Published speeds beside what the kernel tables give: IndexCache's table, and each whole step left out of the list."""

from __future__ import annotations

from typing import Any

from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES, Wanted
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.timing.steps import attention_s, largest_rest, steps
from dsa_ledger.timing.tables import machine_of

# arXiv:2603.12201v1, section 4: one request, 47 layers, 12 keep their indexer, one H100 node; tokens per second.
INDEXCACHE = ((10_000, 73.5, 91.0), (60_000, 67.0, 88.0), (120_000, 63.0, 88.0), (200_000, 58.0, 86.0))
REMOVED = 35  # of 47 indexers
FIT_US, FIT_NS = 75.0, 0.44
REASON = (
    "the paper's own removed layer takes 75 us + 0.44 ns a token (two numbers fitted to four points); the tables' "
    "slope is the same, their constant 35 us less: what that build's layers cost beside kernels is not in the tables"
)


def indexcache() -> list[dict[str, Any]]:
    """Return per context the paper's speed-up at a quarter of the indexers, the tables', and the two-number fit's."""
    machine = machine_of("H100")
    wanted = Wanted("glm-4.7-flash", "fp8", "bfloat16", 20, machine.peak)
    rows = []
    for context, before, after in INDEXCACHE:
        times = layer_times("sglang", "0.5.14", machine, wanted, Load(1, 1, context))
        if times is None:
            raise LookupError("H100")
        scan = SCORE_BYTES * context * times.bytes_seen_share / (PRIOR_ETA * machine.peak) / 1e6
        full = times.floor_s + times.gather_s + times.topk_s + scan
        saved = REMOVED * (full - times.shared_floor_s - times.shared_gather_s)
        fitted = REMOVED * (FIT_US * 1e-6 + FIT_NS * 1e-9 * context)
        rows.append(
            {
                "context": context,
                "published_speedup": after / before,
                "tables_speedup": 1 / (1 - saved * before),
                "fit_speedup": 1 / (1 - fitted * before),
                "published_us_per_layer": (1 / before - 1 / after) / REMOVED * 1e6,
                "tables_us_per_layer": saved / REMOVED * 1e6,
            }
        )
    return rows


def left_out_steps() -> list[dict[str, Any]]:
    """Return each public step beside the low and high that the others give."""
    rows = []
    for step in steps():
        low, high = attention_s(step)
        high += largest_rest(without=step.id).rest_s_per_layer * step.layers
        rows.append(
            {
                "id": step.id,
                "step_s": step.step_s,
                "low_s": low,
                "high_s": high,
                "inside": low <= step.step_s <= high,
                "source": f"{step.source}: {step.says}",
                "date": step.date,
            }
        )
    return rows
