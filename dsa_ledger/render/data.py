"""The formats that programs read back: json, csv, md, and the indented text of `explain`."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.explain import explained, formula_text, reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsa_ledger.ledger import Entry, Ledger
    from dsa_ledger.schema import Scenario

WIDTH = 80
CONTRACT = 1  # version of the JSON answers
COLUMNS = ("key", "value", "unit", "formula", "inputs", "source_kind", "source_ref", "source_date", "note")


def entry_record(entry: Entry) -> dict[str, Any]:
    """Return one entry as the JSON contract spells it."""
    source = entry.source
    return {
        "key": entry.key,
        "value": entry.value,
        "unit": entry.unit.value,
        "formula": formula_text(entry),
        "inputs": dict(entry.inputs),
        "source": {"kind": source.kind, "ref": source.ref, "date": source.date},
        "note": entry.note,
    }


def ledger_json(scenario: Scenario, ledger: Ledger) -> str:
    """Return the JSON contract, one entry a line: short to compare, and the fast encoder takes no indent."""
    return _json(
        {"schema": CONTRACT, "scenario": scenario.model_dump(mode="json", by_alias=True)},
        entries=[entry_record(entry) for entry in ledger],
        ends={"warnings": ledger.warnings, "shortfalls": ledger.shortfalls},
    )


def explanation_json(scenario: Scenario, ledger: Ledger, key: str) -> str:
    """Return the same contract with only the entries that `key` rests on, `key` first."""
    return _json(
        {"schema": CONTRACT, "key": key, "scenario": scenario.model_dump(mode="json", by_alias=True)},
        entries=[entry_record(entry) for entry in reached(ledger, key)],
        ends={"warnings": ledger.warnings, "shortfalls": ledger.shortfalls},
    )


def _json(starts: Mapping[str, Any], *, entries: Iterable[Any], ends: Mapping[str, Any], name: str = "entries") -> str:
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in starts.items()]
    parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, entries)) + "\n]")
    parts.extend(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in ends.items())
    return "{" + ",\n".join(parts) + "}\n"


def rows_json(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `{"schema": 1, NAME: [...]}`, one record a line."""
    return _json({"schema": CONTRACT}, entries=rows, ends={}, name=name)


def layers_json(model: str, records: Sequence[Mapping[str, Any]], warnings: Sequence[str]) -> str:
    """Return `{"schema": 1, "model": ..., "layers": [...], "warnings": [...]}`, one record a line."""
    return _json({"schema": CONTRACT, "model": model}, entries=records, ends={"warnings": warnings}, name="layers")


def entries_csv(ledger: Ledger, key: str | None = None) -> str:
    """Return every entry (or those that `key` rests on) with raw values; `inputs` is a JSON object."""
    entries = ledger if key is None else reached(ledger, key)
    records = map(entry_record, entries)
    return _csv(COLUMNS, ([_cell(value) for value in _flat(record)] for record in records))


def _flat(record: Mapping[str, Any]) -> tuple[Any, ...]:
    source = record["source"]
    plain = tuple(record[name] for name in COLUMNS[:4])
    return (*plain, record["inputs"], source["kind"], source["ref"], source["date"], record["note"])


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    """Return text as it is, nothing for None, JSON for all else: numbers keep every digit."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return records with raw values."""
    columns = list(rows[0]) if rows else []
    return _csv(columns, ([_cell(value) for value in row.values()] for row in rows))


def ledger_md(scenario: Scenario, ledger: Ledger) -> str:
    """Return every entry as a Markdown table, then shortfalls and warnings."""
    from dsa_ledger.render.words import headline

    rows = [
        (f"`{record['key']}`", _cell(record["value"]), record["unit"], _code(record["formula"]), _sourced(record))
        for record in map(entry_record, ledger)
    ]
    lines = [f"# {headline(scenario)}", "", *_md(("key", "value", "unit", "formula", "source"), rows)]
    for title, sentences in (("Does not fit", ledger.shortfalls), ("Warnings", ledger.warnings)):
        if sentences:
            lines += ["", f"## {title}", "", *(f"- {sentence}" for sentence in sentences)]
    return "\n".join(lines) + "\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _sourced(record: Mapping[str, Any]) -> str:
    source = record["source"]
    dated = f" ({source['date']})" if source["date"] else ""
    return f"{source['kind']}: {source['ref']}{dated}"


def _md(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    right = ["---:" if column == "value" else "---" for column in columns]
    return [line(columns), line(right), *map(line, rows)]


def rows_md(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return records as a Markdown table."""
    columns = list(rows[0]) if rows else []
    return "\n".join(_md(columns, ([_cell(value) for value in row.values()] for row in rows))) + "\n"


def explanation_plain(ledger: Ledger, key: str, levels: int | None = None) -> str:
    """Return the walk from an entry to its givens, indented, as many levels as asked; lines go on below themselves."""
    return "".join(wrapped(line, "  " * depth) for depth, line in explained(ledger, key, levels))


def wrapped(text: str, start: str = "", below: str = "    ") -> str:
    """Return text in lines of at most 80 columns behind `start`, what does not fit hanging `below`.

    A word that is longer alone, such as a key, is not broken: it is to be copied.
    """
    hanging = " " * len(start) + below
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in lines)


def explanation_md(ledger: Ledger, key: str, levels: int | None = None) -> str:
    """Return the same walk as a nested Markdown list."""
    return "".join(f"{'  ' * depth}- {_md_line(line)}\n" for depth, line in explained(ledger, key, levels))


def _md_line(line: str) -> str:
    start, equals, rest = line.partition("= ")
    return line if start or not equals else f"= `{rest}`"
