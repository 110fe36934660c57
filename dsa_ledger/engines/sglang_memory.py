"""SGLang's default memory fraction and the tables it allocates outside the pool, by version."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.rules import engine_source, since
from dsa_ledger.engines.sglang import defaults_by_size
from dsa_ledger.ledger import Fact
from dsa_ledger.units import MIB

if TYPE_CHECKING:
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

HOOK = "arg_groups/memory_hook.py"
EAGLE_RUNNING_REQUESTS = 48


class Reserve(NamedTuple):
    """The terms of the memory that the default fraction keeps free."""

    chunk_tokens: Fact[int]
    graph_requests: Fact[int]
    prefill_graph_mib: Fact[int]
    floor_mib: Fact[int]
    after_floor_mib: Fact[int]


def reserve(scenario: Scenario, gpu: Gpu, release: Release) -> Reserve:
    """Return the terms for a scenario; flags enter as the user types them."""
    defaults = defaults_by_size(gpu, scenario.sharding.tp)
    knows_roles = since(release, "0.5.15")
    prefill_role = knows_roles and scenario.has("pd-prefill")
    decode_role = knows_roles and scenario.has("pd-decode")

    def fact(value: int, where: str) -> Fact[int]:
        return Fact(value, engine_source(release, f"{HOOK}: {where}"))

    graph = captured_default(scenario, gpu, release)
    chunk = scenario.limits.chunked_prefill or defaults.chunk_tokens
    if decode_role:
        running = scenario.limits.max_running_requests or graph.value
        chunk = running * (scenario.draft.steps + 1)
    floor = 10240 if gpu.hbm.capacity_bytes // MIB > 61440 else 0  # noqa: PLR2004 - the engine's threshold in MiB
    return Reserve(
        fact(chunk, "1.5 MiB a token of chunked_prefill_size; PD decode: of running requests x rows"),
        fact(0, "PD prefill captures no decode graph") if prefill_role else graph,
        fact(_prefill_graph_mib(scenario, release, decode_role=decode_role), "prefill graph"),
        fact(floor, "at least 10 GiB above 60 GiB"),
        fact(
            _after_floor_mib(scenario, release, prefill_role=prefill_role),
            "speculation (through 0.5.10), DeepEP (0.5.15 on)",
        ),
    )


def captured_default(scenario: Scenario, gpu: Gpu, release: Release) -> Fact[int]:
    """Return the largest captured decode batch [requests], lowered to max_running_requests from 0.5.22."""
    typed = scenario.limits.graph_requests
    largest = typed or defaults_by_size(gpu, scenario.sharding.tp).graph_requests
    asked = scenario.limits.max_running_requests
    if asked and not typed and since(release, "0.5.22"):
        largest = min(largest, asked)
    return Fact(
        largest, engine_source(release, "cuda_graph_max_bs by GPU size, lowered to max_running_requests from 0.5.22")
    )


def _prefill_graph_mib(scenario: Scenario, release: Release, *, decode_role: bool) -> int:
    sharding = scenario.sharding
    if since(release, "0.5.17"):
        off = (
            decode_role
            or (sharding.pp > 1 and since(release, "0.5.19"))
            or sharding.dcp > 1
            or sharding.cp > 1
            or scenario.has("two-batch-overlap")
        )
        return 0 if off else 1536 + 1024 * scenario.has("deepep")
    if since(release, "0.5.15") or not since(release, "0.5.14"):
        return 0
    off = (
        sharding.dp_attention > 1
        or sharding.pp > 1
        or sharding.cp > 1
        or any(scenario.has(name) for name in ("pd-prefill", "pd-decode", "hicache", "deepep"))
    )
    return 0 if off else 1536


def _after_floor_mib(scenario: Scenario, release: Release, *, prefill_role: bool) -> int:
    if since(release, "0.5.15"):
        return 2048 * (scenario.has("deepep") and not prefill_role)
    if since(release, "0.5.14") or not scenario.draft.steps:
        return 0
    return 4096 if since(release, "0.5.10") else 2048


def extra_tokens(scenario: Scenario, release: Release, page_tokens: int) -> Fact[int]:
    """Return the slots beyond the context length in a request's row [tokens]."""
    steps = scenario.draft.steps
    rows = steps + 1 if steps else 0
    extra = 4 + rows
    if steps and since(release, "0.5.16"):
        page = page_tokens * (scenario.sharding.dcp if since(release, "0.5.19") else 1)
        extra = max(extra, 2 * max(steps * scenario.draft.topk, rows) + page - 1)
    return Fact(
        extra,
        engine_source(release, "kv_cache_configurator.py: context length + 4 + draft tokens, page slack with MTP"),
    )


def table_columns_extra(scenario: Scenario, release: Release, extra: int) -> Fact[int]:
    """Return the columns beyond the context length in the wide decode page table [tokens]."""
    if since(release, "0.5.15"):
        return Fact(extra, engine_source(release, "dsa_backend.py: context length + the row's extra slots"))
    rows = scenario.draft.steps + 1 if scenario.draft.steps else 0
    wide = rows if since(release, "0.5.10") else 0
    return Fact(wide, engine_source(release, "nsa_backend.py: context length (0.5.9), + draft tokens (0.5.10, 0.5.14)"))


def compact_table(scenario: Scenario, model: Model, release: Release) -> Fact[bool]:
    """Tell whether the token-wide decode table is dropped for a page-wide one."""
    compact = (
        since(release, "0.5.15")
        and not scenario.draft.steps
        and not scenario.has("hisparse")
        and model.index_kpool == 1
        and model.index_topk <= 2048  # noqa: PLR2004 - the fused top-k's own limit
    )
    where = "dsa_backend.py: page-wide table without speculation and HiSparse, from 0.5.15"
    return Fact(compact, engine_source(release, where))


def running_cap(scenario: Scenario, release: Release) -> Fact[int] | None:
    """Return max_running_requests as asked, or 48 with EAGLE, or None."""
    asked = scenario.limits.max_running_requests
    if asked is not None:
        return Fact(asked, engine_source(release, "--max-running-requests as typed, per server"))
    if scenario.draft.steps:
        return Fact(EAGLE_RUNNING_REQUESTS, engine_source(release, "EAGLE without a flag runs 48 requests"))
    return None


def request_rows(scenario: Scenario, release: Release) -> Fact[int]:
    """Return rows of req_to_token beyond the running requests [rows]."""
    rows = 1 if since(release, "0.5.14") else 0
    asked = scenario.limits.max_running_requests
    if scenario.has("pd-decode") and asked:
        per_worker = asked // scenario.sharding.dp_attention
        rows += 2 * per_worker if per_worker <= 32 else 0  # noqa: PLR2004 - the engine's own bound
    return Fact(rows, engine_source(release, "memory_pool.py: one spare row from 0.5.14; PD decode: extra slots"))
