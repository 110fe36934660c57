"""One start boiled down to the figures that a ledger is held against: pools, free memory, weights, limits, versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsa_ledger.engines.releases import READ, key_of, sort_key

if TYPE_CHECKING:
    from dsa_ledger.audit.figures import Figure, Rank
    from dsa_ledger.audit.startup import RankStart, Start

PAGE_TOKENS = 64
_CHUNK_FLAGS = ("--chunked-prefill-size", "--max-num-batched-tokens", "--max_num_tokens")
_LONGEST_COUNT = 12
_SMALLER_THAN = 0.2  # a draft layer's pool against the target's: one layer in at least 24


@dataclass(frozen=True)
class Pool:
    """One allocated pool as printed: rows, bytes, half of the last digit."""

    rank: Rank
    tokens: int
    size_bytes: int
    within_bytes: float
    line: int

    def cell_range(self, pad_tokens: int) -> tuple[float, float]:
        """Return the bytes of one row that the printed figures allow, least and most."""
        rows = self.tokens + pad_tokens
        return (self.size_bytes - self.within_bytes) / rows, (self.size_bytes + self.within_bytes) / rows


@dataclass
class Seen:
    """What one start showed; None where its log does not say."""

    engine: str
    target: Pool | None = None
    draft: Pool | None = None
    other: list[Pool] = field(default_factory=list)
    free_before: int | None = None
    free_after: int | None = None
    weights: int | None = None
    draft_weights: int | None = None
    kv_bytes: int | None = None
    kv_within: float = 0.0
    tokens: int | None = None
    context: int | None = None
    chunk: int | None = None
    fraction: float | None = None
    total_bytes: int | None = None
    cell_bytes: int | None = None
    owners: int | None = None
    sm: int | None = None
    dtype: str | None = None
    low: str | None = None
    high: str | None = None
    version: str | None = None
    prints_version: bool = False
    stages: int = 1
    cp_world: int | None = None
    host_bytes: int | None = None
    warnings: list[str] = field(default_factory=list)

    def bound(self, low: str | None = None, high: str | None = None) -> None:
        """Narrow the releases that could have printed the log."""
        if low and (self.low is None or key_of(low) > key_of(self.low)):
            self.low = low
        if high and (self.high is None or key_of(high) < key_of(self.high)):
            self.high = high

    def releases(self) -> list[str]:
        """Return the read releases that could have printed the log, newest first."""
        names = list(READ[self.engine])
        low = key_of(self.low) if self.low else key_of(names[0])
        high = key_of(self.high) if self.high else key_of(names[-1])
        return [name for name in reversed(names) if low <= key_of(name) <= high]


def seen_of(start: Start) -> Seen:
    """Return the figures of one start."""
    seen = Seen(start.engine)
    stages = {rank.pp for rank in start.ranks if rank.pp is not None}
    seen.stages = max(stages, default=0) + 1
    _FILL[start.engine](start, seen)
    seen.prints_version = seen.version is not None
    for flag in _CHUNK_FLAGS if not seen.chunk else ():
        text = start.arguments.get(flag, "")
        seen.chunk = int(text) if text.isdecimal() and len(text) <= _LONGEST_COUNT else seen.chunk
    return seen


def _value(figures: dict[str, Figure], key: str) -> Any:
    return figures[key].value if key in figures else None


def _sglang(start: Start, seen: Seen) -> None:
    for rank in start.ranks.values():
        _sglang_pools(rank, seen)
    loads = [rank.before("pool", "load_end") for rank in start.ranks.values()]
    begins = [
        rank.all("load_begin")[0]["load_begin.free_bytes"].value
        for rank in start.ranks.values()
        if rank.all("load_begin")
    ]
    seen.free_before = min(begins, default=None)
    afters = [group[-1]["load_end.free_bytes"].value for group in loads if group]
    used = "load_end.used_bytes"
    seen.free_after = min(afters, default=None)
    every = [rank.all("load_end") for rank in start.ranks.values()]
    seen.weights = max((group[0][used].value for group in every if group and used in group[0]), default=None)
    drafts = [group[1] for group in every if len(group) > 1]
    seen.draft_weights = max((figures[used].value for figures in drafts if used in figures), default=None)
    seen.context, seen.chunk = start.first("summary.context"), start.first("summary.chunk_tokens")
    totals = start.values("summary.tokens")
    seen.tokens = min(totals, default=seen.target.tokens if seen.target else None)
    host = [
        sum(f[f"{kind}.bytes"].value for kind in ("host", "host_index") for f in rank.all(kind))
        for rank in start.ranks.values()
    ]
    seen.host_bytes = max(host, default=0) or None
    seen.sm = start.first("kv_dtype.sm")
    seen.dtype = start.first("kv_dtype.word") or start.first("backends.dtype")
    _sglang_version(start, seen)


def _sglang_pools(start: RankStart, seen: Seen) -> None:
    """Sort one rank's pools: target first, draft second, in the order printed."""
    pools = [
        Pool(start.rank, f["pool.tokens"].value, f["pool.bytes"].value, f["pool.bytes"].within, f["pool.bytes"].line)
        for f in start.all("pool")
        if "pool.tokens" in f and "pool.bytes" in f
    ]
    pools = [pool for pool in pools if pool.tokens > 0]
    if not pools:
        return
    target, *rest = pools
    draft = rest[0] if rest and rest[0].size_bytes < _SMALLER_THAN * target.size_bytes else None
    other = [pool for pool in rest if pool is not draft]
    seen.other.extend(other)
    if other:
        listed = "; ".join(f"line {pool.line}: {pool.tokens:,} tokens, {pool.size_bytes:,} B" for pool in pools[:6])
        seen.warnings.append(
            f"rank {str(start.rank) or 'without a tag'} prints pools that contradict each other: {listed}; "
            "the first counts"
        )
    if seen.target is None or target.tokens < seen.target.tokens:
        seen.target = target
    if draft is not None and seen.draft is None:
        seen.draft = draft


