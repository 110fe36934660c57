"""A grid of scenarios: any fields over ranges, every point the figures that `estimate` gives for it.

Where only the load varies, one deployment is worked out once and its loads go through the formulas as arrays.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate, still
from dsa_ledger.account.many import FIELDS, MOST_BATCH, MOST_CONTEXT, estimate_many
from dsa_ledger.account.verdict import OF_A_LOAD, load_shortfall
from dsa_ledger.errors import BadInput, Fault, Faults, NotModelled, nearest
from dsa_ledger.ledger import as_table
from dsa_ledger.scenario_file import put
from dsa_ledger.schema import Scenario
from dsa_ledger.units import PREFIXES, UnitError, parse_count
from dsa_ledger.validation import field_paths, validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MOST_POINTS = 2_000_000
ROWS_AT_ONCE = 1 << 16
FITS, DOES_NOT_FIT, REFUSED, UNKNOWN = "fits", "does not fit", "refused", "not modelled"
KEYS = ("pool.tokens", "pool.requests_at_context", "memory.headroom_bytes", "step.index_k_read_bytes")
LOAD_PATHS = {f"load.{name}": name for name in FIELDS}
SCALAR_ONLY = ("time.", "prefill.attention", "prefill.indexer", "cost.")  # times: one point after the other


class Axis(NamedTuple):
    """One field and the values it takes."""

    path: str
    values: tuple[Any, ...]


class Row(NamedTuple):
    """One point: the axes' values, the figures of the keys, and whether it fits."""

    point: tuple[Any, ...]
    figures: tuple[Any, ...]
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a grid in its order, the last axis fastest."""

    axes: tuple[Axis, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of a row's cells."""
        return (*(axis.path for axis in self.axes), *self.keys, "verdict", "reason")

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """Yield each row's cells."""
        return ((*row.point, *row.figures, row.verdict, row.reason) for row in self.rows)


def axis(text: str, names: Mapping[str, str]) -> Axis:
    """Return the axis of FIELD=a,b,c or FIELD=start:stop:step, the stop included (BadInput).

    `names` maps the options' names to fields, so that `context` means `load.context`.
    """
    name, equals, written = text.partition("=")
    name = name.strip()
    path = names.get(name.removeprefix("--").replace("_", "-"), name)
    if path.startswith("model."):
        path = "model_overrides." + path.removeprefix("model.")
    known = set(field_paths(Scenario))
    faults = Faults()
    faults.require(bool(equals and written.strip()), "--over", text, "FIELD=a,b,c or FIELD=start:stop:step")
    is_field = path in known or path.startswith("model_overrides.")
    faults.require(is_field, "--over", name, f"a scenario field: {nearest(name, [*known, *names])}")
    faults.stop_if_any()
    if path == "features":  # a list in the scenario: none, one, or several joined by +
        words = [word.strip() for word in written.split(",")]
        return Axis(path, tuple([] if word == "none" else word.split("+") for word in words))
    if ":" in written:
        return Axis(path, _range(text, written))
    return Axis(path, tuple(_value(word, counts=path.startswith(("load.", "limits."))) for word in written.split(",")))


def _value(word: str, *, counts: bool) -> Any:
    """Return a number where the word is one (`counts`: also 128Ki), else the word; the schema says if it will do."""
    word = word.strip()
    for read in (int, float, *((parse_count,) if counts else ())):
        try:
            return read(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word.lower(), word)


def _range(text: str, written: str) -> tuple[Any, ...]:
    parts = written.split(":")
    if len(parts) != 3:  # noqa: PLR2004 - start, stop, step
        raise BadInput([Fault("--over", text, "FIELD=start:stop:step")])
    try:
        start, stop, step = (_count(part.strip()) for part in parts)
    except (UnitError, ValueError):
        raise BadInput(
            [Fault("--over", text, "numbers, such as context=8Ki:1Mi:8Ki or limits.mem_fraction=0.8:0.9:0.01")]
        ) from None
    if step <= 0 or stop < start:
        raise BadInput([Fault("--over", text, "a step above 0 and a stop at or after the start")])
    count = int((stop - start) / step + 1e-9) + 1
    if count > MOST_POINTS:
        raise BadInput([_too_many(count, ["a larger step"])])
    if all(isinstance(part, int) for part in (start, stop, step)):
        return tuple(range(start, stop + 1, step))  # type: ignore[arg-type]
    return tuple(round(start + index * step, 9) for index in range(count))


def _count(text: str) -> int | float:
    if any(text.endswith(prefix) for prefix in PREFIXES if prefix) or text.isdecimal():
        return parse_count(text)
    return float(text)


def _too_many(count: int, ways: Iterable[str]) -> Fault:
    return Fault("--over", f"{count:,} points", f"at most {MOST_POINTS:,}; thin it by {' or '.join(ways)}")


