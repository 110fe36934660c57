"""Tables of a GPU without measurements, from those of its architecture: bytes move from peak to peak, the rest is kept.

A floor holds the time of the weights' bytes, a growth that of the keys': both are carried at 0.82 of the peaks.
Top-k of one row a processor goes by the waves over the processors. Where the host is the limit the floor belongs to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES, TOPK, between
from dsa_ledger.timing.shapes import FAMILIES, RECORD_BYTES, attention_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Machine(NamedTuple):
    """What a table is carried by: name, bytes per microsecond at peak, processors, major compute capability, L2 [B]."""

    name: str
    peak: float
    processors: int
    major: int
    l2_bytes: int


# B300 boards sit on x86 hosts as B200's do; GB300's floor belongs to its Grace CPU.
PREFERRED = {"B300": ("B200",), "H20-3e": ("H200", "H100"), "H800": ("H100",), "H100-NVL": ("H100",)}


def siblings_of(machine: Machine, known: Sequence[Machine]) -> list[Machine]:
    """Return the measured GPUs to carry from: the preferred ones where measured, else all of the architecture."""
    same = [other for other in known if other.major == machine.major and other.name != machine.name]
    preferred = [other for other in same if other.name in PREFERRED.get(machine.name, ())]
    return preferred or same


DISTURBED = {
    ("prefill", "shared_layer", "H200")
}  # taken on a busy machine: slower than the full layer of the same cell


def host_cpu(gpu: str) -> str:
    """Return the CPU family that launches a GPU's kernels."""
    return "grace" if gpu.startswith("G") else "x86"


def carried_prefill(tables: Mapping[str, dict[str, Any]], some: Sequence[Machine], target: Machine) -> dict[str, Any]:
    """Return the prefill table of one sibling, with the host constants of the machines that have the target's CPU.

    `tables` holds the module's table of each measured GPU, `some` the siblings.
    """
    nearest = min(
        some, key=lambda other: (host_cpu(other.name) != host_cpu(target.name), abs(other.peak - target.peak))
    )
    base = tables[nearest.name]
    hosts = [table for name, table in tables.items() if host_cpu(name) == host_cpu(target.name) and name != target.name]
    result = dict(base)
    for path in ("sparse", "dense"):
        if path in base:
            seen = {
                label: [table[path]["host"][label] for table in hosts if label in table.get(path, {}).get("host", {})]
                for label in base[path]["host"]
            }
            host = {label: _mean(seen[label] or [value]) for label, value in base[path]["host"].items()}
            result[path] = base[path] | {"host": host}
    return result


def carried_decode(tables: Sequence[tuple[Machine, dict[str, Any]]], target: Machine, *, module: str) -> dict[str, Any]:
    """Return the mean of the siblings' decode tables, each carried to the target's bandwidth and processors."""
    moved = [_moved(source, table, target, module) for source, table in tables]
    batches = sorted(set.intersection(*(set(table["batches"]) for table in moved)))
    tokens = sorted({node for table in moved for node in table["tokens"]})
    result: dict[str, Any] = {"batches": batches, "tokens": tokens}
    for part in ("floor", "gather"):
        keys = sorted({key for table in moved for key in table[part]})
        holders = {key: [table for table in moved if key in table[part]] for key in keys}
        result[part] = {
            key: [_mean([table[part][key][table["batches"].index(batch)] for table in some]) for batch in batches]
            for key, some in holders.items()
        }
    kinds = [kind for kind in moved[0]["growth"] if all(kind in table["growth"] for table in moved)]
    result["growth"] = {
        kind: [[_mean([_node(table, kind, batch, node) for table in moved]) for node in tokens] for batch in batches]
        for kind in kinds
    }
    return result | {"longest": max(table["longest"] for _, table in tables), "rows": 0, "interval": [1.0, 1.0]}


def _node(table: dict[str, Any], kind: str, batch: int, node: int) -> float:
    row = table["growth"][kind][table["batches"].index(batch)]
    return between(node, table["tokens"], row.__getitem__)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _moved(source: Machine, table: dict[str, Any], target: Machine, module: str) -> dict[str, Any]:
    """Return one table carried to the target."""
    dearer = 1 / (PRIOR_ETA * target.peak) - 1 / (PRIOR_ETA * source.peak)  # microseconds per byte
    is_layer = module.endswith("_layer")
    scores = module == "full_layer"
    floors = {}
    for label, row in table["floor"].items():
        family, _, weight_dtype, heads = label.split(" ")
        shape = FAMILIES.get(family, FAMILIES["glm"])
        weights = attention_bytes(shape, weight_dtype, int(heads), indexer=scores) if is_layer else 0.0
        floors[label] = [max(value + weights * dearer, 0.25 * value) for value in row]
    growth = {
        kind: [
            _carried_row(
                values,
                table["tokens"],
                batch,
                source=source,
                target=target,
                dearer=dearer if is_layer else 0.0,
                token_bytes=(RECORD_BYTES.get(kind, 0), SCORE_BYTES if scores else 0),
            )
            for batch, values in zip(table["batches"], rows, strict=True)
        ]
        for kind, rows in table["growth"].items()
    }
    return table | {"floor": floors, "growth": growth}


def _carried_row(
    values: Sequence[float],
    tokens: Sequence[int],
    batch: int,
    *,
    source: Machine,
    target: Machine,
    dearer: float,
    token_bytes: tuple[int, int],
) -> list[float]:
    """Return one batch's growth; `token_bytes` are those gathered up to top-k and those scanned of each token."""
    gathered, scanned = token_bytes
    waves = -(-batch // target.processors) / -(-batch // source.processors)
    row: list[float] = []
    for value, length in zip(values, tokens, strict=True):
        moved = batch * (min(length, TOPK) * gathered + length * scanned)
        priced = min(moved / (PRIOR_ETA * source.peak), value)
        at = priced + (value - priced) * waves + moved * dearer
        row.append(max(at, row[-1] if row else 0.0))
    return row
