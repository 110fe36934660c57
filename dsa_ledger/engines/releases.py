"""Engine releases: which ones were read, and whose rules a version gets.

A post-release counts as its release. A release between two read ones has the older one's rules, said in a warning.
Before the first and after the last nothing is known: not modelled.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.errors import BadInput, Fault, NotModelled

if TYPE_CHECKING:
    from dsa_ledger.schema import Engine

Key = tuple[int, int, int, int]

# Date of the published package files of each release that was read.
READ: dict[str, dict[str, str]] = {
    "sglang": {
        "0.5.9": "2026-02-23",
        "0.5.10": "2026-04-08",
        "0.5.14": "2026-06-26",
        "0.5.15": "2026-07-14",
        "0.5.16": "2026-07-25",
        "0.5.17": "2026-08-08",
        "0.5.18": "2026-08-21",
        "0.5.19": "2026-09",
        "0.5.20": "2026-09-18",
        "0.5.21": "2026-10-01",
        "0.5.22": "2026-10-15",
        "0.5.23": "2026-10-30",
    },
    "vllm": {
        "0.19.0": "2026-04-03",
        "0.20.0": "2026-04-27",
        "0.20.2": "2026-05",
        "0.21.0": "2026-05-15",
        "0.22.0": "2026-05-29",
        "0.23.0": "2026-06-15",
        "0.24.0": "2026-06-29",
        "0.25.0": "2026-07-11",
        "0.26.0": "2026-07-25",
        "0.27.0": "2026-08-10",
        "0.28.0": "2026-08-25",
        "0.29.0": "2026-09-09",
        "0.30.0": "2026-09-22",
        "0.31.0": "2026-10-03",
        "0.32.0": "2026-10-17",
        "0.33.0": "2026-11-01",
    },
    "tensorrt-llm": {
        "1.2.1": "2026-04",
        "1.3.0rc10": "2026-03-31",
        **{f"1.3.0rc{candidate}": "" for candidate in range(11, 23)},
        "1.3.0rc23": "2026-07-22",
        "1.3.0rc24": "2026-07-30",
        "1.3.0rc25": "2026-08-10",
        "1.4.0rc0": "",
        "1.4.0rc1": "",
        "1.4.0rc2": "",
    },
}

_TEXT = re.compile(
    r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\.?(post|rc|dev|a|b)(\d{1,6}))?(?:\+[\w.]{1,60})?", re.ASCII
)
_FINAL = 1 << 20


class Release(NamedTuple):
    """A version as asked for, and the read release whose rules it gets."""

    engine: str
    version: str
    rules: str
    key: Key
    date: str

    @property
    def label(self) -> str:
        """Return engine@version for people."""
        return f"{self.engine}@{self.version}"


def sort_key(version: str) -> Key | None:
    """Return a version's place in order; a candidate comes before its release; None where it is no version."""
    found = _TEXT.fullmatch(version.strip().lower())
    if not found:
        return None
    major, minor, patch, suffix, number = found.groups()
    candidate = _FINAL if suffix in (None, "post") else int(number) - (0 if suffix == "rc" else _FINAL)
    return int(major), int(minor), int(patch or 0), candidate


@cache
def key_of(version: str) -> Key:
    """Return the place of a version written in our own tables."""
    key = sort_key(version)
    if key is None:
        raise ValueError(version)
    return key


def releases(engine: str) -> list[tuple[Key, str]]:
    """Return the read releases of an engine in order."""
    return [(key_of(version), version) for version in READ[engine]]


def resolve(engine: Engine) -> tuple[Release, list[str]]:
    """Return the release whose rules apply, and the warnings that go with it (BadInput, NotModelled)."""
    known = releases(engine.name)
    newest = known[-1][1]
    if engine.version is None:
        return _release(engine.name, newest, newest), [
            f"no {engine.name} version given: these are the rules of {newest}; name yours as {engine.name}@VERSION"
        ]
    key = sort_key(engine.version)
    if key is None:
        raise BadInput([Fault("engine.version", engine.version, f"a version such as {newest}")])
    names = dict(known)
    if key in names:
        return _release(engine.name, engine.version, names[key]), []
    keys = [place for place, _ in known]
    place = bisect_right(keys, key)
    span = f"read are {known[0][1]} to {newest}"
    if place == 0 or place == len(known):
        raise NotModelled(engine.name, engine.version, f"its rules were not read; {span}")
    older = known[place - 1][1]
    return _release(engine.name, engine.version, older), [
        f"{engine.name} {engine.version} was not read: the rules of {older}, the release before it, are used"
    ]


def _release(engine: str, version: str, rules: str) -> Release:
    return Release(engine, version, rules, key_of(rules), READ[engine][rules])
