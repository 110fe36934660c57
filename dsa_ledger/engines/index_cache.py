"""IndexCache: shared layers by an override, on a checkpoint that was trained with an indexer in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.layers import published_full_layers

if TYPE_CHECKING:
    from dsa_ledger.engines.layers import Layers
    from dsa_ledger.schema import Model

# GLM-5's searched pattern, 40 full of 78: github.com/THUDM/IndexCache@08d22d69 README.md.
SEARCHED_FULL = (
    *(0, 1, 3, 7, 10, 11, 12, 16, 17, 18, 20, 27, 28, 30, 31, 33, 34, 37, 38, 39, 40, 41, 42, 44, 45, 46, 47, 48),
    *(50, 51, 58, 60, 61, 62, 64, 68, 70, 71, 73, 74),
)
SEARCHED_LAYERS = 78
SEARCHED_PATTERN = "".join("F" if layer in SEARCHED_FULL else "S" for layer in range(SEARCHED_LAYERS))


def quality_warning(model: Model, layers: Layers) -> str | None:
    """Return what an override that shares layers trained as full costs in quality, and what costs less; else None.

    Figures: arXiv:2603.12201, GLM-5 without training, the average over its long-context tests.
    """
    if model.published_sharing is None or layers.full == SEARCHED_FULL:
        return None
    trained = set(published_full_layers(model))
    shared = [layer for layer in layers.plan.shared if layer in trained]
    if not shared:
        return None
    said = (
        f"{layers.decided_by} shares {len(shared)} of {len(trained)} layers that {model.name} was trained with as full:"
        " without training a uniform 1/4 cost GLM-5 quality, 78.4 to 72.7 on average over long contexts, a searched"
        " 1/4 kept 78.0 (arXiv:2603.12201)"
    )
    if model.layers == SEARCHED_LAYERS:
        return (
            f"{said}; at about 1/2 take the searched pattern of github.com/THUDM/IndexCache@08d22d69, "
            f"{len(SEARCHED_FULL)} full layers: --set model.index_topk_pattern={SEARCHED_PATTERN}"
        )
    return f"{said}; search a pattern for this model as github.com/THUDM/IndexCache@08d22d69 does (40 of GLM-5's 78)"
