"""A sweep as CSV, JSON, Markdown, Parquet, or the first rows as a table."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.render.data import CONTRACT

if TYPE_CHECKING:
    from pathlib import Path

    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Sweep

SHOWN = 40
WIDTH = 80
SUFFIXES = {".csv": "csv", ".json": "json", ".md": "md", ".parquet": "parquet", ".html": "html"}


def sweep_text(scenario: Scenario, found: Sweep, form: str) -> str:
    """Return a sweep in one of the text formats."""
    if form == "json":
        return _json(scenario, found)
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(found.columns)
        writer.writerows(found.cells())
        return text.getvalue()
    if form == "md":
        lines = ["| " + " | ".join(found.columns) + " |", "|" + "---|" * len(found.columns)]
        lines += ["| " + " | ".join(_cell(value) for value in cells) + " |" for cells in found.cells()]
        return "\n".join(lines) + "\n"
    if form == "html":
        from dsa_ledger.render.html_plan import sweep_page

        return sweep_page(scenario, found)
    return _table(found)


def _json(scenario: Scenario, found: Sweep) -> str:
    head = {
        "schema": CONTRACT,
        "scenario": scenario.model_dump(mode="json", by_alias=True),
        "over": {axis.path: list(axis.values) for axis in found.axes},
        "keys": list(found.keys),
    }
    starts = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    rows = ",\n".join(json.dumps(dict(zip(found.columns, cells, strict=True))) for cells in found.cells())
    return f'{{{starts},\n"rows": [\n{rows}\n]}}\n'


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _table(found: Sweep) -> str:
    """Return the first rows in aligned columns; the last two columns are left out where all points fit."""
    columns = found.columns[:-1]
    names = [name.rpartition(".")[2] for name in columns]
    rows = [[_short(value) for value in cells[:-1]] for cells, _ in zip(found.cells(), range(SHOWN), strict=False)]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = ["  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    more = len(found.rows[SHOWN:])
    lines += [f"and {more:,} more points; --out FILE.csv or --format csv has all"] if more else []
    reasons = dict.fromkeys(row.reason for row in found.rows if row.reason)
    lines += [f"reason: {reason}" for reason in list(reasons)[:5]]
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_file(path: Path, scenario: Scenario, found: Sweep) -> None:
    """Write a sweep to a file in the format of its suffix (BadInput for another suffix, or a file that cannot be)."""
    form = SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise BadInput([Fault("--out", str(path), f"a name that ends in {', '.join(SUFFIXES)}")])
    try:
        if form == "parquet":
            _parquet(path, found)
        else:
            path.write_text(sweep_text(scenario, found, form), encoding="utf-8")
    except OSError as error:
        raise BadInput([Fault("--out", str(path), f"a file that can be written: {error.strerror}")]) from None


def _parquet(path: Path, found: Sweep) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            [Fault("--out", str(path), "pyarrow, which is not installed: pip install 'dsa-ledger[parquet]', or a .csv")]
        ) from None
    cells = list(found.cells())
    table = pa.table({name: [row[place] for row in cells] for place, name in enumerate(found.columns)})
    pyarrow.parquet.write_table(table, path)
