"""Bytes that one rank sends over the network in a step, counted as rings and pairs, and host memory of a node.

Fused collectives and reductions inside the switch move less; nothing here says how long it takes.
"""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import least, quotient


def step_tokens(*, requests: Any, rows: Any) -> Any:
    """Return the rows that a rank's step runs [tokens]. Source: the last token and the drafted ones of each request."""
    return requests * rows


def allreduce_bytes(*, ranks: Any, count: Any, layers: Any, tokens: Any, hidden: Any, element_bytes: Any) -> Any:
    """Return what a rank sends in ring all-reduces of hidden states [B/step]. Source: ring, 2 (N - 1) / N a tensor."""
    return 2 * (ranks - 1) * count * layers * tokens * hidden * element_bytes // ranks


def gather_bytes(*, replicas: Any, ranks: Any, layers: Any, tokens: Any, hidden: Any, element_bytes: Any) -> Any:
    """Return what a rank sends in all-gather and reduce-scatter around the experts under attention DP [B/step].

    Source: sglang layers/dp_attention.py; ring, its own share to each of the other replicas, twice a layer.
    """
    return 2 * (replicas - 1) * layers * tokens * hidden * element_bytes // ranks


def expert_exchange_bytes(*, ranks: Any, layers: Any, tokens: Any, experts_per_token: Any, hidden: Any) -> Any:
    """Return what a rank sends to others' experts and back: fp8 there, bf16 back [B/step]. Source: DeepEP README."""
    return (ranks - 1) * layers * tokens * experts_per_token * hidden * 3 // ranks


def stage_bytes(*, tokens: Any, hidden: Any, element_bytes: Any) -> Any:
    """Return hidden state and residual sent to the next pipeline stage [B/step]. Source: sglang, vllm PP proxies."""
    return 2 * tokens * hidden * element_bytes


def partial_attention_bytes(*, dcp: Any, layers: Any, tokens: Any, local_heads: Any, kv_lora: Any) -> Any:
    """Return partial attention and its log-sum sent to the other DCP ranks [B/step]. Source: assumed, see the entry."""
    return (dcp - 1) * layers * tokens * local_heads * (2 * kv_lora + 4)


def node_ranks(*, ranks: Any, node_gpus: Any) -> Any:
    """Return the ranks of one server that share a node [ranks]. Source: one rank a GPU."""
    return least(ranks, node_gpus)


def node_bytes(*, rank_bytes: Any, ranks: Any) -> Any:
    """Return the host memory of a node's ranks [B]. Source: sglang memory_pool_host.py, a pool a rank."""
    return rank_bytes * ranks


def link_seconds(*, sent_bytes: Any, bytes_per_s: Any) -> Any:
    """Return how long a link at a given rate takes, latency not counted [s]. Source: arithmetic."""
    return quotient(sent_bytes, bytes_per_s)
