"""A small ledger by hand, so that rendering and `explain` are tested apart from the figures of any engine."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import least
from dsa_ledger.ledger import MOST, Ledger, Source
from dsa_ledger.schema import Scenario
from dsa_ledger.units import Unit

CONFIG = Source("config", "config.json indexer_types", "2026-06-16")
ENGINE = Source("engine", "engine 1.0 pool.py", "2026-01-02")
DRIVER = Source("driver", "nvidia-smi", "")
PRIOR = Source("prior", "context and NCCL", "")
ASKED = Source("scenario", "load", "")


def read_bytes(*, record_bytes: Any, layers: Any, tokens: Any) -> Any:
    """Return a plain product [B/step]."""
    return record_bytes * layers * tokens


def gathered_bytes(
    *,
    record_bytes: Any,
    tokens: Any,
    most_tokens: Any,
) -> Any:
    """Return a product over several lines, with a call [B/step]."""
    return (
        # only so many are gathered
        least(
            tokens,
            most_tokens,
        )
        * record_bytes
    )


def free_bytes(*, capacity_bytes: Any, taken_bytes: Any, correction_bytes: Any) -> Any:
    """Return a difference [B]."""
    return capacity_bytes - taken_bytes - correction_bytes


def left_bytes(*, capacity_bytes: Any, taken_bytes: Any) -> Any:
    """Return a difference of two [B]."""
    return capacity_bytes - taken_bytes


def sample_scenario() -> Scenario:
    """Return the scenario that the sample ledger pretends to answer."""
    return Scenario.model_validate(
        {
            "title": "a sample | with a bar",
            "model": "zai-org/GLM-5.2-FP8",
            "model_overrides": {"index_topk_freq": 4},
            "gpu": "H200",
            "gpus": 8,
            "engine": "sglang@0.5.23",
            "sharding": {"tp": 8},
            "load": {"batch": 1, "context": 100_000},
            "features": ["hicache"],
        }
    )


def sample_ledger() -> Ledger:
    """Return givens, derived entries, a total, a note, a warning and a shortfall."""
    ledger = Ledger()
    ledger.given("model.full_layers", 21, Unit.LAYERS, CONFIG)
    ledger.given("record.index_k_bytes", 132, Unit.BYTES_PER_TOKEN_PER_LAYER, ENGINE, note="128 + 4 | padded")
    ledger.given("load.context_tokens", 100_000, Unit.TOKENS, ASKED)
    ledger.given("model.index_topk", 2048, Unit.TOKENS, CONFIG)
    ledger.given("gpu.capacity_bytes", 143_771 * 2**20, Unit.BYTES, DRIVER)
    ledger.given("memory.context_bytes", 1_503_238_553, Unit.BYTES, PRIOR)
    ledger.given("memory.correction_bytes", -5, Unit.BYTES, PRIOR)
    ledger.given("weights.rank_bytes", 100 * 2**30, Unit.BYTES, CONFIG)
    ledger.given("engine.backend", "flashmla", Unit.COUNT, ENGINE)
    ledger.derive(
        "memory.free_before_bytes",
        Unit.BYTES,
        left_bytes,
        DRIVER,
        capacity_bytes="gpu.capacity_bytes",
        taken_bytes="memory.context_bytes",
    )
    ledger.derive(
        "step.index_k_read_bytes",
        Unit.BYTES_PER_STEP,
        read_bytes,
        ENGINE,
        record_bytes="record.index_k_bytes",
        layers="model.full_layers",
        tokens="load.context_tokens",
    )
    ledger.derive(
        "step.main_kv_read_bytes",
        Unit.BYTES_PER_STEP,
        gathered_bytes,
        ENGINE,
        record_bytes="record.index_k_bytes",
        tokens="load.context_tokens",
        most_tokens="model.index_topk",
    )
    ledger.derive(
        "pool.budget_bytes",
        Unit.BYTES,
        free_bytes,
        ENGINE,
        capacity_bytes="gpu.capacity_bytes",
        taken_bytes="memory.context_bytes",
        correction_bytes="memory.correction_bytes",
    )
    ledger.total("step.kv_read_bytes", ENGINE, ["step.index_k_read_bytes", "step.main_kv_read_bytes"])
    ledger.total("step.widest_read_bytes", ENGINE, ["step.index_k_read_bytes", "step.main_kv_read_bytes"], MOST)
    ledger.warn("no version given: name yours as sglang@VERSION, so that the figures are those of your server")
    ledger.shortfalls.append("4 requests need 400,000 tokens, the pool holds 332,608: lower --batch or --context")
    return ledger
