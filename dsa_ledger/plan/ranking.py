"""Every deployment of a machine tried, those that fit ranked by the goal, the others counted by reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.errors import BadInput, Fault, NotModelled
from dsa_ledger.matrix import WORDS
from dsa_ledger.plan.growth import concurrency, first_to_break
from dsa_ledger.plan.layouts import Layout, layouts, whole_experts
from dsa_ledger.plan.outcome import HEADROOM, POOL, PREFILL, Outcome, attempt, changed
from dsa_ledger.schema import Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsa_ledger.schema import Engine, Scenario

Goal = Literal["requests", "context", "step", "gpus"]
GOALS: tuple[Goal, ...] = get_args(Goal)
FORMATS = ("auto", "bf16", "fp8", "fp8_ds_mla", "nvfp4")
STEP_LOW, STEP_HIGH, STEP = "time.step_low_s", "time.step_high_s", "time.step_s"


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

    def seconds(self, key: str) -> float | None:
        """Return a step time of the ledger, or None where none is modelled."""
        value = self.outcome.value(key)
        return None if value is None else float(value)

    @property
    def pessimistic_s(self) -> float | None:
        """Return the step time's upper end [s], or None where none is modelled."""
        return next((found for key in (STEP, STEP_HIGH) if (found := self.seconds(key)) is not None), None)

    @property
    def time_is_certain(self) -> bool:
        """Tell whether the step time is one figure, not an interval and not missing."""
        return self.seconds(STEP) is not None

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


def rank(
    scenario: Scenario, machines: Sequence[Machine], engines: Sequence[Engine], formats: Sequence[str], goal: Goal
) -> Ranking:
    """Return the ranking; the load asked is that of all servers together (BadInput, NotModelled where none answers)."""
    found = list(_tried(scenario, machines, engines, formats))
    fits = [one for one in found if one.outcome.fits]
    short = [one for one in found if one.outcome.ledger is not None and not one.outcome.fits]
    refused = Counter(_short_reason(one.outcome.reason) for one in found if one.outcome.ledger is None)
    if found and len(refused) and not fits and not short:
        _raise_all_refused(found)
    if goal == "step" and not any(one.pessimistic_s is not None for one in fits) and fits:
        raise NotModelled("step time", fits[0].outcome.scenario.engine.name, "no layout has one; rank by another goal")
    best = sorted(_distinct(fits), key=lambda one: _order(one, goal))
    short.sort(key=lambda one: _missing_share(one))
    return Ranking(scenario, goal, tuple(machines), len(found), tuple(best), tuple(refused.most_common()), tuple(short))


def _tried(
    scenario: Scenario, machines: Iterable[Machine], engines: Sequence[Engine], formats: Sequence[str]
) -> Iterator[Deployment]:
    """Yield every deployment; formats innermost, because they share the weights of a layout."""
    for machine in machines:
        for engine in engines:
            words = dict.fromkeys(WORDS.get(word.lower(), {}).get(engine.name, word) for word in formats)
            seen = ranks_of_server(scenario) == machine.gpus and machine.gpu == _gpu_name(scenario)
            for layout in layouts(engine.name, machine.gpus):
                kept = scenario.observed if seen and layout.sharding == _plain(scenario) else Observed()
                for word in words:
                    asked = scenario.model_copy(
                        update={
                            "engine": engine,
                            "kv_dtype": word,
                            "gpu": machine.gpu if not seen else scenario.gpu,
                            "gpus": None,
                            "sharding": layout.sharding,
                            "observed": kept,
                            "load": _share(scenario, layout),
                        }
                    )
                    yield _one(machine, layout, asked)


def _one(machine: Machine, layout: Layout, asked: Scenario) -> Deployment:
    """Return a layout's outcome, with whole experts where slices would cut a quantisation block."""
    outcome = attempt(asked)
    if outcome.ledger is None and "experts of" in outcome.reason:
        cut = whole_experts(asked.engine.name, layout.sharding)
        layout, outcome = layout._replace(sharding=cut), attempt(changed(asked, sharding=cut))
    return Deployment(machine, layout, outcome)


def _share(scenario: Scenario, layout: Layout) -> Any:
    """Return the load of one server: the fullest one's part of the requests."""
    return scenario.load.model_copy(update={"batch": -(-scenario.load.batch // layout.servers), "new_tokens": None})


def _gpu_name(scenario: Scenario) -> str:
    return scenario.gpu if isinstance(scenario.gpu, str) else scenario.gpu.name


def _plain(scenario: Scenario) -> Any:
    return scenario.sharding.model_copy(update={"ep": 1})


def _distinct(found: Iterable[Deployment]) -> list[Deployment]:
    """Return deployments without those whose KV word means the same record as an earlier word's."""
    kept: dict[tuple[Any, ...], Deployment] = {}
    for one in found:
        case = one.outcome.scenario
        record = one.outcome.value("record.main_kv_bytes")
        kept.setdefault((one.machine, case.engine.name, case.engine.version, one.layout, record), one)
    return list(kept.values())


def _order(one: Deployment, goal: Goal) -> tuple[Any, ...]:
    """Return the sort key: the goal first, then what people ask next; no step time ranks after any."""
    worst = one.pessimistic_s
    step = (worst is None, worst or 0.0)
    headroom = min(int(one.outcome.value(key) or 0) for key in (HEADROOM, PREFILL))
    short = headroom < 0  # it would run out of memory outside the pool: behind all that would not
    tie = (one.gpus, one.layout.sharding.pp, one.layout.sharding.dcp, -headroom)
    if goal == "context":
        return (short, -one.longest, -one.requests, *tie)
    if goal == "step":
        return (short, *step, -one.requests, *tie)
    if goal == "gpus":
        return (short, one.machine.gpus, one.gpus, -one.requests, *tie)
    return (short, -one.requests, *step, -one.longest, *tie)


def _missing_share(one: Deployment) -> float:
    """Return the share of the needed pool tokens that is missing, 1 where there is no pool."""
    ledger = one.outcome.ledger
    if ledger is None or "load.needed_tokens" not in ledger or not ledger[POOL]:
        return 1.0
    return 1.0 - min(ledger[POOL] / max(ledger["load.needed_tokens"], 1), 1.0)


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
