"""The parts of `calibrate`, `profiles` and `estimate` that are about many machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from calib.fleet import MakeBackend
    from calib.fleet_report import Fleet
    from calib.judge import Box
    from calib.profile import Profile
    from calib.run import Plan
    from dsa_ledger.account.groups import Paced
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

SHORT_UUID = len("GPU-") + 8  # as people abbreviate them
EXPOSED = "a Ray cluster runs whatever it is sent: keep its ports in a closed network"


def calibrate_on_ray(
    address: str, device: str, plan: Plan, out: Path | None, make_backend: MakeBackend, *, busy: bool, time_limit: float
) -> None:
    """Measure the boxes of a Ray cluster that have no profile in `out`; BadInput names those that failed."""
    if out is None or not out.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, for one profile a box: --out DIR")])
    if device.partition(":")[0] not in ("gpu", "cpu") or device.startswith("gpu:"):
        raise BadInput([Fault("device", device, "gpu or cpu: Ray says which one")])
    from calib.board import Asked
    from calib.fleet import calibrate_fleet
    from dsa_ledger.render.profiles import progress_bar

    known, again = _known(out, device, plan)
    complain("warning: ", [EXPOSED, *again])
    asked = Asked(device=device, plan=plan, time_limit_s=time_limit, busy=busy)

    def tell(path: Path) -> None:
        complain("written: ", [str(path)])

    def joined(cluster: str) -> None:
        complain("cluster ", [cluster])

    with progress_bar(shown=sys.stderr.isatty()) as bar:
        outcome = calibrate_fleet(
            address, asked, out, make_backend, known=known, progress=bar, tell=tell, joined=joined
        )
    counts = f"{len(outcome.written)} measured, {len(outcome.kept)} had a profile, {len(outcome.failed)} failed"
    write(counts + "\n")
    if outcome.failed:
        raise BadInput(outcome.failed)


def _known(out: Path, device: str, plan: Plan) -> tuple[list[str], list[str]]:
    """Return the boxes that have in the folder what is asked for, and a line for each file that does not count."""
    from calib.folder import files_in, profiles_of
    from calib.run import differing

    profiles, faults = profiles_of(files_in(out), briefly=True)
    known, again = [], [f"does not count: {fault}" for fault in faults]
    for path, profile in profiles:
        hardware = profile.hardware
        if hardware.kind != device.partition(":")[0]:
            continue
        if differences := differing(profile.protocol, plan):
            again.append(f"measured again: {path.name}: {', '.join(differences)}")
        else:
            known.append(hardware.identity if hardware.kind == "gpu" else profile.node or hardware.identity)
    return known, again


def merge_folder(folder: Path, out: Path) -> list[str]:
    """Write one profile a box to `out` from a folder's, and return what was left out, one line each.

    Several runs of one box become one; a box's runs that differ in protocol or software are left out, with the reason.
    """
    from calib.compare import merge
    from calib.profile import save

    if not out.is_dir() or out.samefile(folder):
        raise BadInput([Fault("out", str(out), "a folder that exists, not that of the runs, for one profile a box")])
    runs, left_out = _runs(folder)
    if not runs:
        raise BadInput([Fault("files", str(folder), f"at least one profile in it; {left_out}")])
    boxes: dict[tuple[str, str], list[Profile]] = {}
    for _, profile in runs:
        boxes.setdefault((profile.hardware.identity, profile.node), []).append(profile)
    for (identity, _), several in boxes.items():
        try:
            merged = merge(several) if len(several) > 1 else several[0]
            before = next((path for path in out.glob(f"{merged.file_stem}*.json") if _is(merged, path)), None)
            if before is None:
                complain("written: ", [str(save(merged, out))])
            else:
                complain("there already: ", [str(before)])
        except BadInput as bad:
            left_out += [f"{identity}: {line}" for line in bad.lines()]
    return left_out


def _runs(folder: Path) -> tuple[list[tuple[str, Profile]], list[str]]:
    """Return each run once with its file's name, and a line for each file that is none or is a part of another."""
    from calib.folder import files_in, profiles_of

    found: dict[str, tuple[str, Profile]] = {}  # by its seal
    profiles, faults = profiles_of(files_in(folder))
    left_out = [*map(str, faults)]
    for path, profile in profiles:
        if profile.seal in found:
            left_out.append(f"{path.name}: the same run is there already")
        else:
            found[profile.seal] = path.name, profile
    within = {seal: name for name, profile in found.values() for seal in profile.merged_from}
    left_out += [f"{name}: its samples are in {within[seal]}" for seal, (name, _) in found.items() if seal in within]
    return [run for seal, run in found.items() if seal not in within], left_out


