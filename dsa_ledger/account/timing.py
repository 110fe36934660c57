"""Entries about time: layer parts from the kernel tables, their sums over the step, ends, anchors and token rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.box import FRAGMENTED, Rates, post_pages
from dsa_ledger.account.model import config_source
from dsa_ledger.account.step_time import post_rates, post_step_time, resting
from dsa_ledger.formulas import timing as formulas
from dsa_ledger.ledger import Source
from dsa_ledger.timing.by_load import each_load
from dsa_ledger.timing.evaluate import PRIOR_ETA, Wanted
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.timing.shapes import FAMILIES, Shape, attention_bytes
from dsa_ledger.timing.tables import machine_from
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Model, Scenario
    from dsa_ledger.timing.box import Box

ETA = Source(
    "prior",
    "marginal cost of scored bytes at large batch and length on six GPUs, 0.817-0.837 of peak: "
    "github.com/ai-dynamo/aiconfigurator@095f58a5, vLLM 0.24.0 tables",
    "2026-08-21",
)
SUM_OF_LAYER = Source("measured", "sum of the layer's parts", "")
FLOOR_PART = "a full layer at its shortest context: one part of the layer's sum, no lower bound as time.step_floor_s is"
SHARED_PART = "a shared layer at its shortest context: one part of the layer's sum, no lower bound"
DCP_TIME = (
    "with DCP the step time is that without it: neither its exchange between ranks nor its smaller reads are timed"
)
FORMATS = {"fp8": "fp8_block", "nvf": "nvfp4"}


def wanted_series(plan: Deployment) -> Wanted:
    """Return the series of the tables that serves a deployment: family, KV format, weight format, heads of a rank."""
    model = plan.model
    shape = shape_of(model)
    family = next((name for name, known in FAMILIES.items() if known == shape), "glm")
    formats = {span.module: span.quant.name for span in model.quantization}
    weights = FORMATS.get(formats.get("q_b", "")[:3], "bfloat16")
    heads = -(-model.heads // plan.build.weights.attention_shards.value)
    kind = "bfloat16" if plan.record.value == "bf16" else "fp8"
    return Wanted(family, kind, weights, heads, plan.gpu.hbm.peak_bytes_per_s / 1e6)


def shape_of(model: Model) -> Shape:
    """Return a model's attention shape."""
    return Shape(
        model.hidden,
        model.q_lora,
        model.kv_lora,
        model.qk_nope,
        model.qk_rope,
        model.v_head,
        model.index_heads,
        model.index_head_dim,
    )


def post_timing(ledger: Ledger, plan: Deployment, scenario: Scenario, load: Any, box: Box | None) -> None:
    """Post what the step's bytes and layers take, by a measured box if any; without a kernel table a range."""
    post_pages(ledger, scenario)
    _post_rates_of_bytes(ledger, plan)
    wanted = wanted_series(plan)
    machine = machine_from(plan.gpu.name, plan.gpu)
    rates = Rates(ledger, plan, scenario, machine, box)
    release = plan.release
    times = each_load(
        lambda rows, requests, tokens: layer_times(
            release.engine, release.version, machine, wanted, Load(rows, requests, tokens)
        ),
        ledger["step.requests"] * ledger["draft.rows"],
        ledger["step.requests"],
        ledger["step.tokens"],
    )
    if times is not None:
        for sentence in times.warnings:
            ledger.warn(sentence)
        _post_layers(ledger, plan, times, wanted, rates)
        if shape_of(plan.model) not in FAMILIES.values():
            ledger.warn(
                "this model's attention was not measured: the nearest family's tables are moved by weight bytes"
            )
    else:
        ledger.warn(
            f"no kernel table of {release.engine} serves {plan.gpu.name}: a range of the attention layers is given, no "
            "single number, and a measured step cannot be carried to another context"
        )
        from dsa_ledger.account.time_range import post_range

        post_range(ledger, plan, machine, wanted)
    post_step_time(ledger, plan, has_layers=times is not None)
    if scenario.sharding.dcp > 1 and any("time.step_high_s" in key for key in ledger.entries):
        ledger.warn(DCP_TIME)
    if times is not None:
        post_rates(ledger, plan, scenario, machine, wanted, rates=rates)
        if load.new_tokens is not None:
            from dsa_ledger.account.prefill_time import post_prefill_time

            post_prefill_time(ledger, plan, machine, wanted)


def _post_rates_of_bytes(ledger: Ledger, plan: Deployment) -> None:
    origin = plan.gpu.provenance.get("hbm.peak_bytes_per_s") or plan.gpu.provenance["hbm.capacity_bytes"]
    source = Source(origin.kind, origin.ref, origin.date)
    ledger.given("gpu.peak_bytes_per_s", plan.gpu.hbm.peak_bytes_per_s, Unit.BYTES_PER_S, source)
    ledger.given("time.sustained_share", PRIOR_ETA, Unit.SHARE, ETA, "prior")
    ledger.derive(
        "time.sustained_bytes_per_s",
        Unit.BYTES_PER_S,
        formulas.sustained_bytes_per_s,
        ETA,
        peak_bytes_per_s="gpu.peak_bytes_per_s",
        sustained_share="time.sustained_share",
    )
    ledger.derive(
        "time.layer.scan_bytes",
        Unit.BYTES_PER_STEP,
        formulas.scan_bytes,
        Source("engine", "DeepGEMM 54e2261: paged logits read each key once a request", "2026-06-23"),
        record_bytes="record.index_k_bytes",
        requests="step.requests",
        rows="draft.rows",
        tokens="step.tokens",
    )


