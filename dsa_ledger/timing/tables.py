"""The built-in kernel tables: which exist, which one serves an engine version and a GPU, with what interval."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib import resources
from itertools import accumulate
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.catalog import load_gpu
from dsa_ledger.engines.releases import key_of, sort_key
from dsa_ledger.timing.siblings import (
    DISTURBED,
    SLOW_AT_MATRICES,
    Machine,
    carried_decode,
    carried_prefill,
    siblings_of,
)

if TYPE_CHECKING:
    from dsa_ledger.schema import Gpu

MICROSECONDS = 1e6
STEPS_PER_FOLD = 200  # a floor is stored in steps of 0.5%: 200 to each factor of e
TENTHS = 10
EXPANDED = ("is_ready", "floor", "gather", "growth", "eager", "host", "own", "correction")  # made on loading


class Chosen(NamedTuple):
    """A module's table for one GPU: coefficients, ends of measured over predicted, and whose measurements they are."""

    table: dict[str, Any]
    interval: tuple[float, float]
    gpus: tuple[str, ...]


@cache
def machine_of(gpu: str) -> Machine:
    """Return the machine of a catalog name (BadInput for an unknown one)."""
    return machine_from(gpu, load_gpu(gpu))


def machine_from(name: str, gpu: Gpu) -> Machine:
    """Return the machine of a GPU's facts."""
    peak = gpu.hbm.peak_bytes_per_s / MICROSECONDS
    return Machine(name, peak, gpu.sms, gpu.compute_capability[0], gpu.l2_bytes)


@cache
def versions(engine: str) -> tuple[str, ...]:
    """Return the versions of an engine that have a table."""
    names = [entry.name for entry in resources.files(__package__).joinpath("tables").iterdir()]
    return tuple(
        name.removeprefix(f"{engine}-").removesuffix(".json")
        for name in sorted(names)
        if name.startswith(f"{engine}-") and name.endswith(".json")
    )


def nearest_version(engine: str, version: str) -> str | None:
    """Return the version whose table serves: the same, else the last before it, else the first; None without any."""
    known = sorted(versions(engine), key=key_of)
    if not known:
        return None
    key = sort_key(version)
    before = [name for name in known if key is not None and key_of(name) <= key]
    return before[-1] if before else known[0]


@cache
def load(engine: str, version: str) -> dict[str, Any]:
    """Return the coefficient file of an engine version."""
    text = resources.files(__package__).joinpath("tables", f"{engine}-{version}.json").read_text(encoding="ascii")
    found: dict[str, Any] = json.loads(text)
    return found


def _ready(file: dict[str, Any], phase: str, gpu: str, module: str) -> dict[str, Any]:
    """Return a table of a file, expanded when it is first asked for: a file holds many, an answer needs few."""
    modules: dict[str, dict[str, Any]] = file[phase][gpu]
    if "like" not in modules[module] and not any(part in modules[module] for part in ("floor", "is_ready")):
        modules[module] = expanded_table(modules[module], file["labels"]) | {"is_ready": True}
    return modules[module]


def expanded_table(table: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """Return a stored table as it is evaluated, in microseconds: series by name, sums instead of differences.

    `names` is the file's list of series where the table gives places in it.
    """
    result = dict(table)
    for path in ("sparse", "dense"):
        if path in table:
            result[path] = expanded_table(table[path], names)
    if "labels" not in table:
        return result
    labels = table["labels"] if names is None else [names[place] for place in table["labels"]]
    if "floor_folds" in table:
        floors = [[exp(sum_ / STEPS_PER_FOLD) for sum_ in accumulate(row)] for row in table["floor_folds"]]
        result["floor"] = dict(zip(labels, floors, strict=True))
        result["gather"] = {key: [value / TENTHS for value in row] for key, row in table["gather_tenths"].items()}
        result["growth"] = {
            kind: [[sum_ / TENTHS for sum_ in accumulate(row)] for row in rows]
            for kind, rows in table["growth_steps"].items()
        }
        result["eager"] = dict(zip(labels, table.get("eager_us", ()), strict=False))
    else:
        for part in ("host", "own", "correction"):
            result[part] = dict(zip(labels, table[f"{part}_of"], strict=True))
    return result


def whole_file(engine: str, version: str) -> dict[str, Any]:
    """Return a coefficient file with every table expanded."""
    file = load(engine, version)
    for phase in ("decode", "prefill"):
        for gpu, modules in file[phase].items():
            for module in modules:
                _ready(file, phase, gpu, module)
    return file


@lru_cache(maxsize=256)
def choose(engine: str, version: str, phase: str, module: str, machine: Machine) -> Chosen | None:
    """Return a module's table for a GPU: measured, a thin one scaled, or carried from siblings; None without any."""
    chosen = _chosen(engine, version, phase, module, machine)
    # The table is final from here on, so what an evaluation finds may be kept beside it.
    return chosen and chosen._replace(table=chosen.table | {"memo": {}})


def _chosen(engine: str, version: str, phase: str, module: str, machine: Machine) -> Chosen | None:
    file = load(engine, version)
    entry = _ready(file, phase, machine.name, module) if module in file[phase].get(machine.name, {}) else None
    if entry and "like" not in entry:
        return Chosen(entry, tuple(entry["interval"]), (machine.name,))
    known = [machine_of(gpu) for gpu in module_tables(file, phase, module)]
    if entry:
        near = machine_of(entry["like"])
        carried = carried_decode([(near, _ready(file, phase, near.name, module))], machine, module=module)
        scaled = _scaled(carried, entry["scale"])
        return Chosen(scaled, tuple(entry["interval"]), (machine.name, near.name))
    some = siblings_of(machine, known)
    if not some or (phase == "prefill" and machine.name in SLOW_AT_MATRICES):
        return None
    quality = file["siblings"].get(phase, {}).get(module, {}).get(str(machine.major))
    interval = tuple(quality["interval"]) if quality else (0.7, 1.4)
    names = tuple(other.name for other in some)
    tables = module_tables(file, phase, module)
    if phase == "prefill":
        return Chosen(carried_prefill(tables, some, machine, module=module), interval, names)
    pairs = [(other, tables[other.name]) for other in some]
    return Chosen(carried_decode(pairs, machine, module=module), interval, names)


def module_tables(file: dict[str, Any], phase: str, module: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a module by GPU that others may be carried from."""
    return {
        gpu: _ready(file, phase, gpu, module)
        for gpu, modules in file[phase].items()
        if module in modules and "like" not in modules[module] and (phase, module, gpu) not in DISTURBED
    }


def _scaled(table: dict[str, Any], factor: float) -> dict[str, Any]:
    parts = {
        part: {key: [value * factor for value in row] for key, row in table[part].items()}
        for part in ("floor", "gather")
    }
    growth = {kind: [[value * factor for value in row] for row in rows] for kind, rows in table["growth"].items()}
    return table | parts | {"growth": growth}
