"""The pages of `plan` and `sweep`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dsa_ledger.plan.curves import over_contexts
from dsa_ledger.plan.launch import command
from dsa_ledger.plan.outcome import HEADROOM, POOL
from dsa_ledger.render import html
from dsa_ledger.render.budget import budgets
from dsa_ledger.render.html_ledger import curves
from dsa_ledger.render.plan import answer_record, sentence
from dsa_ledger.render.ranking import asked, counted, deployment_record, place_text, step_text
from dsa_ledger.render.words import headline
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.plan.answers import Answer, Chunk
    from dsa_ledger.plan.changes import Tried
    from dsa_ledger.plan.ranking import Deployment, Ranking
    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Axis, Sweep

MOST_ROWS = 2000
MOST_LINES = 8


def answers_page(scenario: Scenario, answers: Sequence[Answer]) -> str:
    """Return direct answers with their command, what breaks first and what would give more."""
    return html.page(headline(scenario), *(part for answer in answers for part in _answer(answer)))


def _answer(answer: Answer) -> list[str]:
    record = answer_record(answer)
    parts = [html.heading(sentence(answer)), html.paragraph(record["why_not"], "bad")]
    ledger = answer.outcome.ledger
    if answer.value and ledger is not None:
        parts.append(html.paragraph(f"Breaks first: {answer.first_to_break}"))
        parts += [html.memory_bar(f"memory {title}", found) for title, found in budgets(ledger)]
        parts.append(html.command_block(record["command"]))
    parts.append(html.listed("Notes", answer.notes))
    if answer.changes:
        parts += [html.heading("Yes with"), html.table([_change(tried) for tried in answer.changes])]
        commands = "\n".join(f"# {tried.change.name}\n{command(tried.outcome.scenario)}" for tried in answer.changes)
        parts.append(f"<details><summary>their commands</summary>{html.command_block(commands)}</details>")
    parts += [html.heading("Chunks"), html.table([_chunk(row) for row in answer.chunks])] if record["chunks"] else []
    if answer.value:
        parts.append(curves(over_contexts(answer.outcome.scenario)))
    return parts


def _chunk(row: Chunk) -> dict[str, Any]:
    sizes = (row.logits_bytes, row.activation_bytes, row.headroom_bytes)
    logits, activations, left = (brief(value, Unit.BYTES) for value in sizes)
    return {
        "chunk": row.chunk_tokens,
        "fraction": row.mem_fraction,
        "pool tokens": row.pool_tokens,
        "logits": logits,
        "activations": activations,
        "left over": left,
        "safe": row.fits,
        "why not": row.reason,
    }


def _change(tried: Tried) -> dict[str, Any]:
    left = tried.outcome.value(HEADROOM)
    return {
        "change": tried.change.name,
        "pool tokens": tried.outcome.value(POOL),
        "upper bound": tried.outcome.is_bound,
        "outside the pool": "-" if left is None else brief(left, Unit.BYTES),
        "price": tried.change.price,
    }


def ranking_page(ranking: Ranking, top: int) -> str:
    """Return the ranked deployments, each with its command and memory, and the frontier of the first ones."""
    shown = ranking.best[:top]
    rows = [_row(place, one) for place, one in enumerate(shown, 1)]
    parts = [html.paragraph(counted(ranking), "faint"), html.table(rows), _frontier(shown)]
    for place, one in enumerate(shown, 1):
        parts.append(html.heading(f"{place}", place_text(one)))
        parts.append(html.paragraph(f"Breaks first: {one.breaks}"))
        parts.append(html.listed("Warnings", one.outcome.warnings))
        if one.outcome.ledger is not None:
            parts += [html.memory_bar(f"memory {title}", found) for title, found in budgets(one.outcome.ledger)]
        parts.append(html.command_block(command(one.outcome.scenario)))
    if not shown:
        misses = [{"layout": place_text(one), "why not": one.outcome.why_not} for one in ranking.near_misses[:top]]
        parts += [html.heading("Nothing fits; nearest"), html.table(misses)]
    refused = [{"layouts": count, "reason": reason} for reason, count in ranking.refused]
    parts += [html.heading("Refused"), html.table(refused)] if refused else []
    return html.page(asked(ranking), *parts)


def _row(place: int, one: Deployment) -> dict[str, Any]:
    record = deployment_record(one)
    return {
        "": place,
        "engine": record["engine"],
        "kv": record["kv_dtype"],
        "layout": place_text(one),
        "requests": record["requests"],
        "longest": record["longest_request_tokens"],
        "step time": step_text(one),
        "upper bound": record["is_upper_bound"],
    }


def _frontier(shown: Sequence[Deployment]) -> str:
    series = []
    for place, one in enumerate(shown[:MOST_LINES], 1):
        points = [(point.context, point.requests) for point in over_contexts(one.outcome.scenario)]
        series.append(html.Series(f"{place}: {place_text(one)}", points))
    return html.chart(
        "requests at once of one server against tokens of each", series, html.tokens_text, html.count_text,
        log_y=True,
    )  # fmt: skip


def machines_page(scenario: Scenario, records: Sequence[dict[str, Any]]) -> str:
    """Return for each kind of GPU the fewest that hold the load."""
    names = ("gpu", "gpus", "requests", "engine", "tp", "pp", "ep", "dp_attention", "dcp", "command")
    rows = [{name: record.get(name) for name in names} for record in records]
    return html.page(f"Smallest machine: {headline(scenario)}", html.table(rows))


def sweep_page(scenario: Scenario, found: Sweep) -> str:
    """Return a sweep as one chart a key over its longest axis of numbers, and its first rows as a table."""
    rows = [dict(zip(found.columns, cells, strict=True)) for cells in itertools.islice(found.cells(), MOST_ROWS)]
    more = len(found.rows[MOST_ROWS:])
    parts = [_lines(found, key) for key in found.keys]
    parts.append(html.paragraph(f"The first {MOST_ROWS:,} points; {more:,} more are in the CSV." if more else ""))
    return html.page(f"Sweep: {headline(scenario)}", *parts, html.table(rows))


def _lines(found: Sweep, key: str) -> str:
    numeric = [one for one in found.axes if all(isinstance(value, int | float) for value in one.values)]
    if not numeric:
        return ""
    main = max(numeric, key=lambda one: len(one.values))
    along, place = found.axes.index(main), found.keys.index(key)
    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in found.rows:
        value = row.figures[place]
        if isinstance(value, int | float):
            others = tuple(cell for index, cell in enumerate(row.point) if index != along)
            if others in lines or len(lines) < MOST_LINES:
                lines.setdefault(others, []).append((row.point[along], value))
    named = [one for one in found.axes if one is not main]
    series = [html.Series(_name(named, others), sorted(points)) for others, points in lines.items()]
    return html.chart(f"{key} against {main.path}", series, html.tokens_text, html.count_text, log_x=False)


def _name(axes: Sequence[Axis], values: Sequence[Any]) -> str:
    return ", ".join(f"{one.path} {html.cell(value)}" for one, value in zip(axes, values, strict=True)) or "all points"
