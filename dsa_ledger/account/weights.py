"""Entries about weights: per component and format, a rank's part and the published files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account.model import config_source
from dsa_ledger.engines.layers import published_full_layers
from dsa_ledger.formulas import weights as formulas
from dsa_ledger.ledger import Scope, Source
from dsa_ledger.schema import BF16
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.engines.base import Build, Stage
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Model, Quant

QUANT_FIELDS = ("bits", "scale_bytes", "block_rows", "block_columns", "fixed_bytes")
OVERHEAD_BYTES = GIB // 5
VOCABULARY_PAD = 64
ONE = "checkpoint.shards"
INDEXER = ("wq_b", "wk", "weights_proj")


class Part(NamedTuple):
    """The tensors to post: of which layers, under which name, and how a rank cuts them.

    `built` are the layers with an indexer. `on_rank` adds what an engine builds and the files do not hold.
    """

    name: str
    layers: tuple[int, ...]
    built: tuple[int, ...]
    dense: int
    on_rank: bool
    fused_index_key: bool

    def shards(self, kind: str) -> str:
        """Return the key of the number of ranks that share a kind of tensor."""
        return f"layout.{kind}_shards" if self.on_rank else ONE


def spread(model: Model, module: str, layers: tuple[int, ...]) -> list[tuple[Quant, int]]:
    """Return the formats of a module over some layers, each with its number of layers; what no span names is bf16."""
    if not layers:
        return []
    found: list[tuple[Quant, int]] = []
    contiguous = layers[-1] - layers[0] + 1 == len(layers)
    for span in model.quantization:
        if span.module != module:
            continue
        if contiguous:
            count = min(span.last, layers[-1]) - max(span.first, layers[0]) + 1
        else:
            count = sum(span.first <= layer <= span.last for layer in layers)
        if count > 0:
            merged = next((index for index, (quant, _) in enumerate(found) if quant == span.quant), None)
            if merged is None:
                found.append((span.quant, count))
            else:
                found[merged] = (span.quant, found[merged][1] + count)
    rest = len(layers) - sum(count for _, count in found)
    return [*found, (BF16, rest)] if rest else found


class Poster:
    """Posts the tensors of one part and remembers their keys."""

    def __init__(self, scope: Scope, model: Model, part: Part) -> None:
        """Take where to post, the model and the part."""
        self.scope, self.model, self.part = scope, model, part
        self.keys: list[str] = []
        self.indexer_keys: list[str] = []
        self.source = self.indexer_source = config_source(model, "quantization_config and tensor shapes")

    def matrix(self, module: str, layers: tuple[int, ...], rows: str, columns: str) -> None:
        """Post a matrix of so many rows and columns (keys) in each format that its layers have."""
        counted = self.indexer_source if module in INDEXER else self.source
        for quant, count in spread(self.model, module, layers):
            self.quant_givens(quant)
            key = f"{self.part.name}.{module}_bytes.{quant.name}"
            self.scope.given(f"{key}.layers", count, Unit.LAYERS, counted)
            formats = {field: f"quant.{quant.name}.{field}" for field in QUANT_FIELDS}
            shape = {"layers": f"{key}.layers", "rows": rows, "columns": columns}
            self.derive(key, formulas.matrices_bytes, **shape, **formats)

    def width(self, name: str, formula: Callable[..., Any], **inputs: str) -> str:
        """Post rows or columns that follow from several dimensions, and return their key."""
        key = f"{self.part.name}.{name}"
        self.scope.derive(key, Unit.ELEMENTS, formula, self.source, **inputs)
        return self.scope.name(key)

    def heads(self, name: str, head_dim: str) -> str:
        """Post the width of a rank's heads, and return its key."""
        shards = self.part.shards("attention")
        return self.width(name, formulas.heads_width, heads="config.heads", shards=shards, head_dim=head_dim)

    def mlp(self, module: str, layers: tuple[int, ...], intermediate: str, copies: str, shards: str) -> None:
        """Post gate, up and down of so many MLPs a layer, one MLP's bytes first."""
        for quant, count in spread(self.model, module, layers):
            self.quant_givens(quant)
            key = f"{self.part.name}.{module}_bytes.{quant.name}"
            self.layer_given(key, count)
            self.scope.derive(
                f"{key}.one",
                Unit.BYTES,
                formulas.mlp_bytes,
                self.source,
                hidden="config.hidden",
                intermediate=intermediate,
                **{field: f"quant.{quant.name}.{field}" for field in QUANT_FIELDS},
            )
            self.derive(
                key,
                formulas.sharded_mlp_bytes,
                layers=f"{key}.layers",
                copies=copies,
                one_bytes=f"{key}.one",
                shards=shards,
            )

    def plain(self, component: str, formula: Callable[..., Any], **inputs: str) -> None:
        """Post a component whose format is fixed."""
        self.derive(f"{self.part.name}.{component}_bytes", formula, **inputs)

    def derive(self, key: str, formula: Callable[..., Any], **inputs: str) -> None:
        """Post an entry and remember it as one of the part's tensors."""
        self.scope.derive(key, Unit.BYTES, formula, self.source, **inputs)
        self.keys.append(key)

    def layer_given(self, key: str, count: int) -> None:
        """Post the number of layers of a component."""
        self.scope.given(f"{key}.layers", count, Unit.LAYERS, self.source)

    def quant_givens(self, quant: Quant) -> None:
        """Post a format's numbers, once for the whole ledger."""
        ledger = self.scope.ledger
        if f"quant.{quant.name}.bits" not in ledger:
            for field in QUANT_FIELDS:
                ledger.given(f"quant.{quant.name}.{field}", getattr(quant, field), Unit.COUNT, self.source)


