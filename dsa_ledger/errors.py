"""Expected failures: each carries its exit code and prints without a traceback.

A bug is none of these; it keeps its traceback.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST_VALUE = 80


class Words(str):
    """Words in place of a value: printed as they are, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the words themselves."""
        return str(self)


class Said(str):
    """A sentence in place of what was expected, where only what is wrong can be said: printed as it is."""

    __slots__ = ()


ABSENT = Words("absent")


class Fault(NamedTuple):
    """One thing wrong with the input: where it stands, what was found, what was expected (a noun phrase, or `Said`)."""

    path: str
    value: object
    expected: str

    def __str__(self) -> str:
        """Return `path: value: expected ...` in one line, the value cut so that a huge one stays readable."""
        said = self.expected if isinstance(self.expected, Said) else f"expected {self.expected}"
        return f"{self.path}: {_shown(self.value)}: {said}"


def _shown(value: object) -> str:
    shown = repr(ABSENT if value is None else value)
    if len(shown) <= LONGEST_VALUE:
        return shown
    closing = shown[0] if shown[0] in "'\"" else ""  # a quote that opens closes
    return shown[: LONGEST_VALUE - 3 - len(closing)] + "..." + closing


class ExpectedError(Exception):
    """A result the user must hear about; the command line prints it as plain sentences."""

    exit_code = 1

    def lines(self) -> list[str]:
        """Return what to print, one sentence a line."""
        return [str(self)]


class BadInput(ExpectedError):  # noqa: N818 - named by what it says, as the exit codes are
    """The input is wrong: every fault at once, each with its dotted path."""

    exit_code = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        """Keep the faults in the order found, each once."""
        # By text: a fault's value may be a list or a table, which has no hash.
        self.faults = tuple({str(fault): fault for fault in faults}.values())
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def lines(self) -> list[str]:
        """Return one line per fault."""
        return [str(fault) for fault in self.faults]


class NotModelled(ExpectedError):  # noqa: N818 - named by what it says, as the exit codes are
    """No rule is known for this feature and version; a guess is not an answer."""

    exit_code = 4

    def __init__(self, feature: str, version: str, reason: str) -> None:
        """Name the feature, the engine version (or model) it was asked of, and why."""
        self.feature, self.version, self.reason = feature, version, reason
        super().__init__(f"not modelled: {feature} ({version}): {reason}")


class Faults:
    """Collects faults so that all of them are reported at once."""

    def __init__(self) -> None:
        """Start with none."""
        self.found: list[Fault] = []

    def add(self, path: str, value: object, expected: str) -> None:
        """Note one fault."""
        self.found.append(Fault(path, value, expected))

    def require(self, holds: bool, path: str, value: object, expected: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Note a fault unless `holds`; `expected` names what would have been right."""
        if not holds:
            self.add(path, value, expected)

    def stop_if_any(self) -> None:
        """Raise BadInput when at least one fault was noted."""
        if self.found:
            raise BadInput(self.found)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "one of ..." with the nearest known names first, at most eight, and the nearest one as a question."""
    names = sorted(known)
    close = close_names(word, names)
    rest = [name for name in names if name not in close]
    rest.sort(key=lambda name: word.lower() not in name.lower())  # those that hold the word, such as a family's
    listed = (close + rest)[:8]
    more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"one of {', '.join(listed)}{more}{hint}"


def close_names(word: str, known: Iterable[str]) -> list[str]:
    """Return the names spelled most like the word, the nearest first, at most three."""
    lower = {name.lower(): name for name in known}
    return [lower[hit] for hit in difflib.get_close_matches(word.lower(), lower, n=3, cutoff=0.4)]
