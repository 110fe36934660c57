"""The commands that look for a deployment: `plan` and `sweep`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.options import Asked, check_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.plan.question import Question
    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Axis

DOES_NOT_FIT = 3
MOST_JOBS = 1024
POINTS_TRIED = 50

LargestContext = Annotated[bool, typer.Option("--largest-context", help="Longest context of the running batch.")]
MaxConcurrency = Annotated[bool, typer.Option("--max-concurrency", help="Most requests of --context on the server.")]
SmallestMachine = Annotated[bool, typer.Option("--smallest-machine", help="Fewest GPUs that hold the load.")]
SafeChunk = Annotated[bool, typer.Option("--safe-chunk", help="Largest prefill chunk that fits at --context.")]
Machines = Annotated[
    str,
    typer.Option("--machines", metavar="8xH200,...", help="Machines to rank; default --gpus of --gpu. any: each GPU."),
]
Engines = Annotated[
    str,
    typer.Option("--engines", metavar="NAME[@VERSION],...", help="Engines to rank; any: the newest of each."),
]
Formats = Annotated[
    str, typer.Option("--kv-dtypes", metavar="WORD,...", help="KV formats to rank; default the scenario's; any.")
]
Goal = Annotated[str, typer.Option("--goal", metavar="requests|context|step|gpus", help="What to rank by.")]
MaxStep = Annotated[str, typer.Option("--max-step-time", metavar="TIME", help="Longest step, such as '25 ms'.")]
Trace = Annotated[
    str, typer.Option("--workload", metavar="FILE.csv", help="Requests: prompt, output, and cached or weight columns.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Use the good lines of a workload with bad ones.")]
SharedPrefix = Annotated[
    int, typer.Option("--shared-prefix", metavar="TOKENS", help="Prompt tokens all requests share.")
]
Arrivals = Annotated[float | None, typer.Option("--requests-per-s", metavar="X", help="Requests that arrive a second.")]
Prompt = Annotated[int | None, typer.Option("--prompt", metavar="TOKENS", help="Tokens of one prompt.")]
Output = Annotated[int | None, typer.Option("--output", metavar="TOKENS", help="Tokens of one answer.")]
Spare = Annotated[int, typer.Option("--spare", metavar="N", help="Servers on top.")]
Price = Annotated[
    float | None, typer.Option("--price-per-gpu-hour", metavar="X", help="In any currency; none is built in.")
]
Gains = Annotated[bool, typer.Option("--changes", help="Single changes of the scenario, the largest gain first.")]
LogFile = Annotated[
    str, typer.Option("--log", metavar="LOG", help="Start from a server's start-up log; alone it means --changes.")
]
Top = Annotated[int, typer.Option("--top", metavar="N", help="How many to show.", min=1, max=1000)]


def plan(
    *,
    asked: Asked,
    largest_context: LargestContext = False,
    max_concurrency: MaxConcurrency = False,
    smallest_machine: SmallestMachine = False,
    safe_chunk: SafeChunk = False,
    changes: Gains = False,
    log: LogFile = "",
    machines: Machines = "",
    engines: Engines = "",
    kv_dtypes: Formats = "",
    goal: Goal = "",
    top: Top = 10,
    max_step_time: MaxStep = "",
    workload: Trace = "",
    skip_bad: SkipBad = False,
    shared_prefix: SharedPrefix = 0,
    requests_per_s: Arrivals = None,
    prompt: Prompt = None,
    output: Output = None,
    spare: Spare = 0,
    price_per_gpu_hour: Price = None,
) -> None:
    """Rank the layouts of a machine, or say what fits. The largest context, most requests, smallest machine, chunk."""
    check_format(asked.format)
    from dsa_ledger.options import named
    from dsa_ledger.plan.question import Question

    scenario = _asked_scenario(asked, log)
    question = Question(machines, engines, kv_dtypes, goal, top, max_step_time)
    wanted = {"largest_context": largest_context, "max_concurrency": max_concurrency, "safe_chunk": safe_chunk}
    try:
        if any(wanted.values()):
            fits = _answers(scenario, [name for name, asked_for in wanted.items() if asked_for], asked.format)
        elif smallest_machine:
            fits = _machines(scenario, question, asked.format)
        elif workload:
            fits = _mix(scenario, workload, shared_prefix, asked.format, skip_bad=skip_bad)
        elif any(value is not None for value in (requests_per_s, price_per_gpu_hour, prompt, output)):
            fits = _demand(scenario, (requests_per_s, output, spare, price_per_gpu_hour, prompt), asked.format)
        elif changes or (log and not machines):
            fits = _gains(scenario, asked.format)
        else:
            fits = _ranking(scenario, question, asked.format)
    except BadInput as bad:
        own = [fault for fault in bad.faults if fault.path.startswith("--")]  # of this command, not of the scenario
        others = BadInput(fault for fault in bad.faults if fault not in own)
        raise BadInput([*own, *named(others, asked).faults]) from None
    complain("warning: ", asked.notes or ())
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _asked_scenario(asked: Asked, log: str) -> Scenario:
    """Return the scenario of options and file, or the one that fits the log best (BadInput where none does)."""
    from dsa_ledger.options import scenario_of, tables_of

    if not log:
        return scenario_of(asked)
    from dsa_ledger.audit.report import audit
    from dsa_ledger.plan.gains import anchored

    tables, faults = tables_of(asked)
    faults.stop_if_any()
    report = audit(log, tables)
    complain("warning: ", [text for text in report.warnings if report.prediction is None])
    scenario = anchored(report)
    if scenario is None:
        raise BadInput([Fault("--log", log[-64:], "a log that some scenario fits; `dsa-ledger audit` says what lacks")])
    return scenario


def _gains(scenario: Scenario, form: str) -> bool:
    from dsa_ledger.plan.gains import gains
    from dsa_ledger.render.gains import gains_text

    write(gains_text(gains(scenario), form))
    return True


def _answers(scenario: Scenario, names: list[str], form: str) -> bool:
    from dsa_ledger.plan import answers
    from dsa_ledger.render.plan import answers_text

    found = [getattr(answers, name)(scenario) for name in names]
    write(answers_text(scenario, found, form))
    return all(answer.holds for answer in found)


def _mix(scenario: Scenario, name: str, shared_prefix: int, form: str, *, skip_bad: bool) -> bool:
    from pathlib import Path

    from dsa_ledger.render.demand import mix_text
    from dsa_ledger.workload import mix, read_workload

    workload = read_workload(Path(name), skip_bad=skip_bad)
    found = mix(scenario, workload, shared_prefix)
    write(mix_text(scenario, workload, found, form))
    return found.requests > 0 and found.longest_tokens <= found.longest_allowed


def _demand(
    scenario: Scenario, wish: tuple[float | None, int | None, int, float | None, int | None], form: str
) -> bool:
    from dsa_ledger.plan.demand import Wish, demand
    from dsa_ledger.render.demand import demand_text

    found = demand(scenario, Wish(*wish))
    complain("warning: ", found.warnings)
    write(demand_text(found, form))
    return True


def _machines(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.ranking import machines_text

    found = question.smallest(scenario)
    write(machines_text(scenario, found, form))
    return any(ranking.best for ranking in found)


def _ranking(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.ranking import ranking_text

    found = question.ranking(scenario)
    write(ranking_text(found, form, question.top))
    return bool(found.best)


Over = Annotated[
    list[str] | None,
    typer.Option("--over", metavar="FIELD=a,b,c|start:stop:step", help="A field and its values; may be repeated."),
]
Keys = Annotated[str, typer.Option("--keys", metavar="KEY,...", help="Entries to give for each point.")]
Out = Annotated[str, typer.Option("--out", metavar="FILE", help="Write .csv, .json, .md, .html or .parquet.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", help="Processes; only fields that are no load need them.")]
Pareto = Annotated[
    str, typer.Option("--pareto", metavar="KEY[:min|:max],...", help="Only points that no other beats in all of these.")
]


def sweep(
    *, asked: Asked, over: Over = None, keys: Keys = "", out: Out = "", jobs: Jobs = 1, pareto: Pareto = ""
) -> None:
    """Estimate a grid of scenarios. Any field over a list or a range; exit code 0 whether they fit or not."""
    check_format(asked.format)
    from pathlib import Path

    from dsa_ledger import sweep as grids
    from dsa_ledger.render.sweep import sweep_text, write_file

    axes = [grids.axis(text, _option_names()) for text in over or []]
    if not axes:
        raise BadInput([Fault("--over", None, "at least one field, such as --over context=8Ki:1Mi:8Ki")])
    if not 1 <= jobs <= MOST_JOBS:
        raise BadInput([Fault("--jobs", jobs, f"1 to {MOST_JOBS}")])
    grids.points(axes)
    goals = [_goal(word.strip()) for word in pareto.split(",") if word.strip()]
    wanted = [key.strip() for key in keys.split(",") if key.strip()] or list(grids.KEYS)
    wanted += [name for name, _ in goals if name not in wanted and name not in {axis.path for axis in axes}]
    scenario = _any_of(asked, axes)
    found = grids.sweep(scenario, axes, wanted, jobs)
    if goals:
        found = grids.pareto(found, goals)
    complain("warning: ", asked.notes or ())
    if out:
        write_file(Path(out), scenario, found)
        write(f"{len(found.rows):,} points in {out}\n")
    else:
        write(sweep_text(scenario, found, asked.format))


def _option_names() -> dict[str, str]:
    """Return the options' names and the fields they set."""
    from dsa_ledger.options import OPTIONS

    return {option.name.removeprefix("--"): option.path for option in OPTIONS}


