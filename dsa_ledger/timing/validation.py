"""The kernel tables against measured times: errors per group, the share inside the interval, a reference beside them.

The reference knows the measurements: each point from the line through its neighbours in length of the same series.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.timing import evaluate
from dsa_ledger.timing.measured import Row, by_group, family_of
from dsa_ledger.timing.siblings import DISTURBED
from dsa_ledger.timing.tables import Chosen, choose, machine_of, nearest_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsa_ledger.timing.measured import Group, Measured

MIXED = ("tensorrt-llm", "decode", "full_layer", 2048)
MIXED_REASON = (
    "exactly 2,048 cached tokens: another kernel, slower than at 4,096, which no time that grows with L can meet"
)
DISTURBED_REASON = "taken on a busy machine: slower than the full layer of the same cell"


class Point(NamedTuple):
    """One measured time, the tables', whether it lies in the interval, and the reference where there is one [s]."""

    measured: float
    predicted: float
    inside: bool
    reference: float | None


class Report(NamedTuple):
    """Errors of the groups, of cells shown apart, and what was counted."""

    groups: list[dict[str, Any]]
    apart: list[dict[str, Any]]
    repeated_rows: int
    not_launched_rows: int
    rows_without_table: int
    warnings: list[str]


def report(measured: Measured) -> Report:
    """Return the errors of every group that has a table."""
    groups, apart, without, warnings = [], [], 0, []
    for group, rows in by_group(measured.rows).items():
        chosen, said = _table(group)
        if said:
            warnings.append(said)
        if chosen is None:
            without += len(rows)
            continue
        mixed = [row for row in rows if (*group[1:2], *group[3:], row.cell.prefix_tokens) == MIXED]
        usual = [row for row in rows if row not in set(mixed)] if mixed else rows
        references = neighbours(rows)
        for some, reason in ((usual, ""), (mixed, MIXED_REASON)):
            if not some:
                continue
            disturbed = DISTURBED_REASON if (group.phase, group.module, group.gpu) in DISTURBED else ""
            record = _record(group, [_point(chosen, row, references.get(row)) for row in some])
            if reason or disturbed:
                apart.append(record | {"reason": reason or disturbed})
            else:
                groups.append(record)
    return Report(groups, apart, measured.repeated, measured.not_launched, without, warnings)


def _table(group: Group) -> tuple[Chosen | None, str]:
    """Return the table of a group and what is to be said about it."""
    from dsa_ledger.errors import BadInput

    version = nearest_version(group.engine, group.version)
    if version is None:
        return None, f"{group.engine} has no kernel table"
    try:
        machine = machine_of(group.gpu)
    except BadInput:
        return None, f"{group.gpu} is no GPU of the catalog"
    chosen = choose(group.engine, version, group.phase, group.module, machine)
    if chosen is None:
        return (
            None,
            f"{group.engine} {version} has no {group.phase} table of {group.module} for {group.gpu} or a sibling",
        )
    said = "" if version == group.version else f"{group.engine} {group.version} has no table: {version} is the nearest"
    return chosen, said


def predicted(chosen: Chosen, row: Row) -> tuple[float, Sequence[float]]:
    """Return the microseconds that a table gives for a measured row, and the interval of measured over them."""
    group, series, cell = row.group, row.series, row.cell
    kind = series.score_mode or series.kv_dtype
    peak = machine_of(group.gpu).peak
    wanted = evaluate.Wanted(family_of(series.model), kind, series.weight_dtype, series.heads, peak)
    if group.phase == "prefill":
        scores = group.module in ("full_layer", "topk_kernel")
        return evaluate.prefill(chosen.table, wanted, *cell, scores=scores).total, chosen.interval
    indexer = group.module == "full_layer"
    layer = evaluate.decode(chosen.table, wanted, cell.batch, cell.prefix_tokens, indexer=indexer)
    host = evaluate.eager(chosen.table, wanted, cell.batch)
    return (host, chosen.table["eager_interval"]) if host > layer.total else (layer.total, chosen.interval)


def _point(chosen: Chosen, row: Row, reference: float | None) -> Point:
    us, (low, high) = predicted(chosen, row)
    seconds = us / 1e6
    return Point(row.seconds, seconds, low * seconds <= row.seconds <= high * seconds, reference)


def neighbours(rows: Iterable[Row]) -> dict[Row, float]:
    """Return each inner row's time on the line between its neighbours in cached tokens, same series and batch [s]."""
    lines: dict[Any, list[Row]] = {}
    for row in rows:
        lines.setdefault((row.series, row.cell.batch, row.cell.new_tokens), []).append(row)
    found = {}
    for line in lines.values():
        line.sort(key=lambda row: row.cell.prefix_tokens)
        for before, row, after in zip(line, line[1:], line[2:], strict=False):
            first, last = before.cell.prefix_tokens, after.cell.prefix_tokens
            share = (row.cell.prefix_tokens - first) / (last - first)
            found[row] = before.seconds + share * (after.seconds - before.seconds)
    return found


def _record(group: Group, points: Sequence[Point]) -> dict[str, Any]:
    """Return one group's errors as shares; `bias` is the median of predicted / measured - 1."""
    off = sorted(abs(point.predicted / point.measured - 1) for point in points)
    signed = sorted(point.predicted / point.measured - 1 for point in points)
    reference = sorted(abs(point.reference / point.measured - 1) for point in points if point.reference is not None)
    return {
        **group._asdict(),
        "n": len(points),
        "median_error": quantile(off, 0.5),
        "p95_error": quantile(off, 0.95),
        "bias": quantile(signed, 0.5),
        "coverage": sum(point.inside for point in points) / len(points),
        "reference_n": len(reference),
        "reference_median_error": quantile(reference, 0.5) if reference else None,
        "reference_p95_error": quantile(reference, 0.95) if reference else None,
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ordered values, linear between them."""
    place = share * (len(ordered) - 1)
    low = min(bisect_right(range(len(ordered)), place) - 1, len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
