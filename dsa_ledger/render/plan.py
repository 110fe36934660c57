"""Direct answers of `plan` as text: 80 columns with the command under each, json, csv and md."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger import picture
from dsa_ledger.plan.curves import over_contexts
from dsa_ledger.plan.launch import command, unsaid
from dsa_ledger.plan.nodes import nodes_of
from dsa_ledger.plan.outcome import HEADROOM, POOL, PREFILL
from dsa_ledger.render.data import CONTRACT, rows_csv
from dsa_ledger.render.notes import Notes
from dsa_ledger.render.words import between, headline
from dsa_ledger.render.wrap import wrap
from dsa_ledger.units import Unit, brief, in_gib, tokens_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.plan.answers import Answer, Chunk
    from dsa_ledger.plan.changes import Tried
    from dsa_ledger.plan.outcome import Outcome
    from dsa_ledger.schema import Scenario

WIDTH = 80
BAR_WIDTH = 30


def answers_text(scenario: Scenario, answers: Sequence[Answer], form: str) -> str:
    """Return direct answers in one of the formats."""
    if form == "json":
        return json_text(scenario, "answers", [answer_record(answer) for answer in answers])
    if form == "csv":
        flat = [record for answer in answers for record in _flat(answer)]
        return rows_csv(flat)
    if form == "md":
        return _md(scenario, answers)
    if form == "html":
        from dsa_ledger.render.html_plan import answers_page

        return answers_page(scenario, answers)
    lines = list(wrapped(headline(scenario)))
    for answer in answers:
        lines += ["", *_answer(answer)]
    return "\n".join(lines) + "\n"


def sentence(answer: Answer) -> str:
    """Return question and figure in one line, yes or no in front where something was asked for."""
    bound = "at most " if answer.outcome.is_bound and answer.value else ""
    unit = answer.unit.removesuffix("s") if answer.value == 1 else answer.unit
    figure = f"{bound}{answer.value:,} {unit}" if answer.value else "none"
    short = f", but {answer.outcome.short}" if answer.value and answer.outcome.short else ""
    if answer.asked is None:
        return f"{answer.question}: {figure}{short}"
    enough = answer.value >= answer.asked
    verdict = "yes" if answer.holds else "no" if not enough else answer.outcome.short
    return f"{answer.question}: {figure}; {answer.asked:,} asked: {verdict}" + (short if not enough else "")


def _answer(answer: Answer) -> Iterator[str]:
    yield from wrapped(sentence(answer))
    if answer.value:
        yield from _facts(answer.outcome)
        yield from wrapped(f"  breaks first: {answer.first_to_break}", "    ")
        yield from [] if answer.outcome.short else command_lines(answer.outcome.scenario)
        yield from [] if answer.chunks else _curve(answer.outcome.scenario)
    if answer.chunks:
        yield from _chunks(answer.chunks)
    yield from (line for note in answer.notes for line in wrapped(f"  note: {note}", "    "))
    if not answer.holds:
        yield from wrapped(f"  why not: {answer.why_not}" if answer.why_not else "", "    ")
        yield from _changes(answer.changes)


def _curve(scenario: Scenario) -> Iterator[str]:
    """Yield requests against their length as bars on a logarithmic scale, and the step time where it is modelled."""
    points = [point for point in over_contexts(scenario) if point.requests]
    if not points:
        return
    places = picture.scale([point.requests for point in points], logarithmic=True)
    yield "  most requests at once by tokens of each (bars on a logarithmic scale), and the"
    yield f"  time of a step of {_batch(scenario)}, both ends, where so many fit:"
    for point in points:
        bar = picture.signs(point.requests, places, BAR_WIDTH)
        step = "-"
        if point.low_s is not None and point.high_s is not None and point.requests >= scenario.load.batch:
            step = between(brief(point.low_s, Unit.SECONDS), brief(point.high_s, Unit.SECONDS))
        yield f"    {tokens_text(point.context):>6}{point.requests:>8,} {bar:<{BAR_WIDTH}}  {step}"


def _batch(scenario: Scenario) -> str:
    batch = scenario.load.batch
    return f"{batch:,} request{'s' * (batch != 1)}"


def _facts(outcome: Outcome) -> Iterator[str]:
    pool = outcome.value(POOL)
    if pool is not None:
        mark = "at most " if outcome.is_bound else ""
        yield f"  pool: {mark}{pool:,} tokens a rank, {outcome.value('cell.bytes'):,} B each"
    left = [(outcome.value(key), words) for key, words in ((HEADROOM, "at rest"), (PREFILL, "in prefill"))]
    said = ", ".join(f"{brief(value, Unit.BYTES)} {words}" for value, words in left if value is not None)
    if said:
        yield from wrapped(f"  outside the pool: {said} (before CUDA graphs; activations are a prior)", "    ")


def command_lines(scenario: Scenario) -> Iterator[str]:
    """Yield the command that starts a scenario, and what it cannot say."""
    yield "  start it with:"
    yield from (f"    {line}" for line in command(scenario).splitlines())
    yield from _other_nodes(scenario)
    if unsaid(scenario):
        yield f"    (and {', '.join(unsaid(scenario))}, which no flag read here says)"


def _other_nodes(scenario: Scenario) -> Iterator[str]:
    nodes = nodes_of(scenario)
    if nodes.many > 1:
        text = f"({nodes.many} nodes of {nodes.gpus} GPUs; the others run {nodes.others})"
        yield from (f"    {line}" for line in textwrap.wrap(text, WIDTH - 4, break_on_hyphens=False))


def _changes(found: Sequence[Tried]) -> Iterator[str]:
    if not found:
        yield "  no single change makes it fit"
        return
    yield "  yes with"
    for tried in found:
        tokens = tried.outcome.value(POOL)
        seen = tried.outcome.scenario.observed
        prior = "" if seen.kv_bytes or seen.free_after or seen.free_before else ", from priors"
        mark = "at most " if tried.outcome.is_bound else ""
        short = f"; outside it {tried.outcome.short}" if tried.outcome.short else ""
        yield from wrapped(f"    {tried.change.name}: pool of {mark}{tokens:,} tokens{prior}{short}", "      ")
        yield from wrapped(f"      price: {tried.change.price}", "        ")


def _chunks(chunks: Sequence[Chunk]) -> Iterator[str]:
    notes = Notes()
    yield ""
    yield "     chunk  fraction           pool     logits  activations  left over  safe"
    yield "    tokens                   tokens        GiB          GiB        GiB"
    for row in chunks:
        logits, activations, left = (
            in_gib(value) for value in (row.logits_bytes, row.activation_bytes, row.headroom_bytes)
        )
        verdict = notes.mark("yes" if row.fits else "no", row.reason)
        yield (
            f"{row.chunk_tokens:>10,} {row.mem_fraction:>9.3f} {row.pool_tokens:>14,} {logits:>10} {activations:>12} "
            f"{left:>10}  {verdict}"
        )
    yield from notes.lines()


def answer_record(answer: Answer) -> dict[str, Any]:
    """Return one answer as the JSON contract spells it."""
    return {
        "question": answer.question,
        "value": answer.value,
        "unit": answer.unit,
        "asked": answer.asked,
        "holds": answer.holds,
        "is_upper_bound": answer.outcome.is_bound,
        "why_not": answer.why_not,
        "first_to_break": answer.first_to_break,
        **figures(answer.outcome),
        "command": command(answer.outcome.scenario),
        "changes": [_change_record(tried) for tried in answer.changes],
        "chunks": [chunk._asdict() for chunk in answer.chunks],
        "notes": list(answer.notes),
    }


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return the entries that every answer shows."""
    keys = ("cell.bytes", POOL, HEADROOM, PREFILL)
    return {key: outcome.value(key) for key in keys}


