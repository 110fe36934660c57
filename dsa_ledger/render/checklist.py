"""The five checks as text, the largest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dsa_ledger.render import rows_text
from dsa_ledger.render.data import CONTRACT
from dsa_ledger.render.wrap import wrap
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from dsa_ledger.checklist import Checklist


def checklist_text(found: Checklist, form: str) -> str:
    """Return the checks in one of the formats; times are of one step of the worst rank."""
    if form == "json":
        table = {"schema": CONTRACT} | found._asdict() | {"checks": [check._asdict() for check in found.checks]}
        return json.dumps(table, indent=1) + "\n"
    rows = [
        {
            "check": check.name,
            "time": brief(check.seconds, Unit.SECONDS),
            "share": f"{check.share:.1%}",
            "counted": "yes" if check.counted else "may add",
            "entry": check.entry,
            "found": check.found,
            "do": check.do,
        }
        for check in found.checks
    ]
    if form != "table":
        return rows_text("checks", rows, form)
    whole = f"{found.whole}, {brief(found.whole_s, Unit.SECONDS)}"
    lines = wrap(f"where a step's time can go, largest first; shares of {whole}")
    for number, row in enumerate(rows, 1):
        lines.append("")
        lines.append(
            f"{number}. {row['check']:<11} {row['time']:>9} {row['share']:>8}  {row['counted']:<8} {row['entry']}"
        )
        lines += wrap(row["found"], "   ")
        lines += wrap(row["do"], "   -> ")
    lines.append("")
    for sentence in found.warnings:
        lines += wrap(sentence, "warning: ")
    return "\n".join(lines).rstrip("\n") + "\n"
