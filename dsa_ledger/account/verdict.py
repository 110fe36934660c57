"""Whether it fits, and if not what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.engines.rules import engine_source
from dsa_ledger.formulas import pool
from dsa_ledger.units import GIB, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger

OF_A_LOAD = ("load.requests", "load.context_tokens", "load.needed_tokens", "pool.requests_at_context")


def judge_weights(ledger: Ledger, plan: Deployment) -> None:
    """Note weights that leave no pool, and a pool given by hand that does not fit beside them."""
    budget = min(ledger[f"{stage.prefix}pool.budget_bytes"] for stage in plan.stages)
    # Where the weights are not modelled, the pool can only be held against what was free before them.
    weighed = "memory.free_after_bytes" in ledger
    after = ledger["memory.free_after_bytes" if weighed else "memory.free_before_bytes"]
    given = plan.scenario.observed.kv_bytes
    if after < 0:
        ledger.shortfalls.append(
            f"the weights take {-after / GIB:.2f} GiB more than one {plan.gpu.name} has free; take more GPUs "
            "(--tp, --pp) or a smaller checkpoint format"
        )
    elif given is not None:
        if ledger[f"{plan.stages[0].prefix}pool.tokens"] == 0:
            ledger.shortfalls.append(f"--kv-bytes {given} holds no page: it counts bytes; write for example '40 GiB'")
        if given > after:
            when = "after" if weighed else "before"
            ledger.shortfalls.append(
                f"weights and --kv-bytes exceed the GPU: {given / GIB:.2f} GiB asked, {after / GIB:.2f} GiB free "
                f"{when} the weights; ask for at most {after} bytes"
            )
    elif budget <= 0:
        ledger.shortfalls.append(_no_pool(ledger, plan, budget))
    elif ledger[f"{plan.stages[0].prefix}pool.tokens"] == 0:
        ledger.shortfalls.append(_no_page(ledger, plan, budget))
    else:
        _warn_of_overflow(ledger, plan)


def _no_pool(ledger: Ledger, plan: Deployment, budget: int) -> str:
    base = "memory.free_before_bytes" if plan.release.engine == "sglang" else "gpu.capacity_bytes"
    fraction = ledger["engine.mem_fraction"]
    needed = fraction - budget / ledger[base]
    raised = f"--mem-fraction above {needed:.3f}, " if round(needed, 3) < 1 else ""
    return (
        f"weights leave no pool: {-budget / GIB:.2f} GiB short at memory fraction {fraction}; {raised}more GPUs or a "
        "smaller checkpoint format would leave one"
    )


def post_need(ledger: Ledger, plan: Deployment) -> None:
    """Post the pool tokens that a rank's requests take, in whole pages."""
    source = engine_source(plan.release, "requests in whole pages against the pool")
    ledger.derive(
        "load.needed_tokens",
        Unit.TOKENS,
        pool.needed_tokens,
        source,
        requests="load.requests",
        context_tokens="load.context_tokens",
        page_tokens="load.page_tokens",
    )


def _no_page(ledger: Ledger, plan: Deployment, budget: int) -> str:
    """Return why a budget above zero holds no page: the cap, or what is set aside before it is divided."""
    cap, page = plan.scenario.limits.max_total_tokens, ledger["engine.page_tokens"]
    if cap is not None and cap < page:
        return f"--max-total-tokens {cap} is less than a page of {page} tokens: the pool holds none"
    shared = plan.scenario.has("kv-sharding")
    aside = f" less {ledger['pool.scratch_bytes'] / GIB:.2f} GiB of KV-sharding scratch" if shared else ""
    return f"the pool's {budget / GIB:.2f} GiB{aside} hold no page that requests can use; more GPUs leave more memory"


def _warn_of_overflow(ledger: Ledger, plan: Deployment) -> None:
    """Warn where pool and fixed buffers of a rank exceed its memory: the server runs out of it once they are made."""
    scopes = [stage.prefix for stage in plan.stages if f"{stage.prefix}memory.headroom_bytes" in ledger]
    worst = min(scopes, key=lambda prefix: ledger[f"{prefix}memory.headroom_bytes"], default=None)
    if worst is None or ledger[f"{worst}memory.headroom_bytes"] >= 0:
        return
    parts = dict(ledger.entries[f"{worst}workspace.fixed_bytes"].inputs).values()
    largest = max(parts, key=lambda key: ledger[key])
    ledger.warn(
        f"pool and fixed buffers of a rank exceed its memory by {-ledger[f'{worst}memory.headroom_bytes'] / GIB:.2f} "
        f"GiB (largest buffer: {largest}, {ledger[largest] / GIB:.2f} GiB); lower --mem-fraction, --context-length or "
        "--max-running-requests"
    )


def _warn_of_waiting(ledger: Ledger, plan: Deployment) -> None:
    """Warn where the load is more requests than a rank runs at once: the rest of them wait."""
    key = "limits.sequences" if plan.release.engine == "vllm" else "workspace.running_requests"
    if key not in ledger or ledger["pool.tokens"] == 0 or ledger["load.requests"] <= ledger[key]:
        return
    ledger.warn(
        f"{plan.release.label} runs at most {ledger[key]:,} requests on a rank ({key}), the load is "
        f"{ledger['load.requests']:,}: step and time are of a batch it does not run; set --max-running-requests"
    )


def judge_load(ledger: Ledger, plan: Deployment) -> None:
    """Note a load beyond the pool: requests of one rank in whole pages against its tokens."""
    _warn_of_waiting(ledger, plan)
    post_need(ledger, plan)
    needed, tokens = ledger["load.needed_tokens"], ledger["pool.tokens"]
    if needed > tokens and (tokens or not ledger.shortfalls):  # where there is no pool, that is said already
        ledger.shortfalls.append(load_shortfall(ledger, plan, [ledger[key] for key in OF_A_LOAD]))


def load_shortfall(ledger: Ledger, plan: Deployment, load: Sequence[int]) -> str:
    """Return the sentence about a rank's load beyond its pool; `load` has the values of `OF_A_LOAD`."""
    requests, context, needed, held = load
    tokens, page = ledger["pool.tokens"], ledger["load.page_tokens"]
    longest = tokens // requests // page * page
    return (
        f"{requests} request{'s' * (requests != 1)} of {context:,} tokens on a rank need{'s' * (requests == 1)} "
        f"{needed:,} pool tokens, it has {tokens:,}; it holds {held} such, or {requests} of at most {longest:,}"
        f"{'' if longest else ' (none)'}; {_relief(ledger, plan, requests)}"
    )


def _relief(ledger: Ledger, plan: Deployment, requests: int) -> str:
    """Return what would make more tokens fit, largest gain first where a figure is at hand."""
    ways = []
    record = ledger["record.main_kv_bytes"]
    if plan.record.value == "bf16":
        word = "fp8_e4m3" if plan.release.engine == "sglang" else "fp8"
        ways.append(f"--kv-dtype {word} shrinks the {record}-byte record")
    if plan.scenario.sharding.dp_attention == 1 and requests > 1:
        ways.append("attention DP splits the requests over the ranks (its weights grow)")
    if plan.scenario.observed.kv_bytes is None:
        ways.append("more GPUs leave more memory after the weights")
    return "; ".join(ways)