def post_attention(post: Poster) -> None:
    """Post the five MLA matrices, and the absorbed copy of kv_b that a rank holds beside it."""
    layers, joined = post.part.layers, formulas.joined_width
    query = post.width("query_head", joined, first="config.qk_nope", second="config.qk_rope")
    key_value = post.width("key_value_head", joined, first="config.qk_nope", second="config.v_head")
    latent = post.width("kv_a_rows", joined, first="config.kv_lora", second="config.qk_rope")
    post.matrix("q_a", layers, "config.q_lora", "config.hidden")
    post.matrix("kv_a", layers, latent, "config.hidden")
    post.matrix("q_b", layers, post.heads("q_b_rows", query), "config.q_lora")
    kv_b_rows = post.heads("kv_b_rows", key_value)
    post.matrix("kv_b", layers, kv_b_rows, "config.kv_lora")
    if post.part.on_rank:
        count = f"{post.part.name}.layers"
        post.plain("absorbed_kv_b", formulas.bf16_bytes, layers=count, rows=kv_b_rows, columns="config.kv_lora")
    post.matrix("o", layers, "config.hidden", post.heads("o_columns", "config.v_head"))


def post_layers(post: Poster) -> None:
    """Post every tensor that belongs to a layer."""
    part, model = post.part, post.model
    layers, moe = part.layers, part.layers[part.dense :]
    count = f"{part.name}.layers"
    post.scope.given(count, len(layers), Unit.LAYERS, post.source)
    post_attention(post)
    post.plain(
        "norm",
        formulas.norm_bytes,
        layers=count,
        q_lora="config.q_lora",
        kv_lora="config.kv_lora",
        hidden="config.hidden",
    )
    post_indexers(post)
    if part.dense:
        post.mlp("dense", layers[: part.dense], "config.dense_intermediate", ONE, part.shards("dense"))
    if moe:
        post.scope.given(f"{part.name}.moe_layers", len(moe), Unit.LAYERS, post.source)
        post.plain(
            "router",
            formulas.router_bytes,
            layers=f"{part.name}.moe_layers",
            experts="config.experts",
            hidden="config.hidden",
        )
        post.mlp("expert", moe, "config.expert_intermediate", "config.experts", part.shards("expert"))
        if model.shared_experts:
            post.mlp("shared", moe, "config.expert_intermediate", "config.shared_experts", part.shards("shared"))


