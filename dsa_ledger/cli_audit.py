"""The commands that hold the ledger against what servers showed: `audit` one log, `validate` golden records."""

from __future__ import annotations

from typing import Annotated

import typer

from dsa_ledger.console import write
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.options import Asked, check_format
from dsa_ledger.validation import Words

LogName = Annotated[
    str,
    typer.Argument(metavar="LOG", help="Start-up log of a server: a file, also .gz or .xz, or - for standard input."),
]


def audit(*, log: LogName, asked: Asked) -> None:
    """Hold a server's start-up log against the ledger, line by line, and say what to change."""
    check_format(asked.format)
    from dsa_ledger.audit.report import audit as audited
    from dsa_ledger.options import tables_of

    tables, faults = tables_of(asked)
    faults.stop_if_any()
    report = audited(log, tables)
    report.warnings[:0] = asked.notes or ()
    from dsa_ledger.render.audit import audit_text

    write(audit_text(report, asked.format))


GoldenFile = Annotated[
    str | None, typer.Option("--golden", metavar="FILE", help="Golden records (TOML): what real servers showed.")
]
Format = Annotated[str, typer.Option("--format", metavar="table|json|csv|md", help="How to print.")]


def validate(*, golden: GoldenFile = None, format: Format = "table") -> None:  # noqa: A002 - the option's name
    """Print the model's error over golden records: median and worst per engine and figure."""
    check_format(format)
    if golden is None:
        raise BadInput([Fault("--golden", Words("absent"), "a TOML file of golden records")])
    from dsa_ledger.audit.golden import golden_of, groups_of, read_golden
    from dsa_ledger.render.golden import golden_text

    found = golden_of(read_golden(golden))
    write(golden_text(found, groups_of(found), format))
