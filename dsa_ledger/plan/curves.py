"""What pictures show: a scenario estimated again over a ladder of contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.plan.growth import concurrency

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

FIRST, LAST = 10, 20  # 1 Ki to 1 Mi tokens


class Point(NamedTuple):
    """One context: requests that the server runs of it at once, and the step's times where they are modelled."""

    context: int
    requests: int
    floor_s: float | None
    low_s: float | None
    high_s: float | None


def over_contexts(scenario: Scenario) -> list[Point]:
    """Return the points that the scenario's engine takes, shortest context first."""
    found = []
    for power in range(FIRST, LAST + 1):
        load = scenario.load.model_copy(update={"context": 1 << power, "new_tokens": None})
        try:
            ledger = estimate(scenario.model_copy(update={"load": load}))
        except (BadInput, NotModelled):
            continue
        times = [_time(ledger, f"time.step_{end}_s") for end in ("floor", "low", "high")]
        found.append(Point(1 << power, concurrency(ledger), *times))
    return found


def _time(ledger: Ledger, key: str) -> float | None:
    if "time.step_s" in ledger and key != "time.step_floor_s":
        return float(ledger["time.step_s"])
    return float(ledger[key]) if key in ledger else None
