"""`profiles`: list, show, compare, merge and export measured profiles, find slow boxes, import public layer times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.boxes import check_out, check_place, make_folder, need
from dsa_ledger.cli_fleet import merge_folder, print_fleet
from dsa_ledger.console import complain, write
from dsa_ledger.errors import ABSENT, BadInput, Fault, Words, nearest
from dsa_ledger.options import Format, check_format

if TYPE_CHECKING:
    from calib.profile import Profile

ACTIONS = ("list", "show", "compare", "merge", "fleet", "export", "import-aiconfigurator")

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE|DIR", help="Where the profile goes; without it, only the figures are printed."),
]
Ranks = Annotated[
    Path | None,
    typer.Option("--ranks", metavar="FILE.csv", help="With `fleet`: columns group,rank,host,uuid; worst rank each."),
]
Action = Annotated[str, typer.Argument(metavar="ACTION", help=f"{', '.join(ACTIONS)}.")]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help="Profiles, stems of built-in ones, or the folder to import."),
]


def profiles(
    *,
    action: Action,
    files: Files = None,
    out: Out = None,
    ranks: Ranks = None,
    format: Format = "table",  # noqa: A002 - the option's name
) -> None:
    """List, show, compare, merge or export measured profiles. Finds slow boxes; imports public layer times."""
    check_format(format)
    given = files or []
    if action not in ACTIONS:
        raise BadInput([Fault("action", action, nearest(action, ACTIONS))])
    if ranks is not None and action != "fleet":
        raise BadInput([Fault("ranks", str(ranks), "no --ranks but with `profiles fleet DIR`")])
    if action not in ("list", "export"):  # which fit nothing
        need("numpy")
    if action == "fleet":
        if len(given) != 1:
            raise BadInput([Fault("files", _listed(given), "one folder of profiles")])
        print_fleet(Path(given[0]), ranks, format)
        return
    act = {"list": _list, "show": _show, "compare": _compare, "merge": _merge, "export": _export}
    act.get(action, _import)(given, out, format)


def _list(given: list[str], _: Path | None, form: str) -> None:
    from calib.folder import files_in, profiles_of

    folders = [Path(name) for name in given] or [path for path in (_built_in(),) if path.is_dir()]
    found, damaged = profiles_of(
        path for folder in folders for path in (files_in(folder) if folder.is_dir() else [folder])
    )
    rows = [
        {
            "name": path.stem,
            "kind": profile.hardware.kind,
            "of": profile.label,
            "cases": len(profile.cases),
            "driver": profile.software.driver,
            "file": str(path),
        }
        for path, profile in found
    ]
    if damaged and not rows:
        raise BadInput(damaged)
    complain("left out: ", map(str, damaged))
    if not rows and form == "table":
        write("no profile: run `dsa-ledger calibrate --out DIR`, then `profiles list DIR`\n")
        return
    from dsa_ledger.render import rows_text

    if form == "table":  # a name has host and UUID: 80 columns hold it and what it is of
        rows = [{"name": row["name"], "of": row["of"]} for row in rows]
    write(rows_text("profiles", rows, form))


def _show(given: list[str], _: Path | None, form: str) -> None:
    print_profile(_load(given, 1)[0], form)


def _compare(given: list[str], _: Path | None, form: str) -> None:
    from calib.compare import compared, differing
    from calib.report import compared_rows
    from dsa_ledger.render import rows_text
    from dsa_ledger.render.profiles import json_text, page_text

    first, second = _load(given, 2)
    rows = compared(first, second)
    differences = [{"difference": text} for text in differing(first, second)]
    if form == "json":
        write(json_text({"cases": rows, "differences": [row["difference"] for row in differences]}))
    elif form == "csv":
        write(rows_text("cases", rows, form))
    else:
        sections = [
            (title, part) for title, part in (("Cases", compared_rows(rows)), ("Differences", differences)) if part
        ]
        ours, theirs = (Path(name).stem for name in given)
        boxes = first.label if first.label == second.label else f"{first.label}; {second.label}"
        write(page_text(f"{ours} and {theirs}: {boxes}", sections, [], form))


def _merge(given: list[str], out: Path | None, form: str) -> None:
    from calib.compare import merge
    from calib.profile import save

    faults = [] if out else [Fault("out", None, "a file or folder for the merged profile")]
    check_place(out)
    if out is not None and len(given) == 1 and Path(given[0]).is_dir():
        make_folder(out)
        if left_out := merge_folder(Path(given[0]), out):
            complain("left out: ", left_out)
        return
    try:
        profile = merge(_load(given, 2, more=True))
    except BadInput as bad:
        raise BadInput([*faults, *bad.faults]) from None
    if out is None:
        raise BadInput(faults)
    make_folder(out)
    place = save(profile, out)
    complain("written: ", [str(place)])
    if form != "table":
        print_profile(profile, form)
        return
    samples = sum(len(case.samples_s) for case in profile.cases)
    counts = f"{len(given)} runs as one: {len(profile.cases)} cases, {samples:,} samples"
    write(f"{profile.label}: {counts}; `profiles show {place}` prints them\n")


def _export(given: list[str], out: Path | None, form: str) -> None:
    """Print every sample: a table of cases, numbers and seconds."""
    from dsa_ledger.render import rows_text

    profile = _load(given, 1)[0]
    rows = [
        {"case": case.key, "sample": number, "seconds": seconds}
        for case in profile.cases
        for number, seconds in enumerate(case.samples_s)
    ]
    text = rows_text("samples", rows, "csv" if form == "table" else form)
    if out is None:
        write(text)
    else:
        check_out(out)
        out.write_text(text, encoding="utf-8")


def _import(given: list[str], out: Path | None, form: str) -> None:
    """Turn aiconfigurator's tables into the CSV of layer times, and say what they hold."""
    from calib import aiconfigurator
    from dsa_ledger.render.profiles import json_text, page_text

    if len(given) != 1:
        raise BadInput([Fault("files", _listed(given), "one folder with aiconfigurator's tables")])
    check_out(out)
    found = aiconfigurator.read_folder(Path(given[0]))
    if out is not None:
        complain(
            "written: ", [str(aiconfigurator.save_csv(found.rows, out / "layers.csv.gz" if out.is_dir() else out))]
        )
    rows, bands = aiconfigurator.summary_rows(found), aiconfigurator.band_rows(found)
    if form == "json":
        write(json_text({"groups": rows, "topk_band": bands, "left_out": found.left_out}))
        return
    if form == "csv":
        write(aiconfigurator.csv_text(found.rows))
        return
    reasons = [{"reason": reason, "rows": count} for reason, count in sorted(found.left_out.items())]
    parts = (("Rows", rows), ("Top-k of one row, scores separated to tied", bands), ("Left out", reasons))
    said = [
        "means of warm replays over contiguous pages with tied scores, no spread: priors, not measurements of yours"
    ]
    write(page_text("Layer times of aiconfigurator", [part for part in parts if part[1]], said, form))


def print_profile(profile: Profile, form: str) -> None:
    """Print a profile: what was measured, under which protocol, what an estimate takes of it."""
    from calib import report
    from dsa_ledger.render import rows_text
    from dsa_ledger.render.profiles import json_text, page_text

    if form == "json":
        write(json_text(report.data(profile)))
    elif form == "csv":
        write(rows_text("cases", report.case_rows(profile), form))
    else:
        write(page_text(profile.label, report.sections(profile), profile.warnings, form))


def _load(given: list[str], count: int, *, more: bool = False) -> list[Profile]:
    from calib.profile import load

    if len(given) < count or (len(given) > count and not more):
        expected = f"{count} profile{'s' if count > 1 else ''}{' or more' if more else ''}"
        raise BadInput([Fault("files", _listed(given), expected)])
    built_in = {path.stem: path for path in _built_in().glob("*.json")}
    return [load(built_in.get(name, Path(name))) for name in given]


def _listed(given: list[str]) -> Words:
    return Words(", ".join(given)) if given else ABSENT


def _built_in() -> Path:
    import calib

    return Path(calib.__file__).with_name("profiles")
