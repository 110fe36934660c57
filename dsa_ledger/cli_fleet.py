"""The parts of `calibrate`, `profiles` and `estimate` that are about many machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from pathlib import Path

    from calib.fleet import MakeBackend, Outcome
    from calib.profile import Profile
    from calib.run import Plan
    from dsa_ledger.schema import Scenario

EXPOSED = "a Ray cluster runs whatever it is sent: keep its ports in a closed network"


def calibrate_on_ray(
    address: str, device: str, plan: Plan, out: Path | None, make_backend: MakeBackend, *, busy: bool, time_limit: float
) -> None:
    """Measure the boxes of a Ray cluster that have no profile in `out`; BadInput names those that failed."""
    if out is None or not out.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, for one profile a box: --out DIR")])
    if device.partition(":")[0] not in ("gpu", "cpu") or device.startswith("gpu:"):
        raise BadInput([Fault("device", device, "gpu or cpu: Ray says which one")])
    from calib.fleet import Asked, calibrate_fleet
    from dsa_ledger.render.profiles import progress_bar

    known, damaged = _known(out, device)
    complain("warning: ", [EXPOSED, *(f"measured again: {line}" for line in damaged)])
    asked = Asked(device=device, plan=plan, time_limit_s=time_limit, busy=busy)

    def tell(path: Path) -> None:
        complain("written: ", [str(path)])

    with progress_bar(shown=sys.stderr.isatty()) as bar:
        outcome = calibrate_fleet(address, asked, out, make_backend, known=known, progress=bar, tell=tell)
    _say(outcome)


def _known(out: Path, device: str) -> tuple[list[str], list[str]]:
    """Return the boxes that have a whole profile of this kind in the folder, and a line for each file that is none."""
    from calib.profile import load

    known, damaged = [], []
    for path in sorted(out.glob("*.json")):
        try:
            profile = load(path, briefly=True)
        except BadInput as bad:
            damaged += [f"{path.name}: {line}" for line in bad.lines()]
            continue
        if profile.hardware.kind == device.partition(":")[0]:
            known.append(profile.node if profile.hardware.kind == "cpu" else profile.hardware.identity)
    return known, damaged


def _say(outcome: Outcome) -> None:
    counts = f"{len(outcome.written)} measured, {len(outcome.kept)} had a profile, {len(outcome.failed)} failed"
    write(counts + "\n")
    if outcome.failed:
        raise BadInput(outcome.failed)


def merge_folder(folder: Path, out: Path) -> list[str]:
    """Write one profile a box to `out` from a folder's, and return what was left out, one line each.

    Several runs of one box become one; a box's runs that differ in protocol or software are left out, with the reason.
    """
    from calib.compare import merge
    from calib.profile import load, save

    if not out.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, for one profile a box")])
    boxes: dict[tuple[str, str], list[Profile]] = {}
    left_out: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            profile = load(path)
        except BadInput as bad:
            left_out += [f"{path.name}: {line}" for line in bad.lines()]
            continue
        runs = boxes.setdefault((profile.hardware.identity, profile.node), [])
        if profile.seal in {run.seal for run in runs}:
            left_out.append(f"{path.name}: the same run is there already")
        else:
            runs.append(profile)
    if not boxes:
        raise BadInput([Fault("files", str(folder), f"at least one profile in it; {left_out}")])
    for (identity, _), runs in boxes.items():
        try:
            complain("written: ", [str(save(merge(runs) if len(runs) > 1 else runs[0], out))])
        except BadInput as bad:
            left_out += [f"{identity}: {line}" for line in bad.lines()]
    return left_out


def print_fleet(folder: Path, ranks: Path | None, form: str) -> None:
    """Print how η lies by model, the slow boxes with reasons, and the worst rank of each group of a map."""
    from calib import fleet_report
    from dsa_ledger.render import rows_text
    from dsa_ledger.render.profiles import json_text, page_text

    fleet = fleet_report.read_fleet(folder)
    groups, unknown = fleet_report.group_rows(fleet, ranks) if ranks else ([], [])
    models, slow = fleet_report.distribution(fleet), fleet_report.slow_rows(fleet)
    left_out = BadInput([*fleet.faults, *unknown]).lines()
    if form == "json":
        write(
            json_text(
                _finite(
                    {"models": models, "slow": slow, "groups": groups, "warnings": fleet.warnings, "left_out": left_out}
                )
            )
        )
        return
    if form == "csv":
        write(rows_text("slow", [*map(_finite, slow)], form))
        complain("warning: ", [*fleet.warnings, *left_out])
        return
    sections = [("Models", models), ("Slow", slow), ("Worst rank of each group", groups)]
    shown = [(title, [_words(row) for row in rows]) for title, rows in sections if rows]
    said = [*fleet.warnings, *(() if slow else ("no box is slow",)), *(f"left out: {line}" for line in left_out)]
    write(page_text(f"Fleet of {len(fleet.boxes)} boxes", shown, said, form))


def with_slowest(scenario: Scenario, folder: Path) -> tuple[Scenario, str]:
    """Return the scenario with the slowest profile of its GPU in a folder, and the sentence that says so (BadInput)."""
    from calib.fleet_report import read_fleet
    from dsa_ledger.timing.box import catalog_name

    fleet = read_fleet(folder)
    gpu = scenario.gpu if isinstance(scenario.gpu, str) else None
    fitting = [
        box
        for box in fleet.boxes
        if box.profile.hardware.kind == "gpu"
        and (gpu is None or catalog_name(box.profile.hardware.name) in (gpu, None))
    ]
    if not fitting:
        raise BadInput([Fault("fleet", list(fleet.models), f"profiles of {gpu}")])
    box = min(fitting, key=lambda one: one.rate_bytes_per_s)
    aside = len(fleet.boxes) - len(fitting) + len(fleet.faults)
    sentence = (
        f"every rank is taken to be the slowest of {len(fitting)} profiles, {box.file}: {box.share:.1%} of the median"
        + (f"; {aside} files are of another GPU or cannot be used" if aside else "")
    )
    return scenario.model_copy(update={"profile": str(folder.joinpath(box.file))}), sentence


def _finite(value: Any) -> Any:
    """Return the value with infinite figures as None, which JSON can hold."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def _words(row: dict[str, Any]) -> dict[str, Any]:
    from dsa_ledger.units import Unit, brief

    def word(name: str, value: Any) -> Any:
        if value is None:
            return "not known"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if name == "rate_bytes_per_s":
            return brief(value, Unit.BYTES_PER_S)
        return f"{value:.3f}" if isinstance(value, float) else value

    return {name.removesuffix("_bytes_per_s").replace("_", " "): word(name, value) for name, value in row.items()}
