"""Entries about the model: its dimensions, its layers, the published checkpoint's size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.caches import LONGCAT, kin_of
from dsa_ledger.engines.layers import published_full_layers
from dsa_ledger.formulas import checkpoint as formulas
from dsa_ledger.ledger import Source
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Build
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Model

# Field of schema.Model: key of config.json.
DIMENSIONS = {
    "hidden": "hidden_size",
    "vocabulary": "vocab_size",
    "dense_layers": "first_k_dense_replace",
    "heads": "num_attention_heads",
    "qk_nope": "qk_nope_head_dim",
    "qk_rope": "qk_rope_head_dim",
    "v_head": "v_head_dim",
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "dense_intermediate": "intermediate_size",
    "expert_intermediate": "moe_intermediate_size",
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
    "index_kpool": "index_kpool",
    "max_position": "max_position_embeddings",
}

ELEMENT_DIMENSIONS = (
    "hidden",
    "vocabulary",
    "dense_layers",
    "heads",
    "qk_nope",
    "qk_rope",
    "v_head",
    "q_lora",
    "kv_lora",
    "experts",
    "shared_experts",
    "dense_intermediate",
    "expert_intermediate",
    "index_heads",
    "index_head_dim",
)


def config_source(model: Model, key: str) -> Source:
    """Return the source of a figure that stands in the model's config.json."""
    return Source("config", f"{model.provenance.ref}: {key}", model.provenance.date)


def post_model(ledger: Ledger, plan: Build) -> None:
    """Post dimensions, layer counts and the checkpoint's elements and tensors."""
    model, layers = plan.model, plan.layers
    for field, key in DIMENSIONS.items():
        ledger.given(f"config.{field}", getattr(model, field), Unit.COUNT, config_source(model, key))
    attentions = "num_layers, two attentions a block" if model.architecture.startswith(LONGCAT) else "num_hidden_layers"
    ledger.given("model.layers", model.layers, Unit.LAYERS, config_source(model, attentions))
    if model.linear_layers:
        kinds = config_source(model, "layer_types, else linear unless id % 4 = 3")
        ledger.given("model.linear_layers", len(model.linear_layers), Unit.LAYERS, kinds)
        ledger.given("model.sparse_layers", len(model.sparse_layers), Unit.LAYERS, kinds)
    ledger.given(
        "model.full_layers",
        len(layers.full),
        Unit.LAYERS,
        Source("engine", f"{layers.source.ref}; decided by {layers.decided_by}", layers.source.date),
    )
    ledger.derive(
        "model.shared_layers",
        Unit.LAYERS,
        formulas.other_layers,
        layers.source,
        layers=cached_layers(model),
        some_layers="model.full_layers",
    )
    ledger.given("model.index_k_layers", len(layers.owners), Unit.LAYERS, layers.owners_source)
    ledger.given("model.indexer_layers", len(layers.built), Unit.LAYERS, layers.built_source)
    ledger.given(
        "model.draft_layers",
        plan.draft_layers,
        Unit.LAYERS,
        Source("scenario", "draft.steps > 0 loads the MTP layer", ""),
    )
    _post_stages(ledger, plan)
    if model.weights_modelled:
        _post_checkpoint_counts(ledger, model)
        return
    kin = kin_of(model)
    ledger.warn(
        f"weights of {model.name} are not modelled{f': {kin.weights}' if kin else ''}; no weights.*, checkpoint or "
        "step.weights_* figure stands here, and no check that weights and pool fit the GPU"
    )


def cached_layers(model: Model) -> str:
    """Return the key that counts the layers which cache tokens."""
    return "model.sparse_layers" if model.linear_layers else "model.layers"


def _post_checkpoint_counts(ledger: Ledger, model: Model) -> None:
    """Post the elements and tensors of the published files."""
    ledger.given(
        "checkpoint.draft_layers", model.draft_layers, Unit.LAYERS, config_source(model, "num_nextn_predict_layers")
    )
    ledger.given(
        "checkpoint.indexer_layers",
        len(published_full_layers(model)),
        Unit.LAYERS,
        config_source(model, "indexer_types, pattern or freq, else every layer"),
    )
    ledger.given(
        "checkpoint.draft_vocabulary_tables",
        2 * model.draft_layers * model.draft_owns_embedding,
        Unit.COUNT,
        config_source(model, "embedding and head repeated in the MTP layer"),
    )
    source = config_source(model, "shapes of the checkpoint's tensors")
    shapes = {name: f"config.{name}" for name in ELEMENT_DIMENSIONS}
    counts = {
        "layers": "model.layers",
        "draft_layers": "checkpoint.draft_layers",
        "indexer_layers": "checkpoint.indexer_layers",
        "draft_tables": "checkpoint.draft_vocabulary_tables",
    }
    ledger.derive("model.parameters", Unit.ELEMENTS, formulas.parameters, source, **shapes, **counts)
    ledger.derive(
        "model.tensors",
        Unit.COUNT,
        formulas.tensors,
        source,
        dense_layers="config.dense_layers",
        experts="config.experts",
        shared_experts="config.shared_experts",
        **counts,
    )


def _post_stages(ledger: Ledger, plan: Build) -> None:
    """Post the layer counts of each pipeline stage beside the model's."""
    if len(plan.stages) == 1:
        return
    layers = plan.layers
    cut = Source("engine", f"{plan.release.label}: pipeline stages", plan.release.date)
    for stage in plan.stages:
        full = len(stage.of(layers.full))
        ledger.given(f"{stage.prefix}model.layers", stage.end - stage.first, Unit.LAYERS, cut)
        ledger.given(f"{stage.prefix}model.full_layers", full, Unit.LAYERS, layers.source)
        ledger.given(f"{stage.prefix}model.shared_layers", stage.end - stage.first - full, Unit.LAYERS, layers.source)
        ledger.given(
            f"{stage.prefix}model.index_k_layers", len(stage.of(layers.owners)), Unit.LAYERS, layers.owners_source
        )
        ledger.given(
            f"{stage.prefix}model.indexer_layers", len(stage.of(layers.built)), Unit.LAYERS, layers.built_source
        )
        drafts = plan.draft_layers if stage.last else 0
        ledger.given(
            f"{stage.prefix}model.draft_layers", drafts, Unit.LAYERS, Source("engine", "MTP on the last stage", "")
        )
