"""Answers and rankings of `plan` as text: tables of 80 columns with the commands under them, json, csv and md."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.plan.launch import command, unsaid
from dsa_ledger.plan.outcome import HEADROOM, POOL, PREFILL
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.words import headline, layout
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.plan.answers import Answer, Chunk
    from dsa_ledger.plan.changes import Tried
    from dsa_ledger.plan.outcome import Outcome
    from dsa_ledger.plan.ranking import Deployment, Ranking
    from dsa_ledger.schema import Scenario

WIDTH = 80
SHOWN_COMMANDS = 3
AT_MOST = "<= is an upper bound: the engine's profiling run is not modelled; --kv-bytes from a log makes it exact."


def answers_text(scenario: Scenario, answers: Sequence[Answer], form: str) -> str:
    """Return direct answers in one of the formats."""
    if form == "json":
        return _json(scenario, "answers", [answer_record(answer) for answer in answers])
    if form == "csv":
        flat = [record for answer in answers for record in _flat(answer)]
        return rows_csv(flat)
    if form == "md":
        return _md(scenario, answers)
    if form == "html":
        from dsa_ledger.render.html_plan import answers_page

        return answers_page(scenario, answers)
    lines = list(_wrapped(headline(scenario)))
    for answer in answers:
        lines += ["", *_answer(answer)]
    return "\n".join(lines) + "\n"


def sentence(answer: Answer) -> str:
    """Return question and figure in one line, yes or no in front where something was asked for."""
    bound = "at most " if answer.outcome.is_bound and answer.value else ""
    figure = f"{bound}{answer.value:,} {answer.unit}" if answer.value else "none"
    if answer.asked is None:
        return f"{answer.question}: {figure}"
    return f"{answer.question}: {'yes' if answer.holds else 'no'}, {figure} ({answer.asked:,} asked)"


def _answer(answer: Answer) -> Iterator[str]:
    yield from _wrapped(sentence(answer))
    if answer.value:
        yield from _facts(answer.outcome)
        yield from _wrapped(f"  breaks first: {answer.first_to_break}", "    ")
        yield from _command(answer.outcome.scenario)
    if answer.chunks:
        yield from _chunks(answer.chunks)
    yield from (line for note in answer.notes for line in _wrapped(f"  note: {note}", "    "))
    if not answer.holds:
        yield from _wrapped(f"  why not: {answer.why_not}" if answer.why_not else "", "    ")
        yield from _changes(answer.changes)


def _facts(outcome: Outcome) -> Iterator[str]:
    pool = outcome.value(POOL)
    if pool is not None:
        mark = "at most " if outcome.is_bound else ""
        yield f"  pool: {mark}{pool:,} tokens a rank, {outcome.value('cell.bytes'):,} B each"
    left = [(outcome.value(key), words) for key, words in ((HEADROOM, "at rest"), (PREFILL, "in prefill"))]
    said = ", ".join(f"{brief(value, Unit.BYTES)} {words}" for value, words in left if value is not None)
    if said:
        yield from _wrapped(f"  outside the pool: {said} (before CUDA graphs; activations are a prior)", "    ")


def _command(scenario: Scenario) -> Iterator[str]:
    yield "  start it with:"
    yield from (f"    {line}" for line in command(scenario).splitlines())
    if unsaid(scenario):
        yield f"    (and {', '.join(unsaid(scenario))}, which no flag read here says)"


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
        yield from _wrapped(f"    {tried.change.name}: pool of {mark}{tokens:,} tokens{prior}", "      ")
        yield from _wrapped(f"      price: {tried.change.price}", "        ")


def _chunks(chunks: Sequence[Chunk]) -> Iterator[str]:
    yield ""
    yield "     chunk  fraction   pool tokens     logits  activations    left over  safe"
    for row in chunks:
        figures = (row.logits_bytes, row.activation_bytes, row.headroom_bytes)
        logits, activations, left = (brief(value, Unit.BYTES) for value in figures)
        yield (
            f"{row.chunk_tokens:>10,}{row.mem_fraction:>10.3f}{row.pool_tokens:>14,}{logits:>11}{activations:>13}"
            f"{left:>13}  {'yes' if row.fits else 'no'}"
        )


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
        **_figures(answer.outcome),
        "command": command(answer.outcome.scenario),
        "changes": [_change_record(tried) for tried in answer.changes],
        "chunks": [chunk._asdict() for chunk in answer.chunks],
        "notes": list(answer.notes),
    }


def _figures(outcome: Outcome) -> dict[str, Any]:
    keys = ("cell.bytes", POOL, HEADROOM, PREFILL)
    return {key: outcome.value(key) for key in keys}


def _change_record(tried: Tried) -> dict[str, Any]:
    return {
        "change": tried.change.name,
        "price": tried.change.price,
        "kind": tried.change.near.name.lower(),
        **_figures(tried.outcome),
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


def _json(scenario: Scenario, name: str, records: list[dict[str, Any]], **more: Any) -> str:
    whole = {"schema": CONTRACT, "scenario": scenario.model_dump(mode="json", by_alias=True), name: records, **more}
    return json.dumps(whole, indent=1) + "\n"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) if text else []


def ranking_text(ranking: Ranking, form: str, top: int) -> str:
    """Return a ranking in one of the formats, the first `top` of those that fit."""
    shown = ranking.best[:top]
    if form == "json":
        more = {
            "goal": ranking.goal,
            "machines": [machine._asdict() for machine in ranking.machines],
            "tried": ranking.tried,
            "fit": len(ranking.best),
            "do_not_fit": len(ranking.near_misses),
            "refused": [{"reason": reason, "layouts": count} for reason, count in ranking.refused],
            "near_misses": [deployment_record(one) for one in ranking.near_misses[:top]],
        }
        return _json(ranking.scenario, "deployments", [deployment_record(one) for one in shown], **more)
    if form == "csv":
        return rows_csv([_one_line(deployment_record(one)) for one in shown])
    if form == "md":
        return f"# {asked(ranking)}\n\n" + (
            rows_md([deployment_record(one) for one in shown]) if shown else "none fits\n"
        )
    if form == "html":
        from dsa_ledger.render.html_plan import ranking_page

        return ranking_page(ranking, top)
    lines = [*_wrapped(asked(ranking)), *_wrapped(counted(ranking)), ""]
    lines += _rows(shown)
    for place, one in enumerate(shown[:SHOWN_COMMANDS], 1):
        lines += ["", *_wrapped(f"{place}: {one.breaks} (breaks first)", "   ")]
        lines += [line for text in one.outcome.warnings for line in _wrapped(f"   warning: {text}", "     ")]
        lines += _command(one.outcome.scenario)
    if not shown:
        lines += _misses(ranking)
    return "\n".join(lines) + "\n"


def _one_line(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"warnings": "; ".join(record["warnings"])}


def asked(ranking: Ranking) -> str:
    """Return machines, load and goal in one line."""
    scenario = ranking.scenario
    model = scenario.model if isinstance(scenario.model, str) else scenario.model.name
    machines = " or ".join(f"{machine.gpus} x {machine.gpu}" for machine in ranking.machines)
    load = scenario.load
    wanted = f", {load.batch:,} requests of {load.context:,} tokens" if load.context else ""
    return f"{model} on {machines}{wanted}; ranked by {ranking.goal}"


def counted(ranking: Ranking) -> str:
    """Return how many deployments were tried and what became of them."""
    refused = sum(count for _, count in ranking.refused)
    return (
        f"{ranking.tried:,} deployments tried: {len(ranking.best):,} fit, {len(ranking.near_misses):,} do not, "
        f"{refused:,} are refused"
    )


def _rows(shown: Sequence[Deployment]) -> Iterator[str]:
    if not shown:
        return
    yield f"{'':3}{'engine':<22}{'kv':<8}{'requests':>9}{'longest':>11}{'left over':>11}{'step time':>14}"
    for place, one in enumerate(shown, 1):
        scenario, mark = one.outcome.scenario, "<=" if one.outcome.is_bound else ""
        requests = f"{mark}{one.requests:,}" if one.requests else "-"
        left = min(
            (value for key in (HEADROOM, PREFILL) if (value := one.outcome.value(key)) is not None), default=None
        )
        free = "-" if left is None else brief(left, Unit.BYTES)
        name = f"{scenario.engine.name}@{scenario.engine.version}"
        said = f"{requests:>9}{one.longest:>11,}{free:>11}{step_text(one):>14}"
        yield f"{place:>2} {name:<21} {scenario.kv_dtype[:7]:<8}{said}"
        yield f"   {place_text(one)}"
    if any(one.outcome.is_bound for one in shown):
        yield from ["", *_wrapped(AT_MOST)]
    if any(one.pessimistic_s is None for one in shown):
        yield "step time -: not modelled for this layout, engine or GPU"


def place_text(one: Deployment) -> str:
    """Return machine, servers and layout in words."""
    bare = one.outcome.scenario.model_copy(update={"features": (), "kv_dtype": "auto"})
    words = layout(bare).partition(", batch ")[0].partition(", draft steps")[0]
    servers = f"{one.layout.servers} server{'s' * (one.layout.servers > 1)}"
    return f"{servers} of {one.layout.ranks} x {one.machine.gpu}: {words}"


def step_text(one: Deployment) -> str:
    """Return the step time, an interval where it is not known for sure, or a dash."""
    worst = one.pessimistic_s
    if worst is None:
        return "-"
    low = one.seconds("time.step_low_s")
    if one.time_is_certain or low is None:
        return brief(worst, Unit.SECONDS)
    return f"~{brief(low, Unit.SECONDS).partition(' ')[0]}-{brief(worst, Unit.SECONDS)}"


def deployment_record(one: Deployment) -> dict[str, Any]:
    """Return one deployment as the JSON contract spells it."""
    scenario = one.outcome.scenario
    cut = scenario.sharding
    return {
        "gpu": one.machine.gpu,
        "gpus": one.machine.gpus,
        "servers": one.layout.servers,
        "engine": f"{scenario.engine.name}@{scenario.engine.version}",
        "kv_dtype": scenario.kv_dtype,
        **{name: getattr(cut, name) for name in ("tp", "pp", "ep", "dp_attention", "dcp")},
        "requests": one.requests,
        "longest_request_tokens": one.longest,
        "is_upper_bound": one.outcome.is_bound,
        **_figures(one.outcome),
        "step_low_s": one.seconds("time.step_low_s"),
        "step_high_s": one.pessimistic_s,
        "step_is_certain": one.time_is_certain,
        "first_to_break": one.breaks,
        "why_not": one.outcome.why_not,
        "warnings": one.outcome.warnings,
        "command": command(scenario),
    }


def _misses(ranking: Ranking) -> Iterator[str]:
    yield "nothing fits; nearest:"
    for one in ranking.near_misses[:SHOWN_COMMANDS]:
        name = f"{one.outcome.scenario.engine.name}@{one.outcome.scenario.engine.version}"
        yield from _wrapped(
            f"  {name}, kv {one.outcome.scenario.kv_dtype}, {place_text(one)}: {one.outcome.why_not}", "    "
        )
    for reason, count in ranking.refused[:SHOWN_COMMANDS]:
        yield from _wrapped(f"  {count:,} refused: {reason}", "    ")


def machines_text(scenario: Scenario, rankings: Sequence[Ranking], form: str) -> str:
    """Return for each kind of GPU the fewest that hold the load."""
    records = [_machine_record(ranking) for ranking in rankings]
    if form == "json":
        return _json(scenario, "machines", records)
    if form == "csv":
        return rows_csv([_one_line(record) for record in records])
    if form == "md":
        return rows_md([_one_line(record) for record in records])
    if form == "html":
        from dsa_ledger.render.html_plan import machines_page

        return machines_page(scenario, records)
    load = scenario.load
    context = load.context or 0
    lines = [f"smallest machine for {load.batch:,} requests of {context:,} tokens", ""]
    for ranking, record in zip(rankings, records, strict=True):
        if not ranking.best:
            lines += [f"  {record['gpu']}: none up to {record['gpus']} GPUs"]
            continue
        one = ranking.best[0]
        name = f"{one.outcome.scenario.engine.name}@{one.outcome.scenario.engine.version}"
        mark = " (at most)" if one.outcome.is_bound else ""
        lines += [
            f"  {record['gpus']:>2} x {record['gpu']:<10} holds {one.requests:,}{mark}; {name}, {place_text(one)}"
        ]
        if len(rankings) == 1:
            lines += [*_wrapped(f"  breaks first: {one.breaks}", "    "), *_command(one.outcome.scenario)]
    return "\n".join(lines) + "\n"


def _machine_record(ranking: Ranking) -> dict[str, Any]:
    if ranking.best:
        return deployment_record(ranking.best[0])
    machine = ranking.machines[0]
    empty = deployment_record(ranking.near_misses[0]) if ranking.near_misses else {}
    return {"warnings": [], **empty, "gpu": machine.gpu, "gpus": machine.gpus, "requests": 0, "command": ""}
