"""Writes start-up logs as the engines print them, from the engines' own format strings; the parser is not asked.

SGLang: release packages 0.5.9 to 0.5.23, srt/model_executor/model_runner.py ("Load weight begin", "Load weight end"),
srt/mem_cache/memory_pool.py ("KV Cache is allocated"), srt/model_executor/model_runner_kv_cache_mixin.py and, later,
srt/mem_cache/kv_cache_configurator.py ("Memory pool end"), srt/managers/scheduler.py (summary, prefix of ranks).
vLLM: release packages 0.19.0 to 0.33.0, v1/worker/gpu_model_runner.py ("Model loading took"), v1/worker/gpu_worker.py
("Available KV cache memory"), v1/core/kv_cache_utils.py (size and concurrency), vllm/logger.py (prefix).
TensorRT-LLM: github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/_util.py, resource_manager.py,
_torch/attention_backend/sparse/dsa/cache_manager.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GIB = 1 << 30
PAGE = 64
LAYERS = {"V3.2": (61, 61), "GLM-5": (78, 78), "GLM-5.2": (78, 21)}
MODELS = {"V3.2": "deepseek-ai/DeepSeek-V3.2", "GLM-5": "zai-org/GLM-5-FP8", "GLM-5.2": "zai-org/GLM-5.2-FP8"}


class Truth(NamedTuple):
    """What a server holds: the figures that an audit of its log has to give back."""

    engine: str
    version: tuple[int, ...]
    family: str
    record: int
    owners: int
    draft: int
    tokens: int
    dp: int = 1
    tp: int = 1
    context: int = 202752
    dcp: int = 1

    @property
    def layers(self) -> int:
        return LAYERS[self.family][0]


def sglang_log(truth: Truth, free_gib: float = 80.0) -> str:
    """Return the start-up lines of all ranks, in the order in which they come."""
    new = truth.version >= (0, 5, 14)
    target = (truth.tokens + PAGE) * (truth.record * truth.layers + 132 * truth.owners) / GIB
    draft = (truth.tokens + PAGE) * truth.draft * (truth.record + 132) / GIB
    dtype = "torch.bfloat16" if truth.record == 1152 else "torch.float8_e4m3fn"
    typed = f"dtype: {dtype}, " if new else ""
    args = (
        f"[2026-09-01 10:00:00] server_args=ServerArgs(model_path='{MODELS[truth.family]}', tokenizer_path='x', "
        f"skip_tokenizer_init=False, kv_cache_dtype='auto', tp_size={truth.tp}, dp_size={truth.dp}, "
        "max_total_tokens=None, "
        f"enable_dp_attention={truth.dp > 1})"
    )
    lines = [args]
    for dp in range(truth.dp):
        for tp in range(truth.tp):
            tag = (f" DP{dp}" if truth.dp > 1 else "") + (f" TP{tp}" if truth.tp > 1 else "")
            if truth.dp > 1 and tp % truth.dp != dp:
                continue
            at = f"[2026-09-01 10:00:01{tag}] "
            quant = "dtype=torch.bfloat16, " if truth.version < (0, 5, 10) else "quant=fp8, "
            load = [f"{at}Load weight begin. avail mem={free_gib + 90:.2f} GB"]
            load.append(
                f"{at}Load weight end. elapsed=61.02 s, type=GlmMoeDsaForCausalLM, {quant}avail mem={free_gib:.2f} GB, "
                "mem usage=90.00 GB."
            )
            loaded = [f"{at}Load weight begin. avail mem={free_gib:.2f} GB"]
            loaded.append(
                f"{at}Load weight end. elapsed=2.10 s, type=GlmMoeDsaForCausalLMNextN, {quant}"
                f"avail mem={free_gib - 1:.2f} GB, "
                "mem usage=1.00 GB."
            )
            pool = [f"{at}KV Cache is allocated. {typed}#tokens: {truth.tokens}, KV size: {target:.2f} GB"]
            pool.append(f"{at}Memory pool end. avail mem={free_gib / 2:.2f} GB")
            pools = [f"{at}KV Cache is allocated. {typed}#tokens: {truth.tokens}, KV size: {draft:.2f} GB"]
            pools.append(f"{at}Memory pool end. avail mem={free_gib / 2 - 1:.2f} GB")
            if not truth.draft:
                lines += load + pool
            else:
                lines += load + loaded + pool + pools if new else load + pool + loaded + pools
    lines.append(
        f"[2026-09-01 10:00:09] max_total_num_tokens={truth.tokens}, chunked_prefill_size=8192, "
        f"max_prefill_tokens=16384, max_running_requests=2048, context_len={truth.context}, available_gpu_mem=9.87 GB"
    )
    lines.append(
        "[2026-09-01 10:00:12] Decode batch, #running-req: 1, #token: 4096, token usage: 0.01, cuda graph: True"
    )
    return "\n".join(lines) + "\n"


def vllm_log(truth: Truth, slack_bytes: int = 0) -> str:
    """Return the start-up lines; `tokens` counts the blocks' tokens, `slack_bytes` is what is left below one block."""
    cell = truth.record * (truth.layers + truth.draft) + 132 * (truth.owners + truth.draft)
    blocks = truth.tokens // (PAGE * truth.dcp)
    available = blocks * PAGE * cell + min(slack_bytes, PAGE * cell - 1)
    needed = math.ceil(math.ceil(truth.context / truth.dcp) / PAGE)
    size = int(blocks / needed * truth.context) if truth.version >= (0, 20, 2) else blocks * PAGE * truth.dcp
    core, worker = "(EngineCore pid=501)", "(Worker_TP0 pid=601)"
    version = ".".join(map(str, truth.version))
    lines = [
        f"(APIServer pid=400) INFO 09-01 10:00:00 [utils.py:100] vLLM API server version {version}",
        f"{worker} INFO 09-01 10:01:00 [runner.py:1] Model loading took 90.1 GiB memory and 61.020304 seconds",
        f"{worker} INFO 09-01 10:02:00 [gpu_worker.py:773] Available KV cache memory: {round(available / GIB, 2)} GiB",
    ]
    concurrency = f"Maximum concurrency for {truth.context:,} tokens per request: {blocks / needed:.2f}x"
    if truth.version >= (0, 28, 0):
        lines.append(
            f"{core} INFO 09-01 10:02:01 [kv_cache_utils.py:1147] GPU KV cache size: {size:,} tokens, {concurrency}"
        )
    else:
        lines.append(f"{core} INFO 09-01 10:02:01 [kv_cache_utils.py:1711] GPU KV cache size: {size:,} tokens")
        lines.append(f"{core} INFO 09-01 10:02:01 [kv_cache_utils.py:1716] {concurrency}")
    lines.append(f"{core} INFO 09-01 10:03:01 [loggers.py:12] Engine 000: Running: 1 reqs, GPU KV cache usage: 3.1%")
    return "\n".join(lines) + "\n"


