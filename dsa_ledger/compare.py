"""Two ledgers, entry by entry, and why they differ: both are walked down to the lowest entries that disagree.

A cause is a given that has another value, an entry that another formula made, or one that is there on one side only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.explain import formula_text
from dsa_ledger.ledger import Total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dsa_ledger.ledger import Entry, Kind, Ledger
    from dsa_ledger.schema import Scenario

SIDES = ("a", "b")
STAGES = "sharding.pp"
ABSENT = "absent"


class Stated(NamedTuple):
    """One field that the two scenarios state differently; `absent` where one has none."""

    path: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Cause:
    """The lowest entries that disagree, alike but for their keys: `keys` names them all, `a` and `b` are the first."""

    keys: tuple[str, ...]
    a: Entry | None
    b: Entry | None
    differs: Literal["value", "formula", "input", "presence"]

    @property
    def kind(self) -> Kind:
        """Return `scenario` where the user stated one side, else `engine` where a rule made one, else the kind of a."""
        kinds: list[Kind] = [entry.source.kind for entry in (self.a, self.b) if entry]
        ranked: tuple[Kind, ...] = ("scenario", "engine", kinds[0])
        return next(kind for kind in ranked if kind in kinds)


class Row(NamedTuple):
    """A key whose value differs, or that only one ledger has; the causes are places in `Comparison.causes`."""

    key: str
    a: Entry | None
    b: Entry | None
    causes: tuple[int, ...]

    @property
    def unit(self) -> str:
        """Return the unit of the side that has the entry."""
        entry = self.a or self.b
        return entry.unit.value if entry else ""

    @property
    def difference(self) -> Any:
        """Return b less a, or None where they are no two numbers."""
        return self.b.value - self.a.value if self.a and self.b and _numbers(self.a.value, self.b.value) else None

    @property
    def ratio(self) -> float | None:
        """Return b over a, or None where they are no two numbers or a is 0."""
        if not (self.a and self.b and _numbers(self.a.value, self.b.value)) or not self.a.value:
            return None
        return float(self.b.value / self.a.value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two scenarios have different; the rows in the order of ledger a, then those only in b."""

    scenarios: Mapping[str, Scenario]
    ledgers: Mapping[str, Ledger]
    stated: tuple[Stated, ...]
    rows: tuple[Row, ...]
    causes: tuple[Cause, ...]
    equal: int


def compare(a: Scenario, b: Scenario, ledgers: tuple[Ledger, Ledger] | None = None) -> Comparison:
    """Return the comparison of two scenarios, whose ledgers may be at hand (BadInput, NotModelled, as `estimate`)."""
    of_a, of_b = ledgers or (estimate(a), estimate(b))
    walk = _Walk(of_a, of_b)
    rows, equal = [], 0
    for key in dict.fromkeys((*of_a.entries, *of_b.entries)):
        first, second = of_a.entries.get(key), of_b.entries.get(key)
        if first and second and _alike(first, second):
            equal += 1
        else:
            rows.append(Row(key, first, second, walk.causes_of(key)))
    return Comparison(
        scenarios=dict(zip(SIDES, (a, b), strict=True)),
        ledgers=dict(zip(SIDES, (of_a, of_b), strict=True)),
        stated=tuple(stated_differently(a, b)),
        rows=tuple(rows),
        causes=walk.causes(),
        equal=equal,
    )


def stated_differently(a: Scenario, b: Scenario) -> Iterator[Stated]:
    """Yield the fields of two scenarios that differ, by dotted path; a title is no statement."""
    first, second = (dict(_fields(scenario.model_dump(mode="json", by_alias=True))) for scenario in (a, b))
    for path in dict.fromkeys((*first, *second)):
        one, other = first.get(path, ABSENT), second.get(path, ABSENT)
        if one != other and path != "title":
            yield Stated(path, one, other)


