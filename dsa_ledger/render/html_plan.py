"""The pages of `plan` and `sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.plan.curves import over_contexts
from dsa_ledger.plan.launch import command
from dsa_ledger.plan.nodes import nodes_of
from dsa_ledger.plan.outcome import HEADROOM, POOL
from dsa_ledger.render import html
from dsa_ledger.render.budget import fullest
from dsa_ledger.render.html_ledger import curves
from dsa_ledger.render.notes import SHORT, Notes
from dsa_ledger.render.plan import answer_record, sentence
from dsa_ledger.render.ranking import (
    asked,
    cost_text,
    counted,
    deployment_record,
    kv_text,
    money_lines,
    place_text,
    shown_of,
    step_text,
    warned,
)
from dsa_ledger.render.sweep import units_of
from dsa_ledger.render.words import headline
from dsa_ledger.units import Unit, brief, in_one_unit, tokens_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.plan.answers import Answer, Chunk
    from dsa_ledger.plan.changes import Tried
    from dsa_ledger.plan.ranking import Ranking
    from dsa_ledger.plan.tried import Deployment
    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Axis, Sweep

MOST_ROWS = 2000
MOST_LINES = 8
MOST_STACKED = 50  # rows of a sweep that a phone shows cell by cell; a longer one scrolls sideways


def answers_page(scenario: Scenario, answers: Sequence[Answer]) -> str:
    """Return direct answers with their command, what breaks first and what would give more."""
    return html.page(headline(scenario), *(part for answer in answers for part in _answer(answer)))


def _answer(answer: Answer) -> list[str]:
    record = answer_record(answer)
    parts = [html.heading(sentence(answer)), html.paragraph(record["why_not"], "bad")]
    ledger = answer.outcome.ledger
    if answer.value and ledger is not None:
        parts.append(html.paragraph(f"Breaks first: {answer.first_to_break}"))
        parts += [html.memory_bar(f"memory {title}", found) for title, found in fullest(ledger)]
        parts += [] if answer.outcome.short else [html.command_block(record["command"])]
    parts.append(html.listed("Notes", answer.notes))
    if answer.changes:
        parts += [html.heading("Yes with"), html.table([_change(tried) for tried in answer.changes], stacked=True)]
        commands = "\n".join(f"# {tried.change.name}\n{command(tried.outcome.scenario)}" for tried in answer.changes)
        parts.append(f"<details><summary>their commands</summary>{html.command_block(commands)}</details>")
    parts += (
        [html.heading("Chunks"), html.table([_chunk(row) for row in answer.chunks], stacked=True)]
        if record["chunks"]
        else []
    )
    if answer.value:
        parts.append(curves(over_contexts(answer.outcome.scenario)))
    return parts


def _chunk(row: Chunk) -> dict[str, Any]:
    sizes = (row.logits_bytes, row.activation_bytes, row.headroom_bytes)
    logits, activations, left = (brief(value, Unit.BYTES) for value in sizes)
    return {
        "chunk, tokens": row.chunk_tokens,
        "fraction": row.mem_fraction,
        "pool, tokens": row.pool_tokens,
        "logits": html.Figure(logits),
        "activations": html.Figure(activations),
        "left over": html.Figure(left),
        "safe": row.fits,
        "why not": row.reason,
    }


def _change(tried: Tried) -> dict[str, Any]:
    left = tried.outcome.value(HEADROOM)
    return {
        "change": tried.change.name,
        "pool tokens": tried.outcome.value(POOL),
        "upper bound": tried.outcome.is_bound,
        "outside the pool": html.Figure("-" if left is None else brief(left, Unit.BYTES)),
        "price": tried.change.price,
    }


def ranking_page(ranking: Ranking, top: int) -> str:
    """Return the ranked deployments, each with its command and memory, and the frontier of the first ones."""
    shown = shown_of(ranking, top)
    rows = [_row(ranking, place, one) for place, one in enumerate(shown, 1)]
    parts = [html.paragraph(counted(ranking), "faint"), html.table(rows, stacked=True)]
    parts += [html.paragraph(text, "faint") for text in money_lines(ranking, shown)]
    parts.append(_frontier(shown))
    for place, one in enumerate(shown, 1):
        parts.append(html.heading(f"{place}", place_text(one)))
        parts.append(html.paragraph(f"Breaks first: {one.breaks}"))
        if one.outcome.ledger is not None:
            parts += [html.memory_bar(f"memory {title}", found) for title, found in fullest(one.outcome.ledger)]
        if one.outcome.fits:
            parts += [html.command_block(command(one.outcome.scenario)), _others(one)]
    parts.append(html.listed("Warnings", warned([(f"{at}", one.outcome.warnings) for at, one in enumerate(shown, 1)])))
    if not shown:
        misses = [{"layout": place_text(one), "why not": one.outcome.why_not} for one in ranking.near_misses[:top]]
        parts += [html.heading("Nothing fits; nearest"), html.table(misses, stacked=True)]
    elif ranking.nearest:
        without = [{"layout": place_text(one), "why not": one.outcome.why_not} for one in ranking.nearest]
        parts += [html.heading("Machines without a layout that fits; nearest"), html.table(without, stacked=True)]
    refused = [{"layouts": count, "reason": reason} for reason, count in ranking.refused]
    parts += [html.heading("Refused"), html.table(refused, stacked=True)] if refused else []
    return html.page(asked(ranking), *parts)


def _others(one: Deployment) -> str:
    nodes = nodes_of(one.outcome.scenario)
    words = f"{nodes.many} nodes of {nodes.gpus} GPUs; the others run {nodes.others}"
    return html.paragraph(words if nodes.many > 1 else "", "faint")


def _row(ranking: Ranking, place: int, one: Deployment) -> dict[str, Any]:
    record, left = deployment_record(one), one.outcome.left_bytes
    bound = "<= " * one.outcome.is_bound
    return {
        "place": place,
        "requests": html.Figure(f"{bound}{record['requests']:,}"),
        "layout": place_text(one),
        **({} if ranking.best and not ranking.short else {"verdict": record["verdict"]}),
        "engine": record["engine"],
        "KV record, B": kv_text(one.outcome),
        "longest, tokens": html.Figure(f"{bound}{record['longest_request_tokens']:,}"),
        "left over": html.Figure("-" if left is None else brief(left, Unit.BYTES)),
        "step time": html.Figure(step_text(one)),
        **({"a million output tokens": html.Figure(cost_text(one, ranking.prices))} if ranking.prices else {}),
    }


def _frontier(shown: Sequence[Deployment]) -> str:
    series = []
    for place, one in enumerate(shown[:MOST_LINES], 1):
        points = [(point.context, point.requests) for point in over_contexts(one.outcome.scenario)]
        series.append(html.Series(f"{place}: {place_text(one)}", points))
    title = "requests at once of one server against tokens of each (both logarithmic)"
    return html.chart(title, series, tokens_text, html.count_text, log_y=True)


def machines_page(scenario: Scenario, records: Sequence[dict[str, Any]]) -> str:
    """Return for each kind of GPU the fewest that hold the load, and the commands under them."""
    names = ("gpu", "gpus", "requests", "engine", "tp", "pp", "ep", "dp_attention", "dcp")
    rows, load = [{name: record.get(name) for name in names} for record in records], scenario.load
    commands = [
        part
        for record in records
        if record["command"]
        for part in (html.heading(f"{record['gpus']} x {record['gpu']}"), html.command_block(record["command"]))
    ]
    title = f"Smallest machine for {load.batch:,} request{'s' * (load.batch != 1)} of {load.context or 0:,} tokens"
    return html.page(title, html.table(rows, stacked=True), *commands)


def sweep_page(scenario: Scenario, found: Sweep) -> str:
    """Return a sweep as one chart a key over its longest axis of numbers, its first rows and the reasons by number."""
    notes, units = Notes(), units_of(found, scenario)
    rows = []
    for row in found.rows[:MOST_ROWS]:
        point = {axis.path: value for axis, value in zip(found.axes, row.point, strict=True)}
        figures = {key: _figure(value, units[key]) for key, value in zip(found.keys, row.figures, strict=True)}
        rows.append({**point, **figures, "fits": notes.mark(SHORT.get(row.verdict, row.verdict), row.reason)})
    more = len(found.rows[MOST_ROWS:])
    parts = [html.paragraph(f"Not varied: {_fixed(scenario, found)}", "faint")]
    parts += [_lines(found, key, units[key]) for key in found.keys]
    parts.append(html.paragraph(f"The first {MOST_ROWS:,} points; {more:,} more are in the CSV." if more else ""))
    varied = ", ".join(f"{axis.path} ({len(axis.values):,} values)" for axis in found.axes)
    reasons = html.listed("Reasons", (f"({at}) {text}" for at, text in enumerate(notes.sentences(), 1)))
    return html.page(
        f"Sweep of {scenario.model_name} over {varied}",
        *parts,
        html.table(rows, stacked=len(rows) <= MOST_STACKED),
        reasons,
    )


def _fixed(scenario: Scenario, found: Sweep) -> str:
    """Return what is stated and not varied."""
    varied = {axis.path for axis in found.axes}
    stated = scenario.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"title", "model", "machine"}
    )
    flat = [(name, value) for name, value in stated.items() if not isinstance(value, dict)]
    flat += [
        (f"{table}.{name}", value)
        for table, fields in stated.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    ]
    return ", ".join(f"{path} {html.cell(value)}" for path, value in flat if path not in varied) or "nothing"


def _figure(value: Any, unit: str) -> Any:
    """Return a cell with its unit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not unit:
        return value
    return html.Figure(brief(value, Unit(unit)))


