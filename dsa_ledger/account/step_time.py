"""Entries about the time of a whole step: floors, the layers' sum, its ends, an anchored time, token rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.records import scenario_source
from dsa_ledger.formulas import timing as formulas
from dsa_ledger.ledger import RANKED, Scope, Source
from dsa_ledger.timing import steps
from dsa_ledger.timing.by_load import each_load
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsa_ledger.account.box import Rates
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.ledger import Kind, Ledger
    from dsa_ledger.schema import Scenario
    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.siblings import Machine

FLOOR = Source("datasheet", "bytes over the data sheet's bandwidth", "")
LAYERS = Source("measured", "sum over layers", "")
PARTS = Source("measured", "sum of the step's parts", "")
OF_A_STAGE = "with pipeline stages times are those of the slowest stage"
RANKS: dict[Kind, int] = {kind: rank for rank, kind in enumerate(RANKED)}
STEP_BYTES = (
    "step.index_k_read_bytes",
    "step.index_k_write_bytes",
    "step.logits_write_bytes",
    "step.logits_read_bytes",
    "step.main_kv_read_bytes",
    "step.main_kv_write_bytes",
    "step.page_table_read_bytes",
    "step.weights_read_bytes",
)


def resting(ledger: Ledger, source: Source, keys: Iterable[str]) -> Source:
    """Return the source of a figure made of others: it adds no fact, so its kind is the weakest of its parts'."""
    entries, weakest = ledger.entries, RANKS.get(source.kind, -1)
    for key in keys:
        rank = RANKS.get(entries[key].source.kind, -1)
        weakest = max(weakest, rank)
    kind = RANKED[weakest] if weakest >= 0 else source.kind
    return source if kind == source.kind else Source(kind, source.ref, source.date)


def _layers(scope: Scope, parts: Mapping[str, str]) -> Source:
    return resting(scope.ledger, LAYERS, map(scope.name, parts.values()))


def post_step_time(ledger: Ledger, plan: Deployment, *, has_layers: bool) -> None:
    """Post floors and, with layer times, the attention, the weights and the step's ends, stage by stage."""
    if has_layers:
        worst = steps.largest_rest()
        source = Source("measured", f"{worst.source}: {worst.says}; without its attention layers", worst.date)
        ledger.given("time.rest_per_layer_s", worst.rest_s_per_layer, Unit.SECONDS, source, "the largest public one")
    for stage in plan.stages:
        scope = Scope(ledger, stage.prefix)
        _post_floors(scope)
        if has_layers:
            _post_attention(scope)
            _post_weights(scope)
            _post_ends(scope)


def _post_floors(scope: Scope) -> None:
    scope.derive(
        "time.indexer_floor_s",
        Unit.SECONDS,
        formulas.bytes_time_s,
        FLOOR,
        "a floor, no prediction",
        moved_bytes="step.index_k_read_bytes",
        bytes_per_s="gpu.peak_bytes_per_s",
    )
    present = [key for key in STEP_BYTES if scope.name(key) in scope.ledger]
    scope.total("time.step_bytes", FLOOR, present)
    scope.derive(
        "time.step_floor_s",
        Unit.SECONDS,
        formulas.bytes_time_s,
        FLOOR,
        "a floor, no prediction: bytes over peak",
        moved_bytes="time.step_bytes",
        bytes_per_s="gpu.peak_bytes_per_s",
    )


