"""Fits as they are stored, and predictions from what is stored, by the code that an estimate uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsa_ledger.timing import evaluate, measured
from dsa_ledger.timing.evaluate import STEP
from dsa_ledger.timing.tables import STEPS_PER_FOLD, TENTHS, expanded_table, machine_of

if TYPE_CHECKING:
    from calib.decode_fit import DecodeFit
    from calib.points import Points
    from calib.prefill_fit import PrefillFit
    from calib.smooth import Array

NODES = {
    "sglang": (
        1,
        64,
        256,
        512,
        1024,
        2047,
        2048,
        2049,
        3072,
        4096,
        8192,
        16384,
        32768,
        65536,
        131072,
        202752,
        262144,
        524288,
        1048576,
    ),
    "vllm": (2, 256, 512, 1024, 2048, 2049, 4096, 8192, 16384, 32768, 65536, 131072),
    "tensorrt-llm": (2, 256, 512, 1024, 2048, 2049, 4096, 8192, 16384, 32768, 65536, 131072),
}
PREFILL_TOKENS = tuple(512 << octave for octave in range(9))
PREFILL_NEW = {"sglang": (512, 2048, 16384), "vllm": (512, 1024, 2048, 4096, 8192, 16384)}
KERNEL_NEW = (512, 2048, 16384)
PREFILL_PREFIX = (0, 1024, 4096, 16384, 65536, 131072, 204800, 1048576)


def whole(values: Array, factor: int = 1) -> Any:
    """Return values times a factor as whole numbers."""
    return np.rint(np.asarray(values) * factor).astype(int).tolist()


def steps(rows: Array) -> Any:
    """Return each row of microseconds as its differences in tenths, which `dsa_ledger.timing.tables` sums up again."""
    return np.diff(np.rint(rows * TENTHS), axis=1, prepend=0).astype(int).tolist()


def folds(rows: Array) -> Any:
    """Return each row of microseconds as differences of its logarithm, in steps of 0.5%."""
    return np.diff(np.rint(STEPS_PER_FOLD * np.log(rows)), axis=1, prepend=0).astype(int).tolist()


def decode_table(fit: DecodeFit, engine: str) -> dict[str, Any]:
    """Return the coefficients of a decode fit, expanded."""
    nodes = NODES[engine]
    growth = fit.growth_table(np.array(nodes, dtype=np.float64))
    floor = fit.floor
    falls = {kind: table.min(axis=1, keepdims=True).clip(max=0.0) for kind, table in growth.items()}
    if any(fall.any() for fall in falls.values()):  # a kernel that gets faster with length: its least is its floor
        floor = np.maximum(floor + np.array([falls[label.kind][:, 0] for label in fit.labels]), 0.1)
        growth = {kind: table - falls[kind] for kind, table in growth.items()}
    return expanded_table(
        {
            "batches": fit.batches.astype(int).tolist(),
            "tokens": list(nodes),
            "falls": fit.module == "sparse_mla_kernel",
            "labels": list(map(str, fit.labels)),
            "floor_folds": folds(floor),
            "gather_tenths": {
                f"{kind} {heads}": whole(fit.gather[index], TENTHS) for index, (kind, heads) in enumerate(fit.heads)
            },
            "growth_steps": {kind: steps(table) for kind, table in growth.items()},
        }
    )


def prefill_path(fit: PrefillFit, points: Points) -> dict[str, Any]:
    """Return host constants, law and corrections (on a grid of new tokens, tokens and prefix)."""
    used = sorted({int(index) for index in points.series})
    count = len(fit.labels)
    prefixes = [prefix for prefix in PREFILL_PREFIX if prefix <= 2 * points.prefix.max()] or [0]
    tokens = [number for number in PREFILL_TOKENS if number <= (points.batch * points.new).max()]
    nodes = PREFILL_NEW[points.group.engine] if points.group.module in measured.LAYERS else KERNEL_NEW
    new = [number for number in nodes if number <= min(2 * points.new.max(), tokens[-1])]
    # A request has at least its new tokens: the grid holds no fewer.
    grid = np.array([(t, n, p) for n in new for t in tokens if t >= n for p in prefixes], dtype=np.float64)
    place = (grid[:, 0] / grid[:, 1], grid[:, 1], grid[:, 2])
    stored = {
        "labels": [str(fit.labels[index]) for index in used],
        "host_of": whole(fit.host[used]),
        "far": round(fit.far),
        "fresh": round(fit.fresh),
        "own_of": [[round(float(fit.law[k]), 3) for k in (index, count + index)] for index in used],
        "law": [round(float(value), 4) for value in fit.law[2 * count :]],
        "tokens": tokens,
        "new": new,
        "prefix": prefixes,
        "correction_of": [whole(fit.correction(index, *place), STEP) for index in used],
    }
    return expanded_table(stored)


def predicted_decode(table: dict[str, Any], points: Points) -> Array:
    """Return microseconds of a decode table at points."""
    peak = machine_of(points.group.gpu).peak
    indexer = points.group.module == "full_layer"
    wanted = [evaluate.Wanted(*label, peak) for label in points.labels]
    rows = zip(points.series.tolist(), points.batch.tolist(), points.prefix.tolist(), strict=True)
    return np.array(
        [evaluate.decode(table, wanted[series], batch, tokens, indexer=indexer).total for series, batch, tokens in rows]
    )


def predicted_prefill(table: dict[str, Any], points: Points) -> Array:
    """Return microseconds of a prefill table at points."""
    scores = points.group.module in ("full_layer", "topk_kernel")
    peak = machine_of(points.group.gpu).peak
    wanted = [evaluate.Wanted(*label, peak) for label in points.labels]
    rows = zip(*(part.tolist() for part in (points.series, points.batch, points.new, points.prefix)), strict=True)
    return np.array([evaluate.prefill(table, wanted[series], *cell, scores=scores).total for series, *cell in rows])
