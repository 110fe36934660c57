"""Which layers run an indexer, which own an index-K, which build the indexer's weights: one place for every engine.

The rules differ in what they read of a config.json; see `shares` for the order of each engine and version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from dsa_ledger.engines.caches import check_known
from dsa_ledger.engines.rules import Rule, engine_source, since
from dsa_ledger.errors import BadInput, Fault, Words
from dsa_ledger.ledger import Fact, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import IndexSharing, Model

LayerKind = Literal["full", "shared", "linear"]
DEFAULT_OFFSET = 2


def by_types(sharing: IndexSharing, layer: int) -> bool:
    """Shared iff the list says so; past its end a layer is full."""
    types = sharing.indexer_types or ()
    return layer < len(types) and types[layer] == "shared"


def by_factor(sharing: IndexSharing, layer: int) -> bool:
    """Shared iff no multiple of cli_factor (LongCat)."""
    return layer % (sharing.cli_factor or 1) != 0


def by_pattern(sharing: IndexSharing, layer: int) -> bool:
    """Shared iff the letter is S; past its end a layer is full."""
    pattern = sharing.index_topk_pattern or ""
    return layer < len(pattern) and pattern[layer] == "S"


def by_frequency(sharing: IndexSharing, layer: int) -> bool:
    """Shared iff max(layer - offset + 1, 0) is no multiple of the frequency; the default offset is 2."""
    offset = sharing.index_skip_topk_offset or DEFAULT_OFFSET
    return max(layer - offset + 1, 0) % (sharing.index_topk_freq or 1) != 0


def by_frequency_without_offset(sharing: IndexSharing, layer: int) -> bool:
    """As `by_frequency`, but the engine does not read the offset."""
    return max(layer - DEFAULT_OFFSET + 1, 0) % (sharing.index_topk_freq or 1) != 0


def never(sharing: IndexSharing, layer: int) -> bool:  # noqa: ARG001 - one signature for every reader
    """No layer shares: the engine knows no reuse."""
    return False


class Reader(NamedTuple):
    """One key of config.json and the rule it triggers; `applies` tells whether the key decides."""

    key: str
    applies: Callable[[IndexSharing], bool]
    shares: Callable[[IndexSharing, int], bool]


TYPES = Reader("indexer_types", lambda sharing: sharing.indexer_types is not None, by_types)
FACTOR = Reader("cli_factor", lambda sharing: (sharing.cli_factor or 1) > 1, by_factor)
PATTERN = Reader("index_topk_pattern", lambda sharing: sharing.index_topk_pattern is not None, by_pattern)
FREQUENCY = Reader("index_topk_freq", lambda sharing: True, by_frequency)  # noqa: ARG005
FREQUENCY_ONLY = Reader("index_topk_freq", lambda sharing: True, by_frequency_without_offset)  # noqa: ARG005
NEVER = Reader("no key", lambda sharing: True, never)  # noqa: ARG005

READERS: dict[str, Rule[tuple[Reader, ...]]] = {
    "sglang": Rule(
        "sglang",
        "layer sharing",
        ("0.5.9", (NEVER,), "models/deepseek_v2.py has no skip-topk"),
        ("0.5.10", (PATTERN, FREQUENCY_ONLY), "models/deepseek_v2.py: pattern, then freq without the offset"),
        ("0.5.14", (PATTERN, FREQUENCY), "configs/model_config.py: pattern, then freq and offset"),
        (
            "0.5.16",
            (FACTOR, PATTERN, FREQUENCY),
            "models/deepseek_v2.py: cli_factor in the attention class, then as before",
        ),
        ("0.5.18", (FACTOR, PATTERN, FREQUENCY), "configs/model_config.py: cli_factor, pattern, freq and offset"),
        (
            "0.5.20",
            (TYPES, FACTOR, PATTERN, FREQUENCY),
            "configs/model_config.py dsa_layer_skips_topk: indexer_types, cli_factor, pattern, freq and offset",
        ),
    ),
    "vllm": Rule(
        "vllm",
        "layer sharing",
        ("0.19.0", (NEVER,), "no reuse (0.21 and 0.22 only behind use_index_cache)"),
        (
            "0.23.0",
            (PATTERN, FREQUENCY),
            "models/deepseek_v2.py: pattern, then freq and offset; indexer_types not read",
        ),
    ),
    "tensorrt-llm": Rule(
        "tensorrt-llm",
        "layer sharing",
        ("1.2.1", (NEVER,), "no reuse before https://github.com/NVIDIA/TensorRT-LLM/pull/15574 (rc21 or rc22)"),
        (
            "1.3.0rc23",
            (PATTERN, FREQUENCY),
            "https://github.com/NVIDIA/TensorRT-LLM/pull/15574, _is_full_indexer_layer: pattern, then freq and offset",
        ),
    ),
}

# From here on a shared layer owns no index-K, where no feature keeps the old allocation.
ELIDES: dict[str, Rule[bool]] = {
    "sglang": Rule(
        "sglang",
        "index-K elision",
        ("0.5.9", False, "memory_pool.py: index-K on every layer"),
        ("0.5.18", True, "PR #30531: shared layers own no index-K"),
    ),
    "vllm": Rule(
        "vllm",
        "index-K elision",
        ("0.19.0", False, "index-K on every layer"),
        ("0.24.0", True, "PR #45895: shared layers build no indexer and own no index-K"),
    ),
    "tensorrt-llm": Rule(
        "tensorrt-llm",
        "index-K elision",
        ("1.2.1", False, "index-K on every layer"),
        (
            "1.3.0rc25",
            True,
            "https://github.com/NVIDIA/TensorRT-LLM/pull/16558: full layers only; in rc25's log, issues/18662 there",
        ),
    ),
}

# SGLang features that keep index-K on every layer, by the release that let each one go ("" = still).
KEEPS_ALL: dict[str, str] = {
    "hisparse": "",
    "external-linker": "",
    "hicache": "0.5.22",
    "pd-prefill": "0.5.22",
    "pd-decode": "0.5.22",
}


def published_full_layers(model: Model) -> tuple[int, ...]:
    """Return the target layers that have indexer tensors in the published files, by transformers' own order of keys.

    An override of the sharing keys changes what an engine runs, not what was published.
    """
    sharing = model.published_sharing or model.sharing
    reader = next(reader for reader in (TYPES, PATTERN, FREQUENCY) if reader.applies(sharing))
    return tuple(layer for layer in model.sparse_layers if not reader.shares(sharing, layer))


class LayerPlan(NamedTuple):
    """Full, shared or linear, layer by layer, as one engine version runs the model; draft layers apart."""

    kinds: tuple[LayerKind, ...]
    draft_layers: int

    @property
    def full(self) -> tuple[int, ...]:
        """Return the ids of the layers that run their own indexer."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind == "full")

    @property
    def shared(self) -> tuple[int, ...]:
        """Return the ids of the layers that reuse the last full layer's top-k."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind == "shared")


class Layers(NamedTuple):
    """The layers of a model as one release treats them, by id; draft layers are in none of the lists."""

    plan: LayerPlan
    full: tuple[int, ...]
    owners: tuple[int, ...]
    built: tuple[int, ...]
    decided_by: str
    source: Source
    owners_source: Source
    built_source: Source


def deciding_reader(model: Model, release: Release) -> tuple[Reader, Source]:
    """Return the key that decides for this model and release, and where that order was read."""
    fact = READERS[release.engine].at(release)
    reader = next(reader for reader in fact.value if reader.applies(model.sharing))
    return reader, fact.source


def kept_by(release: Release, features: Iterable[str]) -> str | None:
    """Return the SGLang feature that keeps index-K on every layer in this release, if one is on."""
    if release.engine != "sglang":
        return None
    return next(
        (name for name in KEEPS_ALL if name in features and not (KEEPS_ALL[name] and since(release, KEEPS_ALL[name]))),
        None,
    )


def layers_of(model: Model, release: Release, features: Iterable[str] = ()) -> Layers:
    """Return which layers score, own an index-K and build an indexer.

    Raises BadInput where the engine would not start, NotModelled for a kin of DSA that was not read in this release.
    """
    check_known(model, release)
    _refuse_nulls(model, release)
    reader, source = deciding_reader(model, release)
    if reader is PATTERN and release.engine == "sglang" and not since(release, "0.5.14"):
        _refuse_short_pattern(model)
    linear = set(model.linear_layers)
    kinds: list[LayerKind] = [
        "linear" if layer in linear else "shared" if reader.shares(model.sharing, layer) else "full"
        for layer in range(model.layers)
    ]
    if release.engine == "tensorrt-llm":
        kinds[0] = "full"
    plan = LayerPlan(tuple(kinds), model.draft_layers)
    everything = model.sparse_layers
    elides = ELIDES[release.engine].at(release)
    keeper = kept_by(release, features)
    owners = Fact(plan.full, elides.source) if elides.value else Fact(everything, elides.source)
    if elides.value and keeper:
        owners = Fact(everything, engine_source(release, f"_should_elide_dsa_index_k: off with {keeper}"))
    built = plan.full if elides.value else everything
    return Layers(plan, plan.full, owners.value, built, reader.key, source, owners.source, elides.source)


def _refuse_nulls(model: Model, release: Release) -> None:
    """Refuse the explicit nulls that an engine's own code fails on."""
    fatal: tuple[str, ...] = ()
    if release.engine == "vllm" and since(release, "0.23.0"):
        fatal = ("index_topk_freq", "index_skip_topk_offset")
    if release.engine == "tensorrt-llm" and since(release, "1.3.0rc23"):
        fatal = ("index_skip_topk_offset",)
    if model.sharing.index_topk_pattern is not None:
        fatal = ()
    faults = [
        Fault(f"model.{key}", Words("null"), f"no such key: {release.label} raises TypeError on an explicit null")
        for key in fatal
        if key in model.sharing.nulls
    ]
    if faults:
        raise BadInput(faults)


def _refuse_short_pattern(model: Model) -> None:
    pattern = model.sharing.index_topk_pattern or ""
    if len(pattern) < model.layers:
        raise BadInput(
            [
                Fault(
                    "model.index_topk_pattern",
                    pattern,
                    f"{model.layers} letters: SGLang 0.5.10 raises IndexError on a shorter pattern",
                )
            ]
        )
