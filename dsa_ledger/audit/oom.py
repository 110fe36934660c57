"""An allocation that failed: which entry's formula gives its size, and the flag that shrinks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dsa_ledger.audit.logfile import Line
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


class Suspect(NamedTuple):
    """An entry whose formula gives the size, at which givens, and what shrinks it."""

    key: str
    says: str
    shrinks: str
    exact: bool


def refusal_of(line: Line) -> Refusal:
    """Return the failed allocation of a line."""
    found = OUT_OF_MEMORY.search(line.text)
    assert found is not None  # noqa: S101 - the caller matched it
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
    )


LOGITS_FLAGS = {
    "sglang": "--chunked-prefill-size or --mem-fraction-static",
    "vllm": "--max-num-batched-tokens or VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
    "tensorrt-llm": "max_num_tokens or indexer_max_chunk_size",
}
CONTEXT_FLAGS = {"sglang": "--context-length", "vllm": "--max-model-len", "tensorrt-llm": "--max_seq_len"}
_POWERS = tuple(1 << power for power in range(7, 18))


def suspects(refusal: Refusal, engine: str, ledger: Ledger | None, context: int | None) -> list[Suspect]:
    """Return the entries whose size fits a failed allocation, exact fits first."""
    found: list[Suspect] = []
    low, high = refusal.tried_bytes - refusal.within_bytes, refusal.tried_bytes + refusal.within_bytes
    if ledger is not None:
        found += _entries(ledger, low, high, engine)
    found += _logits(refusal, engine, context)
    return sorted(found, key=lambda suspect: not suspect.exact)[:6]


_KEYS = {
    "workspace.decode_logits_bytes": ("captured decode logits", "context"),
    "workspace.prefill_logits_bytes": ("prefill logits of one forward", "logits"),
    "workspace.gathered_index_k_bytes": ("index-K gathered for a prefill", "context"),
    "workspace.gather_bytes": ("the indexer's prefill gather workspace", "context"),
    "workspace.prefill_bytes": ("FlashMLA's sparse prefill workspace", "logits"),
    "workspace.page_table_bytes": ("one backend's decode page table", "context"),
    "workspace.req_to_token_bytes": ("the request table", "context"),
    "workspace.topk_bytes": ("top-k indices", "logits"),
}


def _entries(ledger: Ledger, low: float, high: float, engine: str) -> list[Suspect]:
    found = []
    for entry in ledger:
        plain = entry.key.rpartition("]." if "]." in entry.key else "\0")[2]
        if not plain.startswith("workspace.") or not plain.endswith("_bytes") or not isinstance(entry.value, int):
            continue
        if entry.value and low <= entry.value <= high:
            says, which = _KEYS.get(plain, (plain, "context"))
            flag = (CONTEXT_FLAGS if which == "context" else LOGITS_FLAGS)[engine]
            found.append(
                Suspect(entry.key, f"{says}: {entry.value:,} B at the scenario's own limits", flag, exact=True)
            )
    return found


def _logits(refusal: Refusal, engine: str, context: int | None) -> list[Suspect]:
    """Return rows x keys x 4 B with a power of two of rows, the shape of fp32 logits in a chunked prefill."""
    found = []
    for rows in _POWERS:
        keys = round(refusal.tried_bytes / (4 * rows))
        if not 1024 <= keys <= (context or 1 << 21):  # noqa: PLR2004 - shorter ones are no reason to run out
            continue
        if rows in (2048, 4096, 8192, 16384, 32768):
            says = f"fp32 logits of a prefill chunk: {rows:,} rows x about {keys:,} keys x 4 B (inferred from the size)"
            found.append(Suspect("workspace.prefill_logits_bytes", says, LOGITS_FLAGS[engine], exact=False))
    preferred = {8192: 0, 16384: 1, 4096: 2, 2048: 3, 32768: 4}
    return sorted(found, key=lambda one: preferred[int(one.says.split(": ")[1].split(" ")[0].replace(",", ""))])[:3]
