"""Single changes of a running deployment by what they gain, each with its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.plan.changes import Change, Near, changes
from dsa_ledger.plan.growth import concurrency, step_seconds
from dsa_ledger.plan.outcome import Outcome, attempt, changed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.audit.report import Report
    from dsa_ledger.schema import Scenario


MOST_PAIRS = 5


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
    """The server as it is, and the changes that gain, the most requests (without a context: tokens) first.

    `losses` alter it and gain neither tokens nor requests; `refused` are changes with the reason. Where no single
    change holds the load, `pairs` are two that do together.
    """

    scenario: Scenario
    before: Figures
    found: tuple[Gain, ...]
    losses: tuple[Gain, ...]
    refused: tuple[tuple[str, str], ...]
    pairs: tuple[Gain, ...] = ()


def gains(scenario: Scenario, *, ran_out: bool = False) -> Gains:
    """Return single changes on the same GPUs by gain (BadInput, NotModelled where the scenario has no answer).

    A server that `ran_out` of memory outside its pool is told no change that makes the pool's share larger.
    """
    now = Outcome(scenario, estimate(scenario), "")
    before = figures(now)
    found: list[Gain] = []
    refused: list[tuple[str, str]] = []
    seen: set[tuple[str, Figures]] = set()
    for change in (*_dropped(scenario), *changes(scenario)):
        if change.near >= Near.MORE_GPUS or (ran_out and _raises(now, change)):
            continue
        outcome = attempt(change.scenario)
        if outcome.ledger is None:
            refused.append((change.name, outcome.reason.partition("; ")[0]))
            continue
        after = figures(outcome)
        # Of releases that give the same figures the first one is enough.
        kind = (change.near.name, after)
        if after != before and (change.near is not Near.RELEASE or kind not in seen):
            found.append(Gain(change, outcome, after))
            seen.add(kind)
    found.sort(key=_rank)
    good = [gain for gain in found if _gains(now, before, gain)]
    losses = [gain for gain in found if gain not in good]
    pairs: list[Gain] = []
    if scenario.load.context is not None and not any(one.fits for one in (now, *(gain.outcome for gain in found))):
        pairs = _pairs(now, good, ran_out=ran_out)
    return Gains(scenario, before, tuple(good), tuple(losses), tuple(refused), tuple(pairs))


def _rank(gain: Gain) -> tuple[int, int, int]:
    return (-gain.after.requests, -gain.after.system_tokens, gain.change.near)


def _gains(now: Outcome, before: Figures, gain: Gain) -> bool:
    """Tell whether a change makes room: more requests, more tokens, or a load that did not fit and does."""
    after = gain.after
    more = (after.requests, after.system_tokens) > (before.requests, before.system_tokens)
    return more or (gain.outcome.fits and not now.fits)


def _pairs(now: Outcome, good: Sequence[Gain], *, ran_out: bool) -> list[Gain]:
    """Return two changes that hold the load together, those with the most requests first."""
    found: dict[frozenset[str], Gain] = {}
    for first in good:
        for second in (*_dropped(first.change.scenario), *changes(first.change.scenario)):
            names = frozenset((first.change.name.split()[0], second.name.split()[0]))
            done = len(names) == 1 or names in found or second.near >= Near.MORE_GPUS
            if done or (ran_out and _raises(now, second)):
                continue
            outcome = attempt(second.scenario)
            if outcome.fits:
                name, price = f"{first.change.name} {second.name}", f"{first.change.price}; {second.price}"
                near = max(first.change.near, second.near)
                found[names] = Gain(Change(name, price, near, second.scenario), outcome, figures(outcome))
    return sorted(found.values(), key=_rank)[:MOST_PAIRS]


def _raises(now: Outcome, change: Change) -> bool:
    """Tell whether a change makes the pool's share of memory larger."""
    share = change.scenario.limits.mem_fraction
    return share is not None and share > now.value("engine.mem_fraction")


def anchored(report: Report) -> Scenario | None:
    """Return the scenario that fits a log best, its pool as large as the log counts it; None where none fits."""
    counted = next((check.observed for check in report.checks if check.key == "pool.reported_tokens"), None)
    return report.prediction.as_logged(int(counted) if counted else None) if report.prediction is not None else None


def figures(outcome: Outcome) -> Figures:
    """Return the figures of an outcome that has a ledger; requests and times are of its own load."""
    ledger = outcome.ledger
    if ledger is None:
        raise ValueError(outcome.reason)
    ends = step_seconds(ledger, "low"), step_seconds(ledger, "high")
    return Figures(int(ledger["pool.system_tokens"]), concurrency(ledger), *ends)


def _dropped(scenario: Scenario) -> Iterator[Change]:
    """Yield the scenario without each of its features."""
    for name in scenario.features:
        if name not in ("hisparse", "pd-prefill", "pd-decode"):
            rest = tuple(other for other in scenario.features if other != name)
            yield Change(f"without {name}", f"what {name} is there for", Near.FEATURE, changed(scenario, features=rest))
