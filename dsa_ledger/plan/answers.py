"""The direct answers about one scenario: largest context, most requests, safe chunk."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, Fault, NotModelled
from dsa_ledger.plan.changes import Tried, nearest
from dsa_ledger.plan.growth import concurrency, first_to_break
from dsa_ledger.plan.outcome import PREFILL, Outcome, attempt, changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.schema import Scenario

# Context lengths at which an engine's own rule changes, so that a longer one may fit where a shorter one does not.
THRESHOLDS = (262_144,)
CHUNKS = tuple(1 << power for power in range(9, 19))  # 512 to 262,144 tokens


class Chunk(NamedTuple):
    """One chunk size tried: what its forward holds beside pool and weights, and whether that and the load fit."""

    chunk_tokens: int
    mem_fraction: float
    pool_tokens: int
    logits_bytes: int
    activation_bytes: int
    headroom_bytes: int
    fits: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A direct answer: the figure, what was asked for, the scenario that shows it, and what would give more."""

    question: str
    value: int
    unit: str
    asked: int | None
    outcome: Outcome
    first_to_break: str
    changes: tuple[Tried, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether what was asked for fits, pool and memory outside it; without a wish, whether anything does."""
        return self.value >= (self.asked or 1) and not self.outcome.short


def largest_context(scenario: Scenario) -> Answer:
    """Return the longest context that the running batch can have at once [tokens].

    The engine's context length is set to it: several buffers, and vLLM's start-up check, follow that length.
    """
    ledger = estimate(_at_context(scenario, 1))  # refused or not modelled is said at once
    stated = [value for value in (scenario.limits.context_length, scenario.load.context) if value]
    most = max(int(ledger["config.max_position"]), scenario.limits.context_length or 0)
    value = _longest(lambda tokens: attempt(_at_context(scenario, tokens)).holds, most)
    asked = max(stated) if stated else None
    outcome = attempt(_at_context(scenario, max(value, 1)))
    lacks = value < (asked or 1) or outcome.short
    found, why = _nearest(_at_context(scenario, asked or max(value, 1)), lambda _: True) if lacks else ([], "")
    said = first_to_break(outcome)
    return Answer("largest context", value, "tokens", asked, outcome, said, tuple(found), (), notes(outcome), why)


def _nearest(wanted: Scenario, suits: Callable[[Outcome], bool]) -> tuple[list[Tried], str]:
    """Return the changes that make a wish fit, and why it does not as it is.

    Where the pool is what lacks, a change that makes it hold counts, though memory outside it be short then.
    """
    now = attempt(wanted)
    found = nearest(wanted, lambda outcome: (outcome.fits if now.holds else outcome.holds) and suits(outcome))
    return found, now.why_not


def _at_context(scenario: Scenario, tokens: int) -> Scenario:
    return changed(scenario, limits={"context_length": tokens}, load={"context": tokens, "new_tokens": None})


def _longest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` that fits, 0 where none does; between thresholds fitting is monotone."""
    bounds = [0, *(limit for limit in THRESHOLDS if limit < most), most]
    for below, top in reversed(list(pairwise(bounds))):
        if fits(top):
            return top
        low, high = below, top
        if not fits(below + 1):
            continue
        while high - low > 1:
            middle = low + (high - low) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
    return 0


def max_concurrency(scenario: Scenario) -> Answer:
    """Return the requests of the asked context that the whole server runs at once [requests] (BadInput without one)."""
    need_context(scenario)
    one = changed(scenario, load={"batch": 1, "new_tokens": None})
    ledger = estimate(one)
    starts = not ledger.shortfalls
    value = concurrency(ledger) if starts else 0
    batch = scenario.load.batch
    asked = batch if batch > 1 else None
    outcome = attempt(changed(one, load={"batch": max(value, 1)}))
    found: list[Tried] = []
    why = ""
    if value < (asked or 1) or outcome.short:
        wanted = changed(scenario, load={"new_tokens": None})
        found, why = _nearest(wanted, lambda outcome: _runs(outcome, asked or 1))
    said = first_to_break(outcome)
    return Answer("most requests", value, "requests", asked, outcome, said, tuple(found), (), notes(outcome), why)


def _runs(outcome: Outcome, requests: int) -> bool:
    return outcome.ledger is not None and concurrency(outcome.ledger) >= requests


def safe_chunk(scenario: Scenario) -> Answer:
    """Return the largest prefill chunk, a power of two, whose forward and whose load fit [tokens].

    A forward at the end of the context holds logits of chunk x context, cut to the engine's limit, and activations.
    """
    need_context(scenario)
    smallest = estimate(changed(scenario, limits={"chunked_prefill": CHUNKS[0]}, load={"new_tokens": None}))
    if PREFILL not in smallest:
        raise NotModelled("safe chunk", scenario.engine.name, "weights or logits of this model are not modelled")
    outcomes = {
        size: attempt(changed(scenario, limits={"chunked_prefill": size}, load={"new_tokens": None})) for size in CHUNKS
    }
    rows = tuple(_chunk(size, outcome) for size, outcome in outcomes.items() if outcome.ledger is not None)
    safe = [row.chunk_tokens for row in rows if row.fits]
    value, asked = max(safe, default=0), scenario.limits.chunked_prefill
    outcome = outcomes[value or CHUNKS[0]]
    return Answer("safe chunk", value, "tokens", asked, outcome, first_to_break(outcome), (), rows, notes(outcome))


def _chunk(size: int, outcome: Outcome) -> Chunk:
    ledger = outcome.ledger
    assert ledger is not None  # noqa: S101 - the caller chose those with a ledger
    left = int(ledger[PREFILL]) if PREFILL in ledger else 0
    reason = outcome.why_not
    if outcome.short == reason and reason:
        reason = f"the forward does not fit beside pool and weights: {reason}"
    return Chunk(
        chunk_tokens=size,
        mem_fraction=float(ledger["engine.mem_fraction"]),
        pool_tokens=int(ledger["pool.tokens"]),
        logits_bytes=int(ledger["workspace.chunk_logits_bytes"]),
        activation_bytes=int(ledger["workspace.chunk_activation_bytes"]),
        headroom_bytes=left,
        fits=not reason,
        reason=reason,
    )


def need_context(scenario: Scenario) -> None:
    """Raise BadInput without a context: requests of no length cannot be counted."""
    if scenario.load.context is None:
        raise BadInput([Fault("load.context (--context)", None, "the tokens of one request, such as 128Ki")])


def notes(outcome: Outcome) -> tuple[str, ...]:
    """Return what weakens an answer: an upper bound, memory outside the pool that is already short."""
    said = []
    if outcome.is_bound:
        said.append(
            "at most: what the engine's profiling run takes off the pool is not modelled; --kv-bytes from a log is "
            "exact"
        )
    said += outcome.warnings
    return tuple(said)