def _goal(word: str) -> tuple[str, bool]:
    """Return the column of a goal and whether more of it is better: tokens and requests are, bytes and times not."""
    name, _, way = word.partition(":")
    if way not in ("", "min", "max"):
        raise BadInput([Fault("--pareto", word, "KEY, KEY:min or KEY:max")])
    grows = name.startswith(("pool.", "load.", "memory.", "time.tokens"))
    return name, grows if not way else way == "max"


def _any_of(asked: Asked, axes: Sequence[Axis]) -> Scenario:
    """Return the scenario of the first point that is one, so that a swept field need not be given as well.

    BadInput where none of the first points is: what the others say is each row's own reason.
    """
    import itertools

    from dsa_ledger.options import scenario_of

    paths = {axis.path for axis in axes}
    values = {option: value for option, value in asked.values.items() if option.path not in paths}
    kept = [text for text in asked.sets if text.partition("=")[0].strip() not in paths]
    wrong: BadInput | None = None
    for point in itertools.islice(itertools.product(*(axis.values for axis in axes)), POINTS_TRIED):
        put = [f"{axis.path}={json.dumps(value)}" for axis, value in zip(axes, point, strict=True)]
        try:
            return scenario_of(asked._replace(values=values, sets=[*kept, *put]))
        except BadInput as bad:
            wrong = wrong or bad
    if wrong is None:
        raise BadInput([Fault("--over", None, "at least one value")])
    swept = tuple(f"{path} (--set)" for path in paths)
    over = (
        fault._replace(path=fault.path.replace("(--set)", "(--over)")) if fault.path.startswith(swept) else fault
        for fault in wrong.faults
    )
    raise BadInput(over)
