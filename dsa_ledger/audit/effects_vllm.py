"""vLLM's flags and the fields they set. Source: vllm release packages, engine/arg_utils.py, config/."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit import effects
from dsa_ledger.audit.effects import Effect, share, vllm_count, whole
from dsa_ledger.audit.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.audit.effects import LastGiven
    from dsa_ledger.audit.reading import Reading
    from dsa_ledger.audit.shell import Word

EFFECTS = {
    "--tensor-parallel-size": Effect("sharding.tp", whole),
    "--pipeline-parallel-size": Effect("sharding.pp", whole),
    "--data-parallel-size": Effect("sharding.dp_attention", whole),
    "--decode-context-parallel-size": Effect("sharding.dcp", whole),
    "--prefill-context-parallel-size": Effect("sharding.cp", whole),
    "--gpu-memory-utilization": Effect("limits.mem_fraction", share),
    "--kv-cache-memory-bytes": Effect("observed.kv_bytes", vllm_count),
    "--kv-cache-dtype": Effect("kv_dtype", str),
    "--max-model-len": Effect("limits.context_length", vllm_count),
    "--max-num-batched-tokens": Effect("limits.chunked_prefill", vllm_count),
    "--max-num-seqs": Effect("limits.max_running_requests", vllm_count),
}
UNSUPPORTED = {
    "--config": "the file is not opened: give its settings as options",
    "--num-gpu-blocks-override": "blocks set by hand are not worked out: give their bytes with --kv-bytes",
    "--kv-cache-dtype-skip-layers": "layers with another record are not worked out",
    "--cpu-offload-gb": "offloaded weights are not worked out: the weights of a rank are shown whole",
    "--attention-config": "its memory settings are not worked out",
    "--attention-backend": "the record follows --kv-cache-dtype and the GPU",
    "--quantization": "taken for the checkpoint's own format; weights quantised while loading are not worked out",
    "--enable-eplb": "redundant experts are not worked out",
    "--eplb-config": "redundant experts are not worked out",
    "--kv-transfer-config": "connectors change where blocks go, not what they hold; a block-outer layout pads a block",
    "--kv-offloading-size": "the host tier of vLLM is not worked out",
    "--performance-mode": "throughput doubles max_num_batched_tokens and max_num_seqs: give both as options",
    "--all2all-backend": "what it changes in batch limits and buffers is not worked out",
}
# Variables that change a figure (vllm/envs.py), with the default that is shown instead.
VARIABLES = {
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "512 MiB",
    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "394 MiB",
    "VLLM_REPLICATE_EMBED": "an embedding table cut over tp",
}
_OVERRIDES = "--hf-overrides"
_BLOCK_TOKENS = 64
_MTP = ("mtp", "deepseek_mtp", "glm4_moe_mtp", "glm_moe_dsa_mtp")


def take(reading: Reading, given: LastGiven, positional: list[Word], environment: Mapping[str, Word]) -> None:
    """Set what a launch of vLLM sets."""
    flags = dict(given.flags)
    if given.text("--max-model-len") in ("-1", "auto"):
        flags.pop("--max-model-len")
        reading.note(
            f"{given.shown('--max-model-len')}: vLLM fits it to the pool; the model's own length is taken here"
        )
    done = effects.apply(reading, effects.LastGiven(flags), EFFECTS) | {"--max-model-len", "--model", _OVERRIDES}
    effects.take_model_word(reading, given, "--model", positional)
    _speculative(reading, given, done)
    if given.on("--enable-expert-parallel"):
        done.add("--enable-expert-parallel")
        sizes = ("--tensor-parallel-size", "--data-parallel-size", "--prefill-context-parallel-size")
        ranks = 1
        for name in sizes:
            ranks *= given.number(name, 1) or 1
        reading.set("sharding.ep", ranks, given.shown("--enable-expert-parallel"))
    if "--block-size" in given.flags:
        done.add("--block-size")
        if given.number("--block-size") != _BLOCK_TOKENS:
            reading.note(f"{given.shown('--block-size')}: worked out with blocks of 64, which kernels cut them into")
    effects.take_overrides(reading, given, _OVERRIDES)
    _dotted_overrides(reading, given, done)
    effects.take_partition(reading, environment, "VLLM_PP_LAYER_PARTITION")
    for name, default in VARIABLES.items():
        if name in environment:
            reading.note(f"{one_line(f'{name}={environment[name].text}', 80)}: the default of {default} is shown")
    effects.list_rest(reading, given, done, UNSUPPORTED)


def _dotted_overrides(reading: Reading, given: LastGiven, done: set[str]) -> None:
    """Set the model keys given one by one, as in `--hf-overrides.index_topk_freq 4`."""
    for name, one in given.flags.items():
        plain, dot, key = name.partition(".")
        if plain != _OVERRIDES or not dot:
            continue
        done.add(name)
        if one.missing or not one.values:
            reading.missing["model_overrides"] = f"{one.shown}: not all of it is in the text"
        else:
            reading.set(f"model_overrides.{one_line(key, 60)}", _json_or_text(one.values[0]), one.shown)


def _speculative(reading: Reading, given: LastGiven, done: set[str]) -> None:
    """Set the draft from a JSON object, its dotted keys or the short flags."""
    table: dict[str, Any] = {}
    used = []
    for name, one in given.flags.items():
        plain, dot, key = name.partition(".")
        if plain != "--speculative-config" and name not in _SHORT:
            continue
        done.add(name)
        used.append(one.shown)
        if one.missing:
            reading.missing["draft.steps"] = f"{one.shown}: not all of it is in the text"
            return
        value = one.values[0] if one.values else ""
        try:
            table |= (
                {key: _json_or_text(value)}
                if dot
                else {_SHORT[name]: value}
                if name in _SHORT
                else effects.json_table(value)
            )
        except ValueError as wrong:
            reading.missing["draft.steps"] = f"{one.shown}: expected {wrong}"
            return
    if not used:
        return
    method, written = str(table.get("method", "mtp")).lower(), one_line(" ".join(used))
    steps = str(table.get("num_speculative_tokens", ""))
    if method not in _MTP and not method.endswith("_mtp"):
        reading.missing["draft.steps"] = f"{written}: only the model's own MTP layers are worked out"
    elif not steps.isdecimal() or len(steps) > 4:  # noqa: PLR2004 - digits
        reading.missing["draft.steps"] = f"{written}: expected num_speculative_tokens"
    else:
        reading.set("draft.steps", int(steps), written)


_SHORT = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text) if len(text) < 4096 else text  # noqa: PLR2004 - no value is longer
    except (ValueError, RecursionError):
        return text