def trtllm_log(truth: Truth) -> str:
    """Return the start-up lines of one rank."""
    cell = truth.record * (truth.layers + truth.draft) + 132 * (truth.owners + truth.draft)
    pool = truth.tokens * cell / GIB
    at = "[09/01/2026-10:00:00] [TRT-LLM] [I] "
    peak = (
        f"{at}Peak memory during memory usage profiling (torch + non-torch): 99.00 GiB, available KV cache memory when "
        f"calculating max tokens: {pool:.2f} GiB, fraction is set 0.9, kv size per token is {cell}. "
        "device total memory 139.80 GiB, temporary kv cache memory during profiling 0.61 GiB"
    )
    blocks = (
        f"{at}Max KV cache blocks per sequence: 3168 [window size=202752], tokens per block=64, "
        f"primary blocks={truth.tokens // 64}, max sequence length={truth.context}"
    )
    owning = (
        f"{at}[DSACacheManager] Indexer k-cache: {truth.owners} of {truth.layers} local layers own an indexer k-cache."
    )
    lines = [
        f"{at}TensorRT-LLM version: {'.'.join(map(str, truth.version[:3]))}rc{truth.version[3]}",
        f"{at}Memory used after loading model weights (inside torch) in memory usage profiling: 90.00 GiB",
        f"{at}[MemUsageChange] Allocated 0.61 GiB for max tokens in paged KV cache (8256).",
        peak,
        f"{at}Number of tokens per block: 64",
        f"{at}[MemUsageChange] Allocated {pool:.2f} GiB for max tokens in paged KV cache ({truth.tokens}).",
        blocks,
    ]
    return "\n".join([*lines, *([owning] if truth.owners < truth.layers else [])]) + "\n"
