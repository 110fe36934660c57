"""An audit as text: what differs first, then what agrees, what was inferred, and what to change."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.oom import relief
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.audit.figures import Figure
    from dsa_ledger.audit.oom import Suspect
    from dsa_ledger.audit.reconcile import Check
    from dsa_ledger.audit.report import Report

WIDTH = 80
MOST_READ = 12  # figures; the rest is in the json
_UNITS = {
    "_bytes": Unit.BYTES,
    "_tokens": Unit.TOKENS,
    "_layers": Unit.LAYERS,
    ".layers": Unit.LAYERS,
    "_fraction": Unit.SHARE,
}


def audit_text(report: Report, form: str) -> str:
    """Return the audit in one of the formats."""
    if form == "json":
        return _json(report)
    if form == "csv":
        return rows_csv([_check_row(check) for check in report.checks])
    if form == "html":
        from dsa_ledger.render.html import text_page

        return text_page("audit of a start-up log", _table(report))
    return _md(report) if form == "md" else _table(report)


def unit_of(key: str) -> Unit:
    """Return the unit that a key's name says."""
    if key.startswith("cell."):
        return Unit.BYTES_PER_TOKEN
    if key.startswith("record."):
        return Unit.BYTES_PER_TOKEN_PER_LAYER
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), Unit.COUNT)


def _json(report: Report) -> str:
    answer = {
        "schema": CONTRACT,
        "engine": report.engine,
        "version": report.version,
        "observed": [_figure_record(figure) for figure in report.observed],
        "checks": [check._asdict() for check in report.checks],
        "inferred": report.inferred,
        "certainty": report.certainty,
        "stopped": [stop._asdict() for stop in report.stops],
        "out_of_memory": [
            {
                "line": refusal.line,
                "tried_bytes": refusal.tried_bytes,
                "free_bytes": refusal.free_bytes,
                "suspects": [suspect._asdict() for suspect in found],
            }
            for refusal, found in report.refusals
        ],
        "advice": report.advice,
        "warnings": report.warnings,
    }
    return json.dumps(answer, indent=1) + "\n"


def _figure_record(figure: Figure) -> dict[str, Any]:
    return {
        "key": figure.key,
        "value": figure.value,
        "unit": figure.unit.value if isinstance(figure.value, int | float) else "",
        "rank": str(figure.rank),
        "line": figure.line,
        "text": figure.text,
    }


def _check_row(check: Check) -> dict[str, Any]:
    """Return a check as a row for files, its unit beside its numbers."""
    figures = {"observed": check.observed, "predicted": check.predicted, "difference": check.difference}
    return {"key": check.key, **figures, "unit": unit_of(check.key).value, "cause": check.cause}


def _table(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    lines = [f"{report.engine}{version}: {report.lines:,} line{'s' * (report.lines != 1)} read"]
    for stop in report.stops:
        lines += ["", *_wrapped(f"did not start, line {stop.line:,}: {stop.says}", "", "    ")]
    lines += ["", *_read_lines(report)] if not report.checks else [""]
    if report.checks:
        lines.append(f"{'log':>40}{'ledger':>20}{'difference':>20}")
    for check in report.checks:
        unit = unit_of(check.key)
        shown = [_number(value, unit) for value in (check.observed, check.predicted, check.difference)]
        first = f"{check.key} {shown[0]:>{39 - len(check.key)}}"
        lines.append(first + "".join(f"{text:>20}" for text in shown[1:]))
        if check.cause:
            lines += _wrapped(check.cause, "    ")
    lines += _inferred_lines(report)
    lines += _refusal_lines(report)
    for title, sentences in (("what to change", report.advice), ("warnings", report.warnings)):
        if sentences:
            lines += ["", title]
            for sentence in sentences:
                lines += _wrapped(sentence, "  - ")
    return "\n".join(lines) + "\n"


def _refusal_lines(report: Report) -> list[str]:
    lines = []
    for refusal, found in report.refusals:
        lines += ["", f"out of memory, line {refusal.line:,}: {brief(refusal.tried_bytes, Unit.BYTES)} asked"]
        for suspect in found:
            lines += _wrapped(_suspected(report, suspect), "  - ")
        if not found:
            lines += _wrapped("no entry of the ledger has this size", "  - ")
    return lines


def _suspected(report: Report, suspect: Suspect) -> str:
    return f"{suspect.key}: {suspect.says}; {relief(report.engine, suspect)}"


def _read_lines(report: Report) -> list[str]:
    """Return what the log says where nothing can be held against it."""
    lines = ["read, with nothing to hold it against"] if report.observed else ["no figure of a pool in these lines"]
    for figure in report.observed[:MOST_READ]:
        number = isinstance(figure.value, int | float)
        shown = brief(figure.value, figure.unit) if number else str(figure.value)
        lines += _wrapped(f"{figure.key} = {shown}  (line {figure.line:,})", "  ")
    more = len(report.observed) - MOST_READ
    return [*lines, f"  and {more:,} more (--format json)"] if more > 0 else lines


def _inferred_lines(report: Report) -> list[str]:
    if not report.inferred:
        return []
    lines = ["", "inferred from the figures"]
    said = ""
    for key, value in report.inferred.items():
        certainty = report.certainty.get(key, "")
        shown = f"  [{certainty}]" if certainty != said else ""  # several figures often rest on one finding
        lines += _wrapped(f"{key} = {_plain(key, value)}{shown}", "  ")
        said = certainty
    return lines


def _plain(key: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _number(value, unit_of(key)) if number else str(value)


def _number(value: float | None, unit: Unit) -> str:
    """Return a number with its unit; bytes of records and cells to the byte, as they are compared."""
    if value is None:
        return "-"
    if unit is Unit.SHARE:
        return f"{value:g}"
    if unit is Unit.BYTES:
        return brief(value, unit)
    word = "" if unit is Unit.COUNT else f" {unit.value.removesuffix('s') if value == 1 else unit.value}"
    return f"{value:,.1f}{word}" if isinstance(value, float) else f"{value:,}{word}"


def _wrapped(text: str, start: str, later: str | None = None) -> list[str]:
    below = " " * len(start) if later is None else later
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=below, break_on_hyphens=False)


def _md(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    lines = [f"# Audit: {report.engine}{version}", ""]
    if report.checks:
        lines.append(rows_md([_check_row(check) for check in report.checks]))
    titles: Sequence[tuple[str, Sequence[str]]] = (
        ("Did not start", [f"line {stop.line:,}: {stop.says}" for stop in report.stops]),
        (
            "Inferred",
            [
                f"`{key}` = {_plain(key, value)} ({report.certainty.get(key, '')})"
                for key, value in report.inferred.items()
            ],
        ),
        (
            "Out of memory",
            [_suspected(report, suspect) for _, found in report.refusals for suspect in found],
        ),
        ("What to change", report.advice),
        ("Warnings", report.warnings),
    )
    for title, sentences in titles:
        if sentences:
            lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
