"""Rankings of deployments as text: a table of 80 columns with the commands under it, json, csv and md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.engines.caches import MAIN_KV
from dsa_ledger.plan.launch import command
from dsa_ledger.plan.nodes import nodes_of
from dsa_ledger.plan.price import cost
from dsa_ledger.render.data import rows_csv, rows_md
from dsa_ledger.render.plan import command_lines, figures, json_text, wrapped
from dsa_ledger.render.words import layout
from dsa_ledger.schema import Draft, Load
from dsa_ledger.units import Unit, brief, in_gib, in_one_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsa_ledger.plan.outcome import Outcome
    from dsa_ledger.plan.ranking import Ranking
    from dsa_ledger.plan.tried import Deployment

WIDTH = 80
SHOWN_REASONS = 3
RECORD = "record.main_kv_bytes"
KV_WORDS = {"raw_fp8": "fp8", "packed_fp8": "fp8", "nvfp4_ds_mla": "nvfp4"}
AT_MOST = "<= is an upper bound: the engine's profiling run is not modelled; --kv-bytes from a log makes it exact."
SHORT = (
    "short: the pool holds the load, but memory outside it runs out (activations are a prior); a lower --mem-fraction "
    "or a smaller chunk leaves more"
)


def ranking_text(ranking: Ranking, form: str, top: int) -> str:
    """Return a ranking in one of the formats, the first `top` of those that fit, then those short outside the pool."""
    shown = shown_of(ranking, top)
    records = [deployment_record(one, ranking.prices) for one in shown]
    if form == "json":
        more = {
            "goal": ranking.goal,
            "machines": [machine._asdict() for machine in ranking.machines],
            "tried": ranking.tried,
            "fit": len(ranking.best),
            "short": len(ranking.short),
            "do_not_fit": len(ranking.near_misses),
            "most_step_s": ranking.most_step_s,
            "too_slow": len(ranking.too_slow),
            "refused": [{"reason": reason, "layouts": count} for reason, count in ranking.refused],
            "near_misses": [deployment_record(one) for one in ranking.near_misses[:top]],
            "without": [deployment_record(one) for one in ranking.nearest],
        }
        return json_text(ranking.scenario, "deployments", records, **more)
    if form == "csv":
        return rows_csv([one_line(record) for record in records])
    if form == "md":
        return f"# {asked(ranking)}\n\n" + (rows_md(records) if shown else "none fits\n")
    if form == "html":
        from dsa_ledger.render.html_plan import ranking_page

        return ranking_page(ranking, top)
    lines = [*wrapped(asked(ranking)), *wrapped(counted(ranking)), "", *_rows(ranking, shown)]
    for place, one in enumerate(shown, 1):
        if one.outcome.fits:
            lines += ["", *wrapped(f"{place}: {one.breaks} (breaks first)", "   ")]
            lines += command_lines(one.outcome.scenario)
    warnings = warned([(f"{place}", one.outcome.warnings) for place, one in enumerate(shown, 1)])
    lines += ["", "warnings"] if warnings else []
    lines += [line for text in warnings for line in wrapped(f" - {text}", "   ")]
    lines += [] if shown else _misses(ranking)
    lines += [] if not shown or not ranking.refused else ["", *_refused(ranking)]
    return "\n".join(lines) + "\n"


def shown_of(ranking: Ranking, top: int) -> list[Deployment]:
    """Return what is shown: the first of those that fit, then of those that are short outside the pool."""
    return [*ranking.best, *ranking.short][:top]


def warned(of: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return each warning once, with the names of those that it is of where it is not of all."""
    names: list[str] = []
    found: dict[str, list[str]] = {}
    for name, sentences in of:
        names.append(name)
        for text in sentences:
            found.setdefault(text, []).append(name)
    return [text + ("" if some == names else f" (of {', '.join(some)})") for text, some in found.items()]


