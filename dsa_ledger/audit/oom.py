"""An allocation that failed: which entry's formula gives its size, the flag that shrinks it, and what makes room."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.audit.logfile import Line
    from dsa_ledger.audit.seen import Seen
    from dsa_ledger.ledger import Ledger

from dsa_ledger.units import GIB, MIB

OUT_OF_MEMORY = re.compile(r"Tried to allocate (\d{1,7}(?:\.\d{1,4})?) (GiB|MiB|KiB|bytes)")
_TOTAL = re.compile(r"total capacity of (\d{1,6}\.\d{1,4}) GiB")
_FREE = re.compile(r"of which (\d{1,7}(?:\.\d{1,4})?) (GiB|MiB|KiB|bytes) is free")
_SCALES = {"GiB": GIB, "MiB": MIB, "KiB": 1024, "bytes": 1}


class Refusal(NamedTuple):
    """One failed allocation as the traceback states it."""

    line: int
    tried_bytes: int
    within_bytes: float
    free_bytes: int | None
    total_bytes: int | None
    text: str
    while_capturing: bool = False


class Suspect(NamedTuple):
    """An entry whose formula gives the size, at which givens, and the flags that, set lower, shrink it."""

    key: str
    says: str
    shrinks: str
    exact: bool


def refusal_of(line: Line, found: re.Match[str], *, while_capturing: bool) -> Refusal:
    """Return the failed allocation of a line that `OUT_OF_MEMORY` found."""
    digits = len(found[1].partition(".")[2])
    scale = _SCALES[found[2]]
    free, total = _FREE.search(line.text), _TOTAL.search(line.text)
    return Refusal(
        line.number,
        round(float(found[1]) * scale),
        0.5 * scale * 10**-digits,
        round(float(free[1]) * _SCALES[free[2]]) if free else None,
        round(float(total[1]) * GIB) if total else None,
        line.text[found.start() : found.start() + 160],
        while_capturing,
    )


# The engine's share of memory: what it does not take is room for everything outside the pool. SGLang's budget for
# prefill logits grows with that room (mqa_logits_utils.py), so a lower share shrinks no logits.
FRACTION_FLAGS = {
    "sglang": "--mem-fraction-static",
    "vllm": "--gpu-memory-utilization",
    "tensorrt-llm": "kv_cache_config.free_gpu_memory_fraction",
}
LOGITS_FLAGS = {
    "sglang": "--chunked-prefill-size",
    "vllm": "--max-num-batched-tokens or VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
    "tensorrt-llm": "max_num_tokens or indexer_max_chunk_size",
}
CONTEXT_FLAGS = {"sglang": "--context-length", "vllm": "--max-model-len", "tensorrt-llm": "--max_seq_len"}
GRAPH_FLAGS = {
    "sglang": "--cuda-graph-max-bs-decode (--cuda-graph-max-bs through 0.5.19) or --max-running-requests",
    "vllm": "--max-cudagraph-capture-size or --max-num-seqs",
    "tensorrt-llm": "cuda_graph_config.max_batch_size",
}
_KEYS = {
    "workspace.decode_logits_bytes": ("captured decode logits", CONTEXT_FLAGS),
    "workspace.prefill_logits_bytes": ("prefill logits of one forward", LOGITS_FLAGS),
    "workspace.chunk_logits_bytes": ("logits of a whole prefill chunk at the longest context", LOGITS_FLAGS),
    "workspace.prefill_gather_bytes": ("index-K gathered for a prefill", CONTEXT_FLAGS),
    "workspace.chunk_gather_bytes": ("index-K gathered for a prefill chunk", CONTEXT_FLAGS),
    "workspace.gather_arena_bytes": ("the indexer's prefill gather workspace", CONTEXT_FLAGS),
    "workspace.sparse_prefill_bytes": ("FlashMLA's sparse prefill workspace", LOGITS_FLAGS),
    "workspace.page_table_bytes": ("a decode page table", CONTEXT_FLAGS),
    "workspace.request_table_bytes": ("the requests' block tables", CONTEXT_FLAGS),
    "workspace.req_to_token_bytes": ("the request table", CONTEXT_FLAGS),
    "workspace.topk_bytes": ("top-k indices", LOGITS_FLAGS),
    "workspace.topk_index_bytes": ("top-k indices", LOGITS_FLAGS),
}
_BUDGET = "workspace.prefill_logits_budget_bytes"
_CHUNKS = (8192, 16384, 4096, 2048, 32768)  # rows of a prefill forward, the commonest first
_SHORTEST = 1024  # keys; shorter ones are no reason to run out of memory
_LONGEST = 1 << 21
_ACCUMULATOR_BYTES = 64 * 512 * 4  # FlashMLA: heads padded to 64, 512 values of fp32, a row


def suspects(refusal: Refusal, engine: str, ledger: Ledger | None, seen: Seen | None) -> list[Suspect]:
    """Return the entries whose size fits a failed allocation; shapes inferred from it only where none is exact."""
    found = _entries(refusal, engine, ledger) if ledger is not None else []
    exact = bool(found)
    if refusal.while_capturing:
        says = "the last line before it begins the capture of CUDA graphs"
        found.append(Suspect("workspace.decode_logits_bytes", says, GRAPH_FLAGS[engine], exact=False))
    if not exact:
        found += _accumulators(refusal, engine)
        found += _logits(refusal, engine, seen, ledger)
    return found[:6]


def relief(engine: str, suspect: Suspect) -> str:
    """Return what to do about a suspect, as a clause."""
    return f"a smaller {suspect.shrinks} shrinks it; a lower {FRACTION_FLAGS[engine]} leaves more room"


def advice_on(refusal: Refusal, engine: str, found: Sequence[Suspect], fraction: float | None) -> str:
    """Return what to change after a failed allocation: the flag that shrinks it, the share of memory that has room."""
    flag, short = FRACTION_FLAGS[engine], refusal.tried_bytes - (refusal.free_bytes or 0)
    lower = f"a lower {flag}"
    if fraction is not None and refusal.total_bytes and short > 0 and engine != "tensorrt-llm":
        most = math.floor(1000 * (fraction - short / refusal.total_bytes)) / 1000
        lower = f"{flag} at most {most:.3f} ({short / GIB:.2f} GiB were short at {fraction:g})" if most > 0 else lower
    shrink = f"a smaller {found[0].shrinks}, or " if found else ""
    return f"out of memory in line {refusal.line:,}: {shrink}{lower}"


def _entries(refusal: Refusal, engine: str, ledger: Ledger) -> list[Suspect]:
    found = []
    for entry in ledger:
        says, flags = _KEYS.get(entry.key.rpartition("].")[2] or entry.key, ("", {}))
        # SGLang makes the request table before the pool, which stands where graphs are captured (init_memory).
        made = refusal.while_capturing and entry.key.endswith("req_to_token_bytes")
        fits = says and not made and abs(entry.value - refusal.tried_bytes) <= refusal.within_bytes
        if fits and entry.value:
            shown = f"{says}: {entry.value:,} B at the scenario's own limits"
            found.append(Suspect(entry.key, shown, flags[engine], exact=True))
    return found


def _accumulators(refusal: Refusal, engine: str) -> list[Suspect]:
    """Return FlashMLA's split accumulators, whole thousands of rows of 64 heads (vLLM #44545, #53413)."""
    rows, rest = divmod(refusal.tried_bytes, _ACCUMULATOR_BYTES)
    if engine != "vllm" or rest or rows % 1024 or not rows:
        return []
    says = f"FlashMLA's split-KV accumulators: {rows:,} rows x 64 x 512 x 4 B (fp8 records, under 32 local heads)"
    return [Suspect("workspace.sparse_prefill_bytes", says, "--max-num-batched-tokens", exact=False)]


def _logits(refusal: Refusal, engine: str, seen: Seen | None, ledger: Ledger | None) -> list[Suspect]:
    """Return rows x keys x 4 B, the shape of fp32 logits, with the chunk that the log states, else with usual ones."""
    stated = seen.chunk if seen is not None and seen.chunk and seen.chunk > 0 else None
    budget = ledger[_BUDGET] if ledger is not None and _BUDGET in ledger else None
    cut = f"; beyond the {budget / GIB:.2f} GiB at which this release cuts logits" if budget else ""
    over = cut if budget and refusal.tried_bytes - refusal.within_bytes > budget else ""
    found = []
    for rows in (stated,) if stated else _CHUNKS:
        keys = round(refusal.tried_bytes / (4 * rows))
        if _SHORTEST <= keys <= ((seen.context if seen is not None else None) or _LONGEST):
            known = "the chunk stated" if stated else "inferred from the size"
            says = f"fp32 logits of a prefill chunk: {rows:,} rows x about {keys:,} keys x 4 B ({known}{over})"
            found.append(Suspect("workspace.prefill_logits_bytes", says, LOGITS_FLAGS[engine], exact=False))
    return found[:3]
