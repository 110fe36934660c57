"""Entries about the time of a prefill's attention layers: the sum over its forwards, by the kernel tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.formulas import timing as formulas
from dsa_ledger.ledger import Source
from dsa_ledger.timing.by_load import each_load
from dsa_ledger.timing.prefill_times import prefill_times
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.siblings import Machine


def post_prefill_time(ledger: Ledger, plan: Deployment, machine: Machine, wanted: Wanted) -> None:
    """Post what one request's new tokens take in the attention layers, chunk by chunk, the prefix read in each."""
    release = plan.release
    times = each_load(
        lambda context, new, chunk: prefill_times(
            release.engine, release.version, machine, wanted, context=context, new=new, chunk=chunk
        ),
        ledger["load.context_tokens"],
        ledger["load.new_tokens"],
        ledger["limits.chunk_tokens"],
    )
    if times is None:
        ledger.warn(
            f"no prefill table of {release.engine} serves {plan.gpu.name}: prefill is given in bytes and flop only"
        )
        return
    for sentence in times.warnings:
        ledger.warn(sentence)
    table = Source("prior" if times.is_prior else "measured", times.source_ref, times.source_date)
    shared = Source(
        "prior" if times.is_prior or times.shared_is_prior else "measured", times.source_ref, times.source_date
    )
    ledger.given("prefill.full_layer_s", times.full_s, Unit.SECONDS, table, "all forwards, all scores tied")
    ledger.given("prefill.shared_layer_s", times.shared_s, Unit.SECONDS, shared, "all forwards")
    ledger.derive(
        "prefill.shared_layers",
        Unit.LAYERS,
        formulas.shared_layers,
        table,
        layers="model.layers",
        full_layers="model.full_layers",
    )
    ledger.derive(
        "prefill.attention_s",
        Unit.SECONDS,
        formulas.prefill_s,
        table,
        "attention layers alone; experts and collectives are not in it",
        full_layers="model.full_layers",
        full_layer_s="prefill.full_layer_s",
        shared_layers="prefill.shared_layers",
        shared_layer_s="prefill.shared_layer_s",
    )
    ledger.derive(
        "prefill.indexer_s",
        Unit.SECONDS,
        formulas.indexer_s,
        table,
        full_layers="model.full_layers",
        full_layer_s="prefill.full_layer_s",
        shared_layer_s="prefill.shared_layer_s",
    )
    low, high = times.ends
    for end, factor in (("low", low), ("high", high)):
        ledger.given(f"prefill.{end}_factor", factor, Unit.SHARE, table, "90% of points left out of the fit")
        ledger.derive(
            f"prefill.attention_{end}_s",
            Unit.SECONDS,
            formulas.scaled_s,
            table,
            time_s="prefill.attention_s",
            factor=f"prefill.{end}_factor",
        )
