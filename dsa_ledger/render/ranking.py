"""Rankings of deployments as text: a table of 80 columns with the commands under it, json, csv and md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.plan.launch import command
from dsa_ledger.plan.outcome import HEADROOM, PREFILL
from dsa_ledger.render.data import rows_csv, rows_md
from dsa_ledger.render.plan import command_lines, figures, json_text, wrapped
from dsa_ledger.render.words import layout
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.plan.ranking import Deployment, Ranking
    from dsa_ledger.schema import Scenario

SHOWN_COMMANDS = 3
AT_MOST = "<= is an upper bound: the engine's profiling run is not modelled; --kv-bytes from a log makes it exact."


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
            "most_step_s": ranking.most_step_s,
            "too_slow": len(ranking.too_slow),
            "refused": [{"reason": reason, "layouts": count} for reason, count in ranking.refused],
            "near_misses": [deployment_record(one) for one in ranking.near_misses[:top]],
        }
        return json_text(ranking.scenario, "deployments", [deployment_record(one) for one in shown], **more)
    if form == "csv":
        return rows_csv([_one_line(deployment_record(one)) for one in shown])
    if form == "md":
        return f"# {asked(ranking)}\n\n" + (
            rows_md([deployment_record(one) for one in shown]) if shown else "none fits\n"
        )
    if form == "html":
        from dsa_ledger.render.html_plan import ranking_page

        return ranking_page(ranking, top)
    lines = [*wrapped(asked(ranking)), *wrapped(counted(ranking)), ""]
    lines += _rows(shown)
    for place, one in enumerate(shown[:SHOWN_COMMANDS], 1):
        lines += ["", *wrapped(f"{place}: {one.breaks} (breaks first)", "   ")]
        lines += [line for text in one.outcome.warnings for line in wrapped(f"   warning: {text}", "     ")]
        lines += command_lines(one.outcome.scenario)
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
    limit = "" if ranking.most_step_s is None else brief(ranking.most_step_s, Unit.SECONDS)
    slow = f", {len(ranking.too_slow):,} are slower than {limit} for sure" if limit else ""
    return (
        f"{ranking.tried:,} deployments tried: {len(ranking.best):,} fit, {len(ranking.near_misses):,} do not, "
        f"{refused:,} are refused{slow}"
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
        yield from ["", *wrapped(AT_MOST)]
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
    low = one.least_step_s
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
        **figures(one.outcome),
        "step_low_s": one.least_step_s,
        "step_high_s": one.pessimistic_s,
        "step_is_certain": one.time_is_certain,
        "first_to_break": one.breaks,
        "why_not": one.outcome.why_not,
        "warnings": one.outcome.warnings,
        "command": command(scenario),
    }


def _misses(ranking: Ranking) -> Iterator[str]:
    yield "nothing fits; nearest:"
    for one in ranking.too_slow[:SHOWN_COMMANDS]:
        yield from wrapped(f"  too slow: {place_text(one)}: {step_text(one)}", "    ")
    for one in ranking.near_misses[:SHOWN_COMMANDS]:
        name = f"{one.outcome.scenario.engine.name}@{one.outcome.scenario.engine.version}"
        yield from wrapped(
            f"  {name}, kv {one.outcome.scenario.kv_dtype}, {place_text(one)}: {one.outcome.why_not}", "    "
        )
    for reason, count in ranking.refused[:SHOWN_COMMANDS]:
        yield from wrapped(f"  {count:,} refused: {reason}", "    ")


def machines_text(scenario: Scenario, rankings: Sequence[Ranking], form: str) -> str:
    """Return for each kind of GPU the fewest that hold the load."""
    records = [_machine_record(ranking) for ranking in rankings]
    if form == "json":
        return json_text(scenario, "machines", records)
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
            lines += [*wrapped(f"  breaks first: {one.breaks}", "    "), *command_lines(one.outcome.scenario)]
    return "\n".join(lines) + "\n"


def _machine_record(ranking: Ranking) -> dict[str, Any]:
    if ranking.best:
        return deployment_record(ranking.best[0])
    machine = ranking.machines[0]
    empty = deployment_record(ranking.near_misses[0]) if ranking.near_misses else {}
    return {"warnings": [], **empty, "gpu": machine.gpu, "gpus": machine.gpus, "requests": 0, "command": ""}
