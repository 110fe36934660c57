"""One scenario tried: its ledger, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import capacity, estimate
from dsa_ledger.account.step_time import OF_A_STAGE
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

POOL, HEADROOM, PREFILL = "pool.tokens", "memory.headroom_bytes", "memory.prefill_headroom_bytes"
UPPER_BOUND = "pool.budget_bytes is an upper bound"
OUTSIDE = ((HEADROOM, "at rest"), (PREFILL, "in prefill"))  # memory left outside the pool, and when
# In place of OF_A_STAGE: here the stages' own times are added up (`growth.step_seconds`).
SUMMED = "with pipeline stages the step time is the sum of the stages' own; hops between them are not counted"


class Outcome(NamedTuple):
    """A scenario with its ledger; without one, `reason` says why the engine or the model of it refuses."""

    scenario: Scenario
    ledger: Ledger | None
    reason: str
    modelled: bool = True

    @property
    def holds(self) -> bool:
        """Tell whether the server starts and its pool holds the load, whatever is left outside the pool."""
        return self.ledger is not None and not self.ledger.shortfalls

    @property
    def fits(self) -> bool:
        """Tell whether the pool holds the load and memory is left outside it, at rest and in prefill."""
        return self.holds and not self.short

    @property
    def left_bytes(self) -> int | None:
        """Return the least memory left outside the pool [B], None where it is not modelled."""
        return min((value for key, _ in OUTSIDE if (value := self.value(key)) is not None), default=None)

    @property
    def short(self) -> str:
        """Return by how much memory outside the pool is short, and when; empty where it is not."""
        found = [(int(value), when) for key, when in OUTSIDE if (value := self.value(key)) is not None and value < 0]
        return f"short by {brief(-min(found)[0], Unit.BYTES)} {min(found)[1]}" if found else ""

    @property
    def why_not(self) -> str:
        """Return the first reason why it does not fit, empty where it does."""
        if self.ledger is None:
            return self.reason
        return self.ledger.shortfalls[0] if self.ledger.shortfalls else self.short

    @property
    def is_bound(self) -> bool:
        """Tell whether the pool is an upper bound, because the engine's profiling run is not modelled."""
        return self.ledger is not None and any(text.startswith(UPPER_BOUND) for text in self.ledger.warnings)

    @property
    def warnings(self) -> list[str]:
        """Return the ledger's warnings but for the upper bound, which `is_bound` tells; a step is of all stages."""
        if self.ledger is None:
            return []
        said = [text for text in self.ledger.warnings if not text.startswith(UPPER_BOUND)]
        return [SUMMED if text.startswith(OF_A_STAGE) else text for text in said]

    def value(self, key: str) -> Any:
        """Return the value of an entry, or None where it was not posted."""
        return self.ledger[key] if self.ledger is not None and key in self.ledger else None


def attempt(scenario: Scenario, *, whole: bool = True) -> Outcome:
    """Return the outcome of a scenario; expected failures are outcomes, a bug goes through.

    Without `whole` the ledger has no step: enough to tell whether it fits.
    """
    try:
        return Outcome(scenario, estimate(scenario) if whole else capacity(scenario), "")
    except BadInput as bad:
        return Outcome(scenario, None, "; ".join(bad.lines()))
    except NotModelled as gap:
        return Outcome(scenario, None, str(gap), modelled=False)


def changed(scenario: Scenario, **tables: Mapping[str, Any] | Any) -> Scenario:
    """Return a copy with fields replaced: a mapping changes fields of that table, anything else the field itself."""
    update: dict[str, Any] = {}
    for name, value in tables.items():
        part = getattr(scenario, name)
        is_table = isinstance(value, dict) and name != "model_overrides"
        update[name] = part.model_copy(update=value) if is_table else value
    return scenario.model_copy(update=update)
