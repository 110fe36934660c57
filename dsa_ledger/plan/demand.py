"""Demand and money: requests in flight by Little's law, servers for them, and cost where a step time is known.

A running request grows from its prompt to prompt plus output. Its steps are timed at the middle of that way, prompt
plus half the output, because a step's time is nearly a straight line in the context; the pool holds it at its end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.errors import BadInput, Fault, Faults, Words
from dsa_ledger.formulas import demand as formulas
from dsa_ledger.plan.answers import need_context
from dsa_ledger.plan.growth import concurrency, step_seconds
from dsa_ledger.plan.outcome import changed

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

NEVER = ("queueing and latency percentiles", "energy", "networking and host cost")
NO_INPUT_COST = (
    "cost per million input tokens: no prefill time of the whole model; output tokens are priced as if servers did "
    "nothing but decode"
)
DECODE_ALONE = (
    "in flight and servers are lower bounds: they count the time of decode alone, that of prefill is not modelled{why}"
)
ATTENTION_ALONE = (
    "in flight and servers are lower bounds: of prefill they count the attention layers (prefill.attention_s, whole "
    "prompt, nothing cached) and not experts and collectives"
)
ENDS = ("low", "high")
MOST = 1e9  # of arrivals a second, of a price: beyond it a unit was mistaken
MOST_SPARE = 1_000_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: arrivals, output length, spare servers, a price in any currency, prompt length."""

    requests_per_s: float | None = None
    output: int | None = None
    spare: int = 0
    price_per_gpu_hour: float | None = None
    prompt: int | None = None

    def check(self) -> None:
        """Raise BadInput for numbers that mean nothing, and for arrivals without an output length."""
        faults = Faults()
        for name, value in (
            ("--requests-per-s", self.requests_per_s),
            ("--price-per-gpu-hour", self.price_per_gpu_hour),
        ):
            faults.require(value is None or 0 < value < MOST, name, value, "a number above 0")
        faults.require(self.output is None or self.output > 0, "--output", self.output, "at least 1 token")
        faults.require(self.prompt is None or self.prompt > 0, "--prompt", self.prompt, "at least 1 token")
        faults.require(0 <= self.spare < MOST_SPARE, "--spare", self.spare, "0 or more servers")
        for name, value in (("--requests-per-s", self.requests_per_s), ("--prompt", self.prompt)):
            if value is not None and self.output is None:
                faults.add("--output", None, f"the tokens of one answer, which {name} needs")
                break
        faults.stop_if_any()


@dataclass(frozen=True, slots=True)
class End:
    """One end of the step time's interval and what follows from it."""

    step_s: float
    tokens_per_s: float
    tokens_per_s_per_request: float
    in_flight: int | None
    servers: int | None
    prefill_attention_s: float | None
    cost_per_million_input_tokens: None  # never modelled; the contract names it
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
    step_context: int
    end_context: int
    tokens_per_step: float | None
    low: End | None
    high: End | None
    not_modelled: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def demand(scenario: Scenario, wish: Wish) -> Demand:
    """Return demand and money of a scenario whose every server runs the asked batch (BadInput, NotModelled).

    With a prompt it replaces the scenario's context and new tokens, and without a batch a server runs all it holds.
    """
    wish.check()
    if wish.prompt is None:
        need_context(scenario)
    step_context, end_context = _contexts(scenario, wish)
    ledger = _estimate_at_end(_at(scenario, end_context), wish)
    holds = 0 if ledger.shortfalls and "load.needed_tokens" not in ledger else concurrency(ledger)
    if wish.prompt is not None and "batch" not in scenario.load.model_fields_set:
        scenario = changed(scenario, load={"batch": max(holds, 1)})
    batch = scenario.load.batch
    if not holds and ledger.shortfalls:
        cut = Words(f"{scenario.sharding.tp} x {scenario.sharding.pp}")
        expected = f"a layout that starts, or --machines to look for one: {ledger.shortfalls[0]}"
        raise BadInput([Fault("sharding (--tp, --pp)", cut, expected)])
    if batch > holds:
        expected = f"at most {holds:,} requests at once, which the server holds at {end_context:,} tokens each"
        raise BadInput([Fault("load.batch (--batch)", batch, expected)])
    prefill, warnings = _prefill(scenario, wish)
    kept, gaps = tokens_per_step(scenario)
    times = _times(estimate(_at(scenario, step_context)))
    if times is None:
        gaps = (*gaps, "step time of this engine, GPU and layout: no cost, no servers")
    gaps = (*gaps, NO_INPUT_COST, *NEVER)
    server = Server(ranks_of_server(scenario), batch, int(ledger["sharding.replicas"]) * scenario.sharding.pp)
    low = high = None
    if times is not None and kept is not None:
        low, high = (_end(wish, server, kept, step_s, part) for step_s, part in zip(times, prefill, strict=True))
    shown = scenario if wish.prompt is None else _at(scenario, end_context)
    return Demand(shown, wish, server.gpus, batch, holds, step_context, end_context, kept, low, high, gaps, warnings)


