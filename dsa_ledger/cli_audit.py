"""The commands that hold the ledger against what servers showed: `audit` a log, `validate` records and times."""

from __future__ import annotations

from typing import Annotated

import typer

from dsa_ledger.console import DOES_NOT_FIT, complain, write
from dsa_ledger.errors import BadInput, Fault, Words
from dsa_ledger.options import Asked, Format, check_format, tables_of

LogName = Annotated[
    str,
    typer.Argument(metavar="LOG", help="Start-up log of a server: a file, also .gz or .xz, or - for standard input."),
]


def audit(*, log: LogName, asked: Asked) -> None:
    """Hold a server's start-up log against the ledger. Says what differs and what to change."""
    check_format(asked.format)
    from dsa_ledger.audit.report import audit as audited

    tables, faults = tables_of(asked)
    faults.stop_if_any()
    report = audited(log, tables)
    report.warnings[:0] = asked.notes or ()
    from dsa_ledger.render.audit import audit_text

    write(audit_text(report, asked.format))
    if report.stops:
        complain("did not start: ", [stop.says for stop in report.stops] if asked.format == "csv" else [])
        raise typer.Exit(DOES_NOT_FIT)


GoldenFile = Annotated[
    str | None,
    typer.Option(
        "--golden", metavar="FILE", help="What real servers showed (TOML), such as tests/golden/records.toml."
    ),
]
MeasuredFile = Annotated[
    str | None,
    typer.Option("--measured", metavar="CSV", help="Measured layer times (CSV, also .gz) for the kernel tables."),
]
Published = Annotated[
    bool, typer.Option("--published", help="Published step times and speed-ups beside the tables'; the default.")
]


def validate(
    *,
    golden: GoldenFile = None,
    measured: MeasuredFile = None,
    published: Published = False,
    format: Format = "table",  # noqa: A002 - the option's name
) -> None:
    """Print the ledger's error over what was measured. Pools and weights of servers, layer times, step times."""
    check_format(format)
    asked_for = sum((golden is not None, measured is not None, published))
    if asked_for > 1:
        raise BadInput([Fault("validate", Words("several"), "one of --golden, --measured and --published")])
    if not asked_for:  # what comes with the program is the published times
        complain("", ["--published, the default; --golden and --measured take a file of what servers showed"])
    if golden is None:
        from dsa_ledger.cli_time import validate_measured, validate_published

        if measured is None:
            validate_published(format)
        else:
            validate_measured(measured, format)
        return
    from dsa_ledger.audit.golden import golden_of, groups_of, read_golden
    from dsa_ledger.render.golden import golden_text

    found = golden_of(read_golden(golden))
    write(golden_text(found, groups_of(found), format))
