"""Which tensors of a checkpoint are stored in which format, read from its own exclusion lists.

A module stands for one matrix a layer (`q_a`, `o`, `wq_b`, ...) or for the gate, up and down matrices together
(`dense`, `shared`, `expert`). A list that splits such a group is "not modelled": no such checkpoint was found.

Conventions of the loaders that no list spells out: `indexer.weights_proj` and `eh_proj` are built without quantisation
(GLM names the first `self_attn.indexers_proj`), an embedding is no linear layer, and block FP8 leaves the head alone.
Source: sgl-project/sglang `dsa_indexer.py` at 00d38808 and `deepseek_nextn.py` at 3e4a39ee.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.catalog.files import shown
from dsa_ledger.errors import Faults, NotModelled
from dsa_ledger.schema import Quant, QuantSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ATTENTION = {
    "q_a": "self_attn.q_a_proj",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_b": "self_attn.kv_b_proj",
    "o": "self_attn.o_proj",
    "wq_b": "self_attn.indexer.wq_b",
    "wk": "self_attn.indexer.wk",
}
MATRICES = ("gate_proj", "up_proj", "down_proj")
LONGEST_PATTERN = 512
# Real lists hold at most six wildcards a layer and three bound to no layer, which are tried on every name.
MOST_WILDCARDS = 256
# Experts times wildcards tried on each, where a list could tell experts apart: GLM-5 has 19,456 experts in its layers.
MOST_EXPERT_CHECKS = 1_000_000
_LAYER = r"model\.layers\.([0-9]{1,9})(?=\.|$)"
_BEFORE_WILD = r"^model\.layers\.[0-9]*"
_WILD = r"[*?\[]"


class Geometry(NamedTuple):
    """The part of a model that decides which matrices exist."""

    name: str
    layers: int
    dense_layers: int
    draft_layers: int
    experts: int
    shared_experts: int


class Quantization(NamedTuple):
    """What a checkpoint's quantisation metadata says."""

    method: str
    spans: tuple[QuantSpan, ...]
    kv_quant: str | None


UNQUANTISED = Quantization("none", (), None)


class Exclusions:
    """A checkpoint's list of modules left unquantised.

    A pattern with `*`, `?` or `[` is matched against the whole module name as `fnmatch` does; any other names a module
    or one of its parents, in full or from some dot on (`lm_head`, `model.layers.3.mlp`, `self_attn.o_proj`).
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        """Sort the patterns: plain names, wildcards bound to one layer, wildcards bound to none (key None)."""
        self._plain: set[str] = set()
        self.wild: dict[int | None, list[str]] = {}
        self._expressions: dict[int | None, re.Pattern[str]] = {}
        # A pattern can tell one expert from another only by a digit or by a wildcard that counts characters.
        self._by_expert: set[int | None] = set()
        for pattern in dict.fromkeys(patterns):
            found = re.match(_LAYER, pattern)
            layer = int(found[1]) if found else None
            if re.search(r"[\d?\[]", re.sub(_BEFORE_WILD, "", pattern, count=1)):
                self._by_expert.add(layer)
            if re.search(_WILD, pattern):
                self.wild.setdefault(layer, []).append(pattern)
            else:
                self._plain.add(pattern)

    def __bool__(self) -> bool:
        """Tell whether the list names anything."""
        return bool(self._plain or self.wild)

    def name(self, module: str, layer: int | None = None) -> bool:
        """Tell whether the list names this module; `layer` is the one that the module's name bears."""
        if self._plain:
            parts = module.split(".")
            ends = range(1, len(parts) + 1)
            if any(".".join(parts[first:end]) in self._plain for end in ends for first in range(end)):
                return True
        keys: tuple[int | None, ...] = (None,) if layer is None else (layer, None)
        return any(self._matches(key, module) for key in keys if key in self.wild)

    def _matches(self, key: int | None, module: str) -> bool:
        if key not in self._expressions:
            self._expressions[key] = re.compile("|".join(map(fnmatch.translate, self.wild[key])))
        return self._expressions[key].match(module) is not None

    def tell_experts_apart(self, layer: int) -> bool:
        """Tell whether some pattern could name one expert of this layer and not another."""
        return None in self._by_expert or layer in self._by_expert


