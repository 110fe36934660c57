"""What a feature keeps or moves beside the device pool: host tier, HiSparse tables, layer-split broadcast."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import truncated


def host_cell_bytes(
    *, main_kv_record_bytes: Any, layers: Any, draft_layers: Any, index_k_record_bytes: Any, index_k_layers: Any
) -> Any:
    """Return a token of the host tier over a rank's layers [B/token]. Source: sglang memory_pool_host.py."""
    return main_kv_record_bytes * (layers + draft_layers) + index_k_record_bytes * index_k_layers


def host_tokens_by_ratio(*, rows: Any, ratio: Any, page_tokens: Any) -> Any:
    """Return slots of the host tier by ratio [tokens]. Source: sglang memory_pool_host.py hicache_ratio."""
    return (truncated(rows * ratio) // page_tokens + 1) * page_tokens


def host_tokens_by_size(*, size_bytes: Any, main_kv_record_bytes: Any, layers: Any, page_tokens: Any) -> Any:
    """Return slots of the host tier by size of its main KV [tokens].

    Source: sglang memory_pool_host.py hicache_size.
    """
    return (size_bytes // (main_kv_record_bytes * layers) // page_tokens + 1) * page_tokens


def host_pool_bytes(*, tokens: Any, cell_bytes: Any) -> Any:
    """Return the host tier of one rank [B]. Source: sglang memory_pool_host.py."""
    return tokens * cell_bytes


def slot_map_bytes(*, rows: Any, rows_per_token: Any) -> Any:
    """Return an int64 map of logical to device tokens [B]. Source: sglang 0.5.23 HiSparse allocator."""
    return rows * rows_per_token * 8


def request_map_bytes(*, requests: Any, extra_rows: Any, columns: Any, page_tokens: Any) -> Any:
    """Return the requests' int64 maps of host slots [B]. Source: sglang 0.5.23 HiSparse request pool."""
    return (requests + extra_rows) * (columns + page_tokens) * 8


def buffer_table_bytes(*, requests: Any, extra_rows: Any, layers: Any, buffer_tokens: Any, page_tokens: Any) -> Any:
    """Return two int32 tables and an int16 one a layer and request [B].

    Source: sglang 0.5.23 HiSparse device buffers.
    """
    return (requests + extra_rows) * layers * (buffer_tokens + page_tokens) * 10


def hash_table_bytes(*, tables: Any, requests: Any, extra_rows: Any, layers: Any) -> Any:
    """Return int64 hash tables of 2 x 8,192 a layer and request [B]. Source: sglang 0.5.23 HiSparse with MTP."""
    return tables * (requests + extra_rows) * layers * 2 * 8192 * 8


def broadcast_bytes(
    *,
    rows: Any,
    page_tokens: Any,
    main_kv_record_bytes: Any,
    layers: Any,
    index_k_record_bytes: Any,
    full_layers: Any,
) -> Any:
    """Return bytes that a forward broadcasts under layer split [B/step]. Source: sglang 0.5.16 layers/cp/utils.py."""
    return (rows + page_tokens) * (main_kv_record_bytes * layers + index_k_record_bytes * full_layers)
