"""The commands about measured boxes: `calibrate` makes a profile, `profiles` shows, compares and merges them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsa_ledger.cli_fleet import calibrate_on_ray, merge_folder, print_fleet
from dsa_ledger.console import complain, write
from dsa_ledger.errors import BadInput, Fault, nearest
from dsa_ledger.options import check_format
from dsa_ledger.validation import Words

if TYPE_CHECKING:
    from calib.profile import Profile
    from calib.run import Backend

INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended
ACTIONS = ("list", "show", "compare", "merge", "fleet", "export", "import-aiconfigurator")

DeviceName = Annotated[str, typer.Option("--device", help="gpu, gpu:N, cpu, cpu:torch or cpu:numpy.")]
Quick = Annotated[bool, typer.Option("--quick", help="At most 20 s instead of 90.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE|DIR", help="Where the profile goes; without it, only the figures are printed."),
]
AllGpus = Annotated[bool, typer.Option("--all-gpus", help="Every GPU at once, one process each; --out is a folder.")]
Fraction = Annotated[
    float, typer.Option("--fraction", min=0.01, max=1, help="Share of the free memory to take at most.")
]
OneSpan = Annotated[bool, typer.Option("--one-span", help="One tensor over all the memory, not one per layer.")]
DumpedTable = Annotated[
    Path | None, typer.Option("--block-table", metavar="FILE.npy", help="Replay a real server's block table.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS|auto", help="Every idle GPU of a Ray cluster (--device cpu: node)."),
]
Busy = Annotated[bool, typer.Option("--busy", help="Measure what others use, too.")]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", min=1, help="With --ray: the longest that one box may take.")
]
Ranks = Annotated[
    Path | None,
    typer.Option("--ranks", metavar="FILE.csv", help="With `fleet`: columns group,rank,host,uuid; worst rank each."),
]
ProgressFile = Annotated[Path | None, typer.Option("--progress-file", hidden=True)]  # --all-gpus looks at it
Format = Annotated[str, typer.Option("--format", metavar="table|json|csv|md|html", help="How to print.")]
Action = Annotated[str, typer.Argument(metavar="ACTION", help=f"{', '.join(ACTIONS)}.")]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help="Profiles, stems of built-in ones, or the folder to import."),
]


def calibrate(
    *,
    device: DeviceName = "gpu",
    quick: Quick = False,
    out: Out = None,
    all_gpus: AllGpus = False,
    fraction: Fraction = 0.85,
    one_span: OneSpan = False,
    block_table: DumpedTable = None,
    ray: Ray = None,
    busy: Busy = False,
    time_limit: TimeLimit = 300,
    progress_file: ProgressFile = None,
    format: Format = "table",  # noqa: A002 - the option's name
) -> None:
    """Measure this box, without changing a setting. Paged reads by run length and shape, row scan, gather."""
    check_format(format)
    _check_out(out)
    try:
        if all_gpus and ray is None:
            _calibrate_all(out, device, quick=quick, fraction=fraction, one_span=one_span, block_table=block_table)
            return
        _need("numpy", "pip install 'dsa-ledger[calibrate]'")
        from calib.all_gpus import tell_by_file
        from calib.run import Plan
        from calib.run import calibrate as profile_of
        from dsa_ledger.render.profiles import progress_bar

        asked = Plan(quick=quick, free_fraction=fraction, one_span=one_span, block_table=block_table)
        if ray is not None:
            if all_gpus:
                raise BadInput([Fault("all-gpus", ray, "without --ray, which measures every GPU by itself")])
            _need("ray", "pip install 'dsa-ledger[fleet]'")
            calibrate_on_ray(ray, device, asked, out, _backend, busy=busy, time_limit=time_limit)
            return
        backend = _backend(device, busy)
        with progress_bar(shown=sys.stderr.isatty()) as bar:
            profile = profile_of(backend, asked, tell_by_file(progress_file) if progress_file else bar)
    except KeyboardInterrupt:
        kept = "what was written stays" if ray else "nothing was written"
        complain("", [f"interrupted: {kept}"])
        raise typer.Exit(INTERRUPTED) from None
    from calib.profile import save

    if out is not None:
        complain("written: ", [str(save(profile, out))])
    _print_profile(profile, format)


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
        raise BadInput([Fault("ranks", str(ranks), "with `profiles fleet DIR` alone")])
    _need("numpy", "pip install 'dsa-ledger[calibrate]'")
    if action == "fleet":
        if len(given) != 1:
            raise BadInput([Fault("files", given, "one folder of profiles")])
        print_fleet(Path(given[0]), ranks, format)
        return
    act = {"list": _list, "show": _show, "compare": _compare, "merge": _merge, "export": _export}
    act.get(action, _import)(given, out, format)


def _list(given: list[str], _: Path | None, form: str) -> None:
    from calib.profile import load

    folders = [Path(name) for name in given] or [path for path in (_built_in(),) if path.is_dir()]
    found = [path for folder in folders for path in (sorted(folder.glob("*.json")) if folder.is_dir() else [folder])]
    rows = [
        {
            "name": path.stem,
            "kind": profile.hardware.kind,
            "of": profile.label,
            "cases": len(profile.cases),
            "driver": profile.software.driver,
            "file": str(path),
        }
        for path in found
        for profile in [load(path)]
    ]
    if not rows and form == "table":
        write("no profile: run `dsa-ledger calibrate --out DIR`, then `profiles list DIR`\n")
        return
    from dsa_ledger.render import rows_text

    write(rows_text("profiles", rows, form))


def _show(given: list[str], _: Path | None, form: str) -> None:
    _print_profile(_load(given, 1)[0], form)


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
        write(page_text(f"{first.label} and {second.label}", sections, [], form))


def _merge(given: list[str], out: Path | None, form: str) -> None:
    from calib.compare import merge
    from calib.profile import save

    if out is None:
        raise BadInput([Fault("out", None, "a file or folder for the merged profile")])
    _check_out(out)
    if len(given) == 1 and Path(given[0]).is_dir():
        if left_out := merge_folder(Path(given[0]), out):
            complain("left out: ", left_out)
        return
    profile = merge(_load(given, 2, more=True))
    complain("written: ", [str(save(profile, out))])
    _print_profile(profile, form)


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
        _check_out(out)
        out.write_text(text, encoding="utf-8")


def _import(given: list[str], out: Path | None, form: str) -> None:
    """Turn aiconfigurator's tables into the CSV of layer times, and say what they hold."""
    from calib import aiconfigurator
    from dsa_ledger.render.profiles import json_text, page_text

    if len(given) != 1:
        raise BadInput([Fault("files", given, "one folder with aiconfigurator's tables")])
    _check_out(out)
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


