"""Every layout of so many GPUs that an engine may take: servers of equal size, cut by tp, pp, attention DP and DCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.schema import Sharding

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_STAGES = 8
DCP = (1, 2, 4, 8)


class Layout(NamedTuple):
    """One way to cut the GPUs: so many servers, each cut alike."""

    servers: int
    ranks: int
    sharding: Sharding


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`, and `most` itself."""
    found = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return found if found[-1] == most else [*found, most]


def layouts(engine: str, gpus: int) -> Iterator[Layout]:
    """Yield the layouts; experts stay sliced where the engine takes that, and whole experts come second.

    Expert parallelism changes no byte of a rank, so a layout is tried with slices first (`ep` 1).
    """
    for ranks in powers(gpus):
        if gpus % ranks:
            continue
        for stages in powers(min(ranks, MOST_STAGES)):
            if ranks % stages == 0:
                yield from _cuts(engine, gpus // ranks, ranks, stages)


def _cuts(engine: str, servers: int, ranks: int, stages: int) -> Iterator[Layout]:
    width = ranks // stages
    for replicas in powers(width):
        if width % replicas or (engine == "tensorrt-llm" and replicas not in (1, width)):
            continue
        tp = width // replicas if engine == "vllm" else width
        for dcp in DCP if engine != "tensorrt-llm" else (1,):
            attention = width // replicas
            if attention % dcp == 0:
                cut = Sharding(tp=tp, pp=stages, dp_attention=replicas, dcp=dcp)
                yield Layout(servers, ranks, cut)


def whole_experts(engine: str, sharding: Sharding) -> Sharding:
    """Return the same layout with whole experts on each rank."""
    everyone = sharding.tp * sharding.dp_attention if engine == "vllm" else sharding.tp
    return sharding.model_copy(update={"ep": everyone})
