"""Scenarios as TOML: find the file, read it, put the options on top. Every fault is one line, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsa_ledger.catalog.files import exists, read_toml
from dsa_ledger.errors import BadInput, Fault, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES = {"model": ".json", "gpu": ".toml"}  # fields that may name a file, taken from the scenario's own folder


def folders() -> Iterator[Path]:
    """Yield the places of the scenarios that come with the program: installed, or in the source tree."""
    here = Path(__file__).resolve().parent
    for folder in (here / "scenarios", here.parent / "scenarios"):
        if folder.is_dir():
            yield folder


def shipped() -> dict[str, Path]:
    """Return the stem and path of each scenario that comes with the program."""
    return {path.stem: path for folder in folders() for path in sorted(folder.glob("*.toml"))}


def claim_files() -> dict[str, Path]:
    """Return the id and path of each claim, C1 first: scenarios too, with a table of what is claimed."""
    found = {path.stem: path for folder in folders() for path in (folder / "claims").glob("*.toml")}
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def find(name: str) -> Path:
    """Return the file that `name` means: a path, or the stem of a shipped scenario (BadInput with the nearest)."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in name:
        return path
    for folder in folders():
        path = folder / f"{name}.toml"
        if exists(str(path)):
            return path
    claims = claim_files()
    if name.upper() in claims:
        return claims[name.upper()]
    known = shipped()
    hint = nearest(name, known) if known else "no scenario came with this installation"
    raise BadInput([Fault("SCENARIO", name, f"a .toml file or a shipped scenario: {hint}")])


def read(path: Path) -> dict[str, Any]:
    """Return the tables of a scenario file, names of files beside it resolved (BadInput, one line)."""
    return read_claim(path)[0]


def read_claim(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a scenario and, apart from them, what it claims (BadInput, one line)."""
    tables = read_toml(path, path.name or str(path))
    claim = tables.pop("claim", {}) if path.parent.name == "claims" else {}
    for field, suffix in _FILES.items():
        named = tables.get(field)
        if isinstance(named, str) and named.endswith(suffix) and (path.parent / named).is_file():
            tables[field] = str(path.parent / named)
    return tables, claim


def put(tables: dict[str, Any], path: str, value: Any) -> str | None:
    """Set one dotted field; return what was expected where a part of the path is no table, else None."""
    *parents, last = path.split(".")
    if path.startswith("model_overrides."):
        parents, last = ["model_overrides"], path.removeprefix("model_overrides.")
    table = tables
    for depth, name in enumerate(parents):
        below = table.setdefault(name, {})
        if not isinstance(below, dict):
            return f"a table at {'.'.join(parents[: depth + 1])}, which is {below!r}"
        table = below
    table[last] = value
    return None
