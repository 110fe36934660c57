"""Which boxes work together: the ranks of each group by a map from host and GPU, or by host where there is no map."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, NamedTuple

from calib.fleet_report import box_row
from dsa_ledger.errors import ABSENT, BadInput, Fault, Said, Words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calib.judge import Box

COLUMNS = ("group", "rank", "host", "uuid")
MOST_NAMES = 4  # of groups alike
MOST_LINES = 20  # of one kind that people are shown; programs get all


class Rank(NamedTuple):
    """A rank by the map's own word for it, and its box."""

    name: str
    box: Box


Groups = dict[str, list[Rank]]


def groups_of_map(boxes: Sequence[Box], path: Path, others: Sequence[Box] = ()) -> tuple[Groups, list[Fault]]:
    """Return the ranks of each group by a CSV with columns group, rank, host, uuid, and the rows at fault.

    A row without a UUID means its host's one box. A rank and a box have one row each; `others` are boxes that are
    known and not meant. BadInput: no such file, a column that is missing or there twice, or no row that can be used.
    """
    known = _Boxes(boxes, others)
    groups: Groups = {}
    faults: list[Fault] = []
    for number, row in _rows(path):
        try:
            box = known.box_of(number, row)
        except BadInput as bad:
            faults += bad.faults
            continue
        groups.setdefault(row["group"], []).append(Rank(row["rank"], box))
    if not groups:
        more = len(faults) - MOST_LINES
        rest = [Fault("ranks", Words(f"{more:,} more lines"), Said("alike"))] if more > 0 else []
        raise BadInput([*faults[:MOST_LINES], *rest] or [Fault("ranks", str(path), "at least one row")])
    return groups, faults


class _Boxes:
    """Boxes by UUID and by host; names are compared without case, hosts that differ in their domain by the rest."""

    def __init__(self, boxes: Sequence[Box], others: Sequence[Box]) -> None:
        self.by_uuid: dict[str, list[Box]] = {}
        self.by_host: dict[str, list[Box]] = {}
        for box in boxes:
            self.by_uuid.setdefault(box.profile.hardware.identity.casefold(), []).append(box)
            self.by_host.setdefault(_short(box.profile.host), []).append(box)
        self.models = {box.profile.hardware.identity.casefold(): box.model for box in others}
        self.taken: dict[tuple[str, str], int] = {}  # each rank, and each box, by the line that has it

    def box_of(self, number: int, row: dict[str, str]) -> Box:
        """Return the box that a row means (BadInput: what is wrong with the row, which is left out)."""
        place, group, rank = f"ranks line {number}", row["group"], row["rank"]
        for column in ("group", "rank"):
            if not row[column]:
                raise BadInput([Fault(f"{place}: {column}", ABSENT, "a name; the row is left out")])
            if not row[column].isprintable():  # it would reach the terminal as it is
                raise BadInput([Fault(f"{place}: {column}", row[column], "letters that print; the row is left out")])
        try:
            box = self._meant(place, row["uuid"], row["host"])
            # A file is a box: two rows may find one by its UUID and by its host. No group is named "".
            self._is_free((group, rank), Fault(place, f"{group} {rank}", ""))
            self._is_free(("", box.file), Fault(place, row["uuid"] or row["host"], ""))
        except BadInput as bad:
            raise BadInput(
                [one._replace(expected=f"{one.expected}; rank {rank} is left out") for one in bad.faults]
            ) from None
        self.taken[group, rank] = self.taken["", box.file] = number
        return box

    def _meant(self, place: str, uuid: str, host: str) -> Box:
        if uuid:
            here = self.by_uuid.get(uuid.casefold(), [])
            if not here and uuid.casefold() in self.models:
                model = self.models[uuid.casefold()]
                raise BadInput([Fault(place, uuid, f"a GPU of the scenario's model, this is {model}")])
        else:
            here = self.by_host.get(_short(host), [])
            here = [box for box in here if box.profile.host.casefold() == host.casefold()] or here
        if len(here) != 1:
            raise BadInput([Fault(place, uuid or host, "the whole UUID of a profile, or a host with one profile")])
        [box] = here
        if host and box.profile.host and _short(host) != _short(box.profile.host):
            raise BadInput([Fault(place, host, f"{box.profile.host}, the host of {uuid} by its profile")])
        return box

    def _is_free(self, key: tuple[str, str], fault: Fault) -> None:
        if key in self.taken:
            raise BadInput([fault._replace(expected=f"a row of its own: line {self.taken[key]} has it")])


