"""SGLang's start-up lines. Source: the sglang release packages, srt/{model_executor,mem_cache,managers}.

The device figures say GB and mean GiB (they divide by 1 << 30); the host tier's GB is 10^9.
"""

from __future__ import annotations

import re

from dsa_ledger.audit.figures import Rank, Take, pattern

_TAG = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?((?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,4}){0,8})\]"
)
_RANK = re.compile(r"(ATTN_CP|MOE_DP|DP|PP|TP|EP)(\d{1,4})")
_G = r"(-?\d{1,7}\.\d{1,6})"


GIB = "gib"
PATTERNS = (
    pattern(
        "baseline",
        rf"(?:Init torch distributed ends\. elapsed=\S{{1,12}} s, |Memory baseline taken\. )mem usage={_G} GB",
        Take("held_bytes", GIB),
    ),
    pattern("load_begin", rf"Load weight begin\. avail mem={_G} GB", Take("free_bytes", GIB)),
    pattern(
        "load_end",
        rf"Load weight end\. (?:elapsed=\S{{1,12}} s, )?(?:type=(\w{{1,80}}), )?.{{0,200}}?avail mem={_G} GB"
        rf"(?:, mem usage={_G} GB)?",
        Take("type", "text"),
        Take("free_bytes", GIB),
        Take("used_bytes", GIB),
    ),
    pattern(
        "pool",
        rf"KV Cache is allocated\. (?:dtype: (\S{{1,40}}), )?#tokens: (\d{{1,15}}), KV size: {_G} GB",
        Take("dtype", "text"),
        Take("tokens"),
        Take("bytes", GIB),
    ),
    pattern(
        "plain_pool",  # of models without MLA
        rf"KV Cache is allocated\. (?:dtype: (\S{{1,40}}), )?#tokens: (\d{{1,15}}), K size: {_G} GB, V size: {_G} GB",
        Take("dtype", "text"),
        Take("tokens"),
        Take("k_bytes", GIB),
        Take("v_bytes", GIB),
    ),
    pattern(
        "no_room",
        r"weights leave no GPU memory for the KV cache under --mem-fraction-static=(\d?\.\d{1,6})",
        Take("fraction", "share"),
    ),
    pattern(  # every release: no token fits; before 0.5.14 also where the weights leave nothing
        "no_memory",
        r"(Not enough memory)\. Please try to increase --mem-fraction-static\."
        r"(?: Current value: mem_fraction_static=(\d?\.\d{1,6}))?",
        Take("words", "text"),
        Take("fraction", "share"),
    ),
    pattern("pool_end", rf"Memory pool end\. avail mem={_G} GB", Take("free_bytes", GIB)),
    pattern(
        "kv_dtype",
        r"Setting KV cache dtype to (\S{1,40}) for DeepSeek DSA on SM(\d{1,3}) device",
        Take("word", "text"),
        Take("sm"),
    ),
    pattern(
        "backends",
        r"Set (NSA|DSA) backends for (\S{1,40}) KV Cache: prefill=(\w{1,40}), decode=(\w{1,40})",
        Take("family", "text"),
        Take("dtype", "text"),
        Take("prefill", "text"),
        Take("decode", "text"),
    ),
    pattern("page", r"Setting page size to (\d{1,4}) for DeepSeek DSA", Take("tokens")),
    pattern(
        "tp_mode",
        r"DSA with TP mode is active, (attn_dp_size|dp_size)=(\d{1,5}), tp_size=(\d{1,5})",
        Take("spelling", "text"),
        Take("dp"),
        Take("tp"),
    ),
    pattern(
        "cap",
        r"max_total_tokens=(\d{1,15}) is larger than the profiled value (\d{1,15})",
        Take("asked_tokens"),
        Take("tokens"),
    ),
    pattern(
        "requests_cut",
        r"max_running_requests was reduced from the requested (\d{1,9}) to (\d{1,9})",
        Take("asked"),
        Take("got"),
    ),
    pattern(
        "graph",
        rf"Capture (?:([a-z ]{{1,40}}?) )?(?:cuda|CUDA|npu) graph end\b.{{0,4000}}?mem usage={_G} GB[.,] ?"
        rf"avail mem={_G} GB",
        Take("what", "text"),
        Take("used_bytes", GIB),
        Take("free_bytes", GIB),
    ),
    pattern(
        "graph_begin",
        rf"Capture (?:([a-z ]{{1,40}}?) )?(?:cuda|CUDA|npu) graph begin\b.{{0,4000}}?avail mem={_G} GB",
        Take("what", "text"),
        Take("free_bytes", GIB),
    ),
    pattern("layer_split", r"Layer shard plan \(continuous\): layer_num=(\d{1,4})", Take("layers")),
    pattern("host_index", rf"Allocating {_G} GB host memory for DSA indexer", Take("bytes", "gb")),
    pattern("host", rf"Allocating {_G} GB host memory for hierarchical KV cache", Take("bytes", "gb")),
    pattern(
        "host",  # from 0.5.22
        rf"hierarchical KV host pool: (\d{{1,15}}) tokens, {_G} GB host memory",
        Take("tokens"),
        Take("bytes", "gb"),
    ),
    pattern(
        "summary",
        r"max_total_num_tokens=(\d{1,15}), chunked_prefill_size=(-?\d{1,12}), max_prefill_tokens=(\d{1,12}), "
        rf"max_running_requests=(\d{{1,9}}), context_len=(\d{{1,12}})(?:, available_[gc]pu_mem={_G} GB)?",
        Take("tokens"),
        Take("chunk_tokens"),
        Take("prefill_tokens"),
        Take("running"),
        Take("context"),
        Take("free_bytes", GIB),
    ),
)
# Lines with which a start ends for want of memory.
STOPS = ("no_room", "no_memory")
ARGUMENTS = re.compile(r"server_args=(?:ServerArgs)?[({]")
FIELDS = {
    "model_path": "--model-path",
    "tp_size": "--tp-size",
    "pp_size": "--pp-size",
    "dp_size": "--dp-size",
    "attn_dp_size": "--attn-dp-size",
    "ep_size": "--ep-size",
    "dcp_size": "--dcp-size",
    "attn_cp_size": "--attn-cp-size",
    "context_length": "--context-length",
    "kv_cache_dtype": "--kv-cache-dtype",
    "mem_fraction_static": "--mem-fraction-static",
    "max_running_requests": "--max-running-requests",
    "max_total_tokens": "--max-total-tokens",
    "chunked_prefill_size": "--chunked-prefill-size",
    "cuda_graph_max_bs": "--cuda-graph-max-bs",
    "nsa_prefill_backend": "--nsa-prefill-backend",
    "nsa_decode_backend": "--nsa-decode-backend",
    "dsa_prefill_backend": "--dsa-prefill-backend",
    "dsa_decode_backend": "--dsa-decode-backend",
    "speculative_algorithm": "--speculative-algorithm",
    "speculative_num_steps": "--speculative-num-steps",
    "speculative_eagle_topk": "--speculative-eagle-topk",
    "speculative_num_draft_tokens": "--speculative-num-draft-tokens",
    "moe_a2a_backend": "--moe-a2a-backend",
    "disaggregation_mode": "--disaggregation-mode",
    "hicache_ratio": "--hicache-ratio",
    "hicache_size": "--hicache-size",
}
SWITCHES = {
    "enable_dp_attention": "--enable-dp-attention",
    "enable_hierarchical_cache": "--enable-hierarchical-cache",
    "enable_hisparse": "--enable-hisparse",
    "enable_two_batch_overlap": "--enable-two-batch-overlap",
    "enable_dsa_cache_layer_split": "--enable-dsa-cache-layer-split",
}


def rank_of(text: str) -> Rank:
    """Return the rank in a line's prefix."""
    found = _TAG.search(text)
    if not found:
        return Rank()
    tags = {name: int(number) for name, number in _RANK.findall(found[1])}
    other = " ".join(f"{name}{tags[name]}" for name in ("ATTN_CP", "MOE_DP", "EP") if name in tags)
    return Rank(tags.get("DP"), tags.get("PP"), tags.get("TP"), other)
