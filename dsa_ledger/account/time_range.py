"""Entries about time where no kernel table serves the GPU: a range of the attention layers, no single number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.formulas import timing as formulas
from dsa_ledger.ledger import Scope, Source
from dsa_ledger.timing.by_load import each_load
from dsa_ledger.timing.layer_range import OTHER_ARCHITECTURE, slowest_layer_s
from dsa_ledger.timing.layer_times import Load
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.siblings import Machine

LOW = Source("prior", "index-K and main KV bytes at 0.82 of peak, nothing else of a layer", "2026-08-21")
HIGH = Source("prior", f"the slowest built-in table carried to this GPU, times {OTHER_ARCHITECTURE}", "2026-08-21")


def post_range(ledger: Ledger, plan: Deployment, machine: Machine, wanted: Wanted) -> None:
    """Post the ends of the attention layers' time, stage by stage."""
    slowest = each_load(
        lambda rows, requests, tokens: slowest_layer_s(machine, wanted, Load(rows, requests, tokens)),
        ledger["step.requests"] * ledger["draft.rows"],
        ledger["step.requests"],
        ledger["step.tokens"],
    )
    ledger.given("time.full_layer_high_s", slowest, Unit.SECONDS, HIGH)
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        scope.total("time.attention_bytes", LOW, ["step.index_k_read_bytes", "step.main_kv_read_bytes"])
        scope.derive(
            "time.attention_low_s",
            Unit.SECONDS,
            formulas.bytes_time_s,
            LOW,
            moved_bytes="time.attention_bytes",
            bytes_per_s="time.sustained_bytes_per_s",
        )
        scope.derive(
            "time.attention_high_s",
            Unit.SECONDS,
            formulas.rest_s,
            HIGH,
            "every layer as a full one",
            layers="model.layers",
            rest_per_layer_s="time.full_layer_high_s",
        )
