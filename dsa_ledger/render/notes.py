"""Reasons numbered under a table: those that differ in their figures only share a number, told as the first of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsa_ledger.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = {"fits": "yes", "does not fit": "no"}  # verdicts as a column has them
MOST = 20
AND_SO_ON = " (figures of the first such row)"


class Notes:
    """The reasons of a table's rows, by number from 1 in the order met."""

    def __init__(self) -> None:
        """Start with none."""
        self.firsts: dict[str, str] = {}
        self.several: set[str] = set()

    def number(self, reason: str) -> int:
        """Return the number of a reason."""
        kind = re.sub(r"\d[\d,.]*", "#", reason)
        if self.firsts.setdefault(kind, reason) != reason:
            self.several.add(kind)
        return list(self.firsts).index(kind) + 1

    def mark(self, word: str, reason: str) -> str:
        """Return a verdict with the number of its reason, `no (1)`; the word alone where there is no reason."""
        return f"{word} ({self.number(reason)})" if reason else word

    def sentences(self) -> list[str]:
        """Return the reasons in the order of their numbers."""
        return [first + (AND_SO_ON if kind in self.several else "") for kind, first in self.firsts.items()]

    def lines(self) -> Iterator[str]:
        """Yield the reasons in lines of at most 80 columns; of very many the rest are counted."""
        if self.firsts:
            yield from ("", "reasons")
        for place, text in enumerate(self.sentences()[:MOST], 1):
            yield from wrap(text, f"{f'({place})':>5} ", "      ")
        if len(self.firsts) > MOST:
            yield f"      and {len(self.firsts) - MOST:,} more reasons"
