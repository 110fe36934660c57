"""Entries about the machine, the layout and one token's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import pool, records, step
from dsa_ledger.ledger import Fact, Source
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment, RecordLayout
    from dsa_ledger.ledger import Ledger

PAGE_TOKENS = 64
HELD_BYTES = round(1.4 * GIB)
SCENARIO = "scenario"


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
    ledger.given(
        "engine.page_tokens", PAGE_TOKENS, Unit.TOKENS, engine_source(plan.release, "page of 64 tokens for DSA on CUDA")
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
    ledger.derive(
        "record.index_k_bytes",
        Unit.BYTES_PER_TOKEN_PER_LAYER,
        records.index_k_record_bytes,
        plan.index_k_bits.source,
        index_head_dim="config.index_head_dim",
        bits="engine.index_k_bits",
        scale_block="engine.scale_block",
        scale_bytes="engine.scale_bytes",
    )


def post_main_kv(ledger: Ledger, key: str, layout: Fact[RecordLayout]) -> None:
    """Post a main-KV record in a layout."""
    formula: Any
    inputs = {"kv_lora": "config.kv_lora", "qk_rope": "config.qk_rope"}
    if layout.value == "bf16":
        formula = records.bf16_record_bytes
    elif layout.value == "raw_fp8":
        formula = records.raw_fp8_record_bytes
    elif layout.value == "packed_fp8":
        formula = records.packed_fp8_record_bytes
        inputs |= {"scale_block": "engine.scale_block", "scale_bytes": "engine.scale_bytes"}
    else:
        formula = records.nvfp4_ds_mla_record_bytes if layout.value == "nvfp4_ds_mla" else records.nvfp4_record_bytes
        if "engine.fp4_block" not in ledger:
            ledger.given("engine.fp4_block", 16, Unit.ELEMENTS, layout.source)
        inputs |= {"scale_block": "engine.fp4_block"}
    ledger.derive(key, Unit.BYTES_PER_TOKEN_PER_LAYER, formula, layout.source, **inputs)
