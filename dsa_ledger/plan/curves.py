"""What pictures show: a scenario estimated again over a ladder of contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.plan.growth import concurrency, step_seconds

if TYPE_CHECKING:
    from dsa_ledger.schema import Scenario

ENDS: tuple[Literal["floor", "low", "high"], ...] = ("floor", "low", "high")
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
        floor, low, high = (step_seconds(ledger, end) for end in ENDS)
        found.append(Point(1 << power, concurrency(ledger), floor, low, high))
    return found
