"""One deployment under many loads at once: the entries of `estimate`, each an array with a place for every load.

numpy is needed; the formulas are the same functions, and a test compares every entry point by point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import post_loads, still
from dsa_ledger.account.deploy import check_load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

# Above these the largest product of the step or of a prefill could leave int64.
MOST_CONTEXT, MOST_BATCH = 1 << 22, 1 << 20
FIELDS = ("batch", "context", "new_tokens")


class Loads(NamedTuple):
    """Loads as arrays of one length, or plain numbers; shaped like `schema.Load`."""

    batch: Any
    context: Any
    new_tokens: Any


def estimate_many(scenario: Scenario, values: Mapping[str, Any]) -> Ledger:
    """Return a ledger whose load entries are arrays; `values` maps `batch`, `context`, `new_tokens` to int64 arrays.

    What the scenario itself says of the load fills the rest. `load.needed_tokens` against `pool.tokens` tells for each
    load whether it fits; `shortfalls` holds only what keeps the server from starting. Raises as `estimate` does, for
    the longest and the shortest of the loads.
    """
    own = scenario.load
    loads = Loads(**{name: values.get(name, getattr(own, name)) for name in FIELDS})
    for pick in (_most, _least):
        given = {name: pick(value) for name, value in loads._asdict().items() if value is not None}
        check_load(scenario.model_copy(update={"load": own.model_copy(update=given)}), still(scenario)[0].model)
    return post_loads(scenario, loads)


def _most(value: Any) -> Any:
    return int(value.max()) if hasattr(value, "dtype") else value or 0


def _least(value: Any) -> Any:
    return int(value.min()) if hasattr(value, "dtype") else value or 0