def one_line(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose warnings are one text, as csv takes it."""
    return record | {"warnings": "; ".join(record["warnings"])}


def asked(ranking: Ranking) -> str:
    """Return machines, load and goal in one line."""
    machines = " or ".join(f"{machine.gpus} x {machine.gpu}" for machine in ranking.machines)
    load = ranking.scenario.load
    requests = f"{load.batch:,} request{'s' * (load.batch != 1)}"
    wanted = f", {requests} of {load.context:,} tokens" if load.context else ""
    return f"{ranking.scenario.model_name} on {machines}{wanted}; ranked by {ranking.goal}"


def counted(ranking: Ranking) -> str:
    """Return how many deployments were tried and what became of them."""
    refused = sum(count for _, count in ranking.refused)
    limit = "" if ranking.most_step_s is None else brief(ranking.most_step_s, Unit.SECONDS)
    slow = f", {len(ranking.too_slow):,} are slower than {limit} for sure" if limit else ""
    short = f"{len(ranking.short):,} are short of memory outside the pool, " if ranking.short else ""
    return (
        f"{ranking.tried:,} deployments tried: {len(ranking.best):,} fit, {short}{len(ranking.near_misses):,} do not, "
        f"{refused:,} are refused{slow}"
    )


def _rows(ranking: Ranking, shown: Sequence[Deployment]) -> Iterator[str]:
    """Yield the table with what its marks mean."""
    if shown:
        yield f"{'':3}{'engine':<22}{'KV record':<11}{'requests':>8}{'longest':>11}{'left over':>10}{'step time':>14}"
        yield f"{'':25}{'B/layer':<11}{'at once':>8}{'tokens':>11}{'GiB':>10}{'both ends':>14}"
    if shown and ranking.prices:
        yield f"{'a million output tokens cost':>79}"
    yield from _places(ranking, shown)
    if any(one.outcome.is_bound for one in shown):
        yield from ["", *wrapped(AT_MOST)]
    if any(one.outcome.short for one in shown):
        yield from ["", *wrapped(SHORT)]
    if any(one.pessimistic_s is None for one in shown):
        yield "step time -: not modelled for this layout, engine or GPU"
    for line in money_lines(ranking, shown):
        yield from ["", *wrapped(line)] if line.startswith("cost") else [line]


def _places(ranking: Ranking, shown: Sequence[Deployment]) -> Iterator[str]:
    """Yield the rows: with several machines the best of each first, then why the others have none, then the rest."""
    several = len(ranking.machines) > 1 and bool(shown)
    if several and ranking.leaders:
        yield "best of each machine"
    for place, one in enumerate(shown, 1):
        if several and place == ranking.leaders + 1:
            yield from [*_without(ranking), *(["others"] if ranking.leaders else [])]
        yield from _row(ranking, place, one)
    if several and len(shown) <= ranking.leaders:
        hidden = ranking.leaders - len(shown)
        yield from [f"{hidden} more machine{'s' * (hidden > 1)} would do; --top shows more"] if hidden else []
        yield from _without(ranking)


def _row(ranking: Ranking, place: int, one: Deployment) -> Iterator[str]:
    scenario, outcome = one.outcome.scenario, one.outcome
    requests = f"{'<=' * outcome.is_bound}{one.requests:,}" if one.requests else "-"
    left = "-" if outcome.left_bytes is None else in_gib(outcome.left_bytes)
    name = f"{scenario.engine.name}@{scenario.engine.version}"
    yield (
        f"{place:>2} {name:<21} {kv_text(outcome):<10} {requests:>8}{one.longest:>11,}{left:>10}{step_text(one):>14}"
    )
    line = f"   {place_text(one)}" + (f": {outcome.short}" if outcome.short else "")
    money = cost_text(one, ranking.prices) if ranking.prices else ""
    *above, line = wrapped(line, "     ")
    if len(line) + len(money) > WIDTH - 2:
        above, line = [*above, line], ""
    yield from above
    yield f"{line}{money:>{WIDTH - 1 - len(line)}}" if money else line


def _without(ranking: Ranking) -> Iterator[str]:
    """Yield why a machine has no layout that fits: what came nearest."""
    for one in ranking.nearest:
        machine = f"{one.machine.gpus} x {one.machine.gpu}"
        why = f"too slow, {step_text(one)}" if one in ranking.too_slow else first_words(one.outcome.why_not)
        yield from wrapped(f"none of {machine}: nearest is {place_text(one)}: {why}", "   ")


def first_words(reason: str) -> str:
    """Return a reason without the ways out of it, which the reason of a single layout lists."""
    return "; ".join(reason.split("; ")[:2])


def money_lines(ranking: Ranking, shown: Sequence[Deployment]) -> Iterator[str]:
    """Yield what the costs are of, and each machine's month; nothing without a price."""
    if not ranking.prices:
        return
    batch = ranking.scenario.load.batch
    yield (
        f"cost: at the {batch:,} request{'s' * (batch > 1)} asked, from the lower to the upper end of the step time, "
        "decode alone; input tokens, host and network are not in it"
    )
    months = {one.machine: found.month for one in shown if (found := cost(one, ranking.prices))}
    for machine, month in months.items():
        yield f"  {machine.gpus} x {machine.gpu}: {month:,.0f} a month of 730 hours"
    for machine in dict.fromkeys(one.machine for one in shown if one.machine not in months):
        yield f"  {machine.gpus} x {machine.gpu}: no price was given"


def kv_text(outcome: Outcome) -> str:
    """Return the format that the cache is stored in and a record's bytes: `fp8 576`, whatever word asked for it."""
    entry = outcome.ledger.entries.get(RECORD) if outcome.ledger is not None else None
    if entry is None:
        return outcome.scenario.kv_dtype
    name = next((name for name, state in MAIN_KV.items() if state.formula is entry.formula), outcome.scenario.kv_dtype)
    return f"{KV_WORDS.get(name, name)} {entry.value:,}"


def cost_text(one: Deployment, prices: Mapping[str, float]) -> str:
    """Return the cost of a million output tokens at both ends of the step time, or a dash."""
    found = cost(one, prices)
    if found is None or found.million_low is None or found.million_high is None:
        return "cost -"
    low, high = (f"{value:,.2f}" for value in (found.million_low, found.million_high))
    return f"cost {low}" if low == high else f"cost {low}-{high}"


def place_text(one: Deployment) -> str:
    """Return machine, servers and layout in words."""
    rest = {"features": (), "kv_dtype": "auto", "draft": Draft(), "load": Load()}
    words = layout(one.outcome.scenario.model_copy(update=rest))
    servers = f"{one.layout.servers} server{'s' * (one.layout.servers > 1)}"
    return f"{servers} of {one.layout.ranks} x {one.machine.gpu}: {words}"


def step_text(one: Deployment) -> str:
    """Return the step time, an interval in one unit where it is not known for sure, or a dash."""
    worst = one.pessimistic_s
    if worst is None:
        return "-"
    low = one.least_step_s
    if one.time_is_certain or low is None:
        return brief(worst, Unit.SECONDS)
    (first, last), unit = in_one_unit([low, worst], Unit.SECONDS)
    return f"~{first:.3g}-{last:.3g} {unit}"


def deployment_record(one: Deployment, prices: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return one deployment as the JSON contract spells it; with prices what it costs too."""
    scenario, outcome = one.outcome.scenario, one.outcome
    cut = scenario.sharding
    money = cost(one, prices) if prices else None
    return {
        "gpu": one.machine.gpu,
        "gpus": one.machine.gpus,
        "servers": one.layout.servers,
        "engine": f"{scenario.engine.name}@{scenario.engine.version}",
        "kv_dtype": scenario.kv_dtype,
        RECORD: outcome.value(RECORD),
        **{name: getattr(cut, name) for name in ("tp", "pp", "ep", "dp_attention", "dcp")},
        "verdict": "fits" if outcome.fits else (outcome.holds and outcome.short) or "does not fit",
        "requests": one.requests,
        "longest_request_tokens": one.longest,
        "is_upper_bound": outcome.is_bound,
        **figures(outcome),
        "step_low_s": one.least_step_s,
        "step_high_s": one.pessimistic_s,
        "step_is_certain": one.time_is_certain,
        **({} if not prices else _cost_record(money)),
        "first_to_break": one.breaks,
        "why_not": outcome.why_not,
        "warnings": outcome.warnings,
        "command": command(scenario) if outcome.fits else "",
        "other_nodes": nodes_of(scenario).others if outcome.fits else "",
    }


def _cost_record(money: Any) -> dict[str, Any]:
    names = ("cost_per_million_output_tokens_low", "cost_per_million_output_tokens_high", "cost_per_month")
    return dict(zip(names, money or (None, None, None), strict=True))


def _misses(ranking: Ranking) -> Iterator[str]:
    yield "nothing fits; nearest:"
    for one in ranking.too_slow[:SHOWN_REASONS]:
        yield from wrapped(f"  too slow: {place_text(one)}: {step_text(one)}", "    ")
    several = len(ranking.machines) > 1
    for one in ranking.nearest if several else ranking.near_misses[:SHOWN_REASONS]:
        name = f"{one.outcome.scenario.engine.name}@{one.outcome.scenario.engine.version}"
        yield from wrapped(f"  {name}, kv {kv_text(one.outcome)}, {place_text(one)}: {one.outcome.why_not}", "    ")
    yield from _refused(ranking)


def _refused(ranking: Ranking) -> Iterator[str]:
    for reason, count in ranking.refused[:SHOWN_REASONS]:
        alike = " (and the like)" if count > 1 else ""
        yield from wrapped(f"  {count:,} refused: {reason}{alike}", "    ")
    rest = sum(count for _, count in ranking.refused[SHOWN_REASONS:])
    yield from [f"  {rest:,} refused for other reasons"] if rest else []
