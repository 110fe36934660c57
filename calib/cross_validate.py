"""Prints how far the table fits are off at what they have not seen: cells, batches, contexts, GPUs, 16 heads.

python -m calib.cross_validate CSV[.gz]...
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from calib import leave_out
from calib.decode_fit import DecodeFit, split
from calib.points import HOPPER, points_of
from calib.siblings import from_siblings, held
from calib.stored import decode_table, predicted_decode
from dsa_ledger.errors import BadInput
from dsa_ledger.timing import measured
from dsa_ledger.timing.tables import machine_of, versions, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calib.points import Points
    from calib.smooth import Array

THIN = 300
HEADS = 16
INCREMENT_US = 20.0
PERCENT = 100
WAYS = {"cells": leave_out.cells, "batches": leave_out.batches, "contexts": leave_out.contexts}


def heads(points: Points) -> Array:
    """Return the errors of series of 16 heads, predicted from those of 8, 64 and 128."""
    out = np.array([label.heads == HEADS for label in points.labels])[points.series]
    table = decode_table(DecodeFit(points.where(~out).renumbered()), points.group.engine)
    some = points.where(out)
    return np.asarray(predicted_decode(table, some) / some.us - 1)


def increments(full: Points, shared: Points) -> Array:
    """Return the errors of full minus shared layer above 20 us, both predicted at left-out cells."""
    sides = []
    for points in (full, shared):
        predicted = points.us * (1 + leave_out.cells(points))
        keys = zip(points.series.tolist(), points.batch.tolist(), points.prefix.tolist(), strict=True)
        values = zip(points.us.tolist(), predicted.tolist(), strict=True)
        sides.append({(points.labels[s], b, p): both for (s, b, p), both in zip(keys, values, strict=True)})
    off = []
    for key, (us, predicted) in sides[0].items():
        if key in sides[1] and us - sides[1][key][0] > INCREMENT_US:
            off.append((predicted - sides[1][key][1]) / (us - sides[1][key][0]) - 1)
    return np.array(off)


def line(name: str, off: Array) -> str:
    """Return one line: what was left out, number of points, median and 95th percentile of the error in percent."""
    share = np.abs(off[np.isfinite(off)]) * PERCENT
    return f"{name:<58} {len(share):>7,} {np.median(share):6.2f} {np.quantile(share, 0.95):6.1f}"


def report(groups: dict[measured.Group, list[measured.Row]]) -> list[str]:
    """Return the lines of all decode groups, pooled by engine and architecture."""
    found: dict[str, list[Array]] = {}
    layers: dict[tuple[str, str], dict[str, Points]] = {}
    for group, rows in groups.items():
        if group.phase == "decode" and group.module in measured.LAYERS:
            points = split(points_of(group, rows))[0]
            if len(points) >= THIN:
                layers.setdefault((group.gpu, group.engine), {})[group.module] = points
                for name, off in _errors(points):
                    found.setdefault(name, []).append(off)
    for (_, engine), modules in layers.items():
        if len(modules) == len(measured.LAYERS):
            both = increments(modules["full_layer"], modules["shared_layer"])
            found.setdefault(f"increments above 20 us: {engine}", []).append(both)
    for what in ("batches", "contexts"):
        for engine in ("sglang", "vllm", "tensorrt-llm"):
            pooled = [part for key, parts in found.items() if key.startswith(f"{what}: {engine}") for part in parts]
            if pooled:
                found[f"{what}: {engine}, all"] = pooled
    return [line(name, np.concatenate(parts)) for name, parts in sorted(found.items())]


def _errors(points: Points) -> Iterator[tuple[str, Array]]:
    """Yield a name and the errors for each way of leaving points of one group out."""
    group = points.group
    side = "Hopper" if machine_of(group.gpu).major == HOPPER else "Blackwell"
    for what, errors in WAYS.items():
        yield f"{what}: {group.engine} {group.version} {group.module} {side}", errors(points)
    yield f"16 heads: {group.engine}", heads(points)
    if group.version in versions(group.engine):
        file = whole_file(group.engine, group.version)
        near = held(file, points)
        off = from_siblings(file, near) if len(near) else None
        if off is not None:
            yield f"GPU: {group.module} {side}", off
            yield f"GPU: {group.engine}", off


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m calib.cross_validate", description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="+", help="CSV of measured layer times, gzipped or not")
    asked = parser.parse_args(arguments)
    groups: dict[measured.Group, list[measured.Row]] = {}
    try:
        for name in asked.csv:
            for group, rows in measured.by_group(measured.read(name).rows).items():
                groups.setdefault(group, []).extend(rows)
        lines = report(groups)
    except BadInput as bad:
        print("\n".join(f"bad input: {text}" for text in bad.lines()), file=sys.stderr)  # noqa: T201 - what went wrong
        return bad.exit_code
    print(f"{'left out':<58} {'n':>7} {'median':>6} {'p95 %':>6}")  # noqa: T201 - the answer
    print("\n".join(lines))  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
