"""The built-in kernel tables: which exist, which one serves an engine version and a GPU, with what interval."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any, NamedTuple

from dsa_ledger.catalog import load_gpu
from dsa_ledger.timing.siblings import Machine, carried_decode, siblings_of

MICROSECONDS = 1e6


class Chosen(NamedTuple):
    """A module's table for one GPU: coefficients, the interval of predicted over true, and whose measurements they are."""

    table: dict[str, Any]
    interval: tuple[float, float]
    gpus: tuple[str, ...]


@cache
def machine_of(gpu: str) -> Machine:
    """Return the machine of a catalog name."""
    found = load_gpu(gpu)
    return Machine(gpu, found.hbm.peak_bytes_per_s / MICROSECONDS, found.sms, found.compute_capability[0])


@cache
def versions(engine: str) -> tuple[str, ...]:
    """Return the versions of an engine that have a table."""
    names = [entry.name for entry in resources.files(__package__).joinpath("tables").iterdir()]
    return tuple(
        name.removeprefix(f"{engine}-").removesuffix(".json")
        for name in sorted(names)
        if name.startswith(f"{engine}-") and name.endswith(".json")
    )


@cache
def load(engine: str, version: str) -> dict[str, Any]:
    """Return the coefficient file of an engine version."""
    text = resources.files(__package__).joinpath("tables", f"{engine}-{version}.json").read_text(encoding="ascii")
    found: dict[str, Any] = json.loads(text)
    for modules in found["decode"].values():
        modules.update({module: expanded_table(table) for module, table in modules.items()})
    return found


def expanded_table(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with its growth summed up from the stored differences."""
    stored = table.get("growth_steps", {})
    growth = {kind: [list(accumulate(row)) for row in rows] for kind, rows in stored.items()}
    return table | {"growth": growth} if growth else table


def choose(file: dict[str, Any], phase: str, module: str, machine: Machine) -> Chosen | None:
    """Return the table of a module for a GPU: measured, a thin one scaled, or carried from siblings; None without any."""
    modules = file[phase].get(machine.name, {}) if machine.name in file[phase] else {}
    entry = modules.get(module)
    if entry and "like" not in entry:
        return Chosen(entry, tuple(entry["interval"]), (machine.name,))
    known = [machine_of(gpu) for gpu, found in file[phase].items() if "like" not in found.get(module, {"like": ""})]
    if entry:
        near = machine_of(entry["like"])
        carried = carried_decode([(near, file[phase][near.name][module])], machine, module=module)
        scaled = _scaled(carried, entry["scale"])
        return Chosen(scaled, tuple(entry["interval"]), (machine.name, near.name))
    some = siblings_of(machine, known)
    if not some:
        return None
    quality = file["siblings"].get(phase, {}).get(module, {}).get(str(machine.major))
    interval = tuple(quality["interval"]) if quality else (0.7, 1.4)
    names = tuple(other.name for other in some)
    if phase == "prefill":
        return Chosen(file[phase][some[0].name][module], interval, names[:1])
    tables = [(other, file[phase][other.name][module]) for other in some]
    return Chosen(carried_decode(tables, machine, module=module), interval, names)


def _scaled(table: dict[str, Any], factor: float) -> dict[str, Any]:
    parts = {
        part: {key: [value * factor for value in row] for key, row in table[part].items()}
        for part in ("floor", "gather")
    }
    growth = {kind: [[value * factor for value in row] for row in rows] for kind, rows in table["growth"].items()}
    return table | parts | {"growth": growth}