def _short(host: str) -> str:
    return host.partition(".")[0].casefold()


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows with their line numbers, no value absent; spaces and case of the columns' names do not count."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip().casefold() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise BadInput([Fault("ranks", str(path), f"a CSV file: {failure}")]) from None
    shown = Words(",".join(columns)) if ",".join(columns).isprintable() else ascii(columns)
    if missing := [name for name in COLUMNS if name not in columns]:
        raise BadInput([Fault("ranks", shown, f"columns {','.join(COLUMNS)}; missing {missing}")])
    if twice := [name for name in COLUMNS if columns.count(name) > 1]:
        raise BadInput([Fault("ranks", shown, f"each column once; twice {twice}")])
    found = [(line, {name: (row[name] or "").strip() for name in COLUMNS}) for line, row in rows]
    return [(line, row) for line, row in found if any(row.values())]  # spreadsheets leave rows of commas


def groups_of_hosts(boxes: Sequence[Box], ranks: int) -> tuple[Groups, str]:
    """Return the groups that can be told without a map, and what was assumed.

    A host is one; all are one where `ranks`, those of a server, are more than any host has profiles. A host with GPUs
    for several groups is one too: which of its GPUs work together is not known.
    """
    groups: Groups = {}
    for box in boxes:
        host = box.profile.host or "no host named"
        name = host if host.isprintable() else ascii(host)
        groups.setdefault(name, []).append(Rank(box.profile.hardware.identity, box))
    most = max(map(len, groups.values()))
    if most >= ranks:
        return groups, "each host is taken as one group: --ranks FILE.csv tells which GPUs work together"
    return {"all hosts": [rank for members in groups.values() for rank in members]}, (
        f"a server has {ranks} ranks and no host more than {most} profiles: all {len(boxes)} are taken as one group; "
        "--ranks FILE.csv tells which GPUs work together"
    )


def size_lines(groups: Groups, ranks: int, tp: int) -> list[str]:
    """Return a sentence for each size of groups that is neither a server's nor one TP group's, rarest size first."""
    by_size: dict[int, list[str]] = {}
    for name, members in groups.items():
        if len(members) not in (ranks, tp):
            by_size.setdefault(len(members), []).append(name)
    return [
        f"{_named(names)} {count} rank{'s' if count > 1 else ''} with a profile, a server of this scenario {ranks}"
        for count, names in sorted(by_size.items(), key=lambda pair: len(pair[1]))
    ]


def _named(groups: Sequence[str]) -> str:
    if len(groups) == 1:
        return f"group {groups[0]} has"
    shown = ", ".join(groups[:MOST_NAMES]) + (", ..." if len(groups) > MOST_NAMES else "")
    return f"{len(groups)} groups ({shown}) have"


def first_lines(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"{more:,} {rest}"] if more > 0 else [])]


def group_rows(groups: Groups) -> list[dict[str, Any]]:
    """Return the slowest rank of each group by its paged reads, in a row each, slowest group first."""
    worst = {group: min(ranks, key=lambda rank: rank.box.rate_bytes_per_s) for group, ranks in groups.items()}
    return [
        {"group": group, "ranks": len(groups[group]), "worst_rank": name, "slow": box.is_slow, **box_row(box)}
        for group, (name, box) in sorted(worst.items(), key=lambda pair: pair[1].box.rate_bytes_per_s)
    ]
