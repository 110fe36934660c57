"""What a command says about a scenario: fields set, flags ignored, flags unknown, values that are missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_SHOWN = 200  # flags of each kind; a command of more is no command


class Given(NamedTuple):
    """One flag as given: the flag meant, as written, its values, and what the text does not say about them."""

    name: str
    written: str
    values: tuple[str, ...]
    negated: bool = False
    missing: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Return flag and values as written, cut to one line."""
        return one_line(" ".join((self.written, *self.values)))


class Setting(NamedTuple):
    """A scenario field that the command sets, and the words that set it."""

    value: Any
    written: str


@dataclass
class Reading:
    """The outcome of reading one launch command."""

    engine: str
    version: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # field to the reason why the command leaves it open
    notes: list[str] = field(default_factory=list)

    def set(self, path: str, value: Any, written: str) -> None:
        """Set one scenario field; the later of two flags wins, as argparse has it."""
        self.settings[path] = Setting(value, written)

    def add_feature(self, name: str, written: str) -> None:
        """Switch a feature on."""
        features = self.settings.get("features", Setting((), ""))
        if name not in features.value:
            said = f"{features.written} {written}".strip()
            self.set("features", (*features.value, name), said)

    def note(self, sentence: str) -> None:
        """Keep a sentence once."""
        if sentence not in self.notes and len(self.notes) < MOST_SHOWN:
            self.notes.append(sentence)


def one_line(text: str, most: int = 120) -> str:
    """Return text fit for a line of a message: printable, cut."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    return shown if len(shown) <= most else shown[: most - 3] + "..."
