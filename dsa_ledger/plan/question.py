"""What `plan` is asked beside the scenario, as text, read and checked: machines, engines, formats, goal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.catalog import gpu_names, load_gpu
from dsa_ledger.engines.releases import READ
from dsa_ledger.errors import Faults, nearest
from dsa_ledger.matrix import engines_named
from dsa_ledger.plan.layouts import powers
from dsa_ledger.plan.outcome import attempt, changed
from dsa_ledger.plan.price import prices
from dsa_ledger.plan.ranking import FORMATS, GOALS, MOST_GPUS, Goal, Ranking, rank, smallest_machines
from dsa_ledger.plan.tried import Machine
from dsa_ledger.schema import Engine, Load, Observed
from dsa_ledger.units import UnitError, parse_seconds

if TYPE_CHECKING:
    from dsa_ledger.schema import Scenario

ANY = "any"
MOST_OF_ONE = 4096
USUAL = 8  # GPUs of a machine where nobody said how many
_MACHINE = re.compile(r"(?:(\d{1,5})\s*[x*]\s*)?([A-Za-z][\w.-]*)")


class Question(NamedTuple):
    """The options of a ranking as given; empty means the scenario's own."""

    machines: str = ""
    engines: str = ""
    kv_dtypes: str = ""
    goal: str = ""
    top: int = 10
    max_step_time: str = ""
    price: str = ""
    kept: tuple[str, ...] = ()  # fields of the scenario's cut that every layout has

    def ranking(self, scenario: Scenario) -> Ranking:
        """Return the ranking (BadInput with every fault, NotModelled)."""
        faults = Faults()
        machines = self._machines(scenario, faults)
        goal = self._goal(scenario, faults)
        most_step_s = self._seconds(scenario, faults)
        engines, formats = self._engines(scenario, faults), self._formats(scenario)
        table = prices(self.price, faults, scenario.gpu_name)
        faults.stop_if_any()
        return rank(
            scenario,
            machines,
            engines,
            formats,
            goal,
            top=self.top,
            most_step_s=most_step_s,
            prices=table,
            kept=self.kept,
        )

    def smallest(self, scenario: Scenario) -> list[Ranking]:
        """Return for each kind of GPU asked the fewest that hold the load (BadInput)."""
        faults = Faults()
        machines = self._machines(scenario.model_copy(update={"gpus": MOST_GPUS}), faults)
        engines, formats = self._engines(scenario, faults), self._formats(scenario)
        faults.stop_if_any()
        names = list(dict.fromkeys(machine.gpu for machine in machines))
        return smallest_machines(scenario, names, engines, formats, self.kept)

    def _machines(self, scenario: Scenario, faults: Faults) -> list[Machine]:
        own = scenario.gpu_name
        stated = scenario.gpus is not None or ranks_of_server(scenario) > 1
        count = scenario.gpus or ranks_of_server(scenario)
        if not self.machines.strip():
            faults.require(
                count > 1 or scenario.gpus is not None,
                "gpus (--gpus)",
                None,
                "how many GPUs to lay out: --gpus N, or --machines 8xH200,4xGB300",
            )
            faults.require(count <= MOST_OF_ONE, "gpus (--gpus)", count, f"at most {MOST_OF_ONE} to lay out")
            return [Machine(own, count)]
        if self.machines.strip().lower() == ANY:
            return [Machine(name, count if stated else usual(scenario, name)) for name in gpu_names()]
        found = []
        for word in filter(None, map(str.strip, self.machines.split(","))):
            hit = _MACHINE.fullmatch(word)
            name = hit[2] if hit else word
            known = name in gpu_names() or name == own
            faults.require(known, "--machines", word, f"8xH200 or the like, of {nearest(name, gpu_names())}")
            gpus = int(hit[1]) if hit and hit[1] else count if stated or not known else usual(scenario, name)
            faults.require(1 <= gpus <= MOST_OF_ONE, "--machines", word, f"1 to {MOST_OF_ONE} GPUs")
            found.append(Machine(name, gpus))
        faults.require(bool(found), "--machines", self.machines, "at least one, such as 8xH200")
        return found

    def _goal(self, scenario: Scenario, faults: Faults) -> Goal:
        own: Goal = "requests" if scenario.load.context is not None else "context"
        if not self.goal:
            return own
        hit = next((goal for goal in GOALS if goal == self.goal), None)
        faults.require(hit is not None, "--goal", self.goal, nearest(self.goal, GOALS))
        needs = self.goal in ("requests", "step") and scenario.load.context is None
        faults.require(
            not needs, "load.context (--context)", None, f"the tokens of one request, for --goal {self.goal}"
        )
        return hit or own

    def _seconds(self, scenario: Scenario, faults: Faults) -> float | None:
        """Return the longest step time asked [s], or None."""
        if not self.max_step_time:
            return None
        try:
            seconds = parse_seconds(self.max_step_time)
        except UnitError as wrong:
            faults.add("--max-step-time", self.max_step_time, str(wrong))
            return None
        faults.require(seconds > 0, "--max-step-time", self.max_step_time, "a time above 0, such as '25 ms'")
        needs = scenario.load.context is None
        faults.require(not needs, "load.context (--context)", None, "the tokens of one request, for --max-step-time")
        return seconds

    def _engines(self, scenario: Scenario, faults: Faults) -> list[Engine]:
        if not self.engines.strip():
            return [_versioned(scenario.engine)]
        if self.engines.strip().lower() == ANY:
            return [_versioned(Engine(name=name)) for name in READ]
        names = [word.strip() for word in self.engines.split(",") if word.strip()]
        bare = [word for word in names if "@" not in word]
        known = [word for word in bare if word.lower().replace("trtllm", "tensorrt-llm") in READ]
        for word in bare:
            faults.require(word in known, "--engines", word, nearest(word, READ))
        exact = engines_named(",".join(word for word in names if "@" in word)) if len(bare) < len(names) else []
        newest = [_versioned(Engine.model_validate(word)) for word in known]
        return [*newest, *exact]

    def _formats(self, scenario: Scenario) -> list[str]:
        if not self.kv_dtypes.strip():
            return [scenario.kv_dtype]
        if self.kv_dtypes.strip().lower() == ANY:
            return list(FORMATS)
        return [word.strip() for word in self.kv_dtypes.split(",") if word.strip()]


