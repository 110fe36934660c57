"""The command line: read what was asked, ask the library, print. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dsa_ledger.console import DOES_NOT_FIT, complain, stop_if_closed, write
from dsa_ledger.errors import BadInput, Fault, NotModelled
from dsa_ledger.options import (
    LAYER_OPTIONS,
    Asked,
    Format,
    check_format,
    complete_model,
    complete_scenario,
    named,
    scenario_of,
    scenario_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

PROGRAM = "dsa-ledger"
FOR_PROGRAMS = ("json", "csv")  # a reader is told on standard output why it does not fit


def _version(wanted: bool) -> None:  # noqa: FBT001 - the signature typer calls
    if wanted:
        from dsa_ledger import __version__

        print(f"{PROGRAM} {__version__}")  # noqa: T201 - the answer
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)]


def _root(*, version: Version = False) -> None:
    pass


All = Annotated[bool, typer.Option("--all", help="Show every entry in the table.")]


FleetFolder = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="DIR", help="Profiles of a fleet: each group at the pace of its slowest rank."),
]
RankMap = Annotated[
    Path | None,
    typer.Option("--ranks", metavar="FILE.csv", help="With --fleet: columns group,rank,host,uuid; else by host."),
]


def estimate(
    *,
    asked: Asked,
    all: All = False,  # noqa: A002 - the option's name
    fleet: FleetFolder = None,
    ranks: RankMap = None,
) -> None:
    """Print the whole ledger of one scenario."""
    scenario, ledger = _ledger(asked, fleet, ranks)
    from dsa_ledger.render import ledger_text

    write(ledger_text(scenario, ledger, asked.format, every=all, colour=_colour()))
    _leave(asked, ledger, said=asked.format not in FOR_PROGRAMS)


def _keys(incomplete: str) -> list[str]:
    from dsa_ledger.render.words import GROUPS

    return [key for group in GROUPS for key in group.keys if key.startswith(incomplete)]


Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of an entry, such as pool.tokens.", autocompletion=_keys)]


Depth = Annotated[
    int | None, typer.Option("--depth", metavar="N", min=1, help="Levels to show; what lies deeper is counted.")
]


def explain(*, key: Key, asked: Asked, depth: Depth = None) -> None:
    """Print one entry down to its givens. Each with its formula, the numbers put in, the sources."""
    from dsa_ledger.scenario_file import shipped

    if asked.file is None and key in shipped():
        raise BadInput([Fault("KEY", key, f"a key before the scenario, as in: explain pool.tokens {key}")])
    scenario, ledger = _ledger(asked)
    from dsa_ledger.render import explanation_text

    write(explanation_text(scenario, ledger, key, asked.format, depth))
    _leave(asked, ledger, said=False)


Second = Annotated[
    str | None,
    typer.Argument(
        metavar="B", help="The second scenario; default the first one with --b.", autocompletion=complete_scenario
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--b", metavar="PATH=VALUE", help="A scenario field as B has it; may be repeated."),
]
AcrossEngines = Annotated[
    bool,
    typer.Option("--engine-matrix", help="One scenario across engines and versions instead; --kv-dtype fp8 fits all."),
]
Engines = Annotated[
    str,
    typer.Option(
        "--engines",
        metavar="NAME[@VERSION],...",
        help="Those of the matrix; default every release read of all engines.",
    ),
]


def compare(
    *,
    second: Second = None,
    asked: Asked,
    b: Changes = None,
    engine_matrix: AcrossEngines = False,
    engines: Engines = "",
    all: All = False,  # noqa: A002 - the option's name
) -> None:
    """Compare two scenarios, each difference with its cause. The options apply to both."""
    from dsa_ledger import sides

    check_format(asked.format)
    if engine_matrix or engines:
        sides.refuse(second, b)
        matrix = sides.engine_matrix(asked, engines)
        from dsa_ledger.render.matrix import matrix_text

        write(matrix_text(matrix, asked.format))
        if asked.format == "csv":
            complain("warning: ", matrix.warnings)
        return
    found = sides.comparison(asked, second, b or [])
    from dsa_ledger.render.compare import comparison_text

    write(comparison_text(found, asked.format, every=all))
    if asked.format == "csv":  # which has no place for sentences
        for side, ledger in found.ledgers.items():
            complain(f"{side} does not fit: ", ledger.shortfalls)
            complain(f"warning of {side}: ", ledger.warnings)


ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="Catalog name, or a local config.json.", autocompletion=complete_model)
]


def layers(*, name: ModelName, asked: Asked) -> None:
    """Show full and shared layers as each engine release runs them."""
    from dsa_ledger.layer_question import layer_question
    from dsa_ledger.render.layers import layers_text

    write(layers_text(*layer_question(asked, name), asked.format))


def models(*, format: Format = "table") -> None:  # noqa: A002 - the option's name
    """List the models of the catalog."""
    from dsa_ledger.render.catalog import model_rows

    _print_rows("models", model_rows, format)


def gpus(*, format: Format = "table") -> None:  # noqa: A002 - the option's name
    """List the GPUs of the catalog, memory as the driver reports it."""
    from dsa_ledger.render.catalog import gpu_rows

    _print_rows("gpus", gpu_rows, format)


def schema() -> None:
    """Print the JSON Schema of a scenario."""
    import json

    from dsa_ledger.schema import Scenario

    write(json.dumps(Scenario.model_json_schema(), indent=2) + "\n")


# Each command and the module it stands in, loaded when it is asked for.
ABOUT_A_SCENARIO = {
    "estimate": "cli",
    "explain": "cli",
    "compare": "cli",
    "plan": "cli_plan",
    "sweep": "cli_sweep",
    "audit": "cli_audit",
    "diagnose": "cli_time",
}
OTHERS = {
    "layers": "cli",
    "validate": "cli_audit",
    "calibrate": "cli_calibrate",
    "profiles": "cli_profiles",
    "claims": "cli_claims",
    "models": "cli",
    "gpus": "cli",
    "schema": "cli",
}


# One line a command, for its help; each runs as it stands from a clone (calibrate: where its extra is installed).
EXAMPLES = {
    "estimate": "estimate glm52-8xh200-fp8 --batch 8 --context 64Ki",
    "explain": "explain pool.tokens glm52-8xh200-fp8",
    "compare": "compare glm52-8xh200-fp8 --b kv_dtype=bf16",
    "plan": "plan glm52-8xh200-fp8 --largest-context",
    "sweep": "sweep glm52-8xh200-fp8 --over load.batch=1,4,16 --format csv",
    "audit": "audit scenarios/pr30531-main.log pr30531-pr",
    "diagnose": "diagnose slow-at-1m --seen 38 --expected 60",
    "layers": "layers GLM-5.2-FP8 --engine sglang@0.5.23",
    "validate": "validate --published",
    "calibrate": "calibrate --device cpu --quick",
    "profiles": "profiles list",
    "claims": "claims C18",
    "models": "models --format csv",
    "gpus": "gpus --format json",
    "schema": "schema",
}


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the command line: whole, or only the command that the arguments start with, which starts faster."""
    homes = ABOUT_A_SCENARIO | OTHERS
    wanted = arguments[0] if arguments and arguments[0] in homes else None
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=wanted is None,
        help="Memory and bandwidth ledger of LLM servers with DeepSeek sparse attention.",
        epilog="Exit codes: 0 done, 2 bad input, 3 does not fit, 4 not modelled.",
    )
    app.callback()(_root)
    for name in homes if wanted is None else (wanted,):
        command = getattr(import_module(f"dsa_ledger.{homes[name]}"), name)
        if name in ABOUT_A_SCENARIO:
            command = scenario_options(command, arguments=None if wanted is None else arguments)
        elif name == "layers":
            command = scenario_options(command, LAYER_OPTIONS, takes_file=False)
        app.command(epilog=f"Example: {PROGRAM} {EXAMPLES[name]}")(command)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code; expected failures print as sentences, a bug as a traceback."""
    # No plugin of another package may slow down or change how our own inputs are read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    given = sys.argv[1:] if arguments is None else list(arguments)
    stop_if_closed()
    try:
        application(given)(given, prog_name=PROGRAM)
    except BadInput as bad:
        complain("bad input: ", bad.lines())
        sys.exit(bad.exit_code)
    except NotModelled as unknown:
        complain("", unknown.lines())
        sys.exit(unknown.exit_code)
    sys.exit(0)


def _ledger(asked: Asked, fleet: Path | None = None, ranks: Path | None = None) -> tuple[Scenario, Ledger]:
    from dsa_ledger.account import estimate as ledger_of

    scenario = scenario_of(asked)
    said: list[str] = []
    try:
        if fleet is None and ranks is None:
            ledger = ledger_of(scenario)
        else:
            from dsa_ledger.cli_fleet import ledger_of_fleet

            scenario, ledger, said = ledger_of_fleet(scenario, fleet, ranks)
    except BadInput as bad:
        raise named(bad, asked) from None
    if asked.commands:  # what a server would refuse comes first, and advice names the flags that its command has
        from dsa_ledger.audit.flagwords import in_engine_words

        ledger.warnings[:] = [*(asked.notes or ()), *in_engine_words(ledger.warnings, scenario.engine.name)]
        ledger.shortfalls[:] = in_engine_words(ledger.shortfalls, scenario.engine.name)
    for sentence in said:
        ledger.warn(sentence)
    return scenario, ledger


def _leave(asked: Asked, ledger: Ledger, *, said: bool) -> None:
    """Leave with 3 where it does not fit; the reasons go to standard error unless the answer said them to a reader."""
    if asked.format == "csv":  # which has no place for sentences
        complain("warning: ", ledger.warnings)
    if ledger.shortfalls:
        if not said:
            complain("does not fit: ", ledger.shortfalls)
        raise typer.Exit(DOES_NOT_FIT)


def _print_rows(name: str, rows: Callable[[], Sequence[Mapping[str, Any]]], form: str) -> None:
    check_format(form)
    from dsa_ledger.render import rows_text

    write(rows_text(name, rows(), form, colour=_colour()))


def _colour() -> bool:
    return sys.stdout.isatty()