class Server(NamedTuple):
    """One server: its GPUs, the requests it runs, and the prompts whose prefill can go on in it at one time."""

    gpus: int
    requests: int
    prefills: int


def _contexts(scenario: Scenario, wish: Wish) -> tuple[int, int]:
    """Return a request's tokens at the middle and at the end of its decode; without a prompt the context."""
    if wish.prompt is None or wish.output is None:
        context = scenario.load.context or 1
        return context, context
    return wish.prompt + wish.output // 2, wish.prompt + wish.output


def _at(scenario: Scenario, context: int) -> Scenario:
    return changed(scenario, load={"context": context, "new_tokens": None})


def _estimate_at_end(scenario: Scenario, wish: Wish) -> Ledger:
    """Return the ledger; a context that is too long is the fault of the options that gave it."""
    try:
        return estimate(scenario)
    except BadInput as bad:
        if wish.prompt is None:
            raise
        known = {"load.context": "--prompt plus --output"}
        raise BadInput(fault._replace(path=known.get(fault.path, fault.path)) for fault in bad.faults) from None


def _prefill(scenario: Scenario, wish: Wish) -> tuple[tuple[float | None, float | None], tuple[str, ...]]:
    """Return both ends of what prefill is known to take [s], and the warning that it is not all of it."""
    if wish.requests_per_s is None:
        return (None, None), ()
    if wish.prompt is None:
        return (None, None), (DECODE_ALONE.format(why="; --prompt gives the part of its attention layers"),)
    ledger = estimate(changed(scenario, load={"context": wish.prompt, "new_tokens": wish.prompt, "batch": 1}))
    if "prefill.attention_low_s" not in ledger:
        return (None, None), (DECODE_ALONE.format(why=" for this engine and GPU"),)
    ends = (float(ledger["prefill.attention_low_s"]), float(ledger["prefill.attention_high_s"]))
    return ends, (ATTENTION_ALONE,)


def tokens_per_step(scenario: Scenario) -> tuple[float | None, tuple[str, ...]]:
    """Return the tokens that a request keeps of a step, None where drafts are on and nobody said; and what lacks."""
    if not scenario.draft.steps:
        return 1.0, ()
    if scenario.draft.accepted is None:
        return None, ("tokens kept per step with drafts on: give --accepted X",)
    return scenario.draft.accepted, ()


def _times(ledger: Ledger) -> tuple[float, float] | None:
    """Return both ends of the step time, alike where it is one figure; None where it is not modelled."""
    low, high = step_seconds(ledger, "low"), step_seconds(ledger, "high")
    return None if low is None or high is None else (low, high)


def _end(wish: Wish, server: Server, kept: float, step_s: float, prefill_s: float | None) -> End:
    rate = formulas.tokens_per_s(requests=server.requests, tokens_per_step=kept, step_s=step_s)
    flight = servers = None
    if wish.requests_per_s is not None and wish.output is not None:
        decode_s = formulas.request_seconds(output=wish.output, step_s=step_s, tokens_per_step=kept)
        request_s = decode_s + (prefill_s or 0.0)
        flight = formulas.requests_in_flight(requests_per_s=wish.requests_per_s, request_s=request_s)
        servers = formulas.servers_needed(
            in_flight=flight, requests_of_server=server.requests, spare=wish.spare,
            prefilling=wish.requests_per_s * (prefill_s or 0.0), prefills_of_server=server.prefills,
        )  # fmt: skip
    price = wish.price_per_gpu_hour
    million = month = None
    if price is not None:
        million = formulas.cost_of_million(price_per_gpu_hour=price, gpus=server.gpus, tokens_per_s=rate)
        month = formulas.cost_of_month(price_per_gpu_hour=price, gpus=server.gpus * (servers or 1 + wish.spare))
    one = formulas.tokens_per_s(requests=1, tokens_per_step=kept, step_s=step_s)
    return End(step_s, rate, one, flight, servers, prefill_s, None, million, month)


def record(found: Demand) -> dict[str, Any]:
    """Return the answer as the JSON contract spells it."""
    return {
        "gpus_of_server": found.gpus,
        "requests_of_server": found.requests,
        "requests_held": found.holds,
        "step_context_tokens": found.step_context,
        "end_context_tokens": found.end_context,
        "tokens_per_step": found.tokens_per_step,
        **{end: asdict(value) if (value := getattr(found, end)) else None for end in ENDS},
        "not_modelled": list(found.not_modelled),
        "warnings": list(found.warnings),
    }
