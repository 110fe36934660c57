"""What a ranked deployment's tokens cost: prices of a GPU an hour as stated, and both ends of the step time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.catalog import gpu_names
from dsa_ledger.errors import Faults, nearest
from dsa_ledger.formulas import demand as formulas
from dsa_ledger.plan.demand import MOST, tokens_per_step
from dsa_ledger.units import parse_price

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsa_ledger.plan.tried import Deployment

ALL = ""  # the price of any GPU
OPTION = "--price-per-gpu-hour"
WANTED = "a number above 0, such as 3.5 or '$3.5', in any currency, or one for each GPU: H200=3,B200=5"


class Cost(NamedTuple):
    """A million output tokens at the lower and the upper end of the step time, and the machine for a month."""

    million_low: float | None
    million_high: float | None
    month: float


def prices(text: str, faults: Faults, *own: str) -> dict[str, float]:
    """Return the price of a GPU an hour by GPU name, `ALL` for all of them; `own` are names beside the catalog's."""
    found: dict[str, float] = {}
    known = {name.lower(): name for name in (*gpu_names(), *own)}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, written = word.rpartition("=")
        gpu = known.get(name.strip().lower(), "") if equals else ALL
        faults.require(bool(gpu) or not equals, OPTION, word, f"a GPU's name before =; {nearest(name, known.values())}")
        faults.require(gpu not in found, OPTION, word, "each price once")
        try:
            found[gpu] = parse_price(written)
        except ValueError:
            faults.require(False, OPTION, word, WANTED)  # noqa: FBT003 - the number is none
            continue
        faults.require(0 < found[gpu] < MOST, OPTION, word, WANTED)
    faults.require(bool(found) or not text or bool(faults.found), OPTION, text, WANTED)
    return found


def price_of(table: Mapping[str, float], gpu: str) -> float | None:
    """Return the price of a GPU an hour, None where none was stated for it."""
    return table.get(gpu, table.get(ALL))


def cost(one: Deployment, table: Mapping[str, float]) -> Cost | None:
    """Return what a deployment costs with each server running its share of the asked batch; None without a price.

    Tokens have no cost where no step time is modelled, or where drafts are on and nobody said how many are kept.
    """
    price = price_of(table, one.machine.gpu)
    if price is None:
        return None
    month = formulas.cost_of_month(price_per_gpu_hour=price, gpus=one.machine.gpus)
    load, (kept, _) = one.outcome.scenario.load, tokens_per_step(one.outcome.scenario)
    low_s, high_s = one.least_step_s, one.pessimistic_s
    if load.context is None or kept is None or low_s is None or high_s is None:
        return Cost(None, None, month)
    low, high = (
        formulas.cost_of_million(
            price_per_gpu_hour=price,
            gpus=one.layout.ranks,
            tokens_per_s=formulas.tokens_per_s(requests=load.batch, tokens_per_step=kept, step_s=step_s),
        )
        for step_s in (low_s, high_s)
    )
    return Cost(low, high, month)
