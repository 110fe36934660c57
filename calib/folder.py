"""A folder's profiles: those that are whole, and one fault for each file that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calib.profile import load
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from calib.profile import Profile


def profiles_of(files: Iterable[Path], *, briefly: bool = False) -> tuple[list[tuple[Path, Profile]], list[Fault]]:
    """Return the profiles with their files, and a fault for each other file, its name first; `briefly` as in `load`."""
    found, faults = [], []
    for path in files:
        try:
            found.append((path, load(path, briefly=briefly)))
        except BadInput as bad:
            [fault] = bad.faults if len(bad.faults) == 1 else [_several(bad)]
            faults.append(fault._replace(path=f"{path.name}: {fault.path}"))
    return found, faults


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be profiles, by name."""
    return sorted(folder.glob("*.json"))


def _several(bad: BadInput) -> Fault:
    return Fault("profile", f"{len(bad.faults)} faults", f"a whole profile; the first: {bad.lines()[0]}")
