"""The commands about measured time: `diagnose`, and the measured side of `validate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dsa_ledger.console import write
from dsa_ledger.errors import BadInput, Fault, Faults
from dsa_ledger.options import Asked, check_format
from dsa_ledger.validation import ABSENT

MOST_TOKENS_PER_S = 1e9

SeenTable = Annotated[
    str | None,
    typer.Option("--seen-table", metavar="CSV", help="Measured speeds: columns context, batch and tok_s or ms."),
]
SeenRate = Annotated[
    float | None, typer.Option("--seen", metavar="TOK_S", help="Tokens per second of a request, seen.")
]
ExpectedRate = Annotated[float | None, typer.Option("--expected", metavar="TOK_S", help="Tokens per second, expected.")]
Five = Annotated[bool, typer.Option("--checklist", help="Five places to look at, in the order of their cost here.")]


def diagnose(
    *,
    asked: Asked,
    seen_table: SeenTable = None,
    seen: SeenRate = None,
    expected: ExpectedRate = None,
    checklist: Five = False,
) -> None:
    """Say which entries explain a measured speed. From speeds over contexts, or from one gap."""
    check_format(asked.format)
    if checklist:
        _print_checklist(asked, [seen_table, seen, expected])
        return
    faults = Faults()
    if seen_table is None:
        for name, value in (("--seen", seen), ("--expected", expected)):
            good = value is not None and 0 < value < MOST_TOKENS_PER_S
            shown = ABSENT if value is None else value
            faults.require(good, name, shown, "tokens per second, or a --seen-table; --checklist needs none")
    faults.stop_if_any()
    from dsa_ledger.diagnosis import of_gap, of_table, read_table
    from dsa_ledger.options import scenario_of
    from dsa_ledger.render.timing import diagnosis_text

    scenario = scenario_of(asked)
    if seen_table is not None:
        found = of_table(scenario, read_table(seen_table))
    else:
        if seen is None or expected is None or seen >= expected:
            raise BadInput([Fault("--seen", seen, f"less than --expected {expected}")])
        found = of_gap(scenario, seen, expected)
    write(diagnosis_text(found, asked.format, colour=sys.stdout.isatty()))


def _print_checklist(asked: Asked, measured: list[object]) -> None:
    if any(value is not None for value in measured):
        raise BadInput([Fault("--checklist", next(filter(None, measured), 0), "expected without a measured speed")])
    from dsa_ledger.checklist import checklist_of
    from dsa_ledger.options import scenario_of
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