def points(axes: Sequence[Axis]) -> int:
    """Return how many points the axes span (BadInput where they are too many, or name a field twice)."""
    count = 1
    for one in axes:
        count *= len(one.values)
    paths = [one.path for one in axes]
    faults = Faults()
    for path in dict.fromkeys(paths):
        faults.require(paths.count(path) == 1, "--over", path, "each field once")
    if count > MOST_POINTS:
        widest = max(axes, key=lambda one: len(one.values))
        share = -(-count // MOST_POINTS)
        faults.found.append(_too_many(count, [f"a step {share} times as wide for {widest.path}", "fewer axes"]))
    faults.stop_if_any()
    return count


def sweep(scenario: Scenario, axes: Sequence[Axis], keys: Sequence[str] = KEYS, jobs: int = 1) -> Sweep:
    """Return every point of the grid (BadInput for axes that are wrong in themselves, or a key that no point has)."""
    points(axes)
    load_axes = [one for one in axes if one.path in LOAD_PATHS]
    others = [one for one in axes if one.path not in LOAD_PATHS]
    vector = bool(load_axes) and not any(key.startswith(SCALAR_ONLY) for key in keys) and _has_numpy()
    ordered = [*others, *load_axes]
    tables = scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    fixed = list(itertools.product(*(one.values for one in (others if vector else ordered))))
    work = partial(
        _block, tables, tuple(others if vector else ordered), tuple(load_axes) if vector else (), tuple(keys)
    )
    if jobs > 1 and len(fixed) > 1:
        with ProcessPoolExecutor(jobs) as pool:
            blocks = list(pool.map(work, fixed, chunksize=max(1, len(fixed) // (8 * jobs))))
    else:
        blocks = [work(one) for one in fixed]
    rows = list(itertools.chain.from_iterable(blocks))
    found = Sweep(tuple(axes), tuple(keys), tuple(_in_order(rows, ordered, axes)))
    _check_keys(found, scenario)
    return found


def _has_numpy() -> bool:
    from importlib.util import find_spec

    return find_spec("numpy") is not None


def _in_order(rows: list[Row], ordered: Sequence[Axis], axes: Sequence[Axis]) -> list[Row]:
    """Return rows in the order of the axes as given, each point's values likewise."""
    if list(ordered) == list(axes):
        return rows
    places = [ordered.index(one) for one in axes]
    strides = [0] * len(axes)
    size = 1
    for position in reversed(range(len(ordered))):
        strides[position] = size
        size *= len(ordered[position].values)
    found = []
    for choice in itertools.product(*(range(len(one.values)) for one in axes)):
        row = rows[sum(index * strides[place] for index, place in zip(choice, places, strict=True))]
        found.append(row._replace(point=tuple(row.point[place] for place in places)))
    return found


def _block(
    tables: dict[str, Any],
    others: tuple[Axis, ...],
    loads: tuple[Axis, ...],
    keys: tuple[str, ...],
    fixed: tuple[Any, ...],
) -> list[Row]:
    """Return the rows of one deployment: one row, or one for each of its loads."""
    table = _copy(tables)
    for one, value in zip(others, fixed, strict=True):
        blocked = put(table, one.path, value)
        if blocked:
            raise BadInput([Fault(one.path, value, blocked)])
    if not loads:
        return [_row(table, fixed, keys)]
    grids = list(itertools.product(*(one.values for one in loads)))
    try:
        return _vector(validated(Scenario, _with_load(table, loads, grids[0])), loads, grids, keys, fixed)
    except (BadInput, NotModelled, TypeError, ValueError):
        # Some load is refused, or no number: each point says so for itself.
        return [_row(_with_load(table, loads, load), (*fixed, *load), keys) for load in grids]


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, dict) else value for name, value in table.items()}


def _with_load(table: Mapping[str, Any], loads: Sequence[Axis], values: Sequence[Any]) -> dict[str, Any]:
    whole = _copy(table)
    for one, value in zip(loads, values, strict=True):
        put(whole, one.path, value)
    return whole


def _row(table: Mapping[str, Any], point: tuple[Any, ...], keys: Sequence[str]) -> Row:
    none = (None,) * len(keys)
    try:
        ledger = estimate(validated(Scenario, table))
    except BadInput as bad:
        return Row(point, none, REFUSED, "; ".join(bad.lines()))
    except NotModelled as gap:
        return Row(point, none, UNKNOWN, str(gap))
    values = as_table(ledger)
    figures = tuple(values.get(key) for key in keys)
    return Row(point, figures, DOES_NOT_FIT if ledger.shortfalls else FITS, "; ".join(ledger.shortfalls))


def _vector(
    scenario: Scenario, loads: Sequence[Axis], grids: list[tuple[Any, ...]], keys: Sequence[str], fixed: tuple[Any, ...]
) -> list[Row]:
    """Return the rows of one deployment under many loads, worked out as arrays; a load it refuses is tried alone."""
    import numpy as np

    rows: list[Row] = []
    for start in range(0, len(grids), ROWS_AT_ONCE):
        part = grids[start : start + ROWS_AT_ONCE]
        columns = [np.array([_tokens(value) for value in column], dtype=np.int64) for column in zip(*part, strict=True)]
        values = {LOAD_PATHS[one.path]: column for one, column in zip(loads, columns, strict=True)}
        takes = _accepted(scenario, values, len(part))
        taken = {name: column[takes] for name, column in values.items()}
        figures = iter(_array_rows(scenario, taken, int(takes.sum()), keys))
        for load, takes_it in zip(part, takes.tolist(), strict=True):
            if takes_it:
                cells, verdict, reason = next(figures)
                rows.append(Row((*fixed, *load), cells, verdict, reason))
            else:
                table = scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
                rows.append(_row(_with_load(table, loads, load), (*fixed, *load), keys))
    return rows


def _accepted(scenario: Scenario, values: Mapping[str, Any], size: int) -> Any:
    """Return which loads the account takes: in range, and no new tokens beyond the context (ValueError: no context)."""
    import numpy as np

    def of(name: str) -> Any:
        own = getattr(scenario.load, name)
        return values.get(name, None if own is None else np.full(size, own))

    context, new = of("context"), of("new_tokens")
    if context is None:
        raise ValueError("no context")
    limit = min(scenario.limits.context_length or still(scenario)[0].model.max_position, MOST_CONTEXT)
    takes = (context <= limit) & (of("batch") <= MOST_BATCH)
    return takes if new is None else takes & (new <= context)


def _array_rows(
    scenario: Scenario, values: Mapping[str, Any], size: int, keys: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Yield figures, verdict and reason of each load."""
    if not size:
        return
    ledger = estimate_many(scenario, values)
    if any(key not in ledger for key in keys):
        raise ValueError("a key that is worked out for one load at a time, or that no load has")
    columns = [_column(ledger[key], size) for key in keys]
    loads = zip(*(_column(ledger[key], size) for key in OF_A_LOAD), strict=True)
    plan, tokens, starts = still(scenario)[0], int(ledger["pool.tokens"]), list(ledger.shortfalls)
    for figures, load in zip(zip(*columns, strict=True), loads, strict=True):
        beyond = load[OF_A_LOAD.index("load.needed_tokens")] > tokens and (tokens or not starts)
        said = [*starts, load_shortfall(ledger, plan, load)] if beyond else starts
        yield figures, DOES_NOT_FIT if said else FITS, "; ".join(said)


def _tokens(value: Any) -> int:
    if isinstance(value, str):
        return parse_count(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


def _column(value: Any, size: int) -> list[Any]:
    return value.tolist() if hasattr(value, "dtype") and value.shape else [value] * size


def _check_keys(found: Sweep, scenario: Scenario) -> None:
    """Raise BadInput for a key that no point has, with the nearest of the base scenario's keys."""
    answered = [row for row in found.rows if row.verdict in (FITS, DOES_NOT_FIT)]
    if not answered:
        return
    faults = Faults()
    for place, key in enumerate(found.keys):
        if all(row.figures[place] is None for row in answered):
            try:
                known = list(estimate(scenario).entries)
            except (BadInput, NotModelled):
                known = list(KEYS)
            faults.add("--keys", key, f"a key that some point has: {nearest(key, known)}")
    faults.stop_if_any()


def pareto(found: Sweep, goals: Sequence[tuple[str, bool]]) -> Sweep:
    """Return the rows that fit and that no other beats in every goal: a column, and whether more of it is better.

    BadInput for a column that is no number or not there.
    """
    faults = Faults()
    columns = found.columns
    for name, _ in goals:
        faults.require(name in columns[:-2], "--pareto", name, nearest(name, columns[:-2]))
    faults.stop_if_any()
    places = [(columns.index(name), 1 if more else -1) for name, more in goals]
    scored = []
    for row in found.rows:
        cells = (*row.point, *row.figures)
        values = [cells[place] for place, _ in places]
        if row.verdict == FITS and all(isinstance(value, int | float) for value in values):
            scored.append((tuple(sign * value for value, (_, sign) in zip(values, places, strict=True)), row))
    scored.sort(key=lambda one: one[0], reverse=True)
    front: list[tuple[tuple[Any, ...], Row]] = []
    for score, row in scored:
        if not any(all(a >= b for a, b in zip(other, score, strict=True)) and other != score for other, _ in front):
            front.append((score, row))
    return Sweep(found.axes, found.keys, tuple(row for _, row in front))