def _layer_modules(geometry: Geometry, layer: int, excluded: Exclusions) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each module of a layer that a checkpoint may quantise, with the names of its matrices."""
    at = f"model.layers.{layer}"
    for module, name in ATTENTION.items():
        yield module, (f"{at}.{name}",)
    if layer < geometry.dense_layers:
        yield "dense", tuple(f"{at}.mlp.{matrix}" for matrix in MATRICES)
        return
    experts = range(geometry.experts if excluded.tell_experts_apart(layer) else 1)
    yield "expert", tuple(f"{at}.mlp.experts.{expert}.{matrix}" for expert in experts for matrix in MATRICES)
    if geometry.shared_experts:
        yield "shared", tuple(f"{at}.mlp.shared_experts.{matrix}" for matrix in MATRICES)


def spans(geometry: Geometry, quant: Quant, excluded: Exclusions, *, head: bool) -> tuple[QuantSpan, ...]:
    """Return the runs of layers whose modules are stored in `quant`; what no span covers is bf16.

    `head`: whether the format reaches the output head when the list is silent on it.
    """
    runs: dict[str, list[list[int]]] = {}
    for layer in range(geometry.layers + geometry.draft_layers):
        for module, names in _layer_modules(geometry, layer, excluded):
            left_out = {excluded.name(name, layer) for name in names} if excluded else {False}
            if len(left_out) > 1:
                reason = f"{module} of layer {layer} is quantised in part"
                raise NotModelled("partly quantised modules", geometry.name, reason)
            if left_out == {False}:
                found = runs.setdefault(module, [])
                if found and found[-1][1] == layer - 1:
                    found[-1][1] = layer
                else:
                    found.append([layer, layer])
    result = [
        QuantSpan(module=module, first=first, last=last, quant=quant)
        for module, found in runs.items()
        for first, last in found
    ]
    if head and not excluded.name("lm_head"):
        result.append(QuantSpan(module="lm_head", first=0, last=0, quant=quant))
    return tuple(result)


def _patterns(value: Any, path: str, faults: Faults) -> tuple[str, ...]:
    """Return a list of module patterns as written; absent or null is an empty one."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        faults.add(path, shown(value), "a list of module names")
        return ()
    long = [item for item in value if len(item) > LONGEST_PATTERN]
    if long:
        faults.add(path, shown(long[0]), f"module names of at most {LONGEST_PATTERN} characters")
        return ()
    return tuple(value)


def _excluded(value: Any, path: str, geometry: Geometry, faults: Faults) -> Exclusions:
    patterns = _patterns(value, path, faults)
    excluded = Exclusions(patterns)
    layers = geometry.layers + geometry.draft_layers
    checks = sum(geometry.experts for layer in range(layers) if excluded.tell_experts_apart(layer))
    most = max(map(len, excluded.wild.values()), default=0)
    crowded = f"at most {MOST_WILDCARDS} wildcards for one layer or for none"
    faults.require(most <= MOST_WILDCARDS, path, most, crowded)
    checks *= max(most, 1)
    apart = f"fewer wildcards that may tell experts apart: at most {MOST_EXPERT_CHECKS:,} trials"
    faults.require(checks <= MOST_EXPERT_CHECKS, path, checks, apart)
    return excluded


def _block_fp8(table: dict[str, Any], at: str, geometry: Geometry, faults: Faults) -> Quantization:
    block = table.get("weight_block_size")
    if block is None:
        reason = "FP8 with one scale a tensor: its checkpoints' layout has not been read"
        raise NotModelled("fp8 without weight_block_size", geometry.name, reason)
    sides = block if isinstance(block, list) and len(block) == 2 else [0]  # noqa: PLR2004 - rows and columns
    if not all(type(side) is int and 1 <= side <= 1 << 20 for side in sides):
        faults.add(f"{at}.weight_block_size", shown(block), "two positive integers, rows and columns")
    key = "modules_to_not_convert" if table.get("modules_to_not_convert") is not None else "ignored_layers"
    excluded = _excluded(table.get(key), f"{at}.{key}", geometry, faults)
    faults.stop_if_any()
    rows, columns = sides
    name = f"fp8-block{rows}" if rows == columns else f"fp8-block{rows}x{columns}"
    # The scale is stored as fp32 also where `scale_fmt` says ue8m0: deepseek-ai/DeepSeek-V3.2-Exp inference/model.py.
    quant = Quant(name=name, bits=8, scale_bytes=4, block_rows=rows, block_columns=columns, scale_tensors=1)
    return Quantization("fp8", spans(geometry, quant, excluded, head=False), None)


