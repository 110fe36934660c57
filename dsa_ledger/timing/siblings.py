"""Tables of a GPU without measurements, from those of its architecture: bytes go by peak, the rest by clock.

A floor holds the time of the weights' bytes, a growth that of the keys', a prefill that of the activations and logits:
what memory moves is carried at 0.82 of the peaks. Decode was measured as replays over one layer, so that half of L2
counts as read already. Top-k of one row a processor goes by the waves over the processors. What the host spends, and
what a launch takes, is that of the measured GPUs with the target's CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES, TOPK, between
from dsa_ledger.timing.shapes import FAMILIES, RECORD_BYTES, activation_bytes, attention_bytes

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


# Boards with a seventh of their siblings' tensor throughput, which no table shows: 148 TFLOP/s in bf16
# (github.com/Dao-AILab/flash-attention/issues/1310; 125 to 130 reached in FlashMLA issue 30), against 989.
SLOW_AT_MATRICES = ("H20", "H20-3e")

DISTURBED = {
    ("prefill", "shared_layer", "H200")
}  # taken on a busy machine: slower than the full layer of the same cell


def host_cpu(gpu: str) -> str:
    """Return the CPU family that launches a GPU's kernels."""
    return "grace" if gpu.startswith("G") else "x86"


# Highest SM clocks [MHz] as the driver reports them; where one is not known, as on Hopper where all SXM boards have the
# same (1980), times are kept. github.com/ByteDance-Seed/VeOmni/pull/986 (2026-07-28): B200, GB200;
# github.com/facebookexperimental/triton/pull/2023 (2026-07-14): GB300.
CLOCKS_MHZ = {"B200": 1965, "GB200": 2062, "GB300": 2070}
# Of L2, what holds data that every SM reads: an H200 keeps its L2 rate up to 37 of 60 MB, RRZE-HPC/gpu-benches
# 1038c5d0, gpu-l2-cache/h200.txt; each half of L2 caches for its own SMs (NVIDIA A100 white paper, 2020).
L2_SHARE = 0.5
LOGIT_BYTES = 8  # an fp32 logit written by the scoring kernel and read by top-k
RANKED = 5  # the place of the scores' term in the law of the sparse path


class _Carry(NamedTuple):
    """From one GPU to another: how their clocks compare, and microseconds a byte at 0.82 of the peaks."""

    clocks: float
    before: float
    after: float

    def moved(self, value: float, source_bytes: float, target_bytes: float, *, waves: float = 1.0) -> float:
        """Return a time on the target: what it holds of the bytes' time goes by memory, the rest by clock and waves."""
        price = source_bytes * self.before or target_bytes * self.after
        seen = min(value / price, 1.0) if price else 0.0
        rest = value - seen * source_bytes * self.before
        return rest * waves * self.clocks + seen * target_bytes * self.after


def _carry(source: Machine, target: Machine) -> _Carry:
    known = source.name in CLOCKS_MHZ and target.name in CLOCKS_MHZ
    clocks = CLOCKS_MHZ[source.name] / CLOCKS_MHZ[target.name] if known else 1.0
    return _Carry(clocks, 1 / (PRIOR_ETA * source.peak), 1 / (PRIOR_ETA * target.peak))


def _from_memory(moved: float, machine: Machine) -> float:
    """Return the bytes that do not lie in L2 between two replays of a layer."""
    return max(moved - L2_SHARE * machine.l2_bytes, 0.0)


def carried_prefill(
    tables: Mapping[str, dict[str, Any]], some: Sequence[Machine], target: Machine, *, module: str
) -> dict[str, Any]:
    """Return the mean of the siblings' prefill tables carried to the target, with the host's times of its CPU.

    `tables` holds the module's table of each measured GPU, `some` the siblings. The host is that of the siblings with
    the target's CPU, else of any GPU with it: other kernels, but as many launches.
    """
    near = sorted(
        some, key=lambda other: (host_cpu(other.name) != host_cpu(target.name), abs(other.peak - target.peak))
    )
    of_cpu = [name for name in tables if host_cpu(name) == host_cpu(target.name) and name != target.name]
    hosts = [name for name in of_cpu if name in {other.name for other in near}] or of_cpu
    result = dict(tables[near[0].name])
    for path in ("sparse", "dense"):
        if path in result:
            paths = [(other, tables[other.name][path]) for other in near if path in tables[other.name]]
            moved = [
                _moved_path(table, _carry(other, target), is_layer=module.endswith("_layer")) for other, table in paths
            ]
            result[path] = _mean_path(moved, [tables[name][path] for name in hosts if path in tables[name]])
    return result