def _lines(found: Sweep, key: str, unit: str) -> str:
    numeric = [one for one in found.axes if all(isinstance(value, int | float) for value in one.values)]
    if not numeric:
        return ""
    main = max(numeric, key=lambda one: len(one.values))
    along, place = found.axes.index(main), found.keys.index(key)
    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in found.rows:
        value = row.figures[place]
        if isinstance(value, int | float):
            others = tuple(html.cell(cell) for index, cell in enumerate(row.point) if index != along)
            if others in lines or len(lines) < MOST_LINES:
                lines.setdefault(others, []).append((row.point[along], value))
    named = [one for one in found.axes if one is not main]
    if unit:
        flat, unit = in_one_unit([value for points in lines.values() for _, value in points], Unit(unit))
        scaled = iter(flat)
        lines = {others: [(at, next(scaled)) for at, _ in points] for others, points in lines.items()}
    series = [html.Series(_name(named, others), sorted(points)) for others, points in lines.items()]
    title = f"{key}{f' [{unit}]' if unit else ''} against {main.path}"
    return html.chart(title, series, tokens_text, html.count_text, log_x=False)


def _name(axes: Sequence[Axis], values: Sequence[Any]) -> str:
    return ", ".join(f"{one.path} {html.cell(value)}" for one, value in zip(axes, values, strict=True)) or "all points"