def usual(scenario: Scenario, gpu: str) -> int:
    """Return how many GPUs of a kind to try where nobody said: 8, or the power of two that holds the checkpoint."""
    asked = scenario.gpu if gpu == scenario.gpu_name else gpu
    capacity_bytes = (load_gpu(asked) if isinstance(asked, str) else asked).hbm.capacity_bytes
    one = changed(scenario, gpu=asked, engine=_versioned(scenario.engine), load=Load(), observed=Observed())
    weights_bytes = attempt(one, whole=False).value("weights.checkpoint_bytes") or 0
    return next(
        (count for count in powers(MOST_GPUS) if count >= USUAL and count * capacity_bytes > weights_bytes), USUAL
    )


def first_machine(text: str) -> str:
    """Return the GPU of the first machine named, the catalog's first where none is known."""
    hits = (_MACHINE.fullmatch(word.strip()) for word in text.split(","))
    return next((hit[2] for hit in hits if hit and hit[2] in gpu_names()), gpu_names()[0])


def first_engine(text: str) -> str:
    """Return the first engine named that is one, the first of all where none is."""
    words = (word.strip() for word in text.split(","))
    return next((word for word in words if word.partition("@")[0].lower().replace("trtllm", "tensorrt-llm") in READ),
                next(iter(READ)))  # fmt: skip


def _versioned(engine: Engine) -> Engine:
    """Return the engine with the newest version read where it names none."""
    return engine if engine.version else Engine(name=engine.name, version=list(READ[engine.name])[-1])
