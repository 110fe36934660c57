"""A fleet in one ledger: each group of ranks at the pace of its slowest, the plain keys those of the slowest group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate_boxes
from dsa_ledger.ledger import Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsa_ledger.ledger import Entry, Kind, Ledger
    from dsa_ledger.schema import Scenario
    from dsa_ledger.timing.box import Box

# No step time: a measured step was seen at one pace, which of the groups' that was is not known.
SHOWN = ("time.attention_s", "time.step_low_s", "time.step_high_s")
PACE = "time.attention_s"  # what a profile changes


class Member(NamedTuple):
    """A rank by its name, the file of its GPU's profile, and what that says."""

    rank: str
    profile: str
    box: Box


class Paced(NamedTuple):
    """A group at the pace of its slowest member: the entries shown, each with the weakest kind of fact under it."""

    group: str
    member: Member
    pace_s: float  # of the attention layers; 0 where that is not known
    shown: tuple[tuple[Entry, Kind], ...]


def estimate_groups(scenario: Scenario, groups: Mapping[str, Sequence[Member]]) -> tuple[Scenario, Ledger, list[Paced]]:
    """Return scenario and ledger of the slowest group, and all groups, slowest first.

    The ledger has `group[NAME].KEY` beside its own time keys. Slowest is whose attention layers take longest under
    this load; without a load, the first of each group. Raises as `estimate` does.
    """
    slowest = _slowest(scenario, groups)
    ledgers = estimate_boxes(scenario, [member.box for member in slowest])
    paced = []
    for name, member, found in zip(groups, slowest, ledgers, strict=True):
        shown = tuple((found.entries[key], found.weakest(key)) for key in SHOWN if key in found)
        paced.append(Paced(name, member, _pace(found), shown))
    paced.sort(key=lambda group: group.pace_s, reverse=True)
    [ledger] = estimate_boxes(scenario, [paced[0].member.box])
    for group in paced:
        for entry, kind in group.shown:
            source = Source(kind, f"{entry.key} with --profile {group.member.profile}", "")
            note = f"the slowest rank: {group.member.rank}"
            ledger.given(f"group[{group.group}].{entry.key}", entry.value, entry.unit, source, note)
    return scenario.model_copy(update={"profile": paced[0].member.profile}), ledger, paced


def _slowest(scenario: Scenario, groups: Mapping[str, Sequence[Member]]) -> list[Member]:
    """Return the slowest member of each group; what boxes that measured the same would take is worked out once."""
    several = [member.box for members in groups.values() if len(members) > 1 for member in members]
    boxes = {box.profile.fits: box for box in several}
    ledgers = estimate_boxes(scenario, boxes.values())
    pace = {fits: _pace(ledger) for fits, ledger in zip(boxes, ledgers, strict=True)}
    return [max(members, key=lambda member: pace.get(member.box.profile.fits, 0.0)) for members in groups.values()]


def _pace(ledger: Ledger) -> float:
    return float(ledger[PACE]) if PACE in ledger else 0.0
