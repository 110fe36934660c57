"""How well a GPU is predicted from its siblings, each left out in turn, by the code that an estimate uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calib.decode_fit import split
from calib.stored import predicted_decode, predicted_prefill
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.timing.siblings import DISTURBED, carried_decode, carried_prefill, siblings_of
from dsa_ledger.timing.tables import machine_of, module_tables

if TYPE_CHECKING:
    from calib.points import Points
    from calib.smooth import Array
    from dsa_ledger.timing.measured import Group

TAILS = (0.045, 0.955)


def from_siblings(file: dict[str, Any], points: Points) -> Array | None:
    """Return predicted / measured - 1 of a group from the other GPUs of the architecture, None where there is none."""
    group = points.group
    target = machine_of(group.gpu)
    tables = {gpu: table for gpu, table in module_tables(file, group.phase, group.module).items() if gpu != group.gpu}
    some = siblings_of(target, [machine_of(gpu) for gpu in tables])
    if not some:
        return None
    if group.phase == "decode":
        pairs = [(other, tables[other.name]) for other in some]
        predicted = predicted_decode(carried_decode(pairs, target, module=group.module), points)
    else:
        predicted = predicted_prefill(carried_prefill(tables, some, target, module=group.module), points)
    return np.asarray(predicted / points.us - 1)


def held(file: dict[str, Any], points: Points) -> Points:
    """Return the rows whose series a sibling holds: the others are carried over weight formats as well."""
    group = points.group
    tables = module_tables(file, group.phase, group.module)
    same = [other.name for other in siblings_of(machine_of(group.gpu), [machine_of(gpu) for gpu in tables])]
    known = {label for gpu in same for label in _labels(tables[gpu])}
    return points.where(np.array([str(label) in known for label in points.labels])[points.series])


def _labels(table: dict[str, Any]) -> list[str]:
    return list(table["floor"] if "floor" in table else table["sparse"]["own"])


def sibling_errors(file: dict[str, Any], points: dict[Group, Points]) -> dict[str, Any]:
    """Return errors and interval per phase, module and architecture, each GPU predicted from its siblings."""
    found: dict[str, Any] = {}
    gathered: dict[tuple[str, str, str], list[Array]] = {}
    for group, some in points.items():
        kept = split(some)[0] if group.phase == "decode" else some
        if (group.phase, group.module, group.gpu) in DISTURBED:
            continue
        kept = held(file, kept)
        off = from_siblings(file, kept) if len(kept) else None
        if off is not None:
            key = group.phase, group.module, str(machine_of(group.gpu).major)
            gathered.setdefault(key, []).append(off)
    for (phase, module, major), parts in gathered.items():
        off = np.concatenate(parts)
        low, high = np.quantile(1 / (1 + off), TAILS)
        found.setdefault(phase, {}).setdefault(module, {})[major] = {
            "rows": len(off),
            "median_error": round(float(np.median(np.abs(off))), 4),
            "p95_error": round(float(np.quantile(np.abs(off), 0.95)), 4),
            "interval": [round(float(low), 3), round(float(high), 3)],
        }
    return found


def thin_entry(file: dict[str, Any], points: Points, fewest: int) -> dict[str, Any]:
    """Return the entry of a group of few rows: a sibling and the median of measured over carried (BadInput: none)."""
    group = points.group
    target = machine_of(group.gpu)
    known = [machine_of(gpu) for gpu in module_tables(file, "decode", group.module)]
    near = siblings_of(target, known)
    if not near:
        what = "rows, or a GPU of the same architecture with as many"
        raise BadInput([Fault(" ".join(group), len(points), f"at least {fewest} {what}")])
    sibling = near[0]
    table = carried_decode([(sibling, file["decode"][sibling.name][group.module])], target, module=group.module)
    kept = split(points)[0]
    ratio = kept.us / predicted_decode(table, kept)
    scale = float(np.median(ratio))
    cells = np.unique(np.stack([kept.batch, kept.prefix], axis=1), axis=0, return_inverse=True)[1].ravel()
    left_out = np.array([np.median(ratio[cells != cell]) for cell in range(cells.max() + 1)])[cells]
    off = left_out / ratio - 1
    low, high = np.quantile(1 / (1 + off), TAILS)
    return {
        "like": sibling.name,
        "scale": round(scale, 4),
        "rows": len(kept),
        "median_error": round(float(np.median(np.abs(off))), 4),
        "p95_error": round(float(np.quantile(np.abs(off), 0.95)), 4),
        "interval": [round(float(low), 3), round(float(high), 3)],
        "longest": int(kept.prefix.max()),
    }
