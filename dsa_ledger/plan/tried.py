"""Every deployment of a machine worked out: layouts by engine and KV format, each with its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.matrix import WORDS
from dsa_ledger.plan.growth import concurrency, first_to_break, step_seconds
from dsa_ledger.plan.layouts import Layout, layouts, whole_experts
from dsa_ledger.plan.outcome import Outcome, attempt, changed
from dsa_ledger.schema import Load, Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsa_ledger.schema import Engine, Scenario


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


def tried(
    scenario: Scenario,
    machines: Iterable[Machine],
    engines: Sequence[Engine],
    formats: Sequence[str],
    kept: Sequence[str] = (),
) -> Iterator[Deployment]:
    """Yield every deployment with the `kept` fields of the scenario's own cut.

    Formats are innermost, because they share the weights of a layout.
    """
    fixed = [(name, getattr(scenario.sharding, name)) for name in kept]
    for machine in machines:
        as_seen = machine == Machine(scenario.gpu_name, ranks_of_server(scenario))
        gpu = scenario.gpu if machine.gpu == scenario.gpu_name else machine.gpu
        for engine in engines:
            every = layouts(engine.name, machine.gpus)
            cuts = [cut for cut in every if all(getattr(cut.sharding, name) == value for name, value in fixed)]
            if not cuts:
                continue
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
