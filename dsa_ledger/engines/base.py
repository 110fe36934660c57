"""What every engine answers about a deployment, in one shape, before anything is posted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from dsa_ledger.engines.caches import Caches
    from dsa_ledger.engines.layers import Layers
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.ledger import Fact
    from dsa_ledger.schema import Gpu, Model, Scenario

RecordLayout = Literal["bf16", "raw_fp8", "packed_fp8", "nvfp4_ds_mla", "nvfp4"]


class Stage(NamedTuple):
    """A pipeline slice: layers first <= id < end; `prefix` is empty where there is one stage."""

    number: int
    first: int
    end: int
    prefix: str
    last: bool

    def holds(self, layer: int) -> bool:
        """Tell whether a layer lies in this stage."""
        return self.first <= layer < self.end

    def of(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the layers that lie in this stage."""
        return tuple(layer for layer in layers if self.first <= layer < self.end)


class WeightLayout(NamedTuple):
    """How a rank holds the weights: how often each kind is cut, and what the engine builds beside the checkpoint."""

    attention_shards: Fact[int]
    expert_shards: Fact[int]
    shared_shards: Fact[int]
    dense_shards: Fact[int]
    embedding_shards: Fact[int]
    head_shards: Fact[int]
    fused_index_key: Fact[bool]
    index_norm_element_bytes: Fact[int]
    rope_element_bytes: Fact[int]


class StepRules(NamedTuple):
    """How a step reads index-K.

    Rows that are not flattened share one read by tiles of `tile_rows`; a read is whole runs of `read_tokens`.
    """

    scoring_draft_forwards: Fact[int]
    verify_flattens: Fact[bool]
    extend_flattens: Fact[bool]
    tile_rows: Fact[int]
    read_tokens: Fact[int]
    dcp_scoring_shards: Fact[int]
    request_shards: Fact[int]


class PrefillRules(NamedTuple):
    """How a prefill is cut."""

    chunk_tokens: Fact[int]
    unchecked_elements: Fact[int]
    skips_short: Fact[bool]


class Build(NamedTuple):
    """What decides the weights of each rank: hashable, so that they are worked out once for many pools and loads."""

    model: Model
    release: Release
    layers: Layers
    stages: tuple[Stage, ...]
    draft_layers: int
    weights: WeightLayout


class Deployment(NamedTuple):
    """A scenario with everything resolved that does not depend on its load."""

    scenario: Scenario
    gpu: Gpu
    build: Build
    record: Fact[RecordLayout]
    index_k_bits: Fact[int]
    caches: Caches
    step: StepRules
    prefill: PrefillRules
    replicas: Fact[int]
    dcp: int
    warnings: tuple[str, ...]

    @property
    def model(self) -> Model:
        """Return the model."""
        return self.build.model

    @property
    def release(self) -> Release:
        """Return the release whose rules apply."""
        return self.build.release

    @property
    def layers(self) -> Layers:
        """Return which layers score, own an index-K and build an indexer."""
        return self.build.layers

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the pipeline stages."""
        return self.build.stages

    @property
    def draft_layers(self) -> int:
        """Return the MTP layers that are loaded."""
        return self.build.draft_layers


def stage_list(cuts: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return the stages for so many layers each."""
    stages, first = [], 0
    for index, count in enumerate(cuts):
        prefix = f"stage[{index}]." if len(cuts) > 1 else ""
        stages.append(Stage(index, first, first + count, prefix, index == len(cuts) - 1))
        first += count
    return tuple(stages)
