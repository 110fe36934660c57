"""Blocks of the READMEs that the program itself writes, for cog: what a command prints, the table of scenarios.

    cog -r README.md scenarios/README.md

writes them anew; `.ci/run` checks the first, tests both.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import tomllib
from pathlib import Path

from dsa_ledger import Scenario, estimate
from dsa_ledger.cli import main
from dsa_ledger.scenario_file import read
from dsa_ledger.units import Unit, brief

SCENARIOS = Path(__file__).parents[1] / "scenarios"
LEFT_OUT = "..."


class Terminal(io.StringIO):
    """Text that a terminal would get: the bars are drawn with block characters."""

    encoding = "utf-8"


def printed(command: str) -> str:
    """Return what one `dsa-ledger` command prints to standard output, whatever its exit code."""
    program, *arguments = shlex.split(command)
    if program != "dsa-ledger":
        message = f"not ours: {command}"
        raise ValueError(message)
    out = Terminal()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()


def shown(command: str, *, only: tuple[str, ...] = (), lines: int | None = None) -> str:
    """Return a fenced block: the command and its output, cut to paragraphs that start with `only` or to `lines`."""
    text = printed(command).rstrip("\n")
    if only:
        kept = [part if part.startswith(only) else LEFT_OUT for part in text.split("\n\n")]
        text = "\n".join(part for part, _ in itertools.groupby(kept))
    if lines is not None:
        text = "\n".join([*text.split("\n")[:lines], LEFT_OUT])
    return f"```text\n$ {command}\n{text}\n```\n"


def scenario_table() -> str:
    """Return the table of scenarios: the sentence each shows, and what the ledger says of its worst rank."""
    rows = [
        "| scenario | what it shows | B/token | weights | pool tokens | requests of so many tokens |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for path in sorted(SCENARIOS.glob("*.toml")):
        scenario = Scenario.model_validate(read(path))
        ledger = estimate(scenario)
        fits = f"{ledger['pool.requests_at_context']} x {scenario.load.context:,}"
        rows.append(
            f"| [{path.stem}]({path.name}) | {scenario.title} | {ledger['cell.bytes']:,} | "
            f"{brief(ledger['weights.rank_bytes'], Unit.BYTES)} | {ledger['pool.tokens']:,} | "
            f"{'does not start' if ledger.shortfalls else fits} |"
        )
    return "\n".join(rows) + "\n"


def commands_of(text: str) -> list[str]:
    """Return every `dsa-ledger` command that stands in a fenced block, prompt and comment taken off, in order."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for block in fenced for line in block.splitlines()]
    return [line for line in lines if line.startswith("dsa-ledger ")]


def first_comment(path: Path) -> str:
    """Return the comment that a scenario file opens with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    tomllib.loads("\n".join(lines))
    end = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ") for line in lines[:end])
