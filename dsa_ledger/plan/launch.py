"""The launch command of a scenario, spelled with the flags of its release."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.flagtable import flag_table
from dsa_ledger.engines.releases import resolve
from dsa_ledger.plan.nodes import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.schema import Scenario

# Field of a scenario: the spellings of its flag, the one to prefer first.
SGLANG = (
    ("sharding.tp", ("--tp-size",)),
    ("sharding.pp", ("--pp-size",)),
    ("sharding.ep", ("--ep-size",)),
    ("sharding.dcp", ("--dcp-size",)),
    ("limits.context_length", ("--context-length",)),
    ("limits.mem_fraction", ("--mem-fraction-static",)),
    ("limits.max_total_tokens", ("--max-total-tokens",)),
    ("limits.max_running_requests", ("--max-running-requests",)),
    ("limits.chunked_prefill", ("--chunked-prefill-size",)),
    ("limits.graph_requests", ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
    ("backends.prefill", ("--dsa-prefill-backend", "--nsa-prefill-backend")),
    ("backends.decode", ("--dsa-decode-backend", "--nsa-decode-backend")),
)
SGLANG_FEATURES = {
    "hicache": "--enable-hierarchical-cache",
    "external-linker": "--enable-unified-cache-external-linker",
    "hisparse": "--enable-hisparse",
    "kv-sharding": "--enable-kv-cache-sharding",
    "two-batch-overlap": "--enable-two-batch-overlap",
}
VLLM = (
    ("sharding.tp", ("--tensor-parallel-size",)),
    ("sharding.pp", ("--pipeline-parallel-size",)),
    ("sharding.dp_attention", ("--data-parallel-size",)),
    ("sharding.dcp", ("--decode-context-parallel-size",)),
    ("sharding.cp", ("--prefill-context-parallel-size",)),
    ("limits.context_length", ("--max-model-len",)),
    ("limits.mem_fraction", ("--gpu-memory-utilization",)),
    ("limits.max_running_requests", ("--max-num-seqs",)),
    ("limits.chunked_prefill", ("--max-num-batched-tokens",)),
    ("observed.kv_bytes", ("--kv-cache-memory-bytes",)),
)
TRTLLM = (
    ("sharding.tp", "tensor_parallel_size"),
    ("sharding.pp", "pipeline_parallel_size"),
    ("sharding.ep", "moe_expert_parallel_size"),
    ("sharding.cp", "context_parallel_size"),
    ("limits.context_length", "max_seq_len"),
    ("limits.max_running_requests", "max_batch_size"),
    ("limits.chunked_prefill", "max_num_tokens"),
    ("limits.mem_fraction", "kv_cache_config.free_gpu_memory_fraction"),
    ("limits.max_total_tokens", "kv_cache_config.max_tokens"),
    ("observed.kv_bytes", "kv_cache_config.max_gpu_total_bytes"),
)


def command(scenario: Scenario) -> str:
    """Return a command that starts the scenario's server, one line; what no flag says is not in it.

    Of a server on several nodes it is that of the first; `nodes_of` says what the others run.
    """
    release, _ = resolve(scenario.engine)
    model, nodes = scenario.model_name, nodes_of(scenario)
    if scenario.engine.name == "sglang":
        words = ["sglang", "serve", "--model-path", model, *_sglang(scenario, release.rules)]
    elif scenario.engine.name == "vllm":
        words = ["vllm", "serve", model, *_vllm(scenario)]
    else:
        return _trtllm(scenario, model, " ".join(nodes.front))
    return " ".join(shlex.quote(word) for word in [*_environment(scenario), *words, *nodes.behind])


def unsaid(scenario: Scenario) -> tuple[str, ...]:
    """Return what no flag read here says: a vLLM connector's role, TensorRT-LLM's transceiver, its config.json."""
    said: tuple[str, ...] = (*SGLANG_FEATURES, "deepep", "pd-prefill", "pd-decode")
    if scenario.engine.name != "sglang":
        said = ("fp4-index-k",) if scenario.engine.name == "tensorrt-llm" else ()
    overrides = scenario.model_overrides if scenario.engine.name == "tensorrt-llm" else {}
    return (*(name for name in scenario.features if name not in said), *(f"model.{key}" for key in overrides))


def field(scenario: Scenario, path: str) -> Any:
    """Return the value of a dotted field."""
    value: Any = scenario
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _stated(scenario: Scenario, path: str) -> Any:
    """Return a field's value, or None where it is what it is without a flag."""
    value = field(scenario, path)
    default = {"sharding.tp": 0}.get(path, 1 if path.startswith("sharding.") else None)
    return None if value == default else value


