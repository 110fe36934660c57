"""The table for people: never wider than 80 columns. rich is imported here and nowhere else."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsa_ledger.ledger import RANKED
from dsa_ledger.render.budget import Part, budgets
from dsa_ledger.render.words import headline, rows_of
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsa_ledger.ledger import Entry, Kind, Ledger
    from dsa_ledger.schema import Scenario

WIDTH = 80
KEY_WIDTH = 41
BAR_WIDTH = 46
_BLOCKS = "█▉▊▋▌▍▎▏▐▕"
_BLOCKS_AS_SIGNS = str.maketrans(dict.fromkeys(_BLOCKS, "#"))
STYLES: dict[Kind, str] = {
    "measured": "green",
    "driver": "green",
    "engine": "cyan",
    "config": "blue",
    "datasheet": "yellow",
    "prior": "magenta",
    "scenario": "dim",
}


def ledger_table(scenario: Scenario, ledger: Ledger, *, every: bool, colour: bool) -> str:
    """Return headline, groups, memory budget of each rank, shortfalls and warnings."""
    console = _console(colour=colour)
    console.print(Text(headline(scenario), "bold"))
    if scenario.title:
        console.print(Text(scenario.title, "italic"))
    _sentences(console, "does not fit", ledger.shortfalls, "bold red")
    for group, keys in rows_of(ledger, every=every):
        console.print()
        console.print(Text.assemble((group.title, "bold"), (f"  {group.says}", "dim")))
        for key in keys:
            console.print(_row(ledger, key))
    for title, parts in budgets(ledger):
        console.print()
        console.print(Text.assemble(("memory", "bold"), (f"  {title}", "dim")))
        console.print(_bars(parts))
    console.print()
    console.print(_legend())
    _sentences(console, "warnings", ledger.warnings, "bold yellow")
    return _plain(console)


def rows_table(rows: Sequence[Mapping[str, Any]], *, colour: bool) -> str:
    """Return records in columns, numbers to the right."""
    console = _console(colour=colour)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, value in (rows[0] if rows else {}).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        title = name.removesuffix("_per_s").removesuffix("_bytes").replace("_", " ")
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=name == "name")
    for row in rows:
        table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    console.print(table)
    return _plain(console)


def _console(*, colour: bool) -> Console:
    return Console(file=io.StringIO(), width=WIDTH, force_terminal=colour, highlight=False, legacy_windows=False)


def _plain(console: Console) -> str:
    text = console.file.getvalue()  # type: ignore[attr-defined]
    if not _draws_blocks():
        text = text.translate(_BLOCKS_AS_SIGNS)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _cell(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return brief(value, Unit.BYTES)
    if name.endswith("_bytes_per_s"):
        return brief(value, Unit.BYTES_PER_S)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _row(ledger: Ledger, key: str) -> Text:
    number, unit = _value(ledger.entries[key])
    kind = ledger.weakest(key)
    # A key longer than its column takes a line of its own; broken it could not be copied to `explain`.
    start = f"  {key}\n{'':{KEY_WIDTH}}" if len(key) >= KEY_WIDTH - 2 else f"  {key}".ljust(KEY_WIDTH)
    return Text.assemble(f"{start}{number:>15} {unit:<13} ", (f"{kind:>9}", STYLES[kind]))


def _value(entry: Entry) -> tuple[str, str]:
    """Return the number and its unit apart, so that the numbers line up."""
    if isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
        return str(entry.value), ""
    number, _, unit = brief(entry.value, entry.unit).partition(" ")
    return number, unit


def _bars(parts: Sequence[Part]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH)
    for width, justify in ((1, "left"), (17, "left"), (12, "right"), (BAR_WIDTH, "left")):
        table.add_column(width=width, justify=justify)  # type: ignore[arg-type]
    for part in parts:
        bar = Bar(part.scale_bytes, part.begin_bytes, part.end_bytes, width=BAR_WIDTH, color=part.colour)
        table.add_row("", Text(part.title), Text(brief(part.value_bytes, Unit.BYTES)), bar)
    return table


def _draws_blocks() -> bool:
    """Tell whether the terminal's encoding has the block characters."""
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _legend() -> Text:
    legend = Text("last column: the weakest fact a row rests on, from ", "dim")
    for kind in RANKED:
        legend.append(kind, STYLES[kind])
        legend.append(" to " if kind == RANKED[-2] else ", " if kind != RANKED[-1] else "", "dim")
    legend.append("; scenario: only what you stated. `explain KEY` shows any row down to its sources.", "dim")
    return legend


def _sentences(console: Console, title: str, sentences: Sequence[str], style: str) -> None:
    if sentences:
        console.print()
        console.print(Text(title, style))
        listed = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        for sentence in sentences:
            listed.add_row(" -", Text(sentence))
        console.print(listed)