def _modelopt(table: dict[str, Any], at: str, geometry: Geometry, faults: Faults) -> Quantization:
    algorithm = table.get("quant_algo")
    if algorithm != "NVFP4":
        reason = "of ModelOpt's formats only NVFP4 has been read"
        raise NotModelled(f"ModelOpt quant_algo {shown(algorithm)!r}", geometry.name, reason)
    group = _group_size(table, at, geometry, faults)
    key = next((key for key in ("ignore", "exclude_modules") if table.get(key) is not None), "ignore")
    excluded = _excluded(table.get(key), f"{at}.{key}", geometry, faults)
    faults.stop_if_any()
    # Each matrix has e4m3 block scales, one fp32 weight_scale_2 and one fp32 input_scale.
    quant = Quant(name="nvfp4", bits=4, scale_bytes=1, block_columns=group, fixed_bytes=8, scale_tensors=3)
    return Quantization("modelopt", spans(geometry, quant, excluded, head=True), _kv_quant(table, geometry.name))


def _group_size(table: dict[str, Any], at: str, geometry: Geometry, faults: Faults) -> int:
    """Return the elements that share one block scale, from `group_size` or the one group of `config_groups`."""
    groups = table.get("config_groups")
    stated, path = table.get("group_size", 16), f"{at}.group_size"
    if isinstance(groups, dict) and groups:
        if len(groups) > 1:
            raise NotModelled("ModelOpt with several config_groups", geometry.name, "mixed formats have not been read")
        weights = next(iter(groups.values()))
        weights = weights.get("weights") if isinstance(weights, dict) else None
        path = f"{at}.config_groups"
        if not isinstance(weights, dict) or (weights.get("num_bits"), weights.get("type")) != (4, "float"):
            faults.add(path, shown(weights), "weights of 4-bit floats, as quant_algo NVFP4 says")
            return 16
        stated = weights.get("group_size", stated)
    elif groups is not None and not isinstance(groups, dict):
        faults.add(f"{at}.config_groups", shown(groups), "an object")
    if type(stated) is not int or not 1 <= stated <= 1 << 20:
        faults.add(path, shown(stated), "a positive group_size")
        return 16
    return stated


def _kv_quant(table: dict[str, Any], name: str) -> str | None:
    """Return the KV format that the checkpoint names, or None."""
    algorithm, scheme = table.get("kv_cache_quant_algo"), table.get("kv_cache_scheme")
    if algorithm is None and isinstance(scheme, dict):
        algorithm = "FP8" if (scheme.get("num_bits"), scheme.get("type")) == (8, "float") else scheme.get("num_bits")
    if algorithm is None:
        return None
    if algorithm != "FP8":
        raise NotModelled(f"KV cache quantisation {shown(algorithm)!r}", name, "only an FP8 KV cache has been read")
    return "fp8"


def quantization(inside: Any, beside: dict[str, Any] | None, geometry: Geometry, faults: Faults) -> Quantization:
    """Return the formats from `quantization_config`, or, where that is absent, from hf_quant_config.json beside it.

    Faults are noted; NotModelled is raised for a format whose bytes are not known.
    """
    at = "model.quantization_config"
    if inside is None and beside is not None:
        at, inside = "model.hf_quant_config.quantization", beside.get("quantization") or {}
    if inside is None:
        return UNQUANTISED
    if not isinstance(inside, dict):
        faults.add(at, shown(inside), "an object")
        faults.stop_if_any()
    method = inside.get("quant_method") or ("modelopt" if "quant_algo" in inside else None)
    if method is None:
        faults.add(f"{at}.quant_method", "missing", "a method such as fp8 or modelopt")
        faults.stop_if_any()
    if method == "fp8":
        return _block_fp8(inside, at, geometry, faults)
    if method in ("modelopt", "modelopt_fp4"):
        return _modelopt(inside, at, geometry, faults)
    reason = "only block FP8 and ModelOpt NVFP4 have been read"
    raise NotModelled(f"quantisation {shown(method)!r}", geometry.name, reason)
