"""Requests of different lengths in one pool, requests in flight, and what tokens cost."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceiled, most, quotient, round_up


def shared_tokens(*, shared_prefix: Any, page_tokens: Any) -> Any:
    """Return the whole pages of a prefix that every request shares [tokens]. Source: radix and block caches, pages."""
    return shared_prefix // page_tokens * page_tokens


def own_tokens(*, prompt: Any, output: Any, draft_steps: Any, shared: Any, page_tokens: Any) -> Any:
    """Return the pool tokens of one request at its end, beside the shared prefix [tokens].

    Source: whole pages; drafted tokens lie in the cache until they are verified.
    """
    return most(round_up(prompt + output + draft_steps, page_tokens) - shared, 0)


def requests_of_mix(*, pool_tokens: Any, shared: Any, mean_tokens: Any) -> Any:
    """Return requests of a mix that a pool holds at their ends, on average [requests]. Source: arithmetic."""
    return most(pool_tokens - shared, 0) // mean_tokens


def request_seconds(*, output: Any, step_s: Any, tokens_per_step: Any) -> Any:
    """Return how long one request decodes, its prefill and any queue not counted [s]. Source: arithmetic."""
    return quotient(output * step_s, tokens_per_step)


def requests_in_flight(*, requests_per_s: Any, request_s: Any) -> Any:
    """Return the mean number of requests in flight [requests]. Source: Little's law."""
    return ceiled(requests_per_s * request_s)


def servers_needed(
    *, in_flight: Any, requests_of_server: Any, prefilling: Any, prefills_of_server: Any, spare: Any
) -> Any:
    """Return servers for so many requests at once and for those in prefill, spares on top [count].

    Source: arithmetic; a rank's attention computes one prompt's prefill at a time.
    """
    return ceiled(most(quotient(in_flight, requests_of_server), quotient(prefilling, prefills_of_server))) + spare


def tokens_per_s(*, requests: Any, tokens_per_step: Any, step_s: Any) -> Any:
    """Return output tokens of a server's running batch [tokens/s]. Source: arithmetic."""
    return quotient(requests * tokens_per_step, step_s)


def cost_of_million(*, price_per_gpu_hour: Any, gpus: Any, tokens_per_s: Any) -> Any:
    """Return what a million output tokens cost, in the currency [count]. Source: 3,600 s an hour."""
    return quotient(price_per_gpu_hour * gpus * 1000000, 3600 * tokens_per_s)


def cost_of_month(*, price_per_gpu_hour: Any, gpus: Any) -> Any:
    """Return what the GPUs cost in a month of 730 hours, in the currency [count]. Source: 8,760 h / 12."""
    return price_per_gpu_hour * gpus * 730
