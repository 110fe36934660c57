"""Memory outside pool and weights."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, choice, least, most, quotient, round_up, truncated


def estimated_requests(*, pool_tokens: Any, context_length: Any) -> Any:
    """Return the engine's own guess of running requests [requests]. Source: sglang resolve_max_num_reqs."""
    return least(most(truncated(quotient(pool_tokens, context_length) * 512), 2048), 4096)


def requests_in_pool(*, requests: Any, pool_tokens: Any) -> Any:
    """Return requests cut to two tokens each of the pool [requests]. Source: sglang 0.5.14 resolve_max_num_reqs."""
    return least(requests, pool_tokens // 2)


def asked_requests(*, asked: Any, dp_attention: Any, least_requests: Any) -> Any:
    """Return one rank's share of --max-running-requests [requests]. Source: sglang resolve_max_num_reqs."""
    return most(asked // dp_attention, least_requests)


def smaller_requests(*, requests: Any, limit: Any) -> Any:
    """Return the smaller of two numbers of requests [requests]. Source: sglang 0.5.9, 0.5.10 resolve_max_num_reqs."""
    return least(requests, limit)


def captured_requests(*, graph_requests: Any, running: Any) -> Any:
    """Return the largest captured batch [requests].

    Source: sglang cuda_graph_runner.py, clamped to running requests.
    """
    return least(graph_requests, running)


def request_columns(*, context_length: Any, extra_tokens: Any) -> Any:
    """Return the width of a request's row of token slots [tokens]. Source: sglang memory_pool.py ReqToTokenPool."""
    return context_length + extra_tokens


def request_table_bytes(*, requests: Any, extra_rows: Any, columns: Any) -> Any:
    """Return req_to_token in int32 [B]. Source: sglang memory_pool.py ReqToTokenPool."""
    return (requests + extra_rows) * columns * 4


def index_tail_bytes(*, layers: Any, requests: Any, extra_rows: Any, request_bytes: Any) -> Any:
    """Return the open pools of keys, a row per req_to_token row and one more [B].

    Source: sglang 0.5.20 memory_pool.py, index_kpool_compress.
    """
    return layers * (requests + extra_rows + 1) * request_bytes


def wide_page_table_bytes(*, requests: Any, rows: Any, columns: Any) -> Any:
    """Return one backend's token-wide decode page table in int32 [B]. Source: sglang dsa_backend.py."""
    return requests * rows * columns * 4


def compact_page_table_bytes(*, requests: Any, rows: Any, context_length: Any, page_tokens: Any) -> Any:
    """Return one backend's page-wide decode table in int32 [B]. Source: sglang 0.5.15 dsa_backend.py."""
    return requests * rows * ceil_div(context_length, page_tokens) * 4


def decode_logits_bytes(*, requests: Any, rows: Any, columns: Any, page_tokens: Any, element_bytes: Any) -> Any:
    """Return captured decode logits, as wide as the page table [B].

    Source: sglang dsa_indexer.py, DeepGEMM attention.hpp.
    """
    return requests * rows * element_bytes * round_up(page_tokens * ceil_div(columns, page_tokens), 256)


def static_logits_budget_bytes(*, capacity_bytes: Any, mem_fraction: Any, share: Any) -> Any:
    """Return the most that ragged prefill logits may take [B]. Source: sglang 0.5.14 mqa_logits_utils.py."""
    return least(truncated(truncated(capacity_bytes * (1 - mem_fraction)) * share), truncated(0.3 * capacity_bytes))


def forwards(*, new_tokens: Any, chunk_tokens: Any) -> Any:
    """Return the forwards that a prefill takes [count]. Source: chunked prefill."""
    return ceil_div(new_tokens, chunk_tokens)


def last_forward_rows(*, new_tokens: Any, chunk_tokens: Any) -> Any:
    """Return the rows of a prefill's last forward [rows]. Source: chunked prefill."""
    return new_tokens - (ceil_div(new_tokens, chunk_tokens) - 1) * chunk_tokens


def prefill_logits_bytes(*, rows: Any, context_tokens: Any, scores: Any) -> Any:
    """Return fp32 logits of a forward before any cut [B]. Source: sglang dsa_indexer.py _get_topk_ragged."""
    return 4 * rows * context_tokens * scores


def prefill_chunks(*, rows: Any, context_tokens: Any, budget_bytes: Any, unchecked_elements: Any) -> Any:
    """Return the cuts of a forward's logits [count]. Source: sglang mqa_logits_utils.py, vllm indexer.py."""
    return choice(
        rows * context_tokens < unchecked_elements,
        1,
        ceil_div(rows, least(rows, most(1, budget_bytes // (4 * context_tokens)))),
    )


def gathered_index_k_bytes(*, record_bytes: Any, context_tokens: Any, scores: Any) -> Any:
    """Return index-K gathered to a contiguous copy for ragged prefill [B]. Source: sglang dsa_indexer.py."""
    return record_bytes * context_tokens * scores


def topk_buffer_bytes(*, rows: Any, index_topk: Any) -> Any:
    """Return the top-k indices of so many rows in int32 [B]. Source: tensorrt-llm sparse/dsa/metadata.py."""
    return rows * index_topk * 4


def expanded_block_table_bytes(*, requests: Any, rows: Any, context_length: Any, page_tokens: Any) -> Any:
    """Return a block table with a row per draft token in int32 [B]. Source: tensorrt-llm sparse/dsa/metadata.py."""
    return requests * rows * ceil_div(context_length, page_tokens) * 4


def sequences_of_rank(*, batch_requests: Any, stages: Any) -> Any:
    """Return max_num_sequences: a batch per pipeline stage [requests].

    Source: tensorrt-llm pyexecutor/model_engine.py.
    """
    return batch_requests * stages
