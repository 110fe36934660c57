"""`calibrate`: measure this box, every GPU of it, or those of a cluster, and keep a profile of each."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsa_ledger.boxes import check_place, make_folder, need
from dsa_ledger.cli_fleet import calibrate_on_ray
from dsa_ledger.cli_profiles import print_profile
from dsa_ledger.console import complain
from dsa_ledger.errors import ABSENT, BadInput, Fault, Words
from dsa_ledger.options import Format, check_format

if TYPE_CHECKING:
    from calib.run import Backend

INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended

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
ProgressFile = Annotated[Path | None, typer.Option("--progress-file", hidden=True)]  # --all-gpus looks at it


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
    check_place(out)
    table = _dump(block_table)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's word to end: as Ctrl-C
    try:
        if all_gpus and ray is None:
            _calibrate_all(out, device, quick=quick, fraction=fraction, one_span=one_span, block_table=block_table)
            return
        need("numpy")
        from calib.all_gpus import tell_by_file
        from calib.run import Plan
        from calib.run import calibrate as profile_of
        from dsa_ledger.render.profiles import progress_bar

        asked = Plan(quick=quick, free_fraction=fraction, one_span=one_span, block_table=table)
        if ray is not None:
            if all_gpus:
                beside = Words(f"with --ray {ray}")
                raise BadInput([Fault("all-gpus", beside, "one of the two: --ray measures every GPU by itself")])
            need("ray")
            make_folder(out)
            calibrate_on_ray(ray, device, asked, out, _backend, busy=busy, time_limit=time_limit)
            return
        backend = _backend(device, busy)
        make_folder(out)
        with progress_bar(shown=sys.stderr.isatty()) as bar:
            profile = profile_of(backend, asked, tell_by_file(progress_file) if progress_file else bar)
    except KeyboardInterrupt:
        kept = "what was written stays" if ray else "nothing was written"
        complain("", [f"interrupted: {kept}"])
        raise typer.Exit(INTERRUPTED) from None
    from calib.profile import save

    if out is not None:
        complain("written: ", [str(save(profile, out))])
    print_profile(profile, format)


def _backend(device: str, busy: bool) -> Backend:  # noqa: FBT001 - Ray's tasks call it
    kind, _, detail = device.partition(":")
    if kind == "cpu":
        from calib.host import HostBackend

        return HostBackend(detail or None)
    if kind != "gpu" or (detail and not detail.isdigit()):
        raise BadInput([Fault("device", device, "gpu, gpu:N, cpu, cpu:torch or cpu:numpy")])
    need("cupy")
    from calib.device import DeviceBackend

    return DeviceBackend(int(detail or 0), _peak_bytes_per_s, busy=busy)


def _dump(path: Path | None) -> bytes | None:
    """Return the content of a dumped block table, checked before anything is measured (BadInput)."""
    if path is None:
        return None
    need("numpy")
    from calib.fragments import load_block_table

    load_block_table(path)
    return path.read_bytes()


def _calibrate_all(
    out: Path | None, device: str, *, quick: bool, fraction: float, one_span: bool, block_table: Path | None
) -> None:
    if out is None or device != "gpu":
        beside = Words(f"with --device {device}, --out {out or ABSENT}")
        raise BadInput([Fault("all-gpus", beside, "--out DIR, and no --device but gpu")])
    need("cupy")
    from calib.all_gpus import calibrate_all
    from calib.device import device_count
    from dsa_ledger.render.profiles import progress_bar

    options = ["--fraction", str(fraction)]
    options += [name for name, wanted in (("--quick", quick), ("--one-span", one_span)) if wanted]
    options += ["--block-table", str(block_table)] if block_table else []
    count = device_count()
    make_folder(out)
    with progress_bar(shown=sys.stderr.isatty()) as progress:
        written, failed = calibrate_all(count, options, out, progress)
    complain("written: ", map(str, written))
    if failed:
        raise BadInput(failed)


def _peak_bytes_per_s(driver_name: str) -> float | None:
    """Return the catalog's peak of a GPU by its driver's name for it, "NVIDIA H100 80GB HBM3"; None if unknown."""
    from dsa_ledger.catalog import load_gpu
    from dsa_ledger.timing.box import catalog_name

    name = catalog_name(driver_name)
    return load_gpu(name).hbm.peak_bytes_per_s if name else None
