"""A sweep as CSV, JSON, Markdown, Parquet, or the first rows as a table."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, Fault, NotModelled
from dsa_ledger.render.data import CONTRACT
from dsa_ledger.render.notes import SHORT, Notes
from dsa_ledger.units import IN_BYTES, Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Sweep

SHOWN = 40
WIDTH = 80
GAP = 2
SAYS = {"fits": "fit", "does not fit": "do not fit"}
# Units whose cells take a prefix each, so that none stands under the name.
SCALED = {unit.value for unit in (*IN_BYTES, Unit.SECONDS, Unit.BYTES_PER_S, Unit.FLOPS)}
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
    return _table(scenario, found)


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


class Column(NamedTuple):
    """One column: its name in lines of short words, its unit, and its cells."""

    head: list[str]
    unit: str
    cells: list[str]

    @property
    def width(self) -> int:
        """Return the places that the widest of it takes."""
        return max(map(len, (*self.head, self.unit, *self.cells)))


def _table(scenario: Scenario, found: Sweep) -> str:
    """Return the first rows in columns with units, as many beside each other as 80 places take; reasons numbered."""
    notes, shown = Notes(), found.rows[:SHOWN]
    units = units_of(found, scenario)
    points = [_column(axis.path, "", [row.point[place] for row in shown]) for place, axis in enumerate(found.axes)]
    figures = [_column(key, units[key], [row.figures[place] for row in shown]) for place, key in enumerate(found.keys)]
    verdicts = Column(["fits"], "", [notes.mark(SHORT.get(row.verdict, row.verdict), row.reason) for row in shown])
    lines: list[str] = []
    for block in _blocks(points, [*figures, verdicts]):
        lines += ["", *_aligned(block)] if lines else _aligned(block)
    rest = Counter(row.verdict for row in found.rows[SHOWN:])
    said = ", ".join(f"{count:,} {SAYS.get(verdict, verdict)}" for verdict, count in rest.items())
    more = f"and {len(found.rows) - SHOWN:,} more points ({said}); --out FILE.csv or --format csv has all"
    lines += textwrap.wrap(more, WIDTH) if rest else []
    return "\n".join([*lines, *notes.lines()]) + "\n"


def _column(path: str, unit: str, values: Sequence[Any]) -> Column:
    """Return a column; its unit stands under the name unless each cell has a prefix of its own."""
    name = path.rpartition(".")[2]
    cells = [_short(value, unit) for value in values]
    for suffix in ("_bytes", "_s", "_tokens") if unit else ():
        name = name.removesuffix(suffix)
    narrow = max(map(len, cells), default=0)
    head = textwrap.wrap(name.replace("_", " "), max(narrow, *map(len, name.split("_"))))
    return Column(head, "" if unit in SCALED or unit in name.split("_") else unit, cells)


def _blocks(points: Sequence[Column], figures: Sequence[Column]) -> Iterator[list[Column]]:
    """Yield the columns in blocks that fit the width, each with the point in front."""
    start = sum(column.width + GAP for column in points)
    block, taken = list(points), start
    for column in figures:
        if taken + column.width > WIDTH and len(block) > len(points):
            yield block
            block, taken = list(points), start
        block.append(column)
        taken += column.width + GAP
    yield block


def _aligned(block: Sequence[Column]) -> list[str]:
    """Return the lines of a block: names, units, rows; a name's last line stands next to its cells."""
    height = max(len(column.head) for column in block)
    heads = [[*itertools.repeat("", height - len(column.head)), *column.head] for column in block]
    rows = [list(line) for line in zip(*heads, strict=True)]
    rows += [[column.unit for column in block]] if any(column.unit for column in block) else []
    rows += [list(line) for line in zip(*(column.cells for column in block), strict=True)]
    widths = [column.width for column in block]
    return [
        (" " * GAP).join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _short(value: Any, unit: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "+".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    if unit in SCALED:
        return brief(value, Unit(unit)).removesuffix("/" + unit.partition("/")[2])
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def units_of(found: Sweep, scenario: Scenario) -> dict[str, str]:
    """Return the unit of each key, empty where no ledger at hand has it."""
    entries: dict[str, Any] = {}
    with contextlib.suppress(BadInput, NotModelled):
        entries = estimate(scenario).entries
    units = {key: entries[key].unit.value if key in entries else "" for key in found.keys}
    ends = {"_bytes": Unit.BYTES, "_s": Unit.SECONDS, "_tokens": Unit.TOKENS}
    return {
        key: unit or next((known.value for end, known in ends.items() if key.endswith(end)), "")
        for key, unit in units.items()
    }


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
