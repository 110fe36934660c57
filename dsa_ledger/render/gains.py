"""Single changes by gain as text."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.plan.launch import command
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.words import headline
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from dsa_ledger.plan.gains import Figures, Gain, Gains

WIDTH = 80


def gains_text(found: Gains, form: str) -> str:
    """Return the changes in one of the formats, the largest gain first."""
    records = [_record(gain) for gain in found.found]
    if form == "json":
        whole = {
            "schema": CONTRACT,
            "scenario": found.scenario.model_dump(mode="json", by_alias=True),
            "before": found.before._asdict(),
            "changes": records,
            "refused": found.refused,
        }
        return json.dumps(whole, indent=1) + "\n"
    if form == "csv":
        return rows_csv(records)
    if form == "md":
        return rows_md(records) if records else "no single change alters the server\n"
    if form == "html":
        from dsa_ledger.render.html import page, paragraph, table

        now = {"change": "as it is"} | found.before._asdict()
        rows = [now, *({name: record[name] for name in (*now, "price")} for record in records)]
        rows[0]["price"] = ""
        return page(headline(found.scenario), paragraph(f"{found.refused} changes are refused here"), table(rows))
    lines = [*textwrap.wrap(headline(found.scenario), WIDTH), ""]
    lines.append(f"{'':34}{'tokens':>13}{'requests':>10}{'step time':>20}")
    lines.append(f"{'as it is':<34}{_figures(found.before)}")
    for gain in found.found:
        name = gain.change.name
        lines += [name, " " * 34 + _figures(gain.after)] if len(name) > 33 else [f"{name:<34}{_figures(gain.after)}"]  # noqa: PLR2004 - the column
        lines += textwrap.wrap(f"   {gain.change.price}", WIDTH, subsequent_indent="   ")
        if gain.outcome.why_not:
            why = gain.outcome.why_not.partition(";")[0]
            lines += textwrap.wrap(f"   the load does not fit: {why}", WIDTH, subsequent_indent="   ")
    lines += ["", f"{found.refused} changes are refused by this release, GPU or layout"]
    return "\n".join(lines) + "\n"


def _figures(one: Figures) -> str:
    return f"{one.system_tokens:>13,}{one.requests:>10,}{_step(one):>20}"


def _step(one: Figures) -> str:
    if one.step_low_s is None or one.step_high_s is None:
        return "not modelled"
    low, high = (brief(end, Unit.SECONDS) for end in (one.step_low_s, one.step_high_s))
    return low if low == high else f"{low} to {high}"


def _record(gain: Gain) -> dict[str, Any]:
    return {
        "change": gain.change.name,
        "kind": gain.change.near.name.lower(),
        **gain.after._asdict(),
        "fits": gain.outcome.fits,
        "is_upper_bound": gain.outcome.is_bound,
        "price": gain.change.price,
        "command": command(gain.outcome.scenario),
    }