def _is(profile: Profile, path: Path) -> bool:
    from calib.profile import load

    try:
        return load(path).seal == profile.seal
    except BadInput:
        return False


def print_fleet(folder: Path, ranks: Path | None, form: str) -> None:
    """Print how η lies by model, the slow boxes with reasons, and the worst rank of each group of a map.

    CSV is one table: with a map that of its groups, else that of the slow boxes.
    """
    from calib import fleet_report
    from calib.ranks import first_lines, group_rows, groups_of_map
    from dsa_ledger.render import rows_text
    from dsa_ledger.render.profiles import json_text, page_text

    fleet = fleet_report.read_fleet(folder)
    groups, unknown = groups_of_map(fleet.boxes, ranks) if ranks else ({}, [])
    models, slow, worst = fleet_report.distribution(fleet), fleet_report.slow_rows(fleet), group_rows(groups)
    left_out = BadInput([*fleet.faults, *unknown]).lines()
    if form == "json":
        content = {"models": models, "slow": slow, "groups": worst, "warnings": fleet.warnings, "left_out": left_out}
        write(json_text(_finite(content)))
        return
    left_out = first_lines(left_out, "more, which --format json lists")
    if form == "csv":
        write(rows_text("slow", [*map(_finite, worst if ranks else slow)], form))
        other = ["the slow boxes are another table: without --ranks"] if ranks and slow else []
        complain("warning: ", [*fleet.warnings, *other, *left_out])
        return
    sections = [("Models", models), ("Slow", slow), ("Worst rank of each group", worst)]
    if form == "table":
        sections = [(title, _narrow(rows, alike=len(models) == 1)) for title, rows in sections]
    shown = [(title, [_words(row) for row in rows]) for title, rows in sections if rows]
    none = ["no box is named slow" + (": see above" if fleet.warnings else "")] if not slow else []
    said = [*fleet.warnings, *none, *(f"left out: {line}" for line in left_out)]
    title = f"Fleet of {len(fleet.boxes)} box{'es' if len(fleet.boxes) != 1 else ''}"
    write(page_text(title, shown, said, form, curves=fleet_report.curves(fleet)))


def ledger_of_fleet(
    scenario: Scenario, folder: Path | None, rank_map: Path | None
) -> tuple[Scenario, Ledger, list[str]]:
    """Return scenario and ledger of the slowest group of a folder of profiles, and what to say of it (BadInput).

    Each group has the pace of its slowest rank; without a map, the groups are those that hosts tell.
    """
    from calib.fleet_report import read_fleet
    from calib.ranks import first_lines, groups_of_hosts, groups_of_map, size_lines
    from dsa_ledger.account.deploy import ranks_of_server
    from dsa_ledger.account.groups import Member, estimate_groups
    from dsa_ledger.timing.box import Box as Measured

    if folder is None:
        raise BadInput([Fault("ranks", str(rank_map), "--fleet DIR beside it")])
    if scenario.profile is not None:
        raise BadInput([Fault("profile", scenario.profile, "none beside --fleet, which gives each group its own")])
    fleet = read_fleet(folder)
    boxes, others, faults = _boxes_of(scenario, fleet)
    count, said = ranks_of_server(scenario), []
    if rank_map is None:
        groups, assumed = groups_of_hosts(boxes, count)
        said.append(assumed)
    else:
        groups, unknown = groups_of_map(boxes, rank_map, others)
        faults += unknown
    said += size_lines(groups, count, scenario.sharding.tp)
    path_of = {box.file: folder.joinpath(box.file) for box in boxes}
    members = {
        group: [
            Member(one.name, str(path_of[one.box.file]), Measured(one.box.profile, path_of[one.box.file].stem))
            for one in sorted(ranks, key=lambda rank: rank.box.rate_bytes_per_s)
        ]
        for group, ranks in groups.items()
    }
    chosen, ledger, paced = estimate_groups(scenario, members)
    slowest = next(box for box in boxes if str(path_of[box.file]) == paced[0].member.profile)
    left_out = first_lines(
        BadInput([*fleet.faults, *faults]).lines(), "more, which `profiles fleet --format json` lists"
    )
    said = [*_pace_lines(paced, slowest, ledger), *fleet.warnings, *said]
    return chosen, ledger, [*said, *(f"left out: {line}" for line in left_out)]


