"""The flags of each engine by release, as data, and argparse's way of reading them: aliases, prefixes, values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.releases import key_of, sort_key
from dsa_ledger.errors import close_names

if TYPE_CHECKING:
    from dsa_ledger.engines.releases import Key

_HERE = Path(__file__).parent


class Flag(NamedTuple):
    """One spelling of a flag: the flag it means, how many values it takes, first and last read release that has it."""

    name: str
    main: str
    arity: str
    first: str
    last: str  # empty: still there in the newest release read

    def known_to(self, version: Key | None) -> bool:
        """Tell whether a release has this spelling; without a version any release counts."""
        if version is None:
            return True
        return (not self.last or version <= key_of(self.last)) and version >= key_of(self.first)

    @property
    def span(self) -> str:
        """Return the releases that have it, in words."""
        return f"{self.first} to {self.last}" if self.last else f"{self.first} on"


class Found(NamedTuple):
    """What a written flag means: a flag, or a sentence that says why it means none."""

    flag: Flag | None
    negated: bool = False
    problem: str = ""


class FlagTable:
    """The flags of one engine."""

    def __init__(self, engine: str) -> None:
        """Read the engine's table."""
        data = json.loads((_HERE / f"flags_{engine.replace('-', '_')}.json").read_text(encoding="utf-8"))
        self.engine = engine
        self.read: list[str] = data["read"]
        self.flags: dict[str, Flag] = {}
        for key, lines in data["flags"].items():
            arity, first, *last = key.split()
            for name in " ".join(lines).split():
                self.flags[name] = Flag(name, data["same_as"].get(name, name), arity, first, last[0] if last else "")
        self.words = {name: set(name.strip("-").split("-")) for name in self.flags}
        self.prefixes = engine != "tensorrt-llm"  # click, unlike argparse, takes no abbreviations
        self.underscores = engine == "vllm"  # utils/argparse_utils.py: - and _ are alike before the first dot

    def find(self, written: str, version: str | None, *, hint: bool = True) -> Found:
        """Return what a flag means in a release, or in any; `hint` looks for the nearest of an unknown one."""
        name = written
        if self.underscores and written.startswith("--"):
            name = written.replace("_", "-")
        key = self._read_key(version)
        flag = self.flags.get(name)
        if flag and flag.known_to(key):
            return Found(flag)
        positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else ""
        other = self.flags.get(positive)
        if other and other.arity == "b" and other.known_to(key):
            return Found(other, negated=True)
        if flag:
            near = self._hint(name, key) if hint else ""
            return Found(None, problem=f"{self.engine} {version} has no {name} ({flag.span}){near}")
        found = self._by_prefix(name, key) if self.prefixes and name.startswith("--") else None
        return found or Found(None, problem=f"{self.engine} has no {name}{self._hint(name, key) if hint else ''}")

    def _read_key(self, version: str | None) -> Key | None:
        """Return a release's place, at most as far out as the releases whose flags were read."""
        key = sort_key(version) if version else None
        return None if key is None else min(max(key, key_of(self.read[0])), key_of(self.read[-1]))

    def _by_prefix(self, name: str, key: Key | None) -> Found | None:
        hits = [flag for known, flag in self.flags.items() if known.startswith(name) and flag.known_to(key)]
        # Where no release is named the newest decides what a prefix means, as long as it has an answer.
        newest = [flag for flag in hits if not flag.last] if key is None else hits
        hits = newest or hits
        if len(hits) == 1 and len(name) > len("--"):
            return Found(hits[0])
        if hits:
            listed = ", ".join(sorted(flag.name for flag in hits)[:6])
            return Found(None, problem=f"{name} is ambiguous: {self.engine} has {listed}; write the flag in full")
        return None

    def _hint(self, name: str, key: Key | None) -> str:
        """Return the nearest spelling of that release, and the release of one that only others have."""
        # Only names that share a word or a start are compared: comparing all costs 15 ms a flag.
        words = set(name[:80].strip("-").split("-"))
        alike = [flag for flag in self.flags.values() if words & self.words[flag.name] or flag.name[:5] == name[:5]]
        known = [flag.name for flag in alike if flag.known_to(key)]
        if close := close_names(name[:80], known):
            return f"; did you mean {close[0]!r}?"
        elsewhere = close_names(name[:80], [flag.name for flag in alike])
        return f"; did you mean {elsewhere[0]!r}? ({self.flags[elsewhere[0]].span})" if elsewhere else ""


@cache
def flag_table(engine: str) -> FlagTable:
    """Return the flags of an engine."""
    return FlagTable(engine)
