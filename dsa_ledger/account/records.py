"""Entries about the machine, the layout and one token's records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.engines.caches import MAIN_KV
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import pool, records, step
from dsa_ledger.ledger import Fact, Source
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, RecordLayout
    from dsa_ledger.ledger import Ledger

HELD_BYTES = round(1.4 * GIB)
INDEX_STATE, STATE_TOKENS = "record.index_k_state_bytes", "record.index_k_state_tokens"


def scenario_source(path: str) -> Source:
    """Return the source of a figure that the scenario states."""
    return Source("scenario", path, "")


def post_machine(ledger: Ledger, plan: Deployment) -> None:
    """Post capacity as the driver reports it, and the layout's factors."""
    gpu, scenario, sharding = plan.gpu, plan.scenario, plan.scenario.sharding
    origin = gpu.provenance["hbm.capacity_bytes"]
    ledger.given("gpu.capacity_bytes", gpu.hbm.capacity_bytes, Unit.BYTES, Source(origin.kind, origin.ref, origin.date))
    ledger.derive(
        "gpu.mib",
        Unit.COUNT,
        pool.whole_mib,
        ledger.entries["gpu.capacity_bytes"].source,
        capacity_bytes="gpu.capacity_bytes",
    )
    for name in ("tp", "pp", "ep", "cp", "dcp", "dp_attention"):
        ledger.given(f"sharding.{name}", getattr(sharding, name), Unit.RANKS, scenario_source(f"sharding.{name}"))
    ledger.fact("sharding.replicas", Unit.RANKS, plan.replicas)
    ledger.given(
        "sharding.ranks", ranks_of_server(scenario), Unit.RANKS, scenario_source("gpus, the ranks of one server")
    )
    page = plan.caches.index_k.page_align
    ledger.given(
        "engine.page_tokens", page, Unit.TOKENS, engine_source(plan.release, f"page of {page} tokens for DSA on CUDA")
    )
    ledger.given("draft.steps", scenario.draft.steps, Unit.COUNT, scenario_source("draft.steps"))
    ledger.derive(
        "draft.rows",
        Unit.ROWS,
        step.rows_of_request,
        engine_source(plan.release, "rows to verify: steps + 1 at top-k 1"),
        draft_steps="draft.steps",
    )
    limit = scenario.limits.context_length
    if limit is None:
        ledger.given(
            "limits.context_length", plan.model.max_position, Unit.TOKENS, ledger.entries["config.max_position"].source
        )
    else:
        ledger.given("limits.context_length", limit, Unit.TOKENS, scenario_source("limits.context_length"))


def post_free_before(ledger: Ledger, plan: Deployment) -> None:
    """Post free memory before the weights load: as observed, or capacity less a prior."""
    observed = plan.scenario.observed.free_before
    if observed is not None:
        ledger.given(
            "memory.free_before_bytes", round(observed * GIB), Unit.BYTES, scenario_source("observed.free_before")
        )
        return
    ledger.given(
        "memory.held_bytes",
        HELD_BYTES,
        Unit.BYTES,
        Source(
            "prior", "CUDA context and NCCL before the weights load: 1.4 GiB; give --free-before from a log", "2026-10"
        ),
    )
    ledger.derive(
        "memory.free_before_bytes",
        Unit.BYTES,
        pool.remaining_bytes,
        ledger.entries["gpu.capacity_bytes"].source,
        before_bytes="gpu.capacity_bytes",
        taken_bytes="memory.held_bytes",
    )


def post_records(ledger: Ledger, plan: Deployment) -> None:
    """Post the bytes of one token in one layer of each cache."""
    engine = plan.release
    ledger.given("engine.scale_block", 128, Unit.ELEMENTS, engine_source(engine, "one scale per 128 elements"))
    ledger.given("engine.scale_bytes", 4, Unit.BYTES, engine_source(engine, "fp32 scale"))
    ledger.fact("engine.index_k_bits", Unit.COUNT, plan.index_k_bits)
    post_main_kv(ledger, "record.main_kv_bytes", plan.record)
    post_index_k(ledger, plan)


def post_index_k(ledger: Ledger, plan: Deployment) -> None:
    """Post the index-K record; where a key stands for several tokens, the key's own bytes beside it."""
    kind = plan.caches.index_k
    state = kind.bytes_per_state
    source = plan.index_k_bits.source
    if kind.tokens_per_state == 1:
        unit = Unit.BYTES_PER_TOKEN_PER_LAYER
        ledger.derive("record.index_k_bytes", unit, state.formula, source, **state.inputs)
        return
    ledger.derive(INDEX_STATE, Unit.BYTES, state.formula, source, "one key of one layer", **state.inputs)
    ledger.given(STATE_TOKENS, kind.tokens_per_state, Unit.TOKENS, kind.source)
    ledger.derive(
        "record.index_k_bytes",
        Unit.BYTES_PER_TOKEN_PER_LAYER,
        records.index_k_token_bytes,
        kind.source,
        "a key a pool, rounded up",
        state_bytes=INDEX_STATE,
        state_tokens=STATE_TOKENS,
    )


def post_main_kv(ledger: Ledger, key: str, layout: Fact[RecordLayout]) -> None:
    """Post a main-KV record in a layout."""
    state = MAIN_KV[layout.value]
    if "engine.fp4_block" in state.inputs.values() and "engine.fp4_block" not in ledger:
        ledger.given("engine.fp4_block", 16, Unit.ELEMENTS, layout.source)
    ledger.derive(key, Unit.BYTES_PER_TOKEN_PER_LAYER, state.formula, layout.source, **state.inputs)
