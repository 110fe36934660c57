"""Every deployment of a machine tried, those that fit ranked by the goal, the others counted by reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.errors import BadInput, Fault, NotModelled
from dsa_ledger.matrix import WORDS
from dsa_ledger.plan.answers import need_context
from dsa_ledger.plan.growth import concurrency, first_to_break, step_seconds
from dsa_ledger.plan.layouts import Layout, layouts, powers, whole_experts
from dsa_ledger.plan.outcome import HEADROOM, POOL, PREFILL, Outcome, attempt, changed
from dsa_ledger.schema import Load, Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsa_ledger.schema import Engine, Scenario

Goal = Literal["requests", "context", "step", "gpus"]
GOALS: tuple[Goal, ...] = get_args(Goal)
MOST_GPUS = 64
MOST_WHOLE = 64
BEFORE_STEP = 3  # parts of the sort key by requests that stand before the step time
FORMATS = ("auto", "bf16", "fp8", "fp8_ds_mla", "nvfp4")


class Machine(NamedTuple):
    """So many GPUs of one kind."""

    gpu: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """One layout on one machine, with its outcome and the figures it is ranked by."""

    machine: Machine
    layout: Layout
    outcome: Outcome

    @property
    def requests(self) -> int:
        """Return the requests of the asked context that all servers run at once."""
        ledger = self.outcome.ledger
        return self.layout.servers * concurrency(ledger) if ledger is not None else 0

    @property
    def longest(self) -> int:
        """Return the longest request [tokens]."""
        return int(self.outcome.value("pool.longest_request_tokens") or 0)

    @property
    def gpus(self) -> int:
        """Return the GPUs of one server."""
        return self.layout.ranks

    @property
    def pessimistic_s(self) -> float | None:
        """Return the step time's upper end [s], or None where none is modelled."""
        return None if self.outcome.ledger is None else step_seconds(self.outcome.ledger, "high")

    @property
    def least_step_s(self) -> float | None:
        """Return the step time's lower end [s], or None where none is modelled."""
        return None if self.outcome.ledger is None else step_seconds(self.outcome.ledger, "low")

    @property
    def time_is_certain(self) -> bool:
        """Tell whether the step time is one figure, not an interval and not missing."""
        return self.pessimistic_s is not None and self.pessimistic_s == self.least_step_s

    @property
    def breaks(self) -> str:
        """Return what gives way first."""
        return first_to_break(self.outcome)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The deployments that fit in order of the goal, and why the others do not."""

    scenario: Scenario
    goal: Goal
    machines: tuple[Machine, ...]
    tried: int
    best: tuple[Deployment, ...]
    refused: tuple[tuple[str, int], ...]
    near_misses: tuple[Deployment, ...]
    most_step_s: float | None = None
    too_slow: tuple[Deployment, ...] = ()


def rank(
    scenario: Scenario,
    machines: Sequence[Machine],
    engines: Sequence[Engine],
    formats: Sequence[str],
    goal: Goal,
    *,
    top: int = 10,
    most_step_s: float | None = None,
) -> Ranking:
    """Return the ranking; the load asked is that of all servers together (BadInput, NotModelled where none answers).

    The first `top` deployments carry whole ledgers, the others what decides whether they fit. With a longest step time
    only those are left out that are slower at the lower end already; the sure ones come first, the unknown ones last.
    """
    found = list(_tried(scenario, machines, engines, formats))
    fits = [one for one in found if one.outcome.fits]
    if goal == "step" or most_step_s is not None:
        fits = [_whole(one) for one in fits]
    slow = [one for one in fits if most_step_s is not None and (one.least_step_s or 0.0) > most_step_s]
    fits = [one for one in fits if one not in slow]
    short = [one for one in found if one.outcome.ledger is not None and not one.outcome.fits]
    refused = Counter(_short_reason(one.outcome.reason) for one in found if one.outcome.ledger is None)
    if found and len(refused) and not fits and not short:
        _raise_all_refused(found)
    if goal == "step" and not any(one.pessimistic_s is not None for one in fits) and fits:
        raise NotModelled("step time", fits[0].outcome.scenario.engine.name, "no layout has one; rank by another goal")
    best = sorted(fits, key=lambda one: order(one, goal, most_step_s))
    first = _decided_by_step(best, goal, top)
    best[:first] = sorted((_whole(one) for one in best[:first]), key=lambda one: order(one, goal, most_step_s))
    short.sort(key=_missing_share)
    return Ranking(
        scenario,
        goal,
        tuple(machines),
        len(found),
        tuple(best),
        tuple(refused.most_common()),
        tuple(short),
        most_step_s,
        tuple(sorted(slow, key=lambda one: one.least_step_s or 0.0)),
    )


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


def _tried(
    scenario: Scenario, machines: Iterable[Machine], engines: Sequence[Engine], formats: Sequence[str]
) -> Iterator[Deployment]:
    """Yield every deployment; formats innermost, because they share the weights of a layout."""
    for machine in machines:
        as_seen = machine == Machine(gpu_name(scenario), ranks_of_server(scenario))
        gpu = scenario.gpu if machine.gpu == gpu_name(scenario) else machine.gpu
        for engine in engines:
            cuts = list(layouts(engine.name, machine.gpus))
            asked = scenario.model_copy(update={"engine": engine, "gpu": gpu, "gpus": None, "observed": Observed()})
            words, refused = _words(asked, machine, cuts[-1], formats)
            yield from refused
            whole: set[int] = set()  # slices of the experts that would cut a quantisation block
            for layout in cuts:
                seen = as_seen and layout.sharding == scenario.sharding.model_copy(update={"ep": 1})
                update = {"sharding": layout.sharding, "load": _share(scenario, layout)}
                update |= {"observed": scenario.observed} if seen else {}
                for word in words:
                    yield _one(machine, layout, asked.model_copy(update=update | {"kv_dtype": word}), whole)


def _words(
    asked: Scenario, machine: Machine, layout: Layout, formats: Sequence[str]
) -> tuple[list[str], list[Deployment]]:
    """Return the words that mean records of their own here, and the outcomes of those that the engine refuses."""
    kept: dict[Any, str] = {}
    refused: list[Deployment] = []
    ranks = machine.gpus if asked.engine.name == "tensorrt-llm" else min(8, machine.gpus)
    plain = layout.sharding.model_copy(update={"tp": ranks, "pp": 1, "dcp": 1, "dp_attention": 1, "ep": ranks})
    for word in dict.fromkeys(WORDS.get(word.lower(), {}).get(asked.engine.name, word) for word in formats):
        probe = asked.model_copy(update={"kv_dtype": word, "sharding": plain, "load": Load()})
        outcome = attempt(probe, whole=False)
        if outcome.ledger is None and "kv_dtype" in outcome.reason:
            refused.append(Deployment(machine, layout, outcome))
        else:
            kept.setdefault(outcome.value("record.main_kv_bytes") or word, word)
    return list(kept.values()), refused


def _one(machine: Machine, layout: Layout, asked: Scenario, whole: set[int]) -> Deployment:
    """Return a layout's outcome, with whole experts where the engine does not take slices of them.

    `whole` remembers into how many slices experts cannot be cut.
    """
    cut, name = layout.sharding, asked.engine.name
    slices = cut.tp * (cut.dp_attention if name == "vllm" else 1)
    sliced = None
    if slices not in whole:
        sliced = Deployment(machine, layout, attempt(asked, whole=False))
        if sliced.outcome.ledger is not None or slices == 1:
            return sliced
    cut = whole_experts(name, cut)
    other = Deployment(machine, layout._replace(sharding=cut), attempt(changed(asked, sharding=cut), whole=False))
    if sliced is not None and other.outcome.ledger is None:
        return sliced
    whole.add(slices)
    return other


def _share(scenario: Scenario, layout: Layout) -> Any:
    """Return the load of one server: the fullest one's part of the requests."""
    return scenario.load.model_copy(update={"batch": -(-scenario.load.batch // layout.servers), "new_tokens": None})


def gpu_name(scenario: Scenario) -> str:
    """Return the name of the scenario's GPU."""
    return scenario.gpu if isinstance(scenario.gpu, str) else scenario.gpu.name


def smallest_machines(
    scenario: Scenario, gpus: Sequence[str], engines: Sequence[Engine], formats: Sequence[str]
) -> list[Ranking]:
    """Return for each kind of GPU the ranking of the fewest that hold the load, or of the most tried where none do."""
    need_context(scenario)
    rankings = []
    for gpu in gpus:
        ranking = None
        for count in powers(MOST_GPUS):
            try:
                ranking = rank(scenario, [Machine(gpu, count)], engines, formats, "gpus")
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
    headroom = min(int(one.outcome.value(key) or 0) for key in (HEADROOM, PREFILL))
    short = headroom < 0  # it would run out of memory outside the pool: behind all that would not
    tie = (one.gpus, one.layout.sharding.pp, one.layout.sharding.dcp, -headroom)
    if goal == "context":
        return (sure, short, -one.longest, -one.requests, *tie)
    if goal == "step":
        return (sure, short, *step, -one.requests, *tie)
    if goal == "gpus":
        return (sure, short, one.machine.gpus, one.gpus, -one.requests, *tie)
    return (sure, short, -one.requests, *step, -one.longest, *tie)


def _missing_share(one: Deployment) -> float:
    """Return the share of the needed pool tokens that is missing, 1 where there is no pool."""
    ledger = one.outcome.ledger
    if ledger is None or "load.needed_tokens" not in ledger or not ledger[POOL]:
        return 1.0
    return float(1.0 - min(ledger[POOL] / max(ledger["load.needed_tokens"], 1), 1.0))


def _short_reason(reason: str) -> str:
    """Return a reason without its numbers, so that refusals of one kind are counted together."""
    first = reason.partition("; ")[0]
    path, _, expected = first.partition(": ")
    return f"{path}: {re.sub(r'[0-9]+', 'N', expected.rpartition(': ')[2] or expected)}"[:120]


def _raise_all_refused(found: Sequence[Deployment]) -> None:
    """Raise what all deployments are refused for, where not one of them can be worked out."""
    reasons = Counter(one.outcome.reason for one in found)
    gaps = [one for one in found if not one.outcome.modelled]
    if len(gaps) == len(found):
        raise NotModelled("every layout", found[0].outcome.scenario.engine.name, reasons.most_common(1)[0][0])
    raise BadInput(
        [Fault("plan", reason, f"refused so for {count} layouts") for reason, count in reasons.most_common(3)]
    )