def _fields(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@dataclass(slots=True)
class _Found:
    """A pair of lowest entries, and all keys that have such a pair."""

    a: Entry | None
    b: Entry | None
    differs: Literal["value", "formula", "input", "presence"]
    keys: dict[str, None] = field(default_factory=dict)


class _Walk:
    """Both ledgers walked down together, each pair of keys once."""

    def __init__(self, a: Ledger, b: Ledger) -> None:
        self.a, self.b = a, b
        self.seen: dict[tuple[str | None, str | None], dict[int, None]] = {}
        self.found: list[_Found] = []
        self.places: dict[object, int] = {}

    def causes_of(self, key: str) -> tuple[int, ...]:
        """Return the places of the causes of one key, in the order met."""
        return tuple(self._below(key if key in self.a else None, key if key in self.b else None))

    def causes(self) -> tuple[Cause, ...]:
        """Return every cause found so far."""
        return tuple(Cause(tuple(found.keys), found.a, found.b, found.differs) for found in self.found)

    def _below(self, key_a: str | None, key_b: str | None) -> dict[int, None]:
        pair = (key_a, key_b)
        if pair not in self.seen:
            a = self.a.entries[key_a] if key_a else None
            b = self.b.entries[key_b] if key_b else None
            if a and b:
                self.seen[pair] = {} if _alike(a, b) else dict.fromkeys(self._both(a, b))
            else:
                self.seen[pair] = dict.fromkeys(self._one_side(a, b))
        return self.seen[pair]

    def _both(self, a: Entry, b: Entry) -> Iterator[int]:
        """Yield the causes of two entries that disagree."""
        worst_a, worst_b = _worst_stage(a, self.a), _worst_stage(b, self.b)
        if worst_a is not a or worst_b is not b:
            if (worst_a is a) != (worst_b is b) and STAGES in self.a and STAGES in self.b:
                yield from self._below(STAGES, STAGES)
            yield from self._both(worst_a, worst_b)
            return
        inputs_a, inputs_b = _inputs(a, self.a), _inputs(b, self.b)
        one_part = len(inputs_a) == len(inputs_b) == 1 and all(isinstance(e.formula, Total) for e in (a, b))
        if (a.formula is not b.formula and not one_part) or (not inputs_a and not inputs_b):
            yield self._note(a, b, "value" if a.formula is None and b.formula is None else "formula")
        below: list[int] = []
        for name in dict.fromkeys((*inputs_a, *inputs_b)):
            below.extend(self._input(a, b, inputs_a.get(name), inputs_b.get(name)))
        yield from below
        if not below and a.formula is b.formula and inputs_a:
            yield self._note(a, b, "input")

    def _input(self, a: Entry, b: Entry, key_a: str | None, key_b: str | None) -> Iterable[int]:
        """Return the causes that lie under one input of two entries."""
        if key_a is None or key_b is None:
            # Another formula has other inputs: that is said already. A sum with another part is looked into.
            if a.formula is not b.formula:
                return ()
            key = key_a or key_b or ""
            return (self._note(a, b, "input"),) if key in self.a and key in self.b else self._below(key_a, key_b)
        if _plain(key_a) == _plain(key_b):
            return self._below(key_a, key_b)
        return () if _alike(self.a.entries[key_a], self.b.entries[key_b]) else (self._note(a, b, "input"),)

    def _one_side(self, a: Entry | None, b: Entry | None) -> Iterator[int]:
        """Yield the causes of an entry that one ledger lacks: what only that scenario states, else the entry itself."""
        own, ledger, other = (a, self.a, self.b) if a else (b, self.b, self.a)
        stated = (
            []
            if own is None
            else [
                given
                for given in ledger.givens_under(own.key)
                if given.source.kind == "scenario" and _plain(given.key) not in other
            ]
        )
        for given in stated:
            yield self._note(given, None, "presence") if ledger is self.a else self._note(None, given, "presence")
        if not stated:
            yield self._note(a, b, "presence")

    def _note(self, a: Entry | None, b: Entry | None, differs: Literal["value", "formula", "input", "presence"]) -> int:
        """Return the place of a cause; one that is alike but for its key is the same cause."""
        traits = [(entry.value, entry.unit, entry.source, _made(entry)) if entry else None for entry in (a, b)]
        place = self.places.setdefault((differs, *traits), len(self.found))
        if place == len(self.found):
            self.found.append(_Found(a, b, differs))
        self.found[place].keys[(a or b).key] = None  # type: ignore[union-attr]
        return place


def _made(entry: Entry) -> str:
    """Return the formula of an entry, and what it took where formulas alone do not tell two entries apart."""
    return f"{formula_text(entry)} {entry.inputs}" if entry.formula else ""


def _plain(key: str) -> str:
    """Return a key without its `stage[i].`."""
    return key.partition("].")[2] if key.startswith("stage[") else key


def _inputs(entry: Entry, ledger: Ledger) -> dict[str, str]:
    """Return the inputs by name; of one key in several stages only that of the stage which decides the value."""
    if not isinstance(entry.formula, Total):
        return dict(entry.inputs)
    found: dict[str, str] = {}
    for _, used in entry.inputs:
        if _plain(used) not in found or ledger[used] == entry.value:
            found[_plain(used)] = used
    return found


def _worst_stage(entry: Entry, ledger: Ledger) -> Entry:
    """Return the stage's entry that an entry over all stages takes its value from, else the entry itself."""
    inputs = _inputs(entry, ledger)
    used = inputs.get(entry.key)
    return ledger.entries[used] if used and len(inputs) == 1 else entry


def _alike(a: Entry, b: Entry) -> bool:
    return bool(a.value == b.value)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
