"""The command `plan`: what fits, which layout wins, what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.console import DOES_NOT_FIT, complain, write
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.options import OPTIONS, Asked, check_format, named, scenario_of, tables_of

if TYPE_CHECKING:
    from dsa_ledger.plan.question import Question
    from dsa_ledger.schema import Scenario

TOP = 10

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
    typer.Option(
        "--engines",
        metavar="NAME[@VERSION],...",
        help="Engines to rank; any: newest of each. Default --engine, else any.",
    ),
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
    str, typer.Option("--shared-prefix", metavar="TOKENS", help="Prompt tokens all requests of a workload share.")
]
Arrivals = Annotated[
    str,
    typer.Option("--requests-per-s", metavar="X", help="Requests that arrive a second: servers of a stated layout."),
]
Prompt = Annotated[str, typer.Option("--prompt", metavar="TOKENS", help="Tokens of one prompt; needs --output.")]
Output = Annotated[str, typer.Option("--output", metavar="TOKENS", help="Tokens of one answer.")]
Spare = Annotated[int, typer.Option("--spare", metavar="N", help="Servers on top of those that arrivals need.")]
Price = Annotated[
    str,
    typer.Option(
        "--price-per-gpu-hour",
        metavar="X|GPU=X,...",
        help="Cost of a million tokens, of a ranking or of a stated layout, in any currency.",
    ),
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
    top: Top = TOP,
    max_step_time: MaxStep = "",
    workload: Trace = "",
    skip_bad: SkipBad = False,
    shared_prefix: SharedPrefix = "",
    requests_per_s: Arrivals = "",
    prompt: Prompt = "",
    output: Output = "",
    spare: Spare = 0,
    price_per_gpu_hour: Price = "",
) -> None:
    """Rank the layouts of a machine, or say what fits. The largest context, most requests, smallest machine, chunk."""
    given = {name: value for name, value in locals().items() if name != "asked" and value not in ("", 0, False)}
    given = {f"--{name.replace('_', '-')}": value for name, value in given.items() if (name, value) != ("top", TOP)}
    check_format(asked.format)
    from dsa_ledger.plan.modes import kept, mode_of, numbers, unused
    from dsa_ledger.plan.question import Question

    options = {option.name: value for option, value in asked.values.items()}
    mode = mode_of(given, options, takes_file=bool(asked.file or asked.commands or asked.sets))
    faults = unused(mode, given, options)
    engines = engines or _all_engines(asked, log, searches=mode in ("ranking", "smallest"))
    asked = _with_machine(asked, machines, engines)
    try:
        scenario, ran_out = _asked_scenario(asked, log)
    except BadInput as bad:
        raise BadInput([*faults, *bad.faults]) from None
    if faults:
        raise BadInput(faults)
    fast = kept(mode, given, options)
    question = Question(machines, engines, kv_dtypes, goal, top, max_step_time, price_per_gpu_hour, fast)
    try:
        if mode == "answers":
            names = [
                name
                for name in ("largest_context", "max_concurrency", "safe_chunk")
                if f"--{name.replace('_', '-')}" in given
            ]
            fits = _answers(scenario, names, asked.format)
        elif mode == "smallest":
            fits = _machines(scenario, question, asked.format)
        elif mode == "workload":
            (shared,) = numbers(given, "--shared-prefix")
            fits = _mix(scenario, workload, int(shared or 0), asked.format, skip_bad=skip_bad)
        elif mode == "demand":
            fits = _demand(scenario, given, asked.format)
        elif mode == "changes":
            fits = _gains(scenario, asked.format, ran_out=ran_out)
        else:
            fits = _ranking(scenario, question, asked.format)
    except BadInput as bad:
        own = [fault for fault in bad.faults if fault.path.startswith("--")]  # of this command, not of the scenario
        others = BadInput(fault for fault in bad.faults if fault not in own)
        raise BadInput([*own, *named(others, asked).faults]) from None
    complain("warning: ", asked.notes or ())
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _all_engines(asked: Asked, log: str, *, searches: bool) -> str:
    """Return the word for all engines where a search was told none, else nothing."""
    named = asked.file or asked.commands or log or "engine" in _stated(asked)
    return "any" if searches and not named else ""


def _stated(asked: Asked) -> set[str]:
    """Return the fields of the scenario that options and --set state."""
    return {option.path for option in asked.values} | {text.partition("=")[0].strip() for text in asked.sets}


def _with_machine(asked: Asked, machines: str, engines: str) -> Asked:
    """Return what was asked with the first machine's GPU and the first engine where only a ranking's options name any.

    Every layout of the ranking replaces both.
    """
    if asked.file is not None or not (machines or engines):
        return asked
    from dsa_ledger.plan.question import first_engine, first_machine

    more = {"gpu": first_machine(machines)} if machines else {}
    more |= {"engine": first_engine(engines)} if engines and not asked.commands else {}
    added = {option: more[option.path] for option in OPTIONS if option.path in more.keys() - _stated(asked)}
    return asked._replace(values={**asked.values, **added})


def _asked_scenario(asked: Asked, log: str) -> tuple[Scenario, bool]:
    """Return the scenario of options and file, or the one that fits the log best (BadInput where none does).

    Beside it stands whether the log ends an allocation for want of memory outside the pool.
    """
    if not log:
        return scenario_of(asked), False
    from dsa_ledger.audit.report import audit
    from dsa_ledger.plan.gains import anchored

    tables, faults = tables_of(asked)
    faults.stop_if_any()
    report = audit(log, tables)
    complain("warning: ", [text for text in report.warnings if report.prediction is None])
    scenario = anchored(report)
    if scenario is None:
        raise BadInput([Fault("--log", log[-64:], "a log that some scenario fits; `dsa-ledger audit` says what lacks")])
    if report.refusals:
        complain("warning: ", [f"{report.advice[len(report.stops)]}; no change that gives the pool more is listed"])
    return scenario, bool(report.refusals)


def _gains(scenario: Scenario, form: str, *, ran_out: bool) -> bool:
    from dsa_ledger.plan.gains import gains
    from dsa_ledger.render.gains import gains_text

    write(gains_text(gains(scenario, ran_out=ran_out), form))
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


def _demand(scenario: Scenario, given: dict[str, object], form: str) -> bool:
    from dsa_ledger.plan.demand import Wish, demand
    from dsa_ledger.plan.modes import numbers, price
    from dsa_ledger.render.demand import demand_text

    arrivals, output, prompt = numbers(given, "--requests-per-s", "--output", "--prompt")
    wish = Wish(
        arrivals,
        None if output is None else int(output),
        int(str(given.get("--spare", 0))),
        price(given, scenario),
        None if prompt is None else int(prompt),
    )
    found = demand(scenario, wish)
    complain("warning: ", found.warnings)
    complain("not modelled: ", found.not_modelled if form in ("csv", "md") else ())  # rows have no place for it
    write(demand_text(found, form))
    return True


def _machines(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.machines import machines_text

    found = question.smallest(scenario)
    write(machines_text(scenario, found, form))
    return any(ranking.best for ranking in found)


def _ranking(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.ranking import ranking_text

    found = question.ranking(scenario)
    write(ranking_text(found, form, question.top))
    return bool(found.best)
