"""Golden records: what real servers showed, held against the ledger; error per engine and figure.

A file is TOML with `[[record]]` tables. A record has `id`, `url`, `date`, `engine`, `version` (as the source names it),
`model`, `gpu`, `read` (what was read and where) and either `missing`, the reason why it cannot be checked, or

  scenario   a table of the fields of a scenario, or, for a build whose rules are no release's,
  layout     record bytes, layers, draft layers, DCP, max_model_len and how the log counts tokens: formulas alone
  before     the scenario's fields that differ in the earlier arm of a comparison
  kv_gib     bytes left for the pool as printed, as text; predicted at both ends of its print rounding
  starts     false: the server refused to start
  observed   ledger key -> one observation, or a list of them

An observation has one of `value`, `tokens`, `printed` (text: the last digit is rounded), `gib`, `gb` (the same, in 2^30
or 10^9 bytes), and perhaps `per` (divide by a number, or by anything between two), `within` or `within_share` with
`why`, `compare` ("before/now", "now/before", "before-now") and `outside`, the known reason why the prediction misses.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.catalog.files import read_text
from dsa_ledger.errors import BadInput, ExpectedError, Fault
from dsa_ledger.formulas import cells, pool
from dsa_ledger.schema import Scenario
from dsa_ledger.units import GIB
from dsa_ledger.validation import validated

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMS = {"value": 1, "tokens": 1, "printed": 1, "gib": GIB, "gb": 10**9}
_LIMIT_BYTES = 1 << 20
_PAGE = 64


class Span(NamedTuple):
    """The least and the most that a figure may be."""

    low: Fraction
    high: Fraction


class Row(NamedTuple):
    """One observation beside its prediction; `error` is a share, 0.03 is 3%."""

    record: str
    engine: str
    version: str
    gpu: str
    key: str
    measured: Span
    predicted: Span
    outside: str

    @property
    def error(self) -> float:
        """Return how far the nearest prediction lies from the middle of what was measured, as a share of it."""
        middle = (self.measured.low + self.measured.high) / 2
        nearest = min(max(middle, self.predicted.low), self.predicted.high)
        return float(nearest / middle - 1) if middle else 0.0

    @property
    def inside(self) -> bool:
        """Tell whether the prediction lies within what the printed digits allow."""
        return self.measured.low <= self.predicted.high and self.predicted.low <= self.measured.high


class Golden(NamedTuple):
    """All rows of a file, the records that could not be checked, and why."""

    rows: list[Row]
    unchecked: dict[str, str]


def read_golden(path: str) -> list[dict[str, Any]]:
    """Return the records of a file (BadInput)."""
    import tomllib

    text = read_text(Path(path), "--golden", _LIMIT_BYTES)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput([Fault("--golden", path[-64:], f"TOML that parses: {error}")]) from None
    records = table.get("record")
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise BadInput([Fault("--golden", path[-64:], "[[record]] tables")])
    return records


def golden_of(records: list[dict[str, Any]]) -> Golden:
    """Return every observation of the records beside its prediction (BadInput for a record that makes no sense)."""
    found = Golden([], {})
    for place, record in enumerate(records):
        name = str(record.get("id", place))
        if "missing" in record:
            found.unchecked[name] = str(record["missing"])
            continue
        try:
            found.rows.extend(_rows(name, record))
        except BadInput as bad:
            raise BadInput([fault._replace(path=f"record {name}: {fault.path}") for fault in bad.faults]) from None
        except ExpectedError as unknown:
            found.unchecked[name] = str(unknown)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as wrong:
            raise BadInput([Fault(f"record {name}", repr(wrong)[:80], "the record format, see --help")]) from None
    return found


def _rows(name: str, record: dict[str, Any]) -> Iterator[Row]:
    arms = _arms(record)
    about = (str(record["engine"]), str(record.get("rules") or record["version"]), str(record["gpu"]))
    for key, wants in record["observed"].items():
        for want in wants if isinstance(wants, list) else [wants]:
            values = [_compared(want.get("compare"), before[key], now[key]) for before, now in arms]
            yield Row(name, *about, key, _measured(want), Span(min(values), max(values)), str(want.get("outside", "")))


def _measured(want: dict[str, Any]) -> Span:
    form = next((form for form in FORMS if form in want), "value")
    written = want[form]
    figure = Fraction(str(written)) * FORMS[form]
    digits = len(str(written).partition(".")[2])
    slack = Fraction(FORMS[form], 2 * 10**digits) if isinstance(written, str) else Fraction(0)
    slack = max(slack, Fraction(str(want.get("within", 0))), figure * Fraction(str(want.get("within_share", 0))))
    per = want.get("per", 1)
    least, most = per if isinstance(per, list) else (per, per)
    return Span((figure - slack) / most, (figure + slack) / least)


def _arms(record: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the figures of both arms (the same twice where there is one) at each end of the printed KV bytes."""
    ends: list[int | None] = [None]
    if "kv_gib" in record:
        figure = Fraction(record["kv_gib"])
        half = Fraction(1, 2 * 10 ** len(record["kv_gib"].partition(".")[2]))
        ends = [int((figure - half) * GIB), int((figure + half) * GIB)]
    arms = []
    for kv_bytes in ends:
        now = _figures(record, kv_bytes, {})
        arms.append((_figures(record, kv_bytes, record["before"]) if "before" in record else now, now))
    return arms


