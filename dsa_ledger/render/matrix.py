"""The engine matrix as text: a table of 80 columns with the reasons and the changes under it, json, csv and md."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.matrix import COLUMNS
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.notes import SHORT, Notes
from dsa_ledger.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.matrix import Answer, Change, Matrix
    from dsa_ledger.schema import Scenario

WIDTH = 80
NAME_WIDTH = 23
TITLES = {
    "record.main_kv_bytes": ("record", 7),
    "cell.bytes": ("cell", 8),
    "model.index_k_layers": ("index-K", 8),
    "pool.tokens": ("pool", 15),
    "pool.requests_at_context": ("requests", 11),
}
UNITS = ("B", "B/token", "layers", "tokens", "at context")
BOUND = (
    "<= is an upper bound: what the engine's profiling run takes off the pool is not modelled, so a yes beside it says "
    "that it may fit; --kv-bytes from a log makes it exact."
)


def matrix_text(found: Matrix, form: str) -> str:
    """Return the matrix in one of the formats."""
    if form == "json":
        whole = {
            "schema": CONTRACT,
            "scenario": question(found.scenario),
            "rows": [_record(answer) for answer in found.answers],
            "changes": [change._asdict() for change in found.changes],
            "warnings": list(found.warnings),
        }
        return json.dumps(whole, indent=1) + "\n"
    if form == "csv":
        return rows_csv([_record(answer) | {"releases": " ".join(answer.releases)} for answer in found.answers])
    if form == "html":
        from dsa_ledger.render.html import text_page

        return text_page(heading(found.scenario), _table(found))
    return _md(found) if form == "md" else _table(found)


def question(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as stated, without the engine: the rows name it."""
    return scenario.model_dump(mode="json", by_alias=True, exclude={"engine"})


def heading(scenario: Scenario) -> str:
    """Return model, machine, layout and load in one line."""
    from dsa_ledger.render.words import headline

    whole = headline(scenario.model_copy(update={"kv_dtype": "auto"}))
    before, _, after = whole.partition(f", {scenario.engine.name}@")
    return f"{before}: {after.partition(': ')[2]}, kv {scenario.kv_dtype}"


def _table(found: Matrix) -> str:
    notes = Notes()
    columns = [key for key in COLUMNS if any(key in answer.figures for answer in found.answers)]
    lines = [*wrap(heading(found.scenario)), ""]
    lines.append(" " * NAME_WIDTH + "".join(f"{TITLES[key][0]:>{TITLES[key][1]}}" for key in columns) + "  fits")
    units = dict(zip(COLUMNS, UNITS, strict=True))
    lines.append(" " * NAME_WIDTH + "".join(f"{units[key]:>{TITLES[key][1]}}" for key in columns))
    last = ""
    for answer in found.answers:
        title = f"{answer.engine}  (kv {answer.kv_dtype})"
        if title != last:
            lines.append(title)
        last = title
        lines.append(_row(answer, columns, notes))
    if any(answer.pool_is_upper_bound for answer in found.answers):
        lines += ["", *wrap(BOUND)]
    lines += notes.lines()
    lines += _changes(found.changes)
    lines += ["", "warnings"] if found.warnings else []
    for sentence in found.warnings:
        lines += wrap(sentence, " - ")
    return "\n".join(lines) + "\n"


def _row(answer: Answer, columns: Sequence[str], notes: Notes) -> str:
    verdict = notes.mark(SHORT.get(answer.verdict, answer.verdict), answer.reason)
    # A span that is wider than its column takes a line of its own.
    name = f"  {answer.span}".ljust(NAME_WIDTH)
    start = f"{name}\n{'':{NAME_WIDTH}}" if len(name) > NAME_WIDTH else name
    if not answer.figures:
        left = WIDTH - NAME_WIDTH - len(f"  {verdict}: ")
        return f"{start}  {verdict}: {textwrap.shorten(answer.reason, left, placeholder=' ...')}"
    cells = "".join(f"{_cell(answer, key):>{TITLES[key][1]}}" for key in columns)
    return f"{start}{cells}  {verdict}"


def _cell(answer: Answer, key: str) -> str:
    bound = answer.pool_is_upper_bound and key.startswith("pool.")
    return f"{'<= ' if bound else ''}{answer.figures[key]:,}"


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield from ("", "what changed")
    for change in changes:
        start = f" {change.engine} {change.version}: {change.key} {_said(change.a)} -> {_said(change.b)}"
        yield from wrap(start, "", "    ")
        yield from wrap(change.source_b, "    ")


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _record(answer: Answer) -> dict[str, Any]:
    """Return one row with raw values under the ledger's own keys."""
    return {
        "engine": answer.engine,
        "first": answer.releases[0],
        "last": answer.releases[-1],
        "releases": list(answer.releases),
        "kv_dtype": answer.kv_dtype,
        **{key: answer.figures.get(key) for key in COLUMNS},
        "pool_is_upper_bound": answer.pool_is_upper_bound,
        "verdict": answer.verdict,
        "reason": answer.reason,
    }


def _md(found: Matrix) -> str:
    records = []
    for answer in found.answers:
        figures = {key: _cell(answer, key) if key in answer.figures else "" for key in COLUMNS}
        records.append({"engine": answer.engine, "releases": answer.span, "kv": answer.kv_dtype, **figures})
        records[-1] |= {"fits": SHORT.get(answer.verdict, answer.verdict), "reason": answer.reason}
    lines = [f"# {heading(found.scenario)}", "", rows_md(records)]
    lines += [BOUND, ""] if any(answer.pool_is_upper_bound for answer in found.answers) else []
    lines += [f"- {sentence}" for sentence in found.warnings]
    lines += [
        f"- {change.engine} {change.version}: `{change.key}` {_said(change.a)} -> {_said(change.b)}: {change.source_b}"
        for change in found.changes
    ]
    return "\n".join(lines) + "\n"
