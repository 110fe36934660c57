"""An audit as text: what differs first, then what agrees, what was inferred, and what to change."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.audit.figures import Figure
    from dsa_ledger.audit.reconcile import Check
    from dsa_ledger.audit.report import Report

WIDTH = 80
MOST_READ = 12  # figures; the rest is in the json
_UNITS = {
    "_bytes": Unit.BYTES,
    "_tokens": Unit.TOKENS,
    "_layers": Unit.LAYERS,
    "_fraction": Unit.SHARE,
}


def audit_text(report: Report, form: str) -> str:
    """Return the audit in one of the formats."""
    if form == "json":
        return _json(report)
    if form == "csv":
        return rows_csv([_check_record(check) for check in report.checks])
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
        "checks": [_check_record(check) for check in report.checks],
        "inferred": report.inferred,
        "certainty": report.certainty,
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


def _check_record(check: Check) -> dict[str, Any]:
    return check._asdict()


def _table(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    lines = [f"{report.engine}{version}: {report.lines:,} line{'s' * (report.lines != 1)} read"]
    lines += ["", *_read_lines(report)] if not report.checks else [""]
    if report.checks:
        lines.append(f"{'':27}{'log':>17}{'ledger':>17}{'difference':>17}")
    for check in report.checks:
        unit = unit_of(check.key)
        shown = [_number(value, unit) for value in (check.observed, check.predicted, check.difference)]
        lines.append(f"{check.key:<27}" + "".join(f"{text:>17}" for text in shown))
        if check.cause:
            lines += _wrapped(check.cause, "    ")
    lines += _inferred_lines(report)
    for refusal, found in report.refusals:
        lines += ["", f"out of memory, line {refusal.line:,}: {brief(refusal.tried_bytes, Unit.BYTES)} asked"]
        for suspect in found:
            lines += _wrapped(f"{suspect.key}: {suspect.says}; {suspect.shrinks} shrinks it", "  - ")
        if not found:
            lines += _wrapped("no entry of the ledger has this size", "  - ")
    for title, sentences in (("what to change", report.advice), ("warnings", report.warnings)):
        if sentences:
            lines += ["", title]
            for sentence in sentences:
                lines += _wrapped(sentence, "  - ")
    return "\n".join(lines) + "\n"


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
        lines += _wrapped(f"{key} = {_plain(value)}{shown}", "  ")
        said = certainty
    return lines


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _number(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    if unit is Unit.BYTES_PER_TOKEN:
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    text = brief(value, unit)
    return text.removesuffix(f" {unit.value}") if unit is not Unit.BYTES else text


def _wrapped(text: str, start: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False)


def _md(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    lines = [f"# Audit: {report.engine}{version}", ""]
    if report.checks:
        lines.append(rows_md([_check_record(check) for check in report.checks]))
    titles: Sequence[tuple[str, Sequence[str]]] = (
        (
            "Inferred",
            [f"`{key}` = {_plain(value)} ({report.certainty.get(key, '')})" for key, value in report.inferred.items()],
        ),
        (
            "Out of memory",
            [f"{suspect.key}: {suspect.says}; {suspect.shrinks}" for _, found in report.refusals for suspect in found],
        ),
        ("What to change", report.advice),
        ("Warnings", report.warnings),
    )
    for title, sentences in titles:
        if sentences:
            lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