def _change_record(tried: Tried) -> dict[str, Any]:
    return {
        "change": tried.change.name,
        "price": tried.change.price,
        "kind": tried.change.near.name.lower(),
        **figures(tried.outcome),
        "command": command(tried.outcome.scenario),
    }


def _flat(answer: Answer) -> list[dict[str, Any]]:
    record = answer_record(answer)
    plain = {name: value for name, value in record.items() if not isinstance(value, list)}
    return [plain | {"changes": "; ".join(tried.change.name for tried in answer.changes)}]


def _md(scenario: Scenario, answers: Sequence[Answer]) -> str:
    lines = [f"# {headline(scenario)}", ""]
    for answer in answers:
        lines += [f"- **{sentence(answer)}**; breaks first: {answer.first_to_break}"]
        lines += [f"  - {tried.change.name}: {tried.change.price}" for tried in answer.changes]
    return "\n".join(lines) + "\n"


def json_text(scenario: Scenario, name: str, records: Any, **more: Any) -> str:
    """Return records, or one of them, under a name, with the scenario they answer."""
    whole = {"schema": CONTRACT, "scenario": scenario.model_dump(mode="json", by_alias=True), name: records, **more}
    return json.dumps(whole, indent=1) + "\n"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return text in lines of at most 80 columns."""
    return wrap(text, "", indent)
