"""Engine rules as data: a value that holds from a version on, with its source."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from dsa_ledger.engines.releases import READ, key_of
from dsa_ledger.errors import NotModelled
from dsa_ledger.ledger import Fact, Source

if TYPE_CHECKING:
    from dsa_ledger.engines.releases import Key, Release
    from dsa_ledger.schema import Model

T = TypeVar("T")


class Rule(Generic[T]):
    """One question with one answer per range of versions; a range starts where the engine changed."""

    def __init__(self, engine: str, feature: str, *ranges: tuple[str, T, str]) -> None:
        """Take (first version, value, where it was read) in order; `feature` names it in "not modelled"."""
        self.engine, self.feature = engine, feature
        self.ranges: list[tuple[Key, T, Source]] = [
            (key_of(first), value, Source("engine", f"{engine} {first}: {where}", READ[engine].get(first, "")))
            for first, value, where in ranges
        ]

    def at(self, release: Release) -> Fact[T]:
        """Return the value and its source for a release (NotModelled before the first range)."""
        for first, value, source in reversed(self.ranges):
            if release.key >= first:
                return Fact(value, source)
        raise NotModelled(self.feature, release.label, f"first known from {self.engine} {self.ranges[0][2].ref}")

    def of(self, release: Release) -> T:
        """Return the value alone."""
        return self.at(release).value


def since(release: Release, version: str) -> bool:
    """Tell whether a release has the rules of `version` or later."""
    return release.key >= key_of(version)


def because(reason: Source, rule: Source) -> Source:
    """Return a rule's source with the reason why it applies in front, where an engine gave that reason."""
    return rule if reason.kind != "engine" else Source(rule.kind, f"{reason.ref}; {rule.ref}", rule.date)


def query_tile_rows(model: Model) -> Fact[int]:
    """Return the query rows of a request that share one read of its keys in DeepGEMM's SM100 kernel [rows]."""
    kernel = "DeepGEMM 54e2261 csrc/apis/attention.hpp: 128 head rows a query tile"
    return Fact(max(128 // model.index_heads, 1), Source("engine", kernel, "2026-06-23"))


@lru_cache(maxsize=1024)
def engine_source(release: Release, where: str) -> Source:
    """Return a source that names the release whose rules apply and the place in its code."""
    return Source("engine", f"{release.engine} {release.rules}: {where}", release.date)
