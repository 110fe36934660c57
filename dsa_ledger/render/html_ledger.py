"""The pages of one ledger and of a comparison."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from dsa_ledger.explain import explained, formula_text, origin, quantity
from dsa_ledger.plan.curves import over_contexts
from dsa_ledger.render import html
from dsa_ledger.render.budget import budgets
from dsa_ledger.render.words import headline, rows_of
from dsa_ledger.units import tokens_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.plan.curves import Point
    from dsa_ledger.schema import Scenario

WALK_LEVELS = 3  # of a row's inputs: a page of every walk to its end is a megabyte
OPENS = "A row opens three levels down; the table of all entries, at the end, has each one's formula and source."


def ledger_page(scenario: Scenario, ledger: Ledger) -> str:
    """Return the ledger with its memory bars, curves over the context, and every headline row down to its sources."""
    parts = [html.paragraph(scenario.title, "faint"), html.listed("Does not fit", ledger.shortfalls, "bad")]
    parts += [html.memory_bar(f"memory {title}", found) for title, found in budgets(ledger)]
    parts.append(curves(over_contexts(scenario)))
    parts.append(html.paragraph(OPENS, "faint"))
    for group, keys in rows_of(ledger, every=False):
        parts.append(html.heading(group.title, group.says))
        parts += [_entry(ledger, key) for key in keys]
    parts.append(html.listed("Warnings", ledger.warnings))
    every = [_plain(ledger, key) for _, keys in rows_of(ledger, every=True) for key in keys]
    parts.append(f"<details><summary>all {len(every):,} entries</summary>{html.table(every)}</details>")
    return html.page(headline(scenario), *parts)


def curves(points: Sequence[Point]) -> str:
    """Return how many requests fit against their length, and the step time with its interval and floor."""
    requests = [html.Series("requests on the server", [(point.context, point.requests) for point in points])]
    drawn = html.chart(
        "requests at once against tokens of each (both logarithmic)",
        requests,
        tokens_text,
        html.count_text,
        log_y=True,
    )
    low = [(point.context, point.low_s) for point in points if point.low_s is not None and point.high_s is not None]
    high = [(point.context, point.high_s) for point in points if point.low_s is not None and point.high_s is not None]
    floor = [(point.context, point.floor_s) for point in points if point.floor_s is not None]
    series = [html.Series("step time, interval", low, high)] if low else []
    series += [html.Series("floor: bytes at the data sheet's peak", floor)] if floor else []
    return drawn + html.chart("step time against context (logarithmic)", series, tokens_text, html.seconds_text)


def _entry(ledger: Ledger, key: str) -> str:
    entry = ledger.entries[key]
    walk = "\n".join(f"{'  ' * depth}{line}" for depth, line in explained(ledger, key, WALK_LEVELS))
    return (
        f'<details class="row"><summary><code>{escape(key)}</code> <b>{escape(quantity(entry))}</b> '
        f'<span class="faint">{escape(ledger.weakest(key))}</span></summary><pre>{escape(walk)}</pre></details>'
    )


def _plain(ledger: Ledger, key: str) -> dict[str, Any]:
    entry = ledger.entries[key]
    return {
        "key": key,
        "value": entry.value,
        "unit": entry.unit.value,
        "formula": formula_text(entry) or "",
        "source": origin(entry.source),
    }


def comparison_page(
    title: str,
    sides: Sequence[str],
    rows: Sequence[dict[str, Any]],
    causes: Sequence[str],
    lists: Sequence[tuple[str, Sequence[str]]],
) -> str:
    """Return two scenarios side by side, the causes of each difference by number under them."""
    said = "".join(html.paragraph(f"{side}: {text}") for side, text in zip("AB", sides, strict=True))
    parts = (html.heading("Differences"), html.table(rows, stacked=True), html.listed("Causes", causes))
    return html.page(title, said, *parts, *(html.listed(name, sentences) for name, sentences in lists))
