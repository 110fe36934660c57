"""Bytes of one token over all layers that a rank holds, as the engine charges them."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import quotient, truncated


def main_kv_cell_bytes(*, record_bytes: Any, layers: Any) -> Any:
    """Return the main-KV part of a cell [B/token]. Source: sglang pool_configurator.py."""
    return record_bytes * layers


def index_k_cell_bytes(*, record_bytes: Any, layers: Any, replicas: Any) -> Any:
    """Return the index-K part of a cell, times rows kept per pool row [B/token].

    Source: sglang pool_configurator.py.
    """
    return record_bytes * layers * replicas


def draft_cell_bytes_by_layer_ratio(*, target_bytes: Any, draft_layers: Any, layers: Any) -> Any:
    """Return the draft part as a layer ratio of the cell [B/token].

    Source: sglang 0.5.14 to 0.5.17, a float product.
    """
    return truncated(target_bytes * (1 + quotient(draft_layers, layers))) - target_bytes


def draft_cell_bytes(
    *,
    main_kv_record_bytes: Any,
    index_k_record_bytes: Any,
    draft_layers: Any,
    dcp: Any,
    main_ratio: Any,
    index_ratio: Any,
) -> Any:
    """Return the draft part, record by record [B/token]. Source: sglang 0.5.18 pool_configurator.py, vllm planner."""
    return dcp * draft_layers * (main_kv_record_bytes * main_ratio + index_k_record_bytes * index_ratio)


def element_charged_record_bytes(*, record_bytes: Any, element_bytes: Any) -> Any:
    """Return an index-K record charged at the KV element's width [B/token/layer].

    Source: tensorrt-llm before #15088.
    """
    return record_bytes * element_bytes


def layers_cell_bytes(*, main_kv_record_bytes: Any, index_k_record_bytes: Any, layers: Any) -> Any:
    """Return both caches of so many layers [B/token].

    Source: tensorrt-llm get_cache_size_per_token of a draft cache.
    """
    return (main_kv_record_bytes + index_k_record_bytes) * layers
