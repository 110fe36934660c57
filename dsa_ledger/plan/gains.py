"""Single changes of a running deployment by what they gain, each with its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.plan.changes import Change, Near, changes
from dsa_ledger.plan.growth import concurrency, running_cap, step_seconds
from dsa_ledger.plan.outcome import Outcome, attempt, changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.audit.report import Report
    from dsa_ledger.schema import Scenario


class Figures(NamedTuple):
    """What a server holds, and the ends of its step time where they are modelled."""

    system_tokens: int
    requests: int
    step_low_s: float | None
    step_high_s: float | None


class Gain(NamedTuple):
    """A change, what it makes of the server, and why not where it does not start."""

    change: Change
    outcome: Outcome
    after: Figures


@dataclass(frozen=True, slots=True)
class Gains:
    """The server as it is, and the changes that alter it, the most requests (without a context: tokens) first."""

    scenario: Scenario
    before: Figures
    found: tuple[Gain, ...]
    refused: int


def gains(scenario: Scenario) -> Gains:
    """Return single changes on the same GPUs by gain (BadInput, NotModelled where the scenario has no answer)."""
    now = Outcome(scenario, estimate(scenario), "")
    before = figures(now)
    found: list[Gain] = []
    refused = 0
    seen: set[tuple[str, Figures]] = set()
    for change in (*_caps(scenario), *changes(scenario)):
        if change.near >= Near.MORE_GPUS:
            continue
        outcome = attempt(change.scenario)
        if outcome.ledger is None:
            refused += 1
            continue
        after = figures(outcome)
        # Of releases that give the same figures the first one is enough.
        kind = (change.near.name, after)
        if after != before and (change.near is not Near.RELEASE or kind not in seen):
            found.append(Gain(change, outcome, after))
            seen.add(kind)
    found.sort(key=lambda gain: (-gain.after.requests, -gain.after.system_tokens, gain.change.near))
    return Gains(scenario, before, tuple(found), refused)


def anchored(report: Report) -> Scenario | None:
    """Return the scenario that fits a log best, its pool as large as the log counts it; None where none fits.

    A log's own token count replaces what priors make of the budget: tokens x bytes a token, as the engine divides it.
    """
    found = report.prediction
    if found is None:
        return None
    scenario = found.scenario
    counted = next((check.observed for check in report.checks if check.key == "pool.reported_tokens"), None)
    if scenario.engine.name == "vllm" or not counted or counted == found.ledger["pool.reported_tokens"]:
        return scenario
    return changed(scenario, observed={"kv_bytes": int(counted) * int(found.ledger["cell.bytes"])})


def figures(outcome: Outcome) -> Figures:
    """Return the figures of an outcome that has a ledger; requests and times are of its own load."""
    ledger = outcome.ledger
    if ledger is None:
        raise ValueError(outcome.reason)
    ends = step_seconds(ledger, "low"), step_seconds(ledger, "high")
    return Figures(int(ledger["pool.system_tokens"]), concurrency(ledger), *ends)


def _caps(scenario: Scenario) -> Iterator[Change]:
    """Yield the cap on running requests raised to what the pool holds, and features dropped."""
    ledger = attempt(scenario).ledger
    if ledger is not None and "pool.requests_at_context" in ledger:
        cap, held = running_cap(ledger), int(ledger["pool.requests_at_context"])
        if cap is not None and cap < held:
            asked = held * (int(ledger["sharding.replicas"]) if scenario.engine.name == "sglang" else 1)
            after = changed(scenario, limits={"max_running_requests": asked})
            price = "larger graphs and tables outside the pool; slower steps"
            yield Change(f"--max-running-requests {asked}", price, Near.FLAG, after)
    for name in scenario.features:
        if name not in ("hisparse", "pd-prefill", "pd-decode"):
            rest = tuple(other for other in scenario.features if other != name)
            yield Change(f"without {name}", f"what {name} is there for", Near.FEATURE, changed(scenario, features=rest))
