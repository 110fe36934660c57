"""The ledger: immutable entries that know their formula, their inputs and their source.

The ledger is the computation graph itself: `derive` calls a formula with the values of named entries and keeps the
names, so `explain` can walk from any figure down to its givens, and nothing printed can differ from what was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dsa_ledger.units import Unit

Kind = Literal["measured", "driver", "engine", "config", "datasheet", "prior", "scenario"]

# From the firmest to the weakest fact; what the user states about the own scenario is not ranked.
RANKED: tuple[Kind, ...] = ("measured", "driver", "engine", "config", "datasheet", "prior")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact comes from. There is no default: a number without a source is not posted."""

    kind: Kind
    ref: str
    date: str

    def __post_init__(self) -> None:
        """Refuse an empty reference."""
        if not self.ref:
            raise ValueError("a source needs a reference")


T = TypeVar("T")


class Fact(NamedTuple, Generic[T]):
    """A value with its source, as an engine rule or a catalog hands it out before it is posted."""

    value: T
    source: Source


class Entry(NamedTuple):
    """One figure of the ledger, in base units; a tuple, because a search makes a hundred thousand of them.

    `inputs` maps the formula's parameter names to the keys they were taken from; a given has no formula and no inputs.
    """

    key: str
    value: Any
    unit: Unit
    formula: Callable[..., Any] | None
    inputs: tuple[tuple[str, str], ...]
    source: Source
    note: str


class Total:
    """A sum, or the smallest or largest, of entries of one unit; callable like any formula."""

    def __init__(self, how: Literal["sum", "least", "most"]) -> None:
        """Name how the parts are combined."""
        self.how = how

    def __call__(self, **parts: Any) -> Any:
        """Return the parts combined, ints or arrays alike."""
        values = iter(parts.values())
        result = next(values)
        if self.how == "sum":
            for value in values:
                result = result + value
            return result
        from dsa_ledger.formulas.helpers import least, most

        choose = least if self.how == "least" else most
        for value in values:
            result = choose(result, value)
        return result


SUM, LEAST, MOST = Total("sum"), Total("least"), Total("most")


class LedgerError(Exception):
    """A ledger was built wrongly: a key posted twice, an unknown input, mixed units. Always a bug, never bad input."""


class Ledger:
    """All entries of one scenario, by key in the order posted, the warnings, and the reasons why it does not fit."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, Entry] = {}
        self.warnings: list[str] = []
        self.shortfalls: list[str] = []

    def __getitem__(self, key: str) -> Any:
        """Return the value of an entry (KeyError when it was not posted)."""
        return self.entries[key].value

    def __contains__(self, key: object) -> bool:
        """Tell whether a key was posted."""
        return key in self.entries

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries in the order posted."""
        return iter(self.entries.values())

    def copy(self) -> Ledger:
        """Return a ledger that starts from the same entries; they are immutable and shared."""
        twin = Ledger()
        twin.entries, twin.warnings, twin.shortfalls = dict(self.entries), [*self.warnings], [*self.shortfalls]
        return twin

    def warn(self, sentence: str) -> None:
        """Keep a warning once; each one says what to do."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def post(self, entry: Entry) -> None:
        """Add one entry; a key is posted once."""
        if entry.key in self.entries:
            raise LedgerError(f"{entry.key} is posted twice")
        self.entries[entry.key] = entry

    def given(self, key: str, value: Any, unit: Unit, source: Source, note: str = "") -> None:
        """Post a fact that comes from outside."""
        self.post(Entry(key, value, unit, None, (), source, note))

    def fact(self, key: str, unit: Unit, fact: Fact[Any]) -> None:
        """Post a fact that already carries its source."""
        self.given(key, fact.value, unit, fact.source)

    def derive(
        self, key: str, unit: Unit, formula: Callable[..., Any], source: Source, note: str = "", **inputs: str
    ) -> None:
        """Post formula(**values of the entries named); `inputs` maps parameter names to keys."""
        entries = self.entries
        try:
            value = formula(**{name: entries[used].value for name, used in inputs.items()})
        except KeyError as missing:
            raise LedgerError(f"{key} needs {missing}, which is not posted") from missing
        self.post(Entry(key, value, unit, formula, tuple(inputs.items()), source, note))

    def total(self, key: str, source: Source, parts: Iterable[str], how: Total = SUM, note: str = "") -> None:
        """Post the sum (or the least, the most) of entries that share one unit."""
        used = tuple(parts)
        entries = self.entries
        units = {entries[part].unit for part in used}
        if len(units) != 1:
            raise LedgerError(f"{key} would combine the units {sorted(unit.value for unit in units)}")
        value = how(**{part: entries[part].value for part in used})
        self.post(Entry(key, value, units.pop(), how, tuple(zip(used, used, strict=True)), source, note))

    def reached(self, key: str) -> list[Entry]:
        """Return an entry and all it rests on, each once, inputs after what uses them."""
        seen: dict[str, None] = {}
        waiting = [key]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen[name] = None
                waiting.extend(used for _, used in reversed(self.entries[name].inputs))
        return [self.entries[name] for name in seen]

    def givens_under(self, key: str) -> list[Entry]:
        """Return the givens that an entry rests on, each once, in the order met."""
        return [entry for entry in self.reached(key) if not entry.inputs]

    def weakest(self, key: str) -> Kind:
        """Return the weakest kind of fact that an entry rests on; `scenario` when it rests on nothing else."""
        kinds = {entry.source.kind for entry in self.givens_under(key)} | {self.entries[key].source.kind}
        ranked = [kind for kind in RANKED if kind in kinds]
        return ranked[-1] if ranked else "scenario"


class Scope:
    """A pipeline stage's view of a ledger: posts under `stage[i].`, reads its own entry first, else the plain one."""

    def __init__(self, ledger: Ledger, prefix: str) -> None:
        """Take the ledger and the prefix, empty where there is one stage."""
        self.ledger, self.prefix = ledger, prefix

    def name(self, key: str) -> str:
        """Return the full key that `key` reads from in this scope."""
        full = self.prefix + key
        return full if full in self.ledger.entries else key

    def __getitem__(self, key: str) -> Any:
        """Return the value that `key` has in this scope."""
        return self.ledger.entries[self.name(key)].value

    def given(self, key: str, value: Any, unit: Unit, source: Source, note: str = "") -> None:
        """Post a given of this stage."""
        self.ledger.given(self.prefix + key, value, unit, source, note)

    def fact(self, key: str, unit: Unit, fact: Fact[Any]) -> None:
        """Post a fact of this stage."""
        self.given(key, fact.value, unit, fact.source)

    def derive(
        self, key: str, unit: Unit, formula: Callable[..., Any], source: Source, note: str = "", **inputs: str
    ) -> None:
        """Post a derived entry of this stage."""
        prefix, entries = self.prefix, self.ledger.entries
        if prefix:  # as `name` does, without a call for each input: most of a search's time goes by here
            inputs = {
                name: full if (full := prefix + used) in entries else used  # the stage's own first
                for name, used in inputs.items()
            }
        self.ledger.derive(prefix + key, unit, formula, source, note, **inputs)

    def total(self, key: str, source: Source, parts: Iterable[str], how: Total = SUM, note: str = "") -> None:
        """Post a total of this stage."""
        self.ledger.total(self.prefix + key, source, [self.name(part) for part in parts], how, note)


def as_table(ledger: Ledger) -> Mapping[str, Any]:
    """Return key to value, for readers who want nothing else."""
    return {key: entry.value for key, entry in ledger.entries.items()}
