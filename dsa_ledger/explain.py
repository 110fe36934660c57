"""An entry down to its givens: the executed formula, the numbers put in, the sources.

The formula shown is the return expression of the very function that computed the value, read from its source.
"""

from __future__ import annotations

import ast
import copy
import functools
import opcode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsa_ledger.errors import BadInput, Fault, Said, nearest
from dsa_ledger.ledger import Total
from dsa_ledger.units import IN_BYTES, Unit, brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dsa_ledger.ledger import Entry, Ledger, Source

LONG_BYTES = 10_000  # from here on KiB, MiB or GiB read better than digits
_RETURNS = {code for name, code in opcode.opmap.items() if name.startswith("RETURN_")}
DIGITS = ".6g"  # of times, rates and shares; JSON has them all


def formula_text(entry: Entry) -> str | None:
    """Return the formula that computed an entry, as its source spells it; None for a given."""
    if entry.formula is None:
        return None
    if isinstance(entry.formula, Total):
        return _combined(entry.formula, [key for key, _ in entry.inputs])
    return _text(entry.formula)


def numbers_text(entry: Entry, ledger: Ledger) -> str:
    """Return the formula of a derived entry with the values of its inputs put in (ValueError for a given)."""
    values = {name: ledger.entries[key].value for name, key in entry.inputs}
    if isinstance(entry.formula, Total):
        separator = "," if entry.formula.how == "sum" or len(values) == 1 else "_"
        return _combined(entry.formula, [_number(value, separator) for value in values.values()])
    if entry.formula is None:
        raise ValueError(f"{entry.key} is a given; it has no formula")
    expression = _expression(entry.formula)
    # Inside a call a comma between digits would read as one between arguments.
    separator = "_" if any(isinstance(part, ast.Call) for part in ast.walk(expression)) else ","
    put_in = _PutIn({name: _number(value, separator) for name, value in values.items()})
    return ast.unparse(put_in.visit(copy.deepcopy(expression)))


class _PutIn(ast.NodeTransformer):
    """Replaces parameters by their values, spelled as a name: the printer writes a name as it is."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        self.shown = shown

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.shown.get(node.id, node.id), node.ctx)


def _combined(total: Total, parts: list[str]) -> str:
    return " + ".join(parts) if total.how == "sum" or len(parts) == 1 else f"{total.how}({', '.join(parts)})"


def _number(value: Any, separator: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return repr(value)
    shown = f"{value:{separator}}" if isinstance(value, int) else f"{value:{DIGITS}}"
    return f"({shown})" if value < 0 else shown


@functools.cache
def _text(formula: Callable[..., Any]) -> str:
    """Return the expression as its source spells it; one over several lines is set anew, which takes far longer."""
    spelled = _spelled(formula)
    return ast.unparse(_expression(formula)) if "\n" in spelled else spelled


@functools.cache
def _expression(formula: Callable[..., Any]) -> ast.expr:
    """Return the parsed return expression of a function."""
    return ast.parse(_spelled(formula), mode="eval").body


@functools.cache
def _spelled(formula: Callable[..., Any]) -> str:
    """Return the source of a function's one return expression (LookupError for a function of another form).

    The compiler notes where each instruction comes from: the place of the return is the whole statement, so that the
    module need not be parsed again.
    """
    code = formula.__code__
    steps = zip(code.co_code[::2], code.co_positions(), strict=True)
    places = {place for step, place in steps if step in _RETURNS}
    first, last, begin, end = places.pop() if len(places) == 1 else (None,) * 4
    if first is None or last is None or begin is None or end is None:
        raise LookupError(f"{code.co_name} in {code.co_filename} is no function with one return expression")
    lines = _lines(code.co_filename)[first - 1 : last]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    statement = b"\n".join(lines).decode()
    if not statement.startswith("return "):
        raise LookupError(f"{code.co_name} in {code.co_filename} is no function with one return expression")
    return statement.removeprefix("return ")


@functools.cache
def _lines(file: str) -> list[bytes]:
    """Return the lines of a module as bytes: the compiler counts columns in bytes."""
    return Path(file).read_bytes().splitlines()


# Groups of entries that exist only where the scenario asks for them, and what asks.
_WANTING = {
    "step.": "--context",
    "prefill.": "--context and --new-tokens",
    "workspace.prefill_chunks": "--context and --new-tokens",
    "workspace.prefill_logits_bytes": "--context and --new-tokens",
    "pool.requests_at_context": "--context",
    "transfer.": "--context and --feature pd-prefill or pd-decode",
    "host.": "--feature hicache",
    "stage[": "--pp above 1",
    "time.": "--context",
    "time.step_s": "--measured-step TIME@CONTEXT",
    "time.tokens_per_s": "a known step (--measured-step) and --accepted with drafts",
}


def reached(ledger: Ledger, key: str) -> list[Entry]:
    """Return an entry and all it rests on, each once, inputs after what uses them (BadInput with the nearest keys)."""
    if key not in ledger:
        groups = (start for start in _WANTING if key.startswith(start))
        absent = (start for start in groups if not any(name.startswith(start) for name in ledger.entries))
        wanting = next((f" without {_WANTING[start]}" for start in absent), "")
        said = f"no such entry in this ledger{wanting}; expected {nearest(key, ledger.entries)}"
        raise BadInput([Fault("KEY", key, Said(f"{said} (`estimate --all` lists every key)"))])
    return ledger.reached(key)


def quantity(entry: Entry) -> str:
    """Return a value with its unit, whole numbers exactly, and in brief beside it where that reads better."""
    value, unit = entry.value, entry.unit
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    exact = f"{value:,}" if isinstance(value, int) else f"{value:{DIGITS}}"
    exact = exact if unit is Unit.COUNT else f"{exact} {unit.value}"
    short = brief(value, unit)
    better = unit in (Unit.SECONDS, Unit.BYTES_PER_S) or (unit in IN_BYTES and value >= LONG_BYTES)
    return f"{exact} ({short})" if better else exact


def origin(source: Source) -> str:
    """Return `[kind] reference (date)`."""
    return f"[{source.kind}] {source.ref}" + (f" ({source.date})" if source.date else "")


def explained(ledger: Ledger, key: str, levels: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield depth and line: the entry, its formula, the numbers put in, its source, then each input likewise.

    Each entry is shown once, then "as above"; the first one names the weakest fact it rests on, as the table does.
    With `levels` the walk stops there: what lies deeper is counted, not shown.
    """
    reached(ledger, key)
    yield from _explained(ledger, key, "", 0, set(), levels=levels)


def _explained(
    ledger: Ledger, key: str, name: str, depth: int, shown: set[str], *, levels: int | None
) -> Iterator[tuple[int, str]]:
    entry = ledger.entries[key]
    label = f"{name}: {key}" if name and name != key else key
    line = f"{label} = {quantity(entry)}"
    if key in shown:
        yield depth, f"{line}  (as above)"
        return
    if entry.formula is None:
        yield depth, f"{line}  {origin(entry.source)}"
    elif levels is not None and depth >= levels:
        yield depth, f"{line}  (rests on {len(reached(ledger, key)) - 1} more)"
        return
    else:
        yield depth, line if depth else f"{line}  weakest: {ledger.weakest(key)}"
        yield depth + 1, f"= {formula_text(entry)}"
        yield depth + 1, f"= {numbers_text(entry, ledger)}"
        yield depth + 1, origin(entry.source)
    if entry.note:
        yield depth + 1, f"note: {entry.note}"
    shown.add(key)
    for parameter, used in entry.inputs:
        yield from _explained(ledger, used, parameter, depth + 1, shown, levels=levels)