def _moved_path(path: dict[str, Any], carry: _Carry, *, is_layer: bool) -> dict[str, Any]:
    """Return one path of a prefill table carried to the target."""
    own = {}
    for label, (per_thousand, launch) in path["own"].items():
        family, _, _, heads = label.split(" ")
        moved = 1e3 * activation_bytes(FAMILIES.get(family, FAMILIES["glm"]), int(heads)) if is_layer else 0.0
        own[label] = [carry.moved(per_thousand, moved, moved), launch * carry.clocks]
    law = [value * carry.clocks for value in path["law"]]
    if is_layer and len(law) > RANKED:
        law[RANKED] = carry.moved(path["law"][RANKED], 1e6 * LOGIT_BYTES, 1e6 * LOGIT_BYTES)
    return path | {"own": own, "law": law}


def _mean_path(moved: Sequence[dict[str, Any]], hosts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of paths, with the host's times of others where they hold them."""
    first = moved[0]
    grid = [path for path in moved if all(path[part] == first[part] for part in ("tokens", "new", "prefix"))]
    result: dict[str, Any] = first | {"own": {}, "host": {}, "correction": {}}
    result["law"] = [_mean(column) for column in zip(*(path["law"] for path in moved), strict=True)]
    for label in sorted({label for path in moved for label in path["own"]}):
        holders = [path for path in moved if label in path["own"]]
        host = _mean(
            [path["host"][label] for path in hosts if label in path["host"]]
            or [path["host"][label] for path in holders]
        )
        per_thousand = _mean([path["own"][label][0] for path in holders])
        # A launch is the host's as well: never more of it than on the slower host.
        launch = _mean([path["own"][label][1] * min(host / max(path["host"][label], 1), 1) for path in holders])
        result["host"][label], result["own"][label] = host, [per_thousand, launch]
        rows = [path["correction"][label] for path in grid if label in path["own"]] or [
            [0.0] * len(next(iter(first["correction"].values())))
        ]
        result["correction"][label] = [_mean(column) for column in zip(*rows, strict=True)]
    return result | {part: _mean([path.get(part, 0) for path in hosts or moved]) for part in ("far", "fresh")}


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
    """Return one decode table carried to the target."""
    carry = _carry(source, target)
    is_layer, scores = module.endswith("_layer"), module == "full_layer"
    floors = {}
    for label, row in table["floor"].items():
        family, _, weight_dtype, heads = label.split(" ")
        shape = FAMILIES.get(family, FAMILIES["glm"])
        weights = attention_bytes(shape, weight_dtype, int(heads), indexer=scores) if is_layer else 0.0
        read = _from_memory(weights, source), _from_memory(weights, target)
        floors[label] = [carry.moved(value, *read) for value in row]
    growth: dict[str, list[list[float]]] = {}
    for kind, rows in table["growth"].items():
        gathered, scanned = (RECORD_BYTES.get(kind, 0), SCORE_BYTES if scores else 0) if is_layer else (0, 0)
        growth[kind] = [[] for _ in rows]
        for batch, values, row in zip(table["batches"], rows, growth[kind], strict=True):
            waves = -(-batch // target.processors) / -(-batch // source.processors)
            for value, length in zip(values, table["tokens"], strict=True):
                moved = batch * (min(length, TOPK) * gathered + length * scanned)
                at = carry.moved(value, _from_memory(moved, source), _from_memory(moved, target), waves=waves)
                row.append(max(at, row[-1] if row else 0.0))
    gather = {key: [value * carry.clocks for value in row] for key, row in table["gather"].items()}
    return table | {"floor": floors, "gather": gather, "growth": growth}
