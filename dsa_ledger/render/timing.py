"""Errors of the kernel tables, published speeds and diagnoses as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsa_ledger.render import rows_text
from dsa_ledger.render.data import wrapped
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsa_ledger.diagnosis import Diagnosis
    from dsa_ledger.timing.validation import Report

COUNTED = ("repeated_rows", "not_launched_rows", "rows_without_table")
HIDDEN = {"gpu", "engine", "version", "phase", "module", "reason", "reference_n"}
NAMES = {
    "median_error": "median",
    "p95_error": "p95",
    "reference_median_error": "ref median",
    "reference_p95_error": "ref p95",
}


def report_text(report: Report, form: str, *, colour: bool = False) -> str:
    """Return the errors of each group, and what was counted and shown apart."""
    if form == "json":
        return json.dumps(report._asdict(), indent=1) + "\n"
    rows = [_shares(record) for record in report.groups]
    text = rows_text("groups", rows, form, colour=colour)
    if form == "csv":
        return text
    if report.apart:
        text += "\nshown apart:\n" + rows_text(
            "apart", [_shares(record) for record in report.apart], form, colour=colour
        )
        text += "".join(_line(reason, form) for reason in dict.fromkeys(record["reason"] for record in report.apart))
    counts = report._asdict()
    text += "\n" + ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in COUNTED) + "\n"
    return text + _warnings(report.warnings, form)


def _shares(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it is shown: shares in percent, the reason left to the text below."""
    group = "{gpu} {engine}@{version} {phase} {module}".format(**record)
    return {"group": group} | {
        NAMES.get(key, key): f"{value:.1%}" if isinstance(value, float) else "" if value is None else value
        for key, value in record.items()
        if key not in HIDDEN
    }


def published_text(
    indexcache: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], reason: str, form: str
) -> str:
    """Return published speeds beside the tables'."""
    if form == "json":
        return json.dumps({"indexcache": list(indexcache), "reason": reason, "steps": list(steps)}, indent=1) + "\n"
    shown = [{key: _short(value) for key, value in row.items()} for row in indexcache]
    listed = [{key: _short(value) for key, value in row.items() if key != "source"} for row in steps]
    text = rows_text("indexcache", shown, form) + ("" if form == "csv" else _line(reason, form) + "\n")
    return text + rows_text("steps", listed, form)


def diagnosis_text(found: Diagnosis, form: str, *, colour: bool = False) -> str:
    """Return what explains a slope or a gap, largest first."""
    if form == "json":
        table = found._asdict() | {"causes": [cause._asdict() for cause in found.causes]}
        return json.dumps(table, indent=1) + "\n"
    causes = [
        {
            "entry": cause.entry,
            "time": _short(cause.seconds),
            "share": f"{cause.share:.0%}",
            "counted": "yes" if cause.in_estimate else "may add",
            "what": cause.says,
        }
        for cause in found.causes
    ]
    text = rows_text("causes", causes, form, colour=colour)
    if form == "csv":
        return text
    left = f"left: {_short(found.left_s)} ({found.left_share:.0%})"
    text = f"{found.what}; to explain: {_short(found.seconds)}\n\n{text}{left}\n"
    text += _line(f"conclusion: {found.conclusion}", form)
    if found.intercept:
        rows = [
            {"entry": row["entry"], "time": _short(row["seconds"]), "share": f"{row['share']:.0%}"}
            for row in found.intercept
        ]
        text += "\nat the shortest context:\n" + rows_text("intercept", rows, form, colour=colour)
    engines = [
        {
            "engine": f"{row['engine']}@{row['version']}",
            "tied": _short(row["tied_s"]),
            "share": f"{row['tied_share']:.0%}",
            "separated": _short(row["separated_s"]),
            "share ": f"{row['separated_share']:.0%}",
            "from": "measured table" if row["measured"] else "prior",
        }
        for row in found.by_engine
    ]
    text += "\nthe full layers' growth by engine version:\n" + rows_text("by_engine", engines, form, colour=colour)
    return text + _warnings(found.warnings, form)


def _warnings(sentences: Sequence[str], form: str) -> str:
    return "".join(_line(f"warning: {sentence}", form) for sentence in sentences)


def _line(text: str, form: str) -> str:
    """Return a sentence as lines that fit a terminal; other formats wrap by themselves."""
    return wrapped(text, below="  ") if form == "table" else f"{text}\n"


def _short(value: Any) -> Any:
    """Return a time or figure with three digits, yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return brief(value, Unit.SECONDS) if abs(value) < 1 else f"{value:.3g}"
    return value
