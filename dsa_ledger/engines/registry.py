"""The engines, each a module that answers the same questions; only the one asked about is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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


ENGINES = ("sglang", "vllm", "tensorrt-llm")


def rules_of(engine: str) -> EngineRules:
    """Return the module with an engine's rules."""
    if engine == "sglang":
        from dsa_ledger.engines import sglang

        return sglang
    if engine == "vllm":
        from dsa_ledger.engines import vllm

        return vllm
    from dsa_ledger.engines import trtllm

    return trtllm


def checks_of(engine: str) -> Callable[[Scenario, Model, Gpu, Release], None]:
    """Return what refuses a scenario that an engine does not run (BadInput, NotModelled)."""
    if engine == "sglang":
        from dsa_ledger.engines.sglang_checks import check
    elif engine == "vllm":
        from dsa_ledger.engines.vllm_checks import check
    else:
        from dsa_ledger.engines.trtllm_checks import check
    return check