def _post_layers(ledger: Ledger, plan: Deployment, times: Any, wanted: Wanted, rates: Rates) -> None:
    measured = plan.gpu.name in times.gpus and times.version == plan.release.version
    table = Source("measured" if measured else "prior", times.source_ref, times.source_date)
    shared = Source("prior", f"full layer without SGLang 0.5.14's indexer: {times.source_ref}", times.source_date)
    shared = shared if times.shared_is_prior else table
    ledger.given("time.layer.floor_s", times.floor_s, Unit.SECONDS, table, FLOOR_PART)
    rates.part("time.layer.gather_s", times.gather_s, table, "sparse attention up to 2,048 tokens", place="gather")
    rates.part(
        "time.layer.topk_s", times.topk_s, table, "top-k and scan, all scores tied: the worst case", place="topk"
    )
    ledger.given(
        "time.layer.bytes_seen_share",
        times.bytes_seen_share,
        Unit.SHARE,
        table,
        "share of the scanned bytes' time that the measured growth shows; the rest a warm L2 hid",
    )
    moved = {"moved_bytes": "time.layer.scan_bytes", "seen_share": "time.layer.bytes_seen_share"}
    ledger.derive("time.layer.seen_bytes", Unit.BYTES_PER_STEP, formulas.seen_bytes, table, **moved)
    ledger.derive("time.layer.hidden_bytes", Unit.BYTES_PER_STEP, formulas.hidden_bytes, table, **moved)
    for key, of in (("bytes", "seen_bytes"), ("hidden", "hidden_bytes")):
        rates.bytes_time(f"time.layer.{key}_s", f"time.layer.{of}", ETA)
    parts = [f"time.layer.{part}_s" for part in ("floor", "gather", "topk", "bytes")]
    rates.total("time.full_layer_s", resting(ledger, SUM_OF_LAYER, parts), parts)
    ledger.given("time.shared_layer.floor_s", times.shared_floor_s, Unit.SECONDS, shared, SHARED_PART)
    rates.part("time.shared_layer.gather_s", times.shared_gather_s, shared, place="gather")
    parts = ["time.shared_layer.floor_s", "time.shared_layer.gather_s"]
    rates.total("time.shared_layer_s", resting(ledger, SUM_OF_LAYER, parts), parts)
    _post_ends(ledger, times, table, rates)
    shape = shape_of(plan.model)
    config = config_source(plan.model, "attention dimensions")
    without = attention_bytes(shape, wanted.weight_dtype, wanted.heads, indexer=False)
    whole = attention_bytes(shape, wanted.weight_dtype, wanted.heads, indexer=True)
    ledger.given("time.layer.weights_bytes", int(without), Unit.BYTES, config, "projections that the layer times hold")
    ledger.given("time.layer.indexer_weights_bytes", int(whole - without), Unit.BYTES, config)


def _post_ends(ledger: Ledger, times: Any, table: Source, rates: Rates) -> None:
    """Post low and high of a full and a shared layer; what is one-sided is added to its end before the quantiles."""
    ends = Source(
        "measured", "90% of points left out of the fit by whole cells, or of GPUs left out", times.source_date
    )
    for name, (low, high) in (("full", times.full_ends), ("shared", times.shared_ends)):
        ledger.given(f"time.{name}_layer.low_factor", low, Unit.SHARE, ends)
        ledger.given(f"time.{name}_layer.high_factor", high, Unit.SHARE, ends)
    rates.part(
        "time.layer.topk_saved_s", times.topk_saved_s, table, "what separated scores save in top-k", place="topk"
    )
    over = {"time_s": "time.full_layer_s", "saved_s": "time.layer.topk_saved_s"}
    source = resting(ledger, table, over.values())
    ledger.derive("time.full_layer_separated_s", Unit.SECONDS, formulas.less_s, source, "separated scores", **over)
    worst = ["time.full_layer_s", "time.layer.hidden_s"]
    rates.part("time.layer.topk_older_s", times.topk_high_s - times.topk_s, table, "older top-k kernel", place="topk")
    worst.append("time.layer.topk_older_s")
    ledger.derive(
        "time.layer.repeat_bytes",
        Unit.BYTES_PER_STEP,
        formulas.repeat_bytes,
        ledger.entries["step.verify_flattens"].source if "step.verify_flattens" in ledger else table,
        "keys read again where flattened rows miss L2",
        record_bytes="record.index_k_bytes",
        requests="step.requests",
        tokens="step.tokens",
        rows="draft.rows",
        flattens="step.verify_flattens",
    )
    rates.bytes_time("time.layer.repeat_s", "time.layer.repeat_bytes", ETA)
    worst.append("time.layer.repeat_s")
    if "time.fragmented_share" in ledger:
        ledger.derive(
            "time.layer.fragmented_s",
            Unit.SECONDS,
            formulas.scaled_s,
            FRAGMENTED,
            "not measured: the prior's far end",
            time_s="time.layer.bytes_s",
            factor="time.fragmented_share",
        )
        worst.append("time.layer.fragmented_s")
    ledger.total("time.full_layer_worst_s", resting(ledger, table, worst), worst)
    for name, end, key in (
        ("full", "low", "time.full_layer_separated_s"),
        ("full", "high", "time.full_layer_worst_s"),
        ("shared", "low", "time.shared_layer_s"),
        ("shared", "high", "time.shared_layer_s"),
    ):
        factor = f"time.{name}_layer.{end}_factor"
        source = resting(ledger, ends, (key, factor))
        ledger.derive(f"time.{name}_layer_{end}_s", Unit.SECONDS, formulas.scaled_s, source, time_s=key, factor=factor)