def _environment(scenario: Scenario) -> Iterator[str]:
    cuts = scenario.sharding.pp_partition
    if cuts is not None:
        name = "SGLANG" if scenario.engine.name == "sglang" else "VLLM"
        yield f"{name}_PP_LAYER_PARTITION={','.join(map(str, cuts))}"


def _sglang(scenario: Scenario, version: str) -> Iterator[str]:
    table, cut = flag_table("sglang"), scenario.sharding
    for path, spellings in SGLANG:
        value = _stated(scenario, path)
        if value is not None:
            found = (name for name in spellings if table.find(name, version).flag)
            yield from (next(found, spellings[0]), str(value))
    if scenario.kv_dtype != "auto":
        yield from ("--kv-cache-dtype", scenario.kv_dtype)
    if cut.dp_attention > 1:
        yield from ("--dp-size", str(cut.dp_attention), "--enable-dp-attention")
    if cut.cp > 1:
        yield from ("--attn-cp-size", str(cut.cp))
    if cut.layer_split:
        yield "--enable-dsa-cache-layer-split"
    yield from _sglang_draft(scenario)
    yield from _sglang_features(scenario)
    if scenario.model_overrides:
        yield from ("--json-model-override-args", json.dumps(scenario.model_overrides))


def _sglang_draft(scenario: Scenario) -> Iterator[str]:
    steps = scenario.draft.steps
    if steps:
        yield from ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(steps))
        yield from ("--speculative-eagle-topk", str(scenario.draft.topk))
        yield from ("--speculative-num-draft-tokens", str(steps + 1))


def _sglang_features(scenario: Scenario) -> Iterator[str]:
    for feature in scenario.features:
        if feature in SGLANG_FEATURES:
            yield SGLANG_FEATURES[feature]
        elif feature == "deepep":
            yield from ("--moe-a2a-backend", "deepep")
        elif feature.startswith("pd-"):
            yield from ("--disaggregation-mode", feature.removeprefix("pd-"))
    if scenario.has("hicache"):
        size = scenario.hicache.size_gb
        yield from ("--hicache-size", f"{size:g}") if size else ("--hicache-ratio", f"{scenario.hicache.ratio:g}")
    if scenario.has("hisparse"):
        ratio: dict[str, Any] = {"host_to_device_ratio": scenario.hisparse.ratio}
        if scenario.hisparse.device_buffer:
            ratio["device_buffer_size"] = scenario.hisparse.device_buffer
        yield from ("--hisparse-config", json.dumps(ratio))


def _vllm(scenario: Scenario) -> Iterator[str]:
    for path, spellings in VLLM:
        value = _stated(scenario, path)
        if value is not None:
            yield from (spellings[0], str(value))
    if scenario.kv_dtype != "auto":
        yield from ("--kv-cache-dtype", scenario.kv_dtype)
    if scenario.sharding.ep > 1:
        yield "--enable-expert-parallel"
    if scenario.draft.steps:
        steps = scenario.draft.steps
        yield from ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": steps}))
    if scenario.model_overrides:
        yield from ("--hf-overrides", json.dumps(scenario.model_overrides))


def _trtllm(scenario: Scenario, model: str, launcher: str) -> str:
    """Return the settings as YAML in a here-document: most of them have no flag."""
    lines: list[str] = []
    nested: dict[str, list[str]] = {}
    for path, key in TRTLLM:
        value = _stated(scenario, path)
        if value is not None:
            table, dot, last = key.partition(".")
            (nested.setdefault(table, []) if dot else lines).append(f"  {last}: {value}" if dot else f"{key}: {value}")
    if scenario.kv_dtype != "auto":
        nested.setdefault("kv_cache_config", []).append(f"  dtype: {scenario.kv_dtype}")
    if scenario.sharding.dp_attention > 1:
        lines.append("enable_attention_dp: true")
    if scenario.sharding.pp_partition:
        lines.append(f"pp_partition: {json.dumps(list(scenario.sharding.pp_partition))}")
    if scenario.has("fp4-index-k"):
        nested["sparse_attention_config"] = ["  algorithm: dsa", "  indexer_k_dtype: fp4"]
    if scenario.draft.steps:
        nested["speculative_config"] = ["  decoding_type: MTP", f"  max_draft_len: {scenario.draft.steps}"]
    for table, below in nested.items():
        lines += [f"{table}:", *below]
    body, start = "\n".join(lines), f"{launcher} " if launcher else ""
    return f"cat > dsa.yaml <<'END'\n{body}\nEND\n{start}trtllm-serve {shlex.quote(model)} --config dsa.yaml"
