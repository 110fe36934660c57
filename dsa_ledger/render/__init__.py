"""A ledger as text: table for people; json, csv and md with raw values in base units. Nothing is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario


def ledger_text(scenario: Scenario, ledger: Ledger, form: str, *, every: bool = False, colour: bool = False) -> str:
    """Return the whole ledger; `every` lets the table show all entries, not only the headline ones."""
    if form == "table":
        from dsa_ledger.render.table import ledger_table

        return ledger_table(scenario, ledger, every=every, colour=colour)
    if form == "html":
        from dsa_ledger.render.html_ledger import ledger_page

        return ledger_page(scenario, ledger)
    from dsa_ledger.render import data

    if form == "json":
        return data.ledger_json(scenario, ledger)
    return data.entries_csv(ledger) if form == "csv" else data.ledger_md(scenario, ledger)


def explanation_text(scenario: Scenario, ledger: Ledger, key: str, form: str, levels: int | None = None) -> str:
    """Return one entry and all it rests on (BadInput for an unknown key); `levels` cuts the walk meant for reading."""
    from dsa_ledger.render import data

    if form == "json":
        return data.explanation_json(scenario, ledger, key)
    if form == "csv":
        return data.entries_csv(ledger, key)
    if form == "html":
        from dsa_ledger.render.html import text_page

        return text_page(f"explain {key}", data.explanation_plain(ledger, key, levels))
    if form == "md":
        return data.explanation_md(ledger, key, levels)
    return data.explanation_plain(ledger, key, levels)


def rows_text(name: str, rows: Sequence[Mapping[str, Any]], form: str, *, colour: bool = False) -> str:
    """Return a list of records that share their columns, such as the catalog's models."""
    if form == "table":
        from dsa_ledger.render.table import rows_table

        return rows_table(rows, colour=colour)
    if form == "html":
        from dsa_ledger.render.html import page, table

        return page(name, table(rows))
    from dsa_ledger.render import data

    if form == "json":
        return data.rows_json(name, rows)
    return data.rows_csv(rows) if form == "csv" else data.rows_md(rows)
