"""Causes of a comparison in words, each source told once."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from dsa_ledger.compare import SIDES
from dsa_ledger.explain import formula_text, origin, quantity
from dsa_ledger.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.compare import Cause
    from dsa_ledger.ledger import Entry

ONE_SOURCE = "one source for both: it follows from what is stated differently"


def cause_lines(number: int, cause: Cause, told: dict[str, str]) -> Iterator[str]:
    """Yield the lines of one cause: its keys, then value, formula and source of each side.

    `told` keeps where each source was said; from then on that place is named in its stead.
    """
    yield from wrap(title_of(cause), f"{number:>3} ", "    ")
    for text in sides_told(number, cause, told):
        yield from wrap(text, "    ", "      ")
    alike = cause.kind != "scenario" and cause.a and cause.b and cause.a.source == cause.b.source
    if alike and told.setdefault(ONE_SOURCE, f"{number}") == f"{number}":  # once
        yield f"    ({ONE_SOURCE})"


def title_of(cause: Cause) -> str:
    """Return the keys of a cause, and whether it was stated or is on one side only."""
    says = ["stated by the scenario"] if cause.kind == "scenario" else []
    says += ["on one side only"] if cause.differs == "presence" else []
    first, *also = cause.keys
    title = first + (f" ({', '.join(says)})" if says else "") + (f"; also {', '.join(also[:3])}" if also else "")
    title += f" and {len(also) - 3} more" if len(also) > 3 else ""  # noqa: PLR2004 - so many were named
    return title


def sides_told(number: int, cause: Cause, told: dict[str, str]) -> Iterator[str]:
    """Yield what each side says; a source told already is named by its place."""
    for side, entry, text in zip(SIDES, (cause.a, cause.b), side_texts(cause), strict=True):
        source = origin(entry.source) if entry else ""
        place = f"{number} {side.upper()}"
        first = told.setdefault(source, place)
        again = f"[{entry.source.kind}] source as in {first}" if entry and first != place else source
        yield f"{side.upper()} {text.removesuffix(source)}{again}"


def side_texts(cause: Cause) -> tuple[str, str]:
    """Return value, formula and source of each side of a cause."""
    return _side(cause, cause.a, cause.b), _side(cause, cause.b, cause.a)


def _side(cause: Cause, entry: Entry | None, other: Entry | None) -> str:
    if entry is None:
        return "no such entry"
    formula = formula_text(entry) if cause.differs == "formula" else None
    made = f" = {textwrap.shorten(formula, 120, placeholder=' ...')}" if formula else ""
    if cause.differs == "input" and other:  # the same formula: what it takes is what tells the two apart
        own = [used for _, used in entry.inputs if used not in dict(other.inputs).values()]
        made = f" with {', '.join(own)}" if own else ""
    return f"{quantity(entry)}{made}  {origin(entry.source)}"