def _print_profile(profile: Profile, form: str) -> None:
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
        raise BadInput(
            [Fault("files", given, f"{count} profile{'s' if count > 1 else ''}{' or more' if more else ''}")]
        )
    built_in = {path.stem: path for path in _built_in().glob("*.json")}
    return [load(built_in.get(name, Path(name))) for name in given]


def _built_in() -> Path:
    import calib

    return Path(calib.__file__).with_name("profiles")


def _backend(device: str, busy: bool) -> Backend:  # noqa: FBT001 - Ray's tasks call it
    kind, _, detail = device.partition(":")
    if kind == "cpu":
        from calib.host import HostBackend

        return HostBackend(detail or None)
    if kind != "gpu" or (detail and not detail.isdigit()):
        raise BadInput([Fault("device", device, "gpu, gpu:N, cpu, cpu:torch or cpu:numpy")])
    _need("cupy", "pip install 'dsa-ledger[gpu13]' (driver 580 or newer) or 'dsa-ledger[gpu12]'")
    from calib.device import DeviceBackend

    return DeviceBackend(int(detail or 0), _peak_bytes_per_s, busy=busy)


def _calibrate_all(out: Path | None, device: str, *, block_table: Path | None, **asked: Any) -> None:
    if out is None or device != "gpu":
        raise BadInput([Fault("all-gpus", device, "--out DIR, and no single --device")])
    _need("cupy", "pip install 'dsa-ledger[gpu13]' (driver 580 or newer) or 'dsa-ledger[gpu12]'")
    from calib.all_gpus import calibrate_all
    from calib.device import device_count
    from dsa_ledger.render.profiles import progress_bar

    options = ["--fraction", str(asked["fraction"])]
    options += [name for name, wanted in (("--quick", asked["quick"]), ("--one-span", asked["one_span"])) if wanted]
    options += ["--block-table", str(block_table)] if block_table else []
    count = device_count()
    with progress_bar(shown=sys.stderr.isatty()) as progress:
        written = calibrate_all(count, options, out, progress)
    for path in written:
        complain("written: ", [str(path)])


def _peak_bytes_per_s(driver_name: str) -> float | None:
    """Return the catalog's peak of a GPU by its driver's name for it, "NVIDIA H100 80GB HBM3"; None if unknown."""
    from dsa_ledger.catalog import load_gpu
    from dsa_ledger.timing.box import catalog_name

    name = catalog_name(driver_name)
    return load_gpu(name).hbm.peak_bytes_per_s if name else None


def _check_out(out: Path | None) -> None:
    """Refuse, before anything is measured, a place that does not exist or cannot be written."""
    if out is not None and not out.is_dir() and not out.absolute().parent.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, or a file in one")])
    if out is not None and not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise BadInput([Fault("out", str(out), "a place that can be written")])


def _need(package: str, cure: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise BadInput([Fault(package, Words("not installed"), cure)])