def _figures(record: dict[str, Any], kv_bytes: int | None, changed: dict[str, Any]) -> dict[str, Any]:
    if "layout" in record:
        return _by_layout(record["layout"], kv_bytes)
    known: dict[str, Any] = {} if kv_bytes is None else {"observed": {"kv_bytes": kv_bytes}}
    ledger = estimate(validated(Scenario, _merged(_merged(record["scenario"], known), changed), "scenario."))
    return {entry.key: entry.value for entry in ledger}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _by_layout(layout: dict[str, Any], kv_bytes: int | None) -> dict[str, Any]:
    """Return what the formulas alone make of a layout, with blocks as vLLM counts them."""
    main, index = layout["main_kv_record_bytes"], layout["index_k_record_bytes"]
    cell = cells.main_kv_cell_bytes(
        record_bytes=main, layers=layout["layers"] + layout["draft_layers"]
    ) + cells.index_k_cell_bytes(
        record_bytes=index, layers=layout["index_k_layers"] + layout["draft_layers"], replicas=1
    )
    figures: dict[str, Any] = {"cell.bytes": cell}
    if kv_bytes is None:
        return figures
    dcp = layout["dcp"]
    blocks = pool.blocks(budget_bytes=kv_bytes, one_block_bytes=pool.block_bytes(page_tokens=_PAGE, cell_bytes=cell))
    needed = pool.blocks_of_request(context_length=layout["context_length"], dcp=dcp, page_tokens=_PAGE) or 1
    figures["pool.concurrency"] = pool.concurrency(block_count=blocks, needed_blocks=needed)
    if layout["logged"] == "blocks":
        figures["pool.reported_tokens"] = pool.reported_block_tokens(block_count=blocks, page_tokens=_PAGE, dcp=dcp)
    else:
        figures["pool.reported_tokens"] = pool.reported_size_tokens(
            block_count=blocks, needed_blocks=needed, context_length=layout["context_length"]
        )
    return figures


def _compared(how: str | None, before: Any, now: Any) -> Fraction:
    first, second = Fraction(before), Fraction(now)
    if how is None:
        return second
    if how == "before-now":
        return first - second
    return first / second if how == "before/now" else second / first


class Group(NamedTuple):
    """The errors of one engine's figures of one key; all are shares, 0.03 is 3%."""

    gpu: str
    engine: str
    version: str
    phase: str
    module: str
    n: int
    median_error: float
    p95_error: float
    worst_error: float
    bias: float
    coverage: float


def groups_of(golden: Golden) -> list[Group]:
    """Return one group per engine and key, and one per engine over all of them."""
    by: dict[tuple[str, str], list[Row]] = {}
    for row in golden.rows:
        by.setdefault((row.engine, row.key), []).append(row)
        by.setdefault((row.engine, "all"), []).append(row)
    ordered = sorted(by.items(), key=lambda one: (one[0][0], one[0][1] != "all", one[0][1]))
    return [_group(engine, key, rows) for (engine, key), rows in ordered]


def _group(engine: str, key: str, rows: list[Row]) -> Group:
    sizes = sorted(abs(row.error) for row in rows)
    middle = len(sizes) // 2
    median = sizes[middle] if len(sizes) % 2 else (sizes[middle - 1] + sizes[middle]) / 2
    return Group(
        gpu=", ".join(sorted({row.gpu for row in rows}))[:80],
        engine=engine,
        version=", ".join(sorted({row.version for row in rows}))[:80],
        phase="memory",
        module=key,
        n=len(rows),
        median_error=median,
        p95_error=sizes[min(len(sizes) - 1, -(-95 * len(sizes) // 100) - 1)],
        worst_error=sizes[-1],
        bias=sum(row.error for row in rows) / len(rows),
        coverage=sum(row.inside for row in rows) / len(rows),
    )
