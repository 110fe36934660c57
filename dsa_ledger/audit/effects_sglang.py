"""SGLang's flags and the fields they set. Source: sglang release packages, srt/server_args.py, srt/arg_groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsa_ledger.audit import effects
from dsa_ledger.audit.effects import Effect, sglang_count, share, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.audit.effects import LastGiven
    from dsa_ledger.audit.reading import Reading
    from dsa_ledger.audit.shell import Word

EFFECTS = {
    "--context-length": Effect("limits.context_length", sglang_count),
    "--kv-cache-dtype": Effect("kv_dtype", str),
    "--mem-fraction-static": Effect("limits.mem_fraction", share),
    "--max-total-tokens": Effect("limits.max_total_tokens", sglang_count),
    "--max-running-requests": Effect("limits.max_running_requests", sglang_count),
    "--tp-size": Effect("sharding.tp", whole),
    "--pp-size": Effect("sharding.pp", whole),
    "--ep-size": Effect("sharding.ep", whole),
    "--dcp-size": Effect("sharding.dcp", whole),
    "--dsa-prefill-backend": Effect("backends.prefill", str),
    "--nsa-prefill-backend": Effect("backends.prefill", str),
    "--dsa-decode-backend": Effect("backends.decode", str),
    "--nsa-decode-backend": Effect("backends.decode", str),
    "--cuda-graph-max-bs": Effect("limits.graph_requests", whole),
    "--cuda-graph-max-bs-decode": Effect("limits.graph_requests", whole),
}
FEATURES = {
    "--enable-hierarchical-cache": "hicache",
    "--enable-unified-cache-external-linker": "external-linker",
    "--enable-hisparse": "hisparse",
    "--enable-kv-cache-sharding": "kv-sharding",
    "--enable-deepep-moe": "deepep",
    "--enable-two-batch-overlap": "two-batch-overlap",
}
UNSUPPORTED = {
    "--config": "the file is not opened: give its settings as options",
    "--cpu-offload-gb": "offloaded weights are not worked out: the weights of a rank are shown whole",
    "--ep-num-redundant-experts": "redundant experts are not worked out: add their bytes to the weights of a rank",
    "--disable-shared-experts-fusion": "counted as the plain layout",
    "--moe-dense-tp-size": "dense layers are counted over tp",
    "--disable-cuda-graph": "nothing is captured then: workspace.decode_logits_bytes is not held",
    "--quantization": "taken for the checkpoint's own format; weights quantised while loading are not worked out",
    "--speculative-draft-model-path": "a separate draft model is not worked out; MTP layers of the checkpoint are",
    "--startup-weight-load-mode": "the order of loading is that of the default",
    "--hicache-storage-backend": "storage behind the host tier is not worked out",
    "--enable-dp-lm-head": "lm_head is counted over tp",
}
_QUIET = (
    "--model-path", "--dp-size", "--attn-dp-size", "--enable-dp-attention", "--chunked-prefill-size",
    "--max-prefill-tokens", "--attn-cp-size", "--enable-prefill-cp", "--cp-strategy",
    "--enable-nsa-prefill-context-parallel", "--enable-prefill-context-parallel",
    "--enable-dsa-prefill-context-parallel", "--enable-dsa-cache-layer-split", "--speculative-algorithm",
    "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--hicache-ratio",
    "--hicache-size", "--hisparse-config", "--disaggregation-mode", "--cuda-graph-bs", "--cuda-graph-bs-decode",
    "--moe-a2a-backend", "--json-model-override-args", "--page-size", *FEATURES,
)  # fmt: skip
_MTP = ("EAGLE", "NEXTN")
_AUTO_STEPS = 3  # speculative_hook.py: steps, top-k and draft tokens are 3, 1 and 4 where none is given
_PREFILL_TOKENS = 16384


def take(reading: Reading, given: LastGiven, positional: list[Word], environment: Mapping[str, Word]) -> None:
    """Set what a launch of SGLang sets."""
    done = effects.apply(reading, given, EFFECTS) | set(_QUIET)
    effects.take_model_word(reading, given, "--model-path", positional)
    for flag, feature in FEATURES.items():
        if given.on(flag):
            reading.add_feature(feature, flag)
    _attention(reading, given)
    _speculative(reading, given)
    _chunk(reading, given)
    _caches(reading, given)
    for name in ("--cuda-graph-bs", "--cuda-graph-bs-decode"):
        sizes = given.flags[name].values if name in given.flags else ()
        if sizes and all(re.fullmatch(r"\d{1,8}", size) for size in sizes):
            reading.set("limits.graph_requests", max(map(int, sizes)), given.shown(name))
    _experts(reading, given)
    if "--page-size" in given.flags:
        reading.note(f"{given.shown('--page-size')}: SGLang overwrites it with 64 for DSA models on CUDA")
    effects.take_overrides(reading, given, "--json-model-override-args")
    effects.take_partition(reading, environment, "SGLANG_PP_LAYER_PARTITION")
    effects.list_rest(reading, given, done, UNSUPPORTED)


def _attention(reading: Reading, given: LastGiven) -> None:
    """Set attention DP and context parallelism, which SGLang cuts out of tp."""
    size = given.number("--dp-size", 1)
    dp = given.number("--attn-dp-size")
    written = given.shown("--attn-dp-size")
    if dp is None and given.on("--enable-dp-attention"):
        dp, written = size, given.shown("--dp-size", "--enable-dp-attention")
    elif (size or 1) > 1:
        reading.note(f"{given.shown('--dp-size')} without DP attention: so many servers apart, the ledger is of one")
    _unset(reading, given, "sharding.dp_attention", ("--dp-size", "--attn-dp-size"))
    if dp:
        reading.set("sharding.dp_attention", dp, written)
    family = ("prefill-cp", "prefill-context-parallel", "nsa-prefill-context-parallel", "dsa-prefill-context-parallel")
    switches = [f"--enable-{name}" for name in family]
    used = [name for name in switches if given.on(name)]
    explicit = given.number("--attn-cp-size")
    tp = given.number("--tp-size")
    if explicit and (not used or given.text("--cp-strategy") == "interleave"):
        reading.set("sharding.cp", explicit, given.shown("--attn-cp-size"))
    elif used and tp:
        reading.set("sharding.cp", max(tp // (dp or 1), 1), f"{given.shown(*used)} (tp / attention DP)")
    if given.on("--enable-dsa-cache-layer-split"):
        reading.set("sharding.layer_split", True, given.shown("--enable-dsa-cache-layer-split"))  # noqa: FBT003 - a value


def _experts(reading: Reading, given: LastGiven) -> None:
    """Set expert parallelism where an all-to-all backend makes it tp, whatever the flag says (moe_hook.py)."""
    backend = given.text("--moe-a2a-backend") or ("deepep" if given.on("--enable-deepep-moe") else "none")
    if backend == "none":
        return
    written = given.shown("--moe-a2a-backend", "--enable-deepep-moe")
    if backend == "deepep":
        reading.add_feature("deepep", written)
    tp = given.number("--tp-size", 1)
    reading.missing.pop("sharding.ep", None)
    reading.set("sharding.ep", tp, f"{written} (ep = tp)")


def _unset(reading: Reading, given: LastGiven, path: str, names: tuple[str, ...]) -> None:
    for name in names:
        if name in given.flags and given.flags[name].missing:
            reading.missing[path] = f"{given.shown(name)}: not set in the text"


def _speculative(reading: Reading, given: LastGiven) -> None:
    """Set the draft where the model's own MTP layers make it."""
    algorithm = given.text("--speculative-algorithm")
    if algorithm is None:
        return
    names = ("--speculative-algorithm", "--speculative-num-steps", "--speculative-num-draft-tokens")
    if algorithm.upper() not in _MTP:
        reading.missing["draft.steps"] = f"{given.shown(*names[:1])}: only the model's own MTP layers are worked out"
        return
    _unset(reading, given, "draft.steps", names[1:2])
    topk = given.number("--speculative-eagle-topk", 1)
    tokens = given.number("--speculative-num-draft-tokens")
    steps = given.number("--speculative-num-steps")
    if steps is None:
        steps = tokens - 1 if tokens else _AUTO_STEPS
        reading.note(f"{algorithm} without --speculative-num-steps: {steps} steps are taken")
    reading.set("draft.steps", steps, given.shown(*names))
    if topk != 1:
        reading.set("draft.topk", topk, given.shown("--speculative-eagle-topk"))
    elif tokens and tokens != steps + 1:
        reading.note(f"with top-k 1 SGLang sets draft tokens to steps + 1 = {steps + 1}, whatever {tokens} says")


