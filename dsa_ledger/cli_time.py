"""The commands about measured time: `diagnose`, and the measured side of `validate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dsa_ledger.console import write
from dsa_ledger.errors import BadInput, Fault, Faults, Words
from dsa_ledger.options import Asked, check_format, scenario_of
from dsa_ledger.units import UnitError, parse_pace

MOST_TOKENS_PER_S = 1e9

SeenTable = Annotated[
    str | None,
    typer.Option(
        "--seen-table",
        metavar="CSV",
        help="Measured: columns context, batch and tok_s (of a request) or ms (of a step).",
    ),
]
SeenRate = Annotated[
    str, typer.Option("--seen", metavar="TOK_S|TIME", help="Tokens per second of a request seen, or one's time: 26ms.")
]
ExpectedRate = Annotated[
    str, typer.Option("--expected", metavar="TOK_S|TIME", help="Tokens per second expected, or one's time.")
]
Five = Annotated[bool, typer.Option("--checklist", help="Five places to look at, in the order of their cost here.")]


def diagnose(
    *,
    asked: Asked,
    seen_table: SeenTable = None,
    seen: SeenRate = "",
    expected: ExpectedRate = "",
    checklist: Five = False,
) -> None:
    """Say which entries explain a measured speed. From speeds over contexts, or from one gap."""
    check_format(asked.format)
    if checklist:
        _print_checklist(asked, [seen_table, seen, expected])
        return
    faults = Faults()
    paces = [] if seen_table else [_pace("--seen", seen, faults), _pace("--expected", expected, faults)]
    if paces and not faults.found:
        faults.require(paces[0] < paces[1], "--seen", seen, f"a speed below --expected, {expected}")
    faults.stop_if_any()
    from dsa_ledger.diagnosis import of_gap, of_table, read_table
    from dsa_ledger.render.timing import diagnosis_text

    scenario = scenario_of(asked)
    found = of_table(scenario, read_table(seen_table, scenario)) if seen_table else of_gap(scenario, *paces)
    write(diagnosis_text(found, asked.format, colour=sys.stdout.isatty()))


def _pace(name: str, text: str, faults: Faults) -> float:
    """Return tokens per second; what was not given, or is none, is a fault."""
    if not text:
        faults.add(name, None, "tokens per second, or a --seen-table; --checklist needs none")
        return 0.0
    try:
        pace = parse_pace(text)
    except UnitError as wrong:
        faults.add(name, text, str(wrong))
        return 0.0
    faults.require(0 < pace < MOST_TOKENS_PER_S, name, text, "a speed above 0")
    return pace


def _print_checklist(asked: Asked, measured: list[object]) -> None:
    if any(measured):
        raise BadInput(
            [Fault("--checklist", Words("with a measured speed"), "no --seen, --expected or --seen-table beside it")]
        )
    from dsa_ledger.checklist import checklist_of
    from dsa_ledger.render.checklist import checklist_text

    write(checklist_text(checklist_of(scenario_of(asked)), asked.format))


def validate_measured(path: str, form: str) -> None:
    """Print the kernel tables' errors over a CSV of measured layer times."""
    from dsa_ledger.render.timing import report_text
    from dsa_ledger.timing.measured import read
    from dsa_ledger.timing.validation import report

    write(report_text(report(read(path)), form, colour=sys.stdout.isatty()))


def validate_published(form: str) -> None:
    """Print published speeds beside what the tables give."""
    from dsa_ledger.render.timing import published_text
    from dsa_ledger.timing.published import REASON, indexcache, left_out_steps

    write(published_text(indexcache(), left_out_steps(), REASON, form))