def post_indexers(post: Poster) -> None:
    """Post the indexers' weights: the engine's own fusion on a rank, the files' tensors in the checkpoint."""
    part = post.part
    start = len(post.keys)
    count = f"{part.name}.indexer_layers"
    post.scope.given(count, len(part.built), Unit.LAYERS, post.indexer_source)
    index_heads = {"heads": "config.index_heads", "shards": ONE, "head_dim": "config.index_head_dim"}
    index_rows = post.width("wq_b_rows", formulas.heads_width, **index_heads)
    post.matrix("wq_b", part.built, index_rows, "config.q_lora")
    if part.fused_index_key:
        fused = post.width(
            "fused_index_key_rows", formulas.joined_width, first="config.index_head_dim", second="config.index_heads"
        )
        post.plain("fused_index_key", formulas.bf16_bytes, layers=count, rows=fused, columns="config.hidden")
    else:
        post.matrix("wk", part.built, "config.index_head_dim", "config.hidden")
        post.matrix("weights_proj", part.built, "config.index_heads", "config.hidden")
    post.plain(
        "index_norm",
        formulas.index_norm_bytes,
        layers=count,
        index_head_dim="config.index_head_dim",
        element_bytes="layout.index_norm_element_bytes" if part.on_rank else "checkpoint.norm_element_bytes",
    )
    post.indexer_keys = post.keys[start:]
    post.scope.total(f"{part.name}.indexer_bytes", post.source, post.indexer_keys)


def post_draft_extras(post: Poster) -> None:
    """Post what the MTP layer has beside a layer's tensors."""
    count = f"{post.part.name}.layers"
    post.plain("eh_proj", formulas.draft_projection_bytes, layers=count, hidden="config.hidden")
    post.scope.given(f"{post.part.name}.vectors", 3 * len(post.part.layers), Unit.COUNT, post.source)
    post.plain("vectors", formulas.vector_bytes, count=f"{post.part.name}.vectors", hidden="config.hidden")


def post_layout(ledger: Ledger, plan: Build) -> None:
    """Post how many ranks share each kind of tensor, and the engine's own element widths."""
    layout = plan.weights
    for name in ("attention", "expert", "shared", "dense", "embedding", "head"):
        ledger.fact(f"layout.{name}_shards", Unit.RANKS, getattr(layout, f"{name}_shards"))
    for name in ("index_norm_element_bytes", "rope_element_bytes"):
        ledger.fact(f"layout.{name}", Unit.COUNT, getattr(layout, name))
    source = config_source(plan.model, "tensors whole, as published")
    ledger.given(ONE, 1, Unit.RANKS, source)
    ledger.given("checkpoint.norm_element_bytes", 2, Unit.COUNT, source)
    ledger.given("checkpoint.vocabulary_pad", 1, Unit.COUNT, source)
    ledger.given(
        "layout.vocabulary_pad",
        VOCABULARY_PAD,
        Unit.COUNT,
        Source("engine", f"{plan.release.label}: vocab_parallel_embedding.py pads to 64", plan.release.date),
    )