def _pace_lines(paced: Sequence[Paced], box: Box, ledger: Ledger) -> Iterator[str]:
    """Yield at whose pace the times are, or why they are at nobody's."""
    group, rank = paced[0].group, paced[0].member.rank
    if "load.context_tokens" not in ledger:
        yield "without a load there is no time, and no group is the slowest: --context"
    elif not paced[0].pace_s:
        yield "the attention layers' time is not known here: no group is the slowest"
    else:
        yield (
            f"time.* is at the pace of group {group}, the slowest of {len(paced)}: its rank {rank}, profile "
            f"{box.file}, reads at {box.share:.1%} of the median {box.model}; `explain KEY --profile FILE` with it "
            "shows any of them down to its sources"
        )
    if "time.step_s" in ledger and len(paced) > 1:
        yield (
            f"time.step_s takes its measured step as one of group {group}; a step of another group was not seen, and "
            "none is given"
        )


def _boxes_of(scenario: Scenario, fleet: Fleet) -> tuple[list[Box], list[Box], list[Fault]]:
    """Return the whole GPUs of the scenario's model, the other boxes, and these as faults (BadInput: none is of it)."""
    from dsa_ledger.catalog import load_gpu
    from dsa_ledger.timing.box import catalog_name

    gpu = load_gpu(scenario.gpu).name if isinstance(scenario.gpu, str) else scenario.gpu.name
    boxes: list[Box] = []
    others: list[Box] = []
    for box in fleet.boxes:
        hardware = box.profile.hardware
        is_it = gpu in (catalog_name(hardware.name), hardware.name, hardware.name.removeprefix("NVIDIA "))
        is_whole = hardware.kind == "gpu" and not hardware.mig
        (boxes if is_it and is_whole else others).append(box)
    if not boxes:
        raise BadInput([Fault("fleet", list(fleet.models), f"profiles of {gpu}")])
    return boxes, others, [Fault(box.file, box.model, f"a profile of {gpu}, the whole GPU") for box in others]


def _narrow(rows: list[dict[str, Any]], *, alike: bool) -> list[dict[str, Any]]:
    """Return rows about boxes that fit a terminal: a UUID by its first digits, no model where all are alike."""
    if not rows or "box" not in rows[0]:
        return rows
    left_out = ("file", "z", *(["model"] if alike else []))
    kept = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    return [row | {"box": row["box"][:SHORT_UUID]} for row in kept]


def _finite(value: Any) -> Any:
    """Return the value with infinite figures as None, which JSON can hold."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def _words(row: dict[str, Any]) -> dict[str, Any]:
    def word(name: str, value: Any) -> Any:
        if value is None:
            return "not known"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if name == "rate_bytes_per_s":
            return brief(value, Unit.BYTES_PER_S)
        return f"{value:.3f}" if isinstance(value, float) else value

    return {name.removesuffix("_bytes_per_s").replace("_", " "): word(name, value) for name, value in row.items()}
