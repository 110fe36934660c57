"""The most a layer may take on a GPU that no kernel table serves: the slowest of all built-in tables, carried to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.timing import evaluate
from dsa_ledger.timing.siblings import carried_decode
from dsa_ledger.timing.tables import load, machine_of, module_tables, versions

if TYPE_CHECKING:
    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.layer_times import Load
    from dsa_ledger.timing.siblings import Machine

ENGINES = ("sglang", "vllm", "tensorrt-llm")
OTHER_ARCHITECTURE = 1.5  # prior: how much slower kernels of another architecture may be beyond bandwidth


def slowest_layer_s(machine: Machine, wanted: Wanted, load_: Load) -> float:
    """Return a full layer's time by the slowest table of any engine, version and GPU, and half as much again [s]."""
    slowest = 0.0
    for engine in ENGINES:
        for version in versions(engine):
            for gpu, table in module_tables(load(engine, version), "decode", "full_layer").items():
                carried = carried_decode([(machine_of(gpu), table)], machine, module="full_layer")
                whole = evaluate.decode(carried, wanted, load_.query_rows, load_.tokens, indexer=True).total
                slowest = max(slowest, whole)
    return slowest * OTHER_ARCHITECTURE * 1e-6