def _sglang_version(start: Start, seen: Seen) -> None:
    """Narrow the release by wordings that came and went."""
    pools = [figures for rank in start.ranks.values() for figures in rank.all("pool")]
    if pools:
        seen.bound(low="0.5.14") if all("pool.dtype" in figures for figures in pools) else seen.bound(high="0.5.10")
    family = start.first("backends.family")
    if family:
        seen.bound(low="0.5.14") if family == "DSA" else seen.bound(high="0.5.10")
    spelling = start.first("tp_mode.spelling")
    if spelling:
        seen.bound(low="0.5.22") if spelling == "attn_dp_size" else seen.bound(high="0.5.21")
    texts = [figures["baseline.held_bytes"].text for figures in start.each("baseline")]
    if any("Memory baseline" in text for text in texts):
        seen.bound(low="0.5.20")
    elif texts:
        seen.bound(high="0.5.20")
    names = start.values("graph.what") + start.values("graph_begin.what")
    if any(name.startswith("target") for name in names):
        seen.bound(low="0.5.14")
    if start.values("requests_cut.got") or any(start.each("no_room")):
        seen.bound(low="0.5.14")
    if seen.target and seen.draft_weights is not None:
        first = next((rank for rank in start.ranks.values() if len(rank.all("load_end")) > 1), None)
        if first and len(first.before("pool", "load_end")) == 1:
            seen.bound(high="0.5.10")


def _vllm(start: Start, seen: Seen) -> None:
    memories = [figures["kv_memory.bytes"] for figures in start.each("kv_memory") if "kv_memory.bytes" in figures]
    if memories:
        least = min(memories, key=lambda figure: figure.value)
        seen.kv_bytes, seen.kv_within = least.value, least.within
    sizes = start.values("size.tokens")
    seen.tokens = min(sizes, default=None)
    seen.context = start.first("size.context") or start.first("concurrency.context") or start.first("refused.context")
    seen.weights = max(start.values("load_end.used_bytes"), default=None)
    seen.fraction, seen.total_bytes = start.first("summary.fraction"), start.first("summary.total_bytes")
    seen.free_before = min(start.values("summary.free_bytes"), default=None)
    ranks = [int(rank.other[3:]) for rank in start.ranks if rank.other.startswith("DCP")]
    seen.cp_world = start.first("cp_world.size") or (max(ranks) + 1 if ranks else None)
    seen.dtype = start.first("ds_mla.word") or ("fp8" if start.first("glm_fp8.word") else None)
    if len(set(sizes)) > 1:
        listed = ", ".join(f"{size:,}" for size in sorted(set(sizes))[:6])
        seen.warnings.append(f"the engines of this server print different sizes: {listed} tokens; the smallest counts")
    version = start.first("version")
    if isinstance(version, str) and sort_key(_release(version)):
        seen.version = _release(version)
    if start.values("size.context"):
        seen.bound(low="0.28.0")
    elif start.values("size.tokens") and start.values("concurrency.context"):
        seen.bound(high="0.27.0")
    if start.first("layout.word"):
        seen.bound(low="0.29.0")


def _release(version: str) -> str:
    """Return a version without build marks, such as 0.22.1 of 0.22.1rc1.dev69+gf69ede495."""
    found = re.match(r"\d+\.\d+\.\d+(?:\.?post\d+)?(?:rc\d+)?", version)
    text = found[0] if found else version
    return text.partition("rc")[0] if "dev" in version else text


def _tensorrt(start: Start, seen: Seen) -> None:
    seen.cell_bytes = start.first("peak.cell_bytes")
    seen.kv_bytes = min(start.values("peak.pool_bytes"), default=None)
    seen.fraction, seen.total_bytes = start.first("peak.fraction"), start.first("peak.total_bytes")
    seen.owners = start.first("owners.layers")
    seen.context = start.first("blocks.context")
    seen.weights = max(start.values("weights.bytes"), default=None)
    for rank in start.ranks.values():
        pools = rank.all("pool")
        if pools:  # an earlier one is of the profiling run
            figures = pools[-1]
            size = figures["pool.bytes"]
            pool = Pool(rank.rank, figures["pool.tokens"].value, size.value, size.within, size.line)
            if pool.tokens and (seen.target is None or pool.tokens < seen.target.tokens):
                seen.target = pool
    seen.tokens = seen.target.tokens if seen.target else None
    version = start.first("version")
    if isinstance(version, str) and sort_key(version):
        seen.version = version
    if seen.owners is not None:
        seen.bound(low="1.3.0rc23")


_FILL = {"sglang": _sglang, "vllm": _vllm, "tensorrt-llm": _tensorrt}
