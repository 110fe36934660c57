"""The command that reads a server's start-up log: `audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from dsa_ledger.console import write
from dsa_ledger.options import Asked, check_format

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
