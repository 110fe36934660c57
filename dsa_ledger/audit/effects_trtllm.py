"""TensorRT-LLM's flags and YAML keys and the fields they set. Source: commands/serve.py, llmapi/llm_args.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.audit import effects
from dsa_ledger.audit.effects import Effect, share, whole
from dsa_ledger.audit.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.audit.effects import LastGiven
    from dsa_ledger.audit.reading import Reading
    from dsa_ledger.audit.shell import Word

EFFECTS = {
    "--tensor_parallel_size": Effect("sharding.tp", whole),
    "--pipeline_parallel_size": Effect("sharding.pp", whole),
    "--moe_expert_parallel_size": Effect("sharding.ep", whole),
    "--context_parallel_size": Effect("sharding.cp", whole),
    "--max_batch_size": Effect("limits.max_running_requests", whole),
    "--max_num_tokens": Effect("limits.chunked_prefill", whole),
    "--max_seq_len": Effect("limits.context_length", whole),
    "--free_gpu_memory_fraction": Effect("limits.mem_fraction", share),
}
KEYS = {
    "tensor_parallel_size": "sharding.tp",
    "pipeline_parallel_size": "sharding.pp",
    "moe_expert_parallel_size": "sharding.ep",
    "context_parallel_size": "sharding.cp",
    "max_batch_size": "limits.max_running_requests",
    "max_num_tokens": "limits.chunked_prefill",
    "max_seq_len": "limits.context_length",
    "kv_cache_free_gpu_memory_fraction": "limits.mem_fraction",
    "kv_cache_config.free_gpu_memory_fraction": "limits.mem_fraction",
    "kv_cache_config.dtype": "kv_dtype",
    "kv_cache_config.max_tokens": "limits.max_total_tokens",
    "kv_cache_config.max_gpu_total_bytes": "observed.kv_bytes",
    "pp_partition": "sharding.pp_partition",
}
UNSUPPORTED = {
    "kv_cache_config.host_cache_size": "the host tier of TensorRT-LLM is not worked out",
    "kv_cache_config.tokens_per_block": "worked out with blocks of 64, which DSA needs",
    "moe_cluster_parallel_size": "not worked out",
    "moe_config": "how experts run is not worked out",
}
_MOST_KEYS = 500


def take(reading: Reading, given: LastGiven, positional: list[Word], environment: Mapping[str, Word]) -> None:  # noqa: ARG001 - one signature per engine
    """Set what a launch of trtllm-serve sets."""
    done = effects.apply(reading, given, EFFECTS)
    effects.take_model_word(reading, given, "MODEL", positional)
    effects.list_rest(reading, given, done | {"--config"}, {})


def take_yaml(reading: Reading, table: Mapping[str, Any]) -> None:
    """Set what the YAML of trtllm-serve sets; it wins over the flags, as in update_llm_args_with_extra_dict."""
    flat = dict(_flat(table, "", 0))
    for key, value in list(flat.items())[:_MOST_KEYS]:
        written = one_line(f"{key}: {value}")
        if isinstance(value, str) and "$" in value and key in KEYS:
            reading.missing[KEYS[key]] = f"{written}: not set in the text"
        elif key in KEYS and value is not None:
            reading.set(KEYS[key], value, written)
        elif key in UNSUPPORTED:
            reading.note(f"{written}: {UNSUPPORTED[key]}")
        elif key not in _TOGETHER and not key.startswith(("speculative_config.", "sparse_attention_config.")):
            reading.ignored.append(written)
    if str(flat.get("enable_attention_dp")).lower() == "true":
        tp = reading.settings.get("sharding.tp")
        reading.set(
            "sharding.dp_attention", tp.value if tp else 1, "enable_attention_dp: true (one replica a rank of tp)"
        )
    _speculative(reading, flat)
    if str(flat.get("sparse_attention_config.indexer_k_dtype", "")).lower() == "fp4":
        reading.add_feature("fp4-index-k", "sparse_attention_config.indexer_k_dtype: fp4")


_TOGETHER = ("enable_attention_dp",)


def _speculative(reading: Reading, flat: Mapping[str, Any]) -> None:
    kind = flat.get("speculative_config.decoding_type")
    if kind is None:
        return
    names = ("num_nextn_predict_layers", "max_draft_len", "num_speculative_tokens")
    counts = [flat[f"speculative_config.{name}"] for name in names if f"speculative_config.{name}" in flat]
    written = one_line(f"speculative_config: {kind} {counts}")
    if str(kind).upper() != "MTP":
        reading.missing["draft.steps"] = f"{written}: only the model's own MTP layers are worked out"
    elif counts:
        reading.set("draft.steps", counts[0], written)
    else:
        reading.missing["draft.steps"] = f"{written}: expected max_draft_len"


def _flat(table: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, Any]]:
    """Return dotted keys and values, tables opened three deep."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict) and depth < 3:  # noqa: PLR2004 - no setting lies deeper
            found.extend(_flat(value, f"{prefix}{key}.", depth + 1))
        else:
            found.append((f"{prefix}{key}", value))
    return found
