"""Fills a scenario from a log: what its own arguments say, then what its figures leave no doubt about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.effects import LastGiven
from dsa_ledger.audit.launch import TAKE
from dsa_ledger.audit.reading import Given, Reading, one_line
from dsa_ledger.catalog import gpu_names, load_gpu
from dsa_ledger.scenario_file import put
from dsa_ledger.units import GIB, MIB

if TYPE_CHECKING:
    from dsa_ledger.audit.seen import Seen
    from dsa_ledger.audit.startup import Start

_HELD_MOST = 6 * GIB  # context, NCCL and what a driver keeps, before weights
_RUNTIME_LESS = 1.5 * GIB  # the runtime reports less than the driver: 139.81 of 140.40 GiB on H200
_NOTHING = ("None", "null", "", "none", "auto_none")


def arguments_of(start: Start) -> Reading:
    """Return what the server's own arguments in its log set."""
    reading = Reading(start.engine)
    given = {}
    for flag, value in start.arguments.items():
        if value in _NOTHING or value in ("False", "false"):
            continue
        given[flag] = Given(flag, flag, () if value in ("True", "true") else (value,))
    if start.engine == "sglang" and "--attn-dp-size" in given and given["--attn-dp-size"].values == ("1",):
        given.pop("--attn-dp-size")
    steps = given.pop("--spec-tokens", None)
    if steps and steps.values:
        given["--spec-tokens"] = steps
    TAKE[start.engine](reading, LastGiven(given), [], {})
    reading.missing.clear()
    return reading


def fill(tables: dict[str, Any], start: Start, seen: Seen) -> list[str]:
    """Put below what is given: the log's arguments, engine, GPU, ranks. Return what was taken from where."""
    said = []
    reading = arguments_of(start)
    taken = []
    for path, setting in reading.settings.items():
        if path.partition(".")[0] == "features" and "features" in tables:
            continue
        if path == "model" and "model" in tables:
            continue
        if _absent(tables, path):
            put(tables, path, list(setting.value) if isinstance(setting.value, tuple) else setting.value)
            taken.append(path)
    if taken:
        said.append(f"from the arguments that the log prints: {', '.join(taken)}")
    if "engine" not in tables:
        tables["engine"] = seen.engine
    if "gpu" not in tables:
        said += _fill_gpu(tables, seen)
    _fill_ranks(tables, start, seen)
    return [one_line(sentence, 300) for sentence in said]


def _absent(tables: dict[str, Any], path: str) -> bool:
    table: Any = tables
    for name in path.split("."):
        if not isinstance(table, dict) or name not in table:
            return True
        table = table[name]
    return False


def _fill_gpu(tables: dict[str, Any], seen: Seen) -> list[str]:
    """Take the one GPU whose memory and architecture fit what the log shows."""
    shown = seen.total_bytes or seen.free_before
    if not shown:
        return []
    fits = []
    for name in gpu_names():
        gpu = load_gpu(name)
        major, minor = gpu.compute_capability
        spare = gpu.hbm.capacity_bytes - shown
        near = 0 <= spare + 64 * MIB <= (_RUNTIME_LESS if seen.total_bytes else _HELD_MOST)
        if near and (seen.sm is None or str(seen.sm) in (f"{major}{minor}", str(major), f"{major}0")):
            fits.append(name)
    if not fits:
        return []
    fits.sort(key=lambda name: -load_gpu(name).sms)  # of equal memory the larger chip is the commoner one
    tables["gpu"] = fits[0]
    others = f" ({', '.join(fits[1:])} has as much memory)" if len(fits) > 1 else ""
    return [f"no GPU named: {fits[0]} is taken by the memory that the log shows{others}; name yours with --gpu"]


def _fill_ranks(tables: dict[str, Any], start: Start, seen: Seen) -> None:
    """Take tp and pp from the ranks in the prefixes where nothing else says them."""
    if seen.stages > 1 and _absent(tables, "sharding.pp"):
        put(tables, "sharding.pp", seen.stages)
    ranks = [rank.tp for rank in start.ranks if rank.tp is not None]
    if max(ranks, default=0) > 0 and _absent(tables, "sharding.tp"):  # one rank alone may be all that was kept
        put(tables, "sharding.tp", max(ranks) + 1)
