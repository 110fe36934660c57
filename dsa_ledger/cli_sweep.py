"""The command `sweep`: a grid of scenarios."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.options import OPTIONS, Asked, check_format, scenario_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.schema import Scenario
    from dsa_ledger.sweep import Axis

MOST_JOBS = 1024
POINTS_TRIED = 50

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
    goals = [_goal(word.strip()) for word in pareto.split(",") if word.strip()]
    wanted = [key.strip() for key in keys.split(",") if key.strip()] or list(grids.KEYS)
    wanted += [name for name, _ in goals if name not in wanted and name not in {axis.path for axis in axes}]
    scenario = _any_of(asked, axes)
    found = grids.sweep(scenario, axes, wanted, jobs)
    if goals:
        found = grids.pareto(found, goals)
    complain("warning: ", [*(asked.notes or ()), *_of_times(scenario, axes, wanted)])
    if out:
        write_file(Path(out), scenario, found)
        write(f"{len(found.rows):,} points in {out}\n")
    else:
        write(sweep_text(scenario, found, asked.format))


def _of_times(scenario: Scenario, axes: Sequence[Axis], keys: Sequence[str]) -> list[str]:
    """Return what the times of some points leave out; a row has no place for its ledger's warnings."""
    from dsa_ledger.account.step_time import OF_A_STAGE
    from dsa_ledger.account.timing import DCP_TIME

    said = {
        "pp": f"{OF_A_STAGE}, not of a whole step; `plan` adds them up",
        "dcp": DCP_TIME,
    }
    swept = {axis.path: axis.values for axis in axes}
    cuts = {name: swept.get(f"sharding.{name}", (getattr(scenario.sharding, name),)) for name in said}
    timed = any(key.startswith("time.") for key in keys)
    return [text for name, text in said.items() if timed and any(ways != 1 for ways in cuts[name])]


def _option_names() -> dict[str, str]:
    """Return the options' names and the fields they set."""
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
