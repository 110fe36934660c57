"""A model's layers as several releases treat them, side by side, with pipeline cuts and disagreements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.layers import Layers, layers_of
from dsa_ledger.engines.registry import ENGINES, rules_of
from dsa_ledger.engines.releases import READ, resolve
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.schema import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Model


class LayerRow(NamedTuple):
    """What one release makes of a model: its layers, or why it would not start; layers per pipeline stage."""

    release: Release
    layers: Layers | None
    refusal: str
    cuts: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the first layer of each stage."""
        return tuple(sum(self.cuts[:stage]) for stage in range(len(self.cuts)))

    @property
    def shared_starts(self) -> tuple[int, ...]:
        """Return the stage starts that lie on a shared layer."""
        full = set(self.layers.full) if self.layers else set()
        return tuple(start for start in self.starts if self.layers and start not in full)


def newest_releases() -> list[Release]:
    """Return the newest read release of each engine."""
    return [resolve(Engine(name=name, version=[*READ[name]][-1]))[0] for name in ENGINES]


def layer_table(model: Model, releases: Iterable[Release], stages: int = 1) -> tuple[list[LayerRow], list[str]]:
    """Return a row per release, and a sentence for each way in which they disagree or would go wrong.

    `stages` is the number of pipeline stages to cut for. Raises BadInput for more stages than layers.
    """
    rows = [_row(model, release, stages) for release in releases]
    return rows, [*_disagreements(rows), *_bad_starts(rows)]


def _row(model: Model, release: Release, stages: int) -> LayerRow:
    cuts = rules_of(release.engine).stage_cuts(model.layers, stages)
    try:
        return LayerRow(release, layers_of(model, release), "", cuts)
    except (BadInput, NotModelled) as refused:
        return LayerRow(release, None, str(refused), cuts)


def _disagreements(rows: list[LayerRow]) -> list[str]:
    said = [
        row.refusal if row.refusal.startswith("not modelled") else f"{row.release.label} would not start: {row.refusal}"
        for row in rows
        if row.layers is None
    ]
    first = next((row for row in rows if row.layers), None)
    if first is None or first.layers is None:
        return said
    base = first.layers
    said += [
        f"{row.release.label} runs {len(row.layers.full)} full layers where {first.release.label} runs "
        f"{len(base.full)}: it decides by {row.layers.decided_by}, not {base.decided_by}; name the same layers in "
        "indexer_types and in index_topk_freq / index_skip_topk_offset"
        for row in rows
        if row.layers and row.layers.full != base.full
    ]
    return said


def _bad_starts(rows: list[LayerRow]) -> list[str]:
    return [
        f"{row.release.label}: a stage starts on shared layer {', '.join(map(str, row.shared_starts))} and gets no "
        "top-k; cut on full layers with VLLM_PP_LAYER_PARTITION"
        for row in rows
        if row.release.engine == "vllm" and row.shared_starts
    ]