def post_checkpoint(ledger: Ledger, plan: Build) -> None:
    """Post the payload of the published files, MTP included, safetensors headers not."""
    model = plan.model
    scope = Scope(ledger, "")
    layers = tuple(range(model.layers))
    indexers = published_full_layers(model)
    post = Poster(scope, model, Part("checkpoint.target", layers, indexers, model.dense_layers, False, False))  # noqa: FBT003
    post_layers(post)
    keys = [*post.keys, "checkpoint.vocabulary_bytes", "checkpoint.final_norm_bytes"]
    ledger.given(
        "checkpoint.vocabulary_tables", 2 + ledger["checkpoint.draft_vocabulary_tables"], Unit.COUNT, post.source
    )
    ledger.derive(
        "checkpoint.vocabulary_bytes",
        Unit.BYTES,
        formulas.vector_tables_bytes,
        post.source,
        tables="checkpoint.vocabulary_tables",
        vocabulary="config.vocabulary",
        hidden="config.hidden",
    )
    ledger.derive(
        "checkpoint.final_norm_bytes", Unit.BYTES, formulas.vector_bytes, post.source, count=ONE, hidden="config.hidden"
    )
    if model.draft_layers:
        drafts = tuple(range(model.layers, model.layers + model.draft_layers))
        draft = Poster(scope, model, Part("checkpoint.draft", drafts, drafts, 0, False, False))  # noqa: FBT003
        post_layers(draft)
        post_draft_extras(draft)
        keys += draft.keys
    ledger.total("weights.checkpoint_bytes", post.source, keys)


def post_rank(ledger: Ledger, plan: Build, stage: Stage) -> None:
    """Post what one rank of a stage holds: target, indexers apart, draft apart, overhead as a prior."""
    model = plan.model
    scope = Scope(ledger, stage.prefix)
    layers = tuple(range(stage.first, stage.end))
    dense = max(0, min(stage.end, model.dense_layers) - stage.first)
    fused = plan.weights.fused_index_key.value
    post = Poster(scope, model, Part("weights", layers, stage.of(plan.layers.built), dense, True, fused))  # noqa: FBT003
    post.indexer_source = plan.layers.owners_source  # which layers have an indexer is the engine's decision
    post_layers(post)
    unread = [key for key in post.keys if ".kv_b_bytes" in key]
    experts = [key for key in post.keys if ".expert_bytes" in key]
    if stage.number == 0:
        _post_vocabulary(post, "embedding")
        unread.append("weights.embedding_bytes")
    if stage.last:
        _post_vocabulary(post, "head")
        post.plain("final_norm", formulas.vector_bytes, count=ONE, hidden="config.hidden")
    post.plain(
        "rope",
        formulas.rope_table_bytes,
        max_position="config.max_position",
        qk_rope="config.qk_rope",
        element_bytes="layout.rope_element_bytes",
    )
    unread.append("weights.rope_bytes")
    prior = Source(
        "prior", "0.18 to 0.27 GiB over the tensor sum in four public load logs; allocator rounding", "2026-06"
    )
    scope.given("weights.overhead_bytes", OVERHEAD_BYTES, Unit.BYTES, prior)
    scope.total("weights.rank_bytes", post.source, [*post.keys, "weights.overhead_bytes"])
    scope.total("weights.indexer_rank_bytes", post.source, ["weights.indexer_bytes"])
    always = [key for key in post.keys if key not in {*unread, *experts, *post.indexer_keys}]
    scope.total("weights.always_read_bytes", post.source, always)
    if experts:
        scope.total("weights.expert_rank_bytes", post.source, experts)
    if plan.draft_layers and stage.last:
        drafts = tuple(range(model.layers, model.layers + plan.draft_layers))
        draft = Poster(scope, model, Part("weights.draft", drafts, drafts, 0, True, fused))  # noqa: FBT003
        post_layers(draft)
        post_draft_extras(draft)
        scope.total("weights.draft_rank_bytes", post.source, draft.keys)
    else:
        none = Source("scenario", "no draft steps, or not the stage that holds the MTP layer", "")
        scope.given("weights.draft_rank_bytes", 0, Unit.BYTES, none)


def _post_vocabulary(post: Poster, name: str) -> None:
    post.plain(
        name,
        formulas.vocabulary_bytes,
        vocabulary="config.vocabulary",
        pad="layout.vocabulary_pad",
        hidden="config.hidden",
        shards=f"layout.{name}_shards",
    )
