"""The layers that a rank of a model could hold, for the models that come into question."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.hypotheses import Shape
from dsa_ledger.catalog import load_model, model_names
from dsa_ledger.engines.layers import published_full_layers
from dsa_ledger.engines.registry import rules_of
from dsa_ledger.errors import ExpectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def shapes_of(
    models: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    engine: str,
    stages: int,
    cuts: Sequence[int] | None,
    stage: int,
) -> list[Shape]:
    """Return the layers of one pipeline stage for each model; a model that cannot be cut so is left out."""
    found = []
    for name in models:
        try:
            model = load_model(name, dict(overrides))
        except ExpectedError:
            continue
        counts = tuple(cuts) if cuts else rules_of(engine).stage_cuts(model.layers, min(stages, model.layers))
        if sum(counts) != model.layers or stage >= len(counts):
            continue
        first = sum(counts[:stage])
        full = [layer for layer in published_full_layers(model) if first <= layer < first + counts[stage]]
        last = stage == len(counts) - 1
        found.append(Shape(model.name, counts[stage], len(full), model.draft_layers if last else 0))
    return found


@cache
def distinct_models() -> tuple[str, ...]:
    """Return one catalog model for each number of layers, owners and draft layers."""
    seen: dict[tuple[int, int, int], str] = {}
    for name in model_names():
        try:
            model = load_model(name, {})
        except ExpectedError:
            continue
        seen.setdefault((model.layers, len(published_full_layers(model)), model.draft_layers), name)
    return tuple(seen.values())
