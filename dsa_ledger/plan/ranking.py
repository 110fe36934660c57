"""Every deployment of a machine tried, those that fit ranked by the goal, the others counted by reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from dsa_ledger.errors import BadInput, Fault, NotModelled, Said, Words
from dsa_ledger.plan.answers import need_context
from dsa_ledger.plan.layouts import powers
from dsa_ledger.plan.outcome import POOL, attempt
from dsa_ledger.plan.tried import Deployment, Machine, tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsa_ledger.schema import Engine, Scenario

Goal = Literal["requests", "context", "step", "gpus"]
GOALS: tuple[Goal, ...] = get_args(Goal)
MOST_GPUS = 64
MOST_WHOLE = 64
BEFORE_STEP = 2  # parts of the sort key by requests that stand before the step time
FORMATS = ("auto", "bf16", "fp8", "fp8_ds_mla", "nvfp4")


@dataclass(frozen=True, slots=True)
class Ranking:
    """The deployments that fit in order of the goal, and why the others do not.

    `best` starts with the first of each machine (`leaders` of them). The pools of `short` hold the load, memory outside
    them is short. `refused` counts by reason, told as the first was; `nearest` says for each machine without a best
    one what came nearest.
    """

    scenario: Scenario
    goal: Goal
    machines: tuple[Machine, ...]
    tried: int
    best: tuple[Deployment, ...]
    short: tuple[Deployment, ...]
    refused: tuple[tuple[str, int], ...]
    near_misses: tuple[Deployment, ...]
    most_step_s: float | None = None
    too_slow: tuple[Deployment, ...] = ()
    leaders: int = 0
    nearest: tuple[Deployment, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)


def rank(
    scenario: Scenario,
    machines: Sequence[Machine],
    engines: Sequence[Engine],
    formats: Sequence[str],
    goal: Goal,
    *,
    top: int = 10,
    most_step_s: float | None = None,
    prices: Mapping[str, float] | None = None,
    kept: Sequence[str] = (),
) -> Ranking:
    """Return the ranking; the load asked is that of all servers together (BadInput, NotModelled where none answers).

    The first `top` deployments carry whole ledgers, the others what decides whether they fit. With a longest step time
    only those are left out that are slower at the lower end already; the sure ones come first, the unknown ones last.
    `prices` are those of one GPU an hour, by GPU. `kept` are fields of the scenario's cut that each layout must have.
    """
    found = list(tried(scenario, machines, engines, formats, kept))
    if not found:
        cut = ", ".join(f"{name} {getattr(scenario.sharding, name)}" for name in kept)
        sizes = ", ".join(f"{machine.gpus} x {machine.gpu}" for machine in machines)
        raise BadInput([Fault("sharding", Words(cut), f"a cut of {sizes} into powers of two")])
    holds = [one for one in found if one.outcome.holds]
    if goal == "step" or most_step_s is not None:
        holds = [_whole(one) for one in holds]
    slow = [one for one in holds if most_step_s is not None and (one.least_step_s or 0.0) > most_step_s]
    holds = [one for one in holds if one not in slow]
    misses = [one for one in found if one.outcome.ledger is not None and not one.outcome.holds]
    refused = [one for one in found if one.outcome.ledger is None]
    if len(refused) == len(found) > 0:
        _raise_all_refused(found)
    if goal == "step" and not any(one.pessimistic_s is not None for one in holds) and holds:
        raise NotModelled("step time", holds[0].outcome.scenario.engine.name, "no layout has one; rank by another goal")

    def settled(some: list[Deployment], top: int) -> list[Deployment]:
        ordered = sorted(some, key=lambda one: order(one, goal, most_step_s))
        first = _decided_by_step(ordered, goal, top)
        whole = (_whole(one) for one in ordered[:first])
        return [*sorted(whole, key=lambda one: order(one, goal, most_step_s)), *ordered[first:]]

    fits = [one for one in holds if one.outcome.fits]
    groups = [[one for one in fits if one.machine == machine] for machine in dict.fromkeys(machines)]
    first = settled([settled(group, 1)[0] for group in groups if group], top)
    led = {id_of(one) for one in first}
    others = settled([one for one in fits if id_of(one) not in led], max(top - len(first), 0))
    short = settled([one for one in holds if not one.outcome.fits], top)
    misses.sort(key=lambda one: (_missing_share(one), -(one.outcome.value("memory.free_after_bytes") or 0)))
    slow.sort(key=lambda one: one.least_step_s or 0.0)
    served = {one.machine for one in first}
    behind = [*slow, *short, *misses, *refused]
    return Ranking(
        scenario=scenario,
        goal=goal,
        machines=tuple(machines),
        tried=len(found),
        best=(*first, *others),
        short=tuple(short),
        refused=_counted(refused),
        near_misses=tuple(misses),
        most_step_s=most_step_s,
        too_slow=tuple(slow),
        leaders=len(first),
        nearest=tuple(
            next(one for one in behind if one.machine == machine)
            for machine in dict.fromkeys(one.machine for one in found)
            if machine not in served
        ),
        prices=prices or {},
    )


def id_of(one: Deployment) -> tuple[Any, ...]:
    """Return what tells a deployment from all others of a ranking."""
    asked = one.outcome.scenario
    return (one.machine, one.layout.servers, asked.sharding, asked.engine, asked.kv_dtype)


def _counted(refused: Iterable[Deployment]) -> tuple[tuple[str, int], ...]:
    """Return refusals by reason, most first; reasons that differ in their digits only are one, told as the first is."""
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for one in refused:
        reason = one.outcome.reason.partition("; ")[0]
        kind = re.sub(r"[0-9]+", "#", reason)
        firsts.setdefault(kind, reason)
        counts[kind] += 1
    return tuple((firsts[kind], count) for kind, count in counts.most_common())


def _decided_by_step(best: Sequence[Deployment], goal: Goal, top: int) -> int:
    """Return how many to work out whole: those shown, and those that the step time may put in front of the last one."""
    first = top
    while goal == "requests" and 0 < first < min(len(best), MOST_WHOLE):
        if order(best[first], goal)[:BEFORE_STEP] != order(best[top - 1], goal)[:BEFORE_STEP]:
            break
        first += 1
    return first


def _whole(one: Deployment) -> Deployment:
    """Return a deployment with its whole ledger."""
    return replace(one, outcome=attempt(one.outcome.scenario))


def smallest_machines(
    scenario: Scenario,
    gpus: Sequence[str],
    engines: Sequence[Engine],
    formats: Sequence[str],
    kept: Sequence[str] = (),
) -> list[Ranking]:
    """Return for each kind of GPU the ranking of the fewest that hold the load, or of the most tried where none do.

    `kept` as for `rank`.
    """
    need_context(scenario)
    rankings = []
    for gpu in gpus:
        ranking = None
        for count in powers(MOST_GPUS):
            try:
                ranking = rank(scenario, [Machine(gpu, count)], engines, formats, "gpus", kept=kept)
            except BadInput:
                continue  # so few GPUs cannot be cut in a way that the engine takes
            if ranking.best:
                break
        if ranking is not None:
            rankings.append(ranking)
    return rankings


def order(one: Deployment, goal: Goal, most_step_s: float | None = None) -> tuple[Any, ...]:
    """Return a deployment's sort key: the goal first, then what people ask next; no step time ranks after any."""
    worst = one.pessimistic_s
    step = (worst is None, worst or 0.0)
    sure = 0 if most_step_s is None else 2 if worst is None else int(worst > most_step_s)
    tie = (one.gpus, one.layout.sharding.pp, one.layout.sharding.dcp, -(one.outcome.left_bytes or 0))
    if goal == "context":
        return (sure, -one.longest, -one.requests, *tie)
    if goal == "step":
        return (sure, *step, -one.requests, *tie)
    if goal == "gpus":
        return (sure, one.machine.gpus, one.gpus, -one.requests, *tie)
    return (sure, -one.requests, *step, -one.longest, *tie)


def _missing_share(one: Deployment) -> float:
    """Return the share of the needed pool tokens that is missing, 1 where there is no pool."""
    ledger = one.outcome.ledger
    if ledger is None or "load.needed_tokens" not in ledger or not ledger[POOL]:
        return 1.0
    return float(1.0 - min(ledger[POOL] / max(ledger["load.needed_tokens"], 1), 1.0))


def _raise_all_refused(found: Sequence[Deployment]) -> None:
    """Raise what all deployments are refused for, where not one of them can be worked out."""
    reasons = Counter(one.outcome.reason for one in found)
    gaps = [one for one in found if not one.outcome.modelled]
    if len(gaps) == len(found):
        raise NotModelled("every layout", found[0].outcome.scenario.engine.name, reasons.most_common(1)[0][0])
    raise BadInput(
        Fault("plan", Words(f"{count} layout{'s' if count > 1 else ''}"), Said(f"refused: {reason}"))
        for reason, count in reasons.most_common(3)
    )
