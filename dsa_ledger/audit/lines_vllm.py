"""vLLM's start-up lines. Source: the vllm release packages, v1/worker, v1/core/kv_cache_utils.py; GiB is GiB."""

from __future__ import annotations

import re

from dsa_ledger.audit.figures import Rank, Take, pattern

_PROCESS = re.compile(r"\((?:EngineCore|Worker|APIServer|VllmWorker)[\w-]{0,60}(?: (?:pid|rank)=[\d, a-z=]{1,40})?\)")
_RANK = re.compile(r"(?:^|[_ (])(DCP|DP|PP|TP)(\d{1,4})")
_G = r"(-?\d{1,7}(?:\.\d{1,6})?)"


GIB = "gib"
PATTERNS = (
    pattern(
        "version",
        r"(?:API server version|LLM engine \(v|[█▀▄]\s{1,20}version) ?v?(\d{1,3}\.\d{1,3}\.\d{1,3}[\w.+-]{0,60})",
        Take("", "text"),
    ),
    pattern("load_end", rf"(?:Model loading|Loading model weights) took {_G} Gi?B", Take("used_bytes", GIB)),
    pattern("kv_memory", rf"Available KV cache memory: {_G} GiB", Take("bytes", GIB)),
    pattern(
        "size",
        r"(GPU|[A-Z]{2,8}(?: \+ host)?) KV cache size: ([\d,]{1,20}) tokens(?:, Maximum concurrency for "
        r"([\d,]{1,20}) tokens per request: (\d{1,9}\.\d{1,4})x)?",
        Take("pool", "text"),
        Take("tokens"),
        Take("context"),
        Take("concurrency", "share"),
    ),
    pattern(
        "concurrency",
        r"(?<!tokens, )Maximum concurrency for ([\d,]{1,20}) tokens per request: (\d{1,9}\.\d{1,4})x",
        Take("context"),
        Take("times", "share"),
    ),
    pattern("cp_world", r"Multiplying the GPU KV cache size by the cp_world_size (\d{1,4})", Take("size")),
    pattern("layout", r"Using (\w{1,20}) KV cache layout\.", Take("word", "text")),
    pattern("block", r"Setting kv cache block size to (\d{1,5}) for", Take("tokens")),
    pattern("ds_mla", r"Using (?:DeepSeek's )?(fp8_ds_mla|nvfp4_ds_mla) KV cache format", Take("word", "text")),
    pattern("standard_fp8", r"Using (standard fp8) KV cache format", Take("word", "text")),
    pattern(
        "backend",
        r"Using (?:AttentionBackendEnum\.)?(\w{1,60}) (?:attention backend out of|backend\.)",
        Take("word", "text"),
    ),
    pattern("glm_fp8", r"Using (fp8) kv-cache for GlmMoeDsaForCausalLM on SM10x", Take("word", "text")),
    pattern("graphs", rf"Graph capturing finished in \d{{1,7}} secs?, took {_G} GiB", Take("used_bytes", GIB)),
    pattern(
        "graph_pool",
        rf"CUDA graph pool memory: {_G} GiB \(actual\), {_G} GiB \(estimated\)",
        Take("used_bytes", GIB),
        Take("estimated_bytes", GIB),
    ),
    pattern(
        "v0_memory",
        rf"model weights take {_G}GiB; .{{0,200}}?reserved for KV Cache is {_G}GiB",
        Take("weights_bytes", GIB),
        Take("bytes", GIB),
    ),
    pattern("v0_blocks", r"# GPU blocks: (\d{1,12})", Take("blocks")),
    pattern(
        "v0_refused",
        r"max seq len \((\d{1,12})\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((\d{1,12})\)",
        Take("context"),
        Take("tokens"),
    ),
    pattern("graph_estimate", rf"Estimated CUDA graph memory: {_G} GiB total", Take("bytes", GIB)),
    pattern(
        "summary",
        rf"Free memory on device\s?\S{{0,20}}\s?\({_G}/{_G} GiB\) on startup\. "
        rf"Desired GPU memory utilization is \((\d?\.\d{{1,6}}), {_G} GiB\)"
        rf"(?:\. Actual usage is {_G} GiB for (?:consumed memory|weight).{{0,80}}?{_G} GiB for peak activation)?",
        Take("free_bytes", GIB),
        Take("total_bytes", GIB),
        Take("fraction", "share"),
        Take("allowed_bytes", GIB),
        Take("used_bytes", GIB),
        Take("peak_bytes", GIB),
    ),
    pattern("no_blocks", r"(No available memory for the cache blocks)", Take("words", "text")),
    pattern(
        "no_free",
        rf"Free memory on device\s?\S{{0,20}}\s?\({_G}/{_G} GiB\) on startup\s{{1,40}}is less than desired GPU memory "
        rf"utilization \((\d?\.\d{{1,6}}), {_G} GiB\)",
        Take("free_bytes", GIB),
        Take("total_bytes", GIB),
        Take("fraction", "share"),
        Take("wanted_bytes", GIB),
    ),
    pattern("in_use", rf"Current kv cache memory in use is {_G} GiB", Take("bytes", GIB)),
    pattern(
        "override",
        r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})",
        Take("fitting"),
        Take("blocks"),
    ),
    pattern(
        "fitted", r"Auto-fit max_model_len: reduced from ([\d,]{1,15}) to ([\d,]{1,15})", Take("asked"), Take("context")
    ),
    pattern(
        "refused",
        rf"max seq len \(([\d,]{{1,15}})\), (?:\(?{_G} GiB KV\s{{0,40}})cache is needed"
        rf".{{0,120}}?available KV cache\s{{0,40}}memory \({_G} GiB\)"
        r"(?:.{0,120}?estimated maximum model length is ([\d,]{1,15}))?",
        Take("context"),
        Take("needed_bytes", GIB),
        Take("bytes", GIB),
        Take("longest"),
    ),
)
# Lines with which a start ends for want of memory.
STOPS = ("no_blocks", "no_free", "refused", "v0_refused")
ARGUMENTS = re.compile(r"non-default args: |LLM engine \(v|Initializing an? (?:V1 )?LLM engine")
FIELDS = {
    "model": "--model",
    "model_tag": "--model",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "prefill_context_parallel_size": "--prefill-context-parallel-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "max_model_len": "--max-model-len",
    "max_seq_len": "--max-model-len",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
}
SWITCHES = {"enable_expert_parallel": "--enable-expert-parallel"}


def rank_of(text: str) -> Rank:
    """Return the rank in a line's process name."""
    found = _PROCESS.search(text[:400])
    if not found:
        return Rank()
    tags = {name: int(number) for name, number in _RANK.findall(found[0])}
    return Rank(tags.get("DP"), tags.get("PP"), tags.get("TP"), f"DCP{tags['DCP']}" if "DCP" in tags else "")