def _chunk(reading: Reading, given: LastGiven) -> None:
    name = "--chunked-prefill-size"
    if name not in given.flags:
        return
    text = given.text(name)
    path = "limits.chunked_prefill"
    if text is None:
        reading.missing[path] = f"{given.shown(name)}: not set in the text"
    elif text == "-1":
        try:
            most = sglang_count(given.text("--max-prefill-tokens") or str(_PREFILL_TOKENS))
        except ValueError:
            most = _PREFILL_TOKENS
        reading.set(path, most, f"{given.shown(name)} (off: --max-prefill-tokens bounds a forward)")
    else:
        try:
            reading.set(path, sglang_count(text), given.shown(name))
        except ValueError as wrong:
            reading.missing[path] = f"{given.shown(name)}: expected {wrong}"


def _caches(reading: Reading, given: LastGiven) -> None:
    """Set host tier, HiSparse and the role under disaggregation."""
    extra = {
        "--hicache-ratio": Effect("hicache.ratio", float),
        "--hicache-size": Effect("hicache.size_gb", float),
    }
    if given.on("--enable-hierarchical-cache"):
        wanted = {name: one for name, one in given.flags.items() if name in extra and one.values != ("0",)}
        effects.apply(reading, effects.LastGiven(wanted), extra)
    role = given.text("--disaggregation-mode")
    if role in ("prefill", "decode"):
        reading.add_feature(f"pd-{role}", given.shown("--disaggregation-mode"))
    text = given.text("--hisparse-config")
    if text is None:
        return
    try:
        table = effects.json_table(text)
    except ValueError as wrong:
        reading.missing["hisparse.ratio"] = f"{given.shown('--hisparse-config')}: expected {wrong}"
        return
    for key, path in (("host_to_device_ratio", "hisparse.ratio"), ("device_buffer_size", "hisparse.device_buffer")):
        if key in table:
            reading.set(path, table[key], f"--hisparse-config {key}")
