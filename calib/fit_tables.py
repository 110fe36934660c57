"""Fits every kernel table from CSV files of measured layer times and writes the coefficient files.

    python -m calib.fit_tables CSV[.gz]... [--out DIR]

One file per engine and version; the same files in give the same files out. Columns: dsa_ledger.timing.measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calib import leave_out
from calib.decode_fit import DecodeFit, eager_constants, split
from calib.points import first_eager_batch, points_of
from calib.prefill_fit import PrefillFit, is_dense
from calib.siblings import sibling_errors, thin_entry
from calib.stored import decode_table, prefill_path, whole
from dsa_ledger.errors import BadInput
from dsa_ledger.timing import measured
from dsa_ledger.timing.tables import EXPANDED, expanded_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calib.points import Points
    from calib.smooth import Array
    from dsa_ledger.timing.measured import Group, Row

THIN = 300  # rows of a layer below which a sibling is scaled instead
TAILS = (0.045, 0.955)
SOURCE = {
    "ref": "github.com/ai-dynamo/aiconfigurator@095f58a5 aic-core/src/aiconfigurator_core/systems/data/GPU/"
    "sparse_attention/ENGINE/VERSION",
    "date": "2026-08-21",
    "license": "Apache-2.0",
}
LIMITS = (
    "contiguous pages; graph replays over one layer with a warm L2; constant keys, so all scores tie in the layer "
    "rows; means without spread"
)


def tails(off: Array) -> list[float]:
    """Return the ends of the central 90% (and a little) of measured over predicted."""
    return [round(float(end), 3) for end in np.quantile(1 / (1 + off), TAILS)]


def quality(off: Array, points: Points) -> dict[str, Any]:
    """Return errors of left-out points, the interval they give, and the measured range."""
    share = np.abs(off)
    return {
        "rows": len(points),
        "median_error": round(float(np.median(share)), 4),
        "p95_error": round(float(np.quantile(share, 0.95)), 4),
        "interval": tails(off),
        "longest": int((points.prefix + (points.new if points.group.phase == "prefill" else 0)).max()),
        "batch_range": [int(points.batch.min()), int(points.batch.max())],
        "rows_times_tokens": int((points.batch * points.prefix).max()),
    }


def decode_entry(points: Points) -> dict[str, Any]:
    """Return the coefficients of one decode group."""
    kept, eager, _ = split(points)
    entry = decode_table(DecodeFit(kept), points.group.engine) | quality(leave_out.cells(kept), kept)
    if len(eager):
        constants = eager_constants(eager)
        off = constants[eager.series] / eager.us - 1
        entry["eager_from"] = int(first_eager_batch(points.group))
        entry["eager_us"] = whole(constants)
        entry["eager_interval"] = tails(off)
    return entry


def prefill_entry(points: Points) -> dict[str, Any]:
    """Return the coefficients of one prefill group: the sparse path, and the dense one where it was measured."""
    dense = is_dense(points)
    off = np.zeros(len(points))
    entry: dict[str, Any] = {}
    for name, chosen in (("sparse", ~dense), ("dense", dense)):
        if chosen.any():
            part = points.where(chosen)
            off[chosen] = leave_out.cells(part)
            entry[name] = prefill_path(PrefillFit(part, dense=name == "dense"), part) | quality(off[chosen], part)
    return entry | quality(off, points)


def tables(groups: dict[Group, list[Row]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the coefficient file of each engine and version."""
    files: dict[tuple[str, str], dict[str, Any]] = {}
    points: dict[tuple[str, str], dict[Group, Points]] = {}
    for group, rows in groups.items():
        key = group.engine, group.version
        files.setdefault(key, _empty(group))[group.phase].setdefault(group.gpu, {})
        points.setdefault(key, {})[group] = points_of(group, rows)
    for key, file in files.items():
        thin = []
        for group, some in points[key].items():
            if group.phase == "decode" and group.module in measured.LAYERS and len(some) < THIN:
                thin.append(group)
            else:
                entry = expanded_table(ENTRY[group.phase](some)) | {"is_ready": True}
                file[group.phase][group.gpu][group.module] = entry
        for group in thin:
            file[group.phase][group.gpu][group.module] = thin_entry(file, points[key][group], THIN)
        file["siblings"] = sibling_errors(file, points[key])
    return files


ENTRY = {"decode": decode_entry, "prefill": prefill_entry}


def _empty(group: Group) -> dict[str, Any]:
    ref = (
        SOURCE["ref"]
        .replace("ENGINE", group.engine.replace("tensorrt-llm", "trtllm"))
        .replace("VERSION", group.version)
    )
    return {
        "engine": group.engine,
        "version": group.version,
        "unit": "see dsa_ledger/timing/tables.py",
        "source": SOURCE | {"ref": ref},
        "limits": LIMITS,
        "decode": {},
        "prefill": {},
    }


def dumped(file: dict[str, Any]) -> str:
    """Return compact JSON: series named once a file, and no part that loading makes anew."""
    names: list[str] = []
    stored = {
        phase: {
            gpu: {module: _stored(table, names) for module, table in some.items()} for gpu, some in file[phase].items()
        }
        for phase in ("decode", "prefill")
    }
    return json.dumps(file | stored | {"labels": names}, separators=(",", ":"), ensure_ascii=True) + "\n"


def _stored(table: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a table with its series as places in `names`, which grows."""
    kept = {part: value for part, value in table.items() if part not in EXPANDED}
    for path in ("sparse", "dense"):
        if path in kept:
            kept[path] = _stored(kept[path], names)
    if "labels" in kept:
        names += [label for label in kept["labels"] if label not in names]
        kept["labels"] = [names.index(label) for label in kept["labels"]]
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m calib.fit_tables", description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="+", help="CSV of measured layer times, gzipped or not")
    parser.add_argument("--out", type=Path, default=Path("dsa_ledger/timing/tables"), help="folder for the JSON files")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    groups: dict[Group, list[Row]] = defaultdict(list)
    try:
        for name in asked.csv:
            for group, rows in measured.by_group(measured.read(name).rows).items():
                groups[group] += rows
        files = tables(dict(sorted(groups.items())))
    except BadInput as bad:
        print("\n".join(f"bad input: {line}" for line in bad.lines()), file=sys.stderr)  # noqa: T201 - what went wrong
        return bad.exit_code
    asked.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for (engine, version), file in sorted(files.items()):
        text = dumped(file)
        total += len(text)
        (asked.out / f"{engine}-{version}.json").write_text(text, encoding="ascii")
    print(f"{len(files)} files, {total:,} B, {time.monotonic() - began:.0f} s")  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
