"""What every engine asks of a layout alike: whole heads and expert slices, stages that add up, an MTP layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.engines.base import Stage
    from dsa_ledger.errors import Faults
    from dsa_ledger.schema import Model, Scenario


def check_heads(faults: Faults, scenario: Scenario, model: Model, attention_ranks: int) -> None:
    """Note attention ranks that do not divide the heads."""
    faults.require(
        model.heads % attention_ranks == 0,
        "sharding.tp",
        scenario.sharding.tp,
        f"a cut that leaves attention TP (here {attention_ranks}) a divisor of the {model.heads} heads of {model.name}",
    )


def check_experts(faults: Faults, scenario: Scenario, model: Model, slices: int, way_out: str) -> None:
    """Note expert parallelism that leaves a remainder, and slices that cut a block of scales."""
    sharding = scenario.sharding
    faults.require(
        model.experts % sharding.ep == 0, "sharding.ep", sharding.ep, f"a divisor of the {model.experts} experts"
    )
    block = max((span.quant.block_rows for span in model.quantization if span.module == "expert"), default=1)
    faults.require(
        model.expert_intermediate % (slices * block) == 0,
        "sharding.tp",
        sharding.tp,
        f"whole blocks of {block} in each expert slice: {model.expert_intermediate} cut in {slices}{way_out}",
    )


def check_stages(faults: Faults, scenario: Scenario, model: Model) -> None:
    """Note more stages than layers, and a partition that does not add up."""
    stages, cuts = scenario.sharding.pp, scenario.sharding.pp_partition
    faults.require(stages <= model.layers, "sharding.pp", stages, f"at most the {model.layers} layers of {model.name}")
    faults.require(
        cuts is None or (len(cuts) == stages and sum(cuts) == model.layers),
        "sharding.pp_partition",
        cuts,
        f"{stages} numbers that add up to the {model.layers} layers of {model.name}",
    )


def check_draft(faults: Faults, scenario: Scenario, model: Model) -> None:
    """Note draft steps of a model without an MTP layer."""
    steps = scenario.draft.steps
    faults.require(not steps or model.draft_layers > 0, "draft.steps", steps, f"0: {model.name} has no MTP layer")


def check_roles(faults: Faults, scenario: Scenario) -> None:
    """Note a server that is both prefill and decode worker."""
    both = scenario.has("pd-prefill") and scenario.has("pd-decode")
    faults.require(not both, "features", "pd-decode", "one role per server: pd-prefill or pd-decode")


def cut_on_full_layers(full: tuple[int, ...], stages: Sequence[Stage]) -> tuple[int, ...] | None:
    """Return the partition nearest to the stages' own whose parts start on full layers; None where there is none."""
    starts = [0]
    for stage in stages[1:]:
        later = len(stages) - len(starts) - 1  # stages that need a full layer of their own after this one
        free = [layer for layer in full if layer > starts[-1]]
        if len(free) <= later:
            return None
        starts.append(min(free[: len(free) - later], key=lambda layer: abs(layer - stage.first)))
    return tuple(end - start for start, end in zip(starts, [*starts[1:], stages[-1].end], strict=True))


def cut_in_words(full: tuple[int, ...], stages: Sequence[Stage], setting: str) -> str:
    """Return the advice to cut so that no stage starts on a shared layer, `setting` as the engine takes it."""
    cuts = cut_on_full_layers(full, stages)
    if cuts is None:
        return f"the {len(full)} full layers cannot start {len(stages)} stages: take fewer"
    return f"cut on full layers: {setting}{','.join(map(str, cuts))}"
