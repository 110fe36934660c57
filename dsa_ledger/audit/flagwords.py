"""Advice in the engine's own flags, for whoever reads about a server's log or gave its launch command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# What the engine's own command line or YAML calls the caps and formats that our options set.
WORDS = {
    "sglang": {"--mem-fraction": "--mem-fraction-static", "--kv-dtype": "--kv-cache-dtype"},
    "vllm": {
        "--mem-fraction": "--gpu-memory-utilization",
        "--kv-dtype": "--kv-cache-dtype",
        "--context-length": "--max-model-len",
        "--max-running-requests": "--max-num-seqs",
    },
    "tensorrt-llm": {
        "--mem-fraction": "kv_cache_config.free_gpu_memory_fraction",
        "--kv-dtype": "kv_cache_config.dtype",
        "--context-length": "--max_seq_len",
        "--max-running-requests": "--max_batch_size",
        "--max-total-tokens": "kv_cache_config.max_tokens",
    },
}
_OPTION = re.compile(r"(--[a-z][a-z-]*)(?![\w-])(?: \((\w+)\))?")


def in_engine_words(sentences: Iterable[str], engine: str) -> list[str]:
    """Return the sentences, each option that the engine calls otherwise under the engine's name."""
    words = WORDS[engine]

    def put(found: re.Match[str]) -> str:
        flag = words.get(found[1])
        if flag is None:
            return found[0]
        same = found[2] == flag.strip("-").replace("-", "_")  # `--max-num-seqs (max_num_seqs)` says it twice
        return flag if found[2] is None or same else f"{flag} ({found[2]})"

    return [_OPTION.sub(put, sentence) for sentence in sentences]
