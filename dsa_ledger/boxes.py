"""What the commands about measured boxes share: where profiles go, and what must be installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsa_ledger.errors import BadInput, Fault, Said, Words

if TYPE_CHECKING:
    from pathlib import Path

EXTRAS = {
    "cupy": "'dsa-ledger[gpu13]' (driver 580 or newer) or 'dsa-ledger[gpu12]'",
    "numpy": "'dsa-ledger[calibrate]'",
    "ray": "'dsa-ledger[fleet]'",
}


def check_place(out: Path | None) -> None:
    """Refuse, before anything is measured, a file that is there, and a place that cannot be written (BadInput)."""
    if out is not None and out.is_file():
        raise BadInput([Fault("out", str(out), "a new file, or a folder: no profile is written over")])
    if out is not None and not out.is_dir() and out.suffix not in ("", ".json"):
        raise BadInput([Fault("out", str(out), "a name that ends in .json, or a folder")])
    check_out(out)


def make_folder(out: Path | None) -> None:
    """Make the folder that `out` names (BadInput: it cannot be); what ends in .json is a file."""
    if out is not None and out.suffix != ".json":
        try:
            out.mkdir(exist_ok=True)
        except OSError as failure:
            raise BadInput([Fault("out", str(out), f"a place that can be written: {failure.strerror}")]) from None


def check_out(out: Path | None) -> None:
    """Refuse a place that does not exist or cannot be written (BadInput)."""
    if out is not None and not out.is_dir() and not out.absolute().parent.is_dir():
        raise BadInput([Fault("out", str(out), "a folder that exists, or a file in one")])
    if out is not None and not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise BadInput([Fault("out", str(out), "a place that can be written")])


def need(package: str) -> None:
    """Refuse, before anything else, what a package that is not installed would be needed for (BadInput)."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise BadInput([Fault(package, Words("not installed"), Said(f"pip install {EXTRAS[package]}"))])