def _post_attention(scope: Scope) -> None:
    scope.derive(
        "time.shared_layers",
        Unit.LAYERS,
        formulas.shared_layers,
        LAYERS,
        layers="model.layers",
        full_layers="model.full_layers",
    )
    counts = {"full_layers": "model.full_layers", "shared_layers": "time.shared_layers"}
    for end in ("", "_low", "_high"):
        layers = {"full_layer_s": f"time.full_layer{end}_s", "shared_layer_s": f"time.shared_layer{end}_s"}
        source = _layers(scope, layers)
        scope.derive(f"time.attention{end}_s", Unit.SECONDS, formulas.attention_s, source, **counts, **layers)
    if any(f"time.{name}_layer_prior_s" in scope.ledger for name in ("full", "shared")):
        prior = {
            f"{name}_layer_s": f"time.{name}_layer_prior_s"
            if f"time.{name}_layer_prior_s" in scope.ledger
            else f"time.{name}_layer_s"
            for name in ("full", "shared")
        }
        scope.derive(
            "time.attention_prior_s",
            Unit.SECONDS,
            formulas.attention_s,
            _layers(scope, prior),
            "without the profile",
            **counts,
            **prior,
        )
    layers = {"full_layer_s": "time.full_layer_s", "shared_layer_s": "time.shared_layer_s"}
    scope.derive(
        "time.indexer_s",
        Unit.SECONDS,
        formulas.indexer_s,
        _layers(scope, layers),
        "all that a full layer takes more than a shared one",
        full_layers="model.full_layers",
        **layers,
    )
    if scope.ledger["draft.steps"]:
        for end in ("", "_high"):
            scope.derive(
                f"time.draft_attention{end}_s",
                Unit.SECONDS,
                formulas.draft_attention_s,
                Source("prior", "draft layers take what target layers of the same rows take", ""),
                "one draft-extend and the draft forwards of the MTP layers",
                draft_layers="model.draft_layers",
                draft_passes="step.draft_passes",
                draft_steps="draft.steps",
                full_layer_s=f"time.full_layer{end}_s",
                shared_layer_s=f"time.shared_layer{end}_s",
            )


def _post_weights(scope: Scope) -> None:
    source = scope.ledger.entries["time.sustained_bytes_per_s"].source
    if scope.name("step.weights_read_bytes") not in scope.ledger:
        return
    scope.derive(
        "time.attention_weights_bytes",
        Unit.BYTES_PER_STEP,
        formulas.attention_weights_bytes,
        LAYERS,
        layer_bytes="time.layer.weights_bytes",
        indexer_layer_bytes="time.layer.indexer_weights_bytes",
        layers="model.layers",
        full_layers="model.full_layers",
    )
    scope.derive(
        "time.other_weights_bytes",
        Unit.BYTES_PER_STEP,
        formulas.other_weights_bytes,
        source,
        "the layer times already hold the attention's weights",
        weights_bytes="step.weights_read_bytes",
        attention_bytes="time.attention_weights_bytes",
    )
    scope.derive(
        "time.weights_s",
        Unit.SECONDS,
        formulas.bytes_time_s,
        source,
        "weights outside the attention layers, at the sustained bandwidth",
        moved_bytes="time.other_weights_bytes",
        bytes_per_s="time.sustained_bytes_per_s",
    )


def _post_ends(scope: Scope) -> None:
    def present(*keys: str) -> list[str]:
        return [key for key in keys if scope.name(key) in scope.ledger]

    low = present("time.attention_s", "time.weights_s", "time.draft_attention_s")
    source = resting(scope.ledger, PARTS, map(scope.name, low))
    scope.total("time.step_low_s", source, low, note="attention and weights alone: nothing else of the step")
    rest = scope.ledger.entries["time.rest_per_layer_s"].source
    scope.derive(
        "time.rest_high_s",
        Unit.SECONDS,
        formulas.rest_s,
        rest,
        layers="model.layers",
        rest_per_layer_s="time.rest_per_layer_s",
    )
    high = present("time.attention_high_s", "time.weights_s", "time.draft_attention_high_s", "time.rest_high_s")
    source = resting(scope.ledger, PARTS, map(scope.name, high))
    scope.total("time.step_high_s", source, high, note="the pessimistic end, for ranking and prices")


def post_rates(
    ledger: Ledger, plan: Deployment, scenario: Scenario, machine: Machine, wanted: Wanted, *, rates: Rates
) -> None:
    """Post the step's time where a measured step anchors it, and the tokens that come of it."""
    if len(plan.stages) > 1:
        ledger.warn(f"{OF_A_STAGE}: no step time and no token rate are given")
        return
    seen = _anchor(ledger, plan, scenario, wanted)
    if seen is None:
        ledger.warn(
            "no step time is known for this model, engine, GPU and layout: it lies between time.step_low_s and "
            "time.step_high_s; one measured step closes the gap (--measured-step TIME@CONTEXT)"
        )
    else:
        _post_anchored(ledger, plan.release, machine, wanted, seen=seen, rates=rates)
    _post_tokens(ledger, scenario)


