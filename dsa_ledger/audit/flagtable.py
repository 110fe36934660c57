"""The flags of each engine by release, as data, and argparse's way of reading them: aliases, prefixes, values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.releases import key_of, sort_key
from dsa_ledger.errors import nearest

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
        self.prefixes = engine != "tensorrt-llm"  # click, unlike argparse, takes no abbreviations
        self.underscores = engine == "vllm"  # utils/argparse_utils.py: - and _ are alike before the first dot

    def find(self, written: str, version: str | None) -> Found:
        """Return what a flag means in a release; without one, in any."""
        name = written
        if self.underscores and written.startswith("--"):
            name = written.replace("_", "-")
        key = sort_key(version) if version else None
        flag = self.flags.get(name)
        if flag and flag.known_to(key):
            return Found(flag)
        positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else ""
        other = self.flags.get(positive)
        if other and other.arity == "b" and other.known_to(key):
            return Found(other, negated=True)
        if flag:
            return Found(None, problem=f"{self.engine} {version} has no {name} ({flag.span}){self._hint(name, key)}")
        return self._by_prefix(name, key) if self.prefixes and name.startswith("--") else self._unknown(name, key)

    def _by_prefix(self, name: str, key: Key | None) -> Found:
        hits = [flag for known, flag in self.flags.items() if known.startswith(name) and flag.known_to(key)]
        # Where no release is named the newest decides what a prefix means, as long as it has an answer.
        newest = [flag for flag in hits if not flag.last] if key is None else hits
        hits = newest or hits
        if len(hits) == 1 and len(name) > len("--"):
            return Found(hits[0])
        if hits:
            listed = ", ".join(sorted(flag.name for flag in hits)[:6])
            return Found(None, problem=f"{name} is ambiguous: {self.engine} has {listed}; write the flag in full")
        return self._unknown(name, key)

    def _unknown(self, name: str, key: Key | None) -> Found:
        return Found(None, problem=f"{self.engine} has no {name}{self._hint(name, key)}")

    def _hint(self, name: str, key: Key | None) -> str:
        """Return the nearest spelling of that release, and the release of one that only others have."""
        known = [known for known, flag in self.flags.items() if flag.known_to(key)]
        close = nearest(name[:80], known).partition("known:")[0].strip()
        if close:
            return f"; {close}"
        elsewhere = nearest(name[:80], self.flags).partition("known:")[0].strip()
        hit = elsewhere.partition("'")[2].partition("'")[0]
        return f"; {elsewhere} ({self.flags[hit].span})" if hit else ""


@cache
def flag_table(engine: str) -> FlagTable:
    """Return the flags of an engine."""
    return FlagTable(engine)
