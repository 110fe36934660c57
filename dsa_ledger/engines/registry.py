"""The engines, each a module that answers the same questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dsa_ledger.engines import sglang, sglang_checks, trtllm, trtllm_checks, vllm, vllm_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.engines.base import PrefillRules, RecordLayout, StepRules, WeightLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.ledger import Fact
    from dsa_ledger.schema import Gpu, Model, Scenario


class EngineRules(Protocol):
    """What an engine's module answers about a scenario that its checks let through."""

    def record_layout(self, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> Fact[RecordLayout]:
        """Return how a main-KV record is stored."""

    def index_k_bits(self, scenario: Scenario, gpu: Gpu, release: Release) -> Fact[int]:
        """Return the bits of one element of an indexer key."""

    def stage_cuts(self, layers: int, stages: int) -> tuple[int, ...]:
        """Return layers per pipeline stage."""

    def weight_layout(self, scenario: Scenario, model: Model, release: Release) -> WeightLayout:
        """Return how a rank holds the weights."""

    def step_rules(self, scenario: Scenario, model: Model, gpu: Gpu, release: Release) -> StepRules:
        """Return how a step reads index-K."""

    def prefill_rules(self, scenario: Scenario, gpu: Gpu, release: Release) -> PrefillRules:
        """Return how a prefill is cut."""

    def replicas(self, scenario: Scenario, release: Release) -> Fact[int]:
        """Return how many groups of ranks have requests and a pool of their own."""


ENGINES: dict[str, EngineRules] = {"sglang": sglang, "vllm": vllm, "tensorrt-llm": trtllm}
CHECKS: dict[str, Callable[[Scenario, Model, Gpu, Release], None]] = {
    "sglang": sglang_checks.check,
    "vllm": vllm_checks.check,
    "tensorrt-llm": trtllm_checks.check,
}
