"""Errors over golden records as text: one line per engine and figure, then what was not checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.audit.golden import Golden, Group


def golden_text(golden: Golden, groups: Sequence[Group], form: str) -> str:
    """Return the groups, the figures that miss, and the records that could not be checked."""
    rows = [group._asdict() for group in groups]
    if form == "json":
        misses = [
            {"record": row.record, "key": row.key, "error": row.error, "reason": row.outside}
            for row in golden.rows
            if not row.inside
        ]
        answer = {"schema": CONTRACT, "groups": rows, "outside": misses, "unchecked": golden.unchecked}
        return json.dumps(answer, indent=1) + "\n"
    if form == "csv":
        return rows_csv(rows)
    if form == "html":
        from dsa_ledger.render.html import text_page

        return text_page("errors over golden records", _table(golden, groups))
    return rows_md(rows) if form == "md" else _table(golden, groups)


def _table(golden: Golden, groups: Sequence[Group]) -> str:
    lines = [f"{'engine':<14}{'figure':<29}{'n':>4}{'median':>9}{'worst':>9}{'inside':>8}"]
    for group in groups:
        shares = f"{group.median_error:>9.3%}{group.worst_error:>9.3%}{group.coverage:>8.0%}"
        lines.append(f"{group.engine:<14}{group.module:<29}{group.n:>4}{shares}")
    outside = [row for row in golden.rows if not row.inside]
    if outside:
        lines += ["", "outside what the printed digits allow"]
    for row in outside:
        lines += wrap(f"{row.record} {row.key} {row.error:+.3%}: {row.outside or 'no reason is known'}", "  - ")
    if golden.unchecked:
        lines += ["", "not checked"]
    for name, reason in golden.unchecked.items():
        lines += wrap(f"{name}: {reason}", "  - ")
    return "\n".join(lines) + "\n"
