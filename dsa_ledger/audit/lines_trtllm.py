"""TensorRT-LLM's start-up lines. Source: github.com/NVIDIA/TensorRT-LLM, _torch/pyexecutor, sparse/dsa.

Its GB and GiB are both 1 << 30.
"""

from __future__ import annotations

import re

from dsa_ledger.audit.figures import Rank, Take, pattern

_RANK = re.compile(r"\[RANK (\d{1,5})\]|\[\d{1,3},(\d{1,5})\]<std(?:out|err)>|\[TRT-LLM\] \[[IWE]\] \[(\d{1,5})\]")
_G = r"(-?\d{1,7}(?:\.\d{1,8})?)"


GIB = "gib"
PATTERNS = (
    pattern("version", r"TensorRT-LLM version: v?(\d{1,3}\.\d{1,3}\.\d{1,3}[\w.+-]{0,40})", Take("", "text")),
    pattern(
        "weights",
        rf"Memory used after loading model weights \((inside|outside) torch\) in memory usage profiling: {_G} GiB",
        Take("where", "text"),
        Take("bytes", GIB),
    ),
    pattern(
        "dynamic",
        rf"Memory dynamically allocated during inference \(inside torch\).{{0,60}}?: {_G} GiB",
        Take("bytes", GIB),
    ),
    pattern(
        "outside",
        rf"Memory used outside torch \(e\.g\., NCCL and CUDA graphs\).{{0,60}}?: {_G} GiB",
        Take("bytes", GIB),
    ),
    pattern(
        "peak",
        rf"Peak memory during memory usage profiling \(torch \+ non-torch\): {_G} GiB, available KV cache memory when "
        rf"calculating max tokens: {_G} GiB, fraction is set {_G}, "
        rf"kv size (?:per token )?is {_G}\. device total memory {_G} GiB"
        rf"(?:, ?,? ?(?:tmp kv_mem|temporary kv cache memory during profiling) {_G} GiB)?",
        Take("bytes", GIB),
        Take("pool_bytes", GIB),
        Take("fraction", "share"),
        Take("cell_bytes"),
        Take("total_bytes", GIB),
        Take("temporary_bytes", GIB),
    ),
    pattern("estimate", rf"Estimated max memory in KV cache : {_G} GiB", Take("bytes", GIB)),
    pattern("block", r"Number of tokens per block: (\d{1,5})", Take("tokens")),
    pattern(
        "pool",
        rf"\[MemUsageChange\] Allocated {_G} GiB for max tokens(?: in paged KV cache)? \((\d{{1,15}})\)",
        Take("bytes", GIB),
        Take("tokens"),
    ),
    pattern(
        "blocks",
        r"Max KV cache blocks per sequence: (\d{1,9}) \[window size=(\d{1,12})\], tokens per block=(\d{1,5}), "
        r"primary blocks=(\d{1,12})(?:, (?:secondary blocks=\d{1,12}, )?max sequence length=(\d{1,12}))?",
        Take("sequence"),
        Take("window"),
        Take("tokens"),
        Take("primary"),
        Take("context"),
    ),
    pattern("old_tokens", r"Using (\d{1,15}) tokens in paged KV cache", Take("tokens")),
    pattern("old_bytes", r"Allocate (\d{1,15}) bytes for k/v cache", Take("bytes")),
    pattern("cap", r"max_tokens=(\d{1,15}) is provided", Take("tokens")),
    pattern(
        "owners",
        r"\[DSACacheManager(?:V2)?\] Indexer k-cache: (\d{1,4}) of (\d{1,4}) local layers own",
        Take("layers"),
        Take("of"),
    ),
    pattern("no_sequence", r"(Impossible to fit in any sequence in kvCache)", Take("words", "text")),
    pattern("not_created", r"(Executor creation failed due to insufficient GPU memory)", Take("words", "text")),
    pattern("component", r"The following component could not be created: ([\w ]{0,79}\w)", Take("name", "text")),
    pattern(
        "component_free",
        rf"Free GPU memory before component creation attempt \(GiB\): {_G}",
        Take("bytes", GIB),
    ),
)
# Lines with which a start ends for want of memory.
STOPS = ("no_sequence", "not_created")
ARGUMENTS = re.compile(r"LLM Args:|llm_args=")
FIELDS = {
    "model": "MODEL",
    "tensor_parallel_size": "--tensor_parallel_size",
    "pipeline_parallel_size": "--pipeline_parallel_size",
    "moe_expert_parallel_size": "--moe_expert_parallel_size",
    "max_batch_size": "--max_batch_size",
    "max_num_tokens": "--max_num_tokens",
    "max_seq_len": "--max_seq_len",
    "free_gpu_memory_fraction": "--free_gpu_memory_fraction",
}
SWITCHES: dict[str, str] = {}


def rank_of(text: str) -> Rank:
    """Return the rank in a line's prefix."""
    found = _RANK.search(text[:400])
    number = next((group for group in found.groups() if group), None) if found else None
    return Rank(tp=int(number)) if number else Rank()
