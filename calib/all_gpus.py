"""Every GPU of a machine at once, each in a process of its own: one CUDA context a process, one profile a GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_ledger.errors import BadInput, Fault, Said, Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Progress = Callable[[int, int, str], None]

WAIT_S = 10  # for a process that was asked to end


LOOK_S = 0.2  # between looks at how far the processes are


def calibrate_all(
    count: int, options: Sequence[str], out: Path, progress: Progress = lambda *_: None
) -> tuple[list[Path], list[Fault]]:
    """Run `calibrate` on GPUs 0 to count - 1 at once; return their profiles in the folder `out`, and who failed.

    `progress` hears cases done and to do of all GPUs together. If the user interrupts, nothing is left behind
    (BadInput: no folder to write to).
    """
    if not out.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, for one profile a GPU")])
    try:
        temporary = tempfile.TemporaryDirectory(dir=out, prefix=".profiles-")
    except OSError as failure:
        raise BadInput([Fault("out", str(out), f"a folder that can be written: {failure.strerror}")]) from None
    with temporary as folder:
        running: list[subprocess.Popen[str]] = []
        try:
            running.extend(_start(Path(folder), number, options) for number in range(count))
            while any(process.poll() is None for process in running):
                progress(*_far(Path(folder), count))
                time.sleep(LOOK_S)
        finally:
            _end(running)
        said = [_said(Path(folder), number) for number in range(count)]
        failed = [
            Fault(
                f"device.gpu:{number}",
                Words(f"exit code {process.returncode}"),
                Said(text.strip().replace("\n", "; ")) if text.strip() else "a run without an error",
            )
            for number, (process, text) in enumerate(zip(running, said, strict=True))
            if process.returncode
        ]
        whole = [number for number, process in enumerate(running) if not process.returncode]
        return [_keep(Path(folder) / f"{number}.json", out) for number in whole], failed


def _start(folder: Path, number: int, options: Sequence[str]) -> subprocess.Popen[str]:
    # What it says goes to a file: a pipe that nobody reads while we wait could fill.
    with (folder / f"{number}.said").open("w", encoding="utf-8") as said:
        return subprocess.Popen(  # noqa: S603 - our own program
            [
                *_program(),
                *("--device", f"gpu:{number}"),
                *("--out", str(folder / f"{number}.json")),
                *("--progress-file", str(folder / f"{number}.progress")),
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=said,
            text=True,
        )


def _said(folder: Path, number: int) -> str:
    return (folder / f"{number}.said").read_text(encoding="utf-8", errors="replace")


def tell_by_file(path: Path) -> Progress:
    """Return a progress that keeps its last words in a file, for the process that looks at all of them."""

    def tell(done: int, total: int, what: str) -> None:
        path.write_text(f"{done} {total} {what}\n", encoding="utf-8")

    return tell


def _far(folder: Path, count: int) -> tuple[int, int, str]:
    """Return the cases done and to do of all GPUs: one that has not said so yet is as long as the longest."""
    heard = [_heard(folder / f"{number}.progress") for number in range(count)]
    longest = max((total for _, total in heard), default=0) or 1
    return sum(done for done, _ in heard), sum(total or longest for _, total in heard), f"{count} GPUs"


def _heard(path: Path) -> tuple[int, int]:
    try:
        done, total, _ = path.read_text(encoding="utf-8").split(" ", 2)
        return int(done), int(total)
    except (OSError, ValueError):  # not there yet, or just being written
        return 0, 0


def _program() -> list[str]:
    return [sys.executable, "-m", "dsa_ledger", "calibrate"]


def _keep(measured: Path, out: Path) -> Path:
    from calib.profile import load, save

    return save(load(measured), out)


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
