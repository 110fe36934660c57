"""The commands that look for a deployment: `plan` and `sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput
from dsa_ledger.options import Asked, check_format

if TYPE_CHECKING:
    from dsa_ledger.plan.question import Question
    from dsa_ledger.schema import Scenario

DOES_NOT_FIT = 3

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
Top = Annotated[int, typer.Option("--top", metavar="N", help="How many to show.", min=1, max=1000)]


def plan(
    *,
    asked: Asked,
    largest_context: LargestContext = False,
    max_concurrency: MaxConcurrency = False,
    smallest_machine: SmallestMachine = False,
    safe_chunk: SafeChunk = False,
    machines: Machines = "",
    engines: Engines = "",
    kv_dtypes: Formats = "",
    goal: Goal = "",
    top: Top = 10,
) -> None:
    """Say what fits: the largest context, most requests, smallest machine, safe chunk, or layouts ranked."""
    check_format(asked.format)
    from dsa_ledger.options import named, scenario_of
    from dsa_ledger.plan.question import Question

    scenario = scenario_of(asked)
    question = Question(machines, engines, kv_dtypes, goal, top)
    wanted = {"largest_context": largest_context, "max_concurrency": max_concurrency, "safe_chunk": safe_chunk}
    try:
        if any(wanted.values()):
            fits = _answers(scenario, [name for name, asked_for in wanted.items() if asked_for], asked.format)
        elif smallest_machine:
            fits = _machines(scenario, question, asked.format)
        else:
            fits = _ranking(scenario, question, asked.format)
    except BadInput as bad:
        raise named(bad, asked) from None
    complain("warning: ", asked.notes or ())
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _answers(scenario: Scenario, names: list[str], form: str) -> bool:
    from dsa_ledger.plan import answers
    from dsa_ledger.render.plan import answers_text

    found = [getattr(answers, name)(scenario) for name in names]
    write(answers_text(scenario, found, form))
    return all(answer.holds for answer in found)


def _machines(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.plan import machines_text

    found = question.smallest(scenario)
    write(machines_text(scenario, found, form))
    return any(ranking.best for ranking in found)


def _ranking(scenario: Scenario, question: Question, form: str) -> bool:
    from dsa_ledger.render.plan import ranking_text

    found = question.ranking(scenario)
    write(ranking_text(found, form, question.top))
    return bool(found.best)
