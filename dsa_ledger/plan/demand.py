"""Demand and money: requests in flight by Little's law, servers for them, and cost where a step time is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsa_ledger.account import estimate
from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.errors import BadInput, Fault, Faults
from dsa_ledger.formulas import demand as formulas
from dsa_ledger.plan.answers import need_context
from dsa_ledger.plan.growth import concurrency, step_seconds

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

NEVER = ("queueing and latency percentiles", "energy", "networking and host cost")
ENDS = ("low", "high")
MOST = 1e9  # of arrivals a second, of a price: beyond it a unit was mistaken
MOST_SPARE = 1_000_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: arrivals, output length, spare servers, a price in any currency."""

    requests_per_s: float | None = None
    output: int | None = None
    spare: int = 0
    price_per_gpu_hour: float | None = None

    def check(self) -> None:
        """Raise BadInput for numbers that mean nothing, and for arrivals without an output length."""
        faults = Faults()
        for name, value in (
            ("--requests-per-s", self.requests_per_s),
            ("--price-per-gpu-hour", self.price_per_gpu_hour),
        ):
            faults.require(value is None or 0 < value < MOST, name, value, "a number above 0")
        faults.require(self.output is None or self.output > 0, "--output", self.output, "at least 1 token")
        faults.require(0 <= self.spare < MOST_SPARE, "--spare", self.spare, "0 or more servers")
        if self.requests_per_s is not None and self.output is None:
            faults.add("--output", None, "the tokens of one answer, which --requests-per-s needs")
        faults.stop_if_any()


@dataclass(frozen=True, slots=True)
class End:
    """One end of the step time's interval and what follows from it."""

    step_s: float
    tokens_per_s: float
    tokens_per_s_per_request: float
    in_flight: int | None
    servers: int | None
    cost_per_million_output_tokens: float | None
    cost_per_month: float | None


@dataclass(frozen=True, slots=True)
class Demand:
    """The answer at both ends, capacity first: it never waits for a time."""

    scenario: Scenario
    wish: Wish
    gpus: int
    requests: int
    holds: int
    tokens_per_step: float | None
    low: End | None
    high: End | None
    not_modelled: tuple[str, ...]


def demand(scenario: Scenario, wish: Wish) -> Demand:
    """Return demand and money of a scenario whose every server runs the asked batch (BadInput, NotModelled)."""
    wish.check()
    need_context(scenario)
    ledger = estimate(scenario)
    holds = 0 if ledger.shortfalls and "load.needed_tokens" not in ledger else concurrency(ledger)
    batch = scenario.load.batch
    if batch > holds:
        expected = f"at most {holds:,} requests at once, which the server holds at this context"
        raise BadInput([Fault("load.batch (--batch)", batch, expected)])
    kept, gaps = _tokens_per_step(scenario)
    times = _times(ledger)
    if times is None:
        gaps = (*gaps, "step time of this engine, GPU and layout: no cost, no servers")
    gaps = (*gaps, "prefill time of the whole model: no cost of input tokens, and it is not in flight", *NEVER)
    gpus = ranks_of_server(scenario)
    ends = [None, None] if times is None or kept is None else [_end(wish, gpus, batch, kept, one) for one in times]
    return Demand(scenario, wish, gpus, batch, holds, kept, ends[0], ends[1], gaps)


def _tokens_per_step(scenario: Scenario) -> tuple[float | None, tuple[str, ...]]:
    if not scenario.draft.steps:
        return 1.0, ()
    if scenario.draft.accepted is None:
        return None, ("tokens kept per step with drafts on: give --accepted X",)
    return scenario.draft.accepted, ()


def _times(ledger: Ledger) -> tuple[float, float] | None:
    """Return both ends of the step time, alike where it is one figure; None where it is not modelled."""
    low, high = step_seconds(ledger, "low"), step_seconds(ledger, "high")
    return None if low is None or high is None else (low, high)


def _end(wish: Wish, gpus: int, batch: int, kept: float, step_s: float) -> End:
    rate = formulas.tokens_per_s(requests=batch, tokens_per_step=kept, step_s=step_s)
    flight = servers = None
    if wish.requests_per_s is not None and wish.output is not None:
        request_s = formulas.request_seconds(output=wish.output, step_s=step_s, tokens_per_step=kept)
        flight = formulas.requests_in_flight(requests_per_s=wish.requests_per_s, request_s=request_s)
        servers = formulas.servers_needed(in_flight=flight, requests_of_server=batch, spare=wish.spare)
    price = wish.price_per_gpu_hour
    million = month = None
    if price is not None:
        million = formulas.cost_of_million(price_per_gpu_hour=price, gpus=gpus, tokens_per_s=rate)
        month = formulas.cost_of_month(price_per_gpu_hour=price, gpus=gpus * (servers or 1 + wish.spare))
    return End(
        step_s, rate, formulas.tokens_per_s(requests=1, tokens_per_step=kept, step_s=step_s), flight, servers, million,
        month,
    )  # fmt: skip


def record(found: Demand) -> dict[str, Any]:
    """Return the answer as the JSON contract spells it."""
    from dataclasses import asdict

    return {
        "gpus_of_server": found.gpus,
        "requests_of_server": found.requests,
        "requests_held": found.holds,
        "tokens_per_step": found.tokens_per_step,
        **{end: asdict(value) if (value := getattr(found, end)) else None for end in ENDS},
        "not_modelled": list(found.not_modelled),
    }