def _anchor(ledger: Ledger, plan: Deployment, scenario: Scenario, wanted: Wanted) -> tuple[float, int, Source] | None:
    """Return the measured step's seconds, its context and its source."""
    own = scenario.load.measured_step
    if own is not None:
        return own.seconds, own.context, scenario_source("load.measured_step")
    batch = ledger["load.batch"]
    if hasattr(batch, "dtype") or batch != 1 or scenario.draft.steps:
        return None
    cut = scenario.sharding
    if (cut.dp_attention, cut.cp, cut.dcp, cut.pp) != (1, 1, 1, 1):
        return None
    layers = ledger["model.layers"], ledger["model.full_layers"]
    step = steps.anchor(
        wanted.family, plan.release.engine, plan.gpu.name, tp=cut.tp, layers=layers, kv_dtype=wanted.kind
    )
    if step is None:
        return None
    return step.step_s, step.context, Source("measured", f"{step.source}: {step.says}", step.date)


def _post_anchored(
    ledger: Ledger,
    release: Release,
    machine: Machine,
    wanted: Wanted,
    *,
    seen: tuple[float, int, Source],
    rates: Rates,
) -> None:
    seconds, context, source = seen
    requests, rows = ledger["step.requests"], ledger["draft.rows"]
    times: Any = each_load(
        lambda all_rows, of, tokens: layer_times(
            release.engine, release.version, machine, wanted, Load(all_rows, of, tokens)
        ),
        requests * rows,
        requests,
        requests * 0 + context,
    )
    table = Source("measured", times.source_ref, times.source_date)
    full, shared = rates.full_and_shared_s(times, requests, context)
    ledger.given("time.anchor.step_s", seconds, Unit.SECONDS, source, f"seen at {context:,} tokens")
    ledger.given("time.anchor.full_layer_s", full, Unit.SECONDS, table)
    ledger.given("time.anchor.shared_layer_s", shared, Unit.SECONDS, table)
    ledger.derive(
        "time.anchor.attention_s",
        Unit.SECONDS,
        formulas.attention_s,
        resting(ledger, LAYERS, ("time.anchor.full_layer_s", "time.anchor.shared_layer_s")),
        full_layers="model.full_layers",
        full_layer_s="time.anchor.full_layer_s",
        shared_layers="time.shared_layers",
        shared_layer_s="time.anchor.shared_layer_s",
    )
    ledger.derive(
        "time.step_s",
        Unit.SECONDS,
        formulas.anchored_s,
        source,
        "a measured step, and what the attention layers take more at this context by the tables: at the context where "
        "it was measured nothing is added, elsewhere it is as weak as they are",
        anchor_s="time.anchor.step_s",
        attention_s="time.attention_s",
        anchor_attention_s="time.anchor.attention_s",
    )
    _warn_outside(ledger)


def _warn_outside(ledger: Ledger) -> None:
    """Warn where a measured step lies outside the modelled ends; a grid of loads has no place for sentences."""
    step, low, high = (ledger[f"time.step{end}_s"] for end in ("", "_low", "_high"))
    if hasattr(step, "dtype") or low <= step <= high:
        return
    low, step, high = (brief(seconds, Unit.SECONDS) for seconds in (low, step, high))
    ledger.warn(
        f"time.step_s is {step}, outside time.step_low_s to time.step_high_s, {low} to {high}: check the measured "
        "step's unit, batch, context and layout; if they are right, this server runs unlike the tables"
    )


def _post_tokens(ledger: Ledger, scenario: Scenario) -> None:
    accepted = scenario.draft.accepted
    if scenario.draft.steps and accepted is None:
        ledger.warn("tokens per second need the mean tokens kept per step when drafts are on: --accepted X")
        return
    ledger.given("draft.accepted", 1.0 if accepted is None else accepted, Unit.COUNT, scenario_source("draft.accepted"))
    ledger.given("load.one_request", 1, Unit.REQUESTS, scenario_source("one request"))
    for key, requests in (("time.tokens_per_s", "load.batch"), ("time.tokens_per_s_per_request", "load.one_request")):
        for end, step in (("", "time.step_s"), ("_low", "time.step_high_s"), ("_high", "time.step_low_s")):
            if step in ledger:
                ledger.derive(
                    key + end,
                    Unit.TOKENS_PER_S,
                    formulas.tokens_per_s,
                    ledger.entries[step].source,
                    requests=requests,
                    accepted="draft.accepted",
                    step_s=step,
                )
