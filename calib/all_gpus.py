"""Every GPU of a machine at once, each in a process of its own: one CUDA context a process, one profile a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

WAIT_S = 10  # for a process that was asked to end


def calibrate_all(count: int, options: Sequence[str], out: Path) -> list[Path]:
    """Run `calibrate` on GPUs 0 to count - 1 at once and return their profiles in the folder `out`.

    All or none: if one fails (BadInput with what it said) or the user interrupts, nothing is left behind.
    """
    if not out.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, for one profile a GPU")])
    with tempfile.TemporaryDirectory(dir=out, prefix=".profiles-") as folder:
        running = [
            subprocess.Popen(  # noqa: S603 - our own program
                [*_program(), "--device", f"gpu:{number}", "--out", str(Path(folder) / f"{number}.json"), *options],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        try:
            said = [process.communicate()[1] for process in running]
        finally:
            _end(running)
        failed = [
            Fault(
                f"device.gpu:{number}", process.returncode, text.strip().replace("\n", "; ") or "a run without an error"
            )
            for number, (process, text) in enumerate(zip(running, said, strict=True))
            if process.returncode
        ]
        if failed:
            raise BadInput(failed)
        return [_keep(Path(folder) / f"{number}.json", out) for number in range(count)]


def _program() -> list[str]:
    return [sys.executable, "-m", "dsa_ledger", "calibrate"]


def _keep(measured: Path, out: Path) -> Path:
    from calib.profile import load

    target = out / f"{load(measured).file_stem}.json"
    shutil.move(measured, target)
    return target


def _end(running: list[subprocess.Popen[str]]) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
