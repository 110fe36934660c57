"""How far a deployment that fits can grow, and what gives way first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from dsa_ledger.formulas.helpers import quotient

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.plan.outcome import Outcome

RUNNING = ("workspace.running_requests", "limits.sequences")


def step_seconds(ledger: Ledger, end: Literal["floor", "low", "high"]) -> float | None:
    """Return one end of a whole step's time [s], None where it is not modelled.

    A batch passes all pipeline stages one after the other: the stages' own times are added up, hops not counted.
    """
    if end != "floor" and "time.step_s" in ledger:
        return float(ledger["time.step_s"])
    key = f"time.step_{end}_s"
    if f"stage[0].{key}" not in ledger:
        return float(ledger[key]) if key in ledger else None
    seconds, stage = 0.0, 0
    while (name := f"stage[{stage}].{key}") in ledger:
        seconds += float(ledger[name])
        stage += 1
    return seconds


class Limit(NamedTuple):
    """One thing that gives way as the load grows: how many times today's load it bears, and what then happens."""

    name: str
    times: float
    sentence: str


def running_cap(ledger: Ledger) -> int | None:
    """Return the most requests that one rank runs at a time, where the engine's rule is known."""
    caps = [int(ledger[key]) for key in RUNNING if key in ledger]
    return min(caps) if caps else None


def concurrency(ledger: Ledger) -> int:
    """Return the requests of the asked context that the whole server runs, 0 where no context was asked.

    Each rank's pool bounds them, and the cap on running requests.
    """
    if "pool.requests_at_context" not in ledger:
        return 0
    held = int(ledger["pool.requests_at_context"])
    cap = running_cap(ledger)
    return (held if cap is None else min(held, cap)) * int(ledger["sharding.replicas"])


def limits(outcome: Outcome) -> list[Limit]:
    """Return what bounds growth, the nearest first; empty where there is no ledger or no load."""
    ledger = outcome.ledger
    if ledger is None or "load.context_tokens" not in ledger:
        return []
    requests, context = int(ledger["load.requests"]), int(ledger["load.context_tokens"])
    tokens, held = int(ledger["pool.tokens"]), int(ledger["pool.requests_at_context"])
    longest = int(ledger["limits.context_length"])
    found = [
        Limit(
            "pool",
            quotient(held, requests),
            f"the pool: a rank holds {held:,} request{'s' * (held != 1)} of {context:,} tokens ({tokens:,} tokens); "
            "one more waits or evicts another",
        ),
        Limit(
            "context length",
            quotient(longest, context),
            f"the context length: a request of more than {longest:,} tokens is refused",
        ),
    ]
    cap = running_cap(ledger)
    if cap is not None:
        found.append(
            Limit(
                "running requests",
                quotient(cap, requests),
                f"the cap on running requests: {cap:,} on a rank, more wait",
            )
        )
    if outcome.short:  # already: it grows with no load after start-up
        found.append(Limit("memory outside the pool", 0.0, f"memory outside the pool: {outcome.short}"))
    return sorted(found, key=lambda limit: limit.times)


def first_to_break(outcome: Outcome) -> str:
    """Return the sentence of the nearest limit, or why there is none."""
    found = limits(outcome)
    return found[0].sentence if found else outcome.why_not or "no load was stated (--context)"
