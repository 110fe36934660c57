"""From free memory to the tokens of a KV pool."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, ceiled, choice, least, most, quotient, round_up, rounded, truncated


def reserve_mib(
    *,
    chunk_tokens: Any,
    ranks: Any,
    graph_requests: Any,
    dp_attention: Any,
    prefill_graph_mib: Any,
    floor_mib: Any,
    after_floor_mib: Any,
) -> Any:
    """Return the MiB that the default mem_fraction_static keeps free [MiB].

    Source: sglang arg_groups/memory_hook.py.
    """
    return (
        most(
            512
            + 1.5 * most(chunk_tokens, 2048)
            + quotient(1024 * ranks, 8)
            + 2 * graph_requests
            + choice(dp_attention > 1, 3 * graph_requests * dp_attention, 0)
            + choice(dp_attention > 1, choice(graph_requests > 300, 1.5 * graph_requests * dp_attention, 0), 0)
            + prefill_graph_mib,
            floor_mib,
        )
        + after_floor_mib
    )


def default_mem_fraction(*, gpu_mib: Any, kept_free_mib: Any) -> Any:
    """Return mem_fraction_static where none is given [share].

    Source: sglang arg_groups/memory_hook.py, three digits.
    """
    return rounded(quotient(gpu_mib - kept_free_mib, gpu_mib), 3)


def whole_mib(*, capacity_bytes: Any) -> Any:
    """Return capacity as nvidia-smi prints it [MiB]. Source: driver."""
    return capacity_bytes // 1048576


def remaining_bytes(*, before_bytes: Any, taken_bytes: Any) -> Any:
    """Return what is left of a memory after something is taken [B]. Source: arithmetic."""
    return before_bytes - taken_bytes


def static_budget_bytes(*, free_after_bytes: Any, free_before_bytes: Any, mem_fraction: Any) -> Any:
    """Return the bytes for the pool, negative where none are left [B]. Source: sglang kv_cache_configurator.py."""
    return truncated(free_after_bytes - (1 - mem_fraction) * free_before_bytes)


def paged_tokens(*, budget_bytes: Any, scratch_bytes: Any, cell_bytes: Any, page_tokens: Any) -> Any:
    """Return the pool rows that a budget holds, in whole pages [tokens]. Source: sglang pool_configurator.py."""
    return most(budget_bytes - scratch_bytes, 0) // cell_bytes // page_tokens * page_tokens


def capped_tokens(*, tokens: Any, cap_tokens: Any, page_tokens: Any) -> Any:
    """Return pool rows under a cap, in whole pages [tokens].

    Source: sglang kv_cache_configurator.py, max_total_tokens.
    """
    return least(tokens, cap_tokens) // page_tokens * page_tokens


def logical_tokens(*, rows: Any, tokens_per_row: Any) -> Any:
    """Return tokens that requests can use: rows x tokens a row serves [tokens]. Source: sglang, vllm DCP."""
    return rows * tokens_per_row


def pool_bytes(
    *,
    tokens: Any,
    pad_tokens: Any,
    main_kv_record_bytes: Any,
    main_kv_layers: Any,
    index_k_record_bytes: Any,
    index_k_layers: Any,
    main_rows_per_token: Any,
    index_rows_per_token: Any,
) -> Any:
    """Return allocated bytes, pad page included [B]. Source: sglang memory_pool.py DSATokenToKVPool."""
    return (tokens * main_rows_per_token + pad_tokens) * main_kv_record_bytes * main_kv_layers + (
        tokens * index_rows_per_token + pad_tokens
    ) * index_k_record_bytes * index_k_layers


def pooled_pool_bytes(
    *,
    tokens: Any,
    pad_tokens: Any,
    main_kv_record_bytes: Any,
    main_kv_layers: Any,
    index_k_state_bytes: Any,
    state_tokens: Any,
    index_k_layers: Any,
    main_rows_per_token: Any,
    index_rows_per_token: Any,
) -> Any:
    """Return allocated bytes where one index key stands for several tokens, pad page included [B].

    Source: sglang memory_pool.py DSATokenToKVPool, index_kpool.
    """
    return (tokens * main_rows_per_token + pad_tokens) * main_kv_record_bytes * main_kv_layers + (
        tokens * index_rows_per_token + pad_tokens
    ) // state_tokens * index_k_state_bytes * index_k_layers


def requests_at_context(*, tokens: Any, context_tokens: Any, page_tokens: Any) -> Any:
    """Return whole requests of a context that one rank's pool holds [requests]. Source: arithmetic, whole pages."""
    return tokens // round_up(context_tokens, page_tokens)


def requests_of_rank(*, batch: Any, replicas: Any) -> Any:
    """Return the requests that the fullest rank sees [requests]. Source: attention DP splits requests evenly."""
    return ceil_div(batch, replicas)


def needed_tokens(*, requests: Any, context_tokens: Any, page_tokens: Any) -> Any:
    """Return pool tokens that a load takes, in whole pages [tokens]. Source: arithmetic."""
    return requests * round_up(context_tokens, page_tokens)


def longest_request_tokens(*, tokens: Any, context_length: Any) -> Any:
    """Return the longest request that pool and context length allow [tokens].

    Source: the bound, not the admission limit.
    """
    return least(tokens, context_length)


def utilisation_bytes(*, capacity_bytes: Any, mem_fraction: Any) -> Any:
    """Return the memory that vLLM lets itself use [B]. Source: vllm v1/worker/utils.py, rounded up."""
    return ceiled(capacity_bytes * mem_fraction)


def share_of_free_bytes(*, free_bytes: Any, fraction: Any) -> Any:
    """Return a share of the free memory [B]. Source: tensorrt-llm pyexecutor/_util.py free_gpu_memory_fraction."""
    return most(truncated(free_bytes * fraction), 0)


def block_bytes(*, page_tokens: Any, cell_bytes: Any) -> Any:
    """Return one block over all layers [B]. Source: vllm v1/core/kv_cache_planning.py, no padding for DSA."""
    return page_tokens * cell_bytes


def blocks(*, budget_bytes: Any, one_block_bytes: Any) -> Any:
    """Return whole blocks that a budget holds [pages]. Source: vllm v1/core/kv_cache_planning.py."""
    return most(budget_bytes, 0) // one_block_bytes


def usable_block_tokens(*, block_count: Any, page_tokens: Any, dcp: Any) -> Any:
    """Return tokens of all blocks but the null block [tokens]. Source: vllm v1/core/block_pool.py."""
    return most(block_count - 1, 0) * page_tokens * dcp


def blocks_of_request(*, context_length: Any, dcp: Any, page_tokens: Any) -> Any:
    """Return blocks that the longest request needs [pages]. Source: vllm v1/core/kv_cache_utils.py."""
    return ceil_div(ceil_div(context_length, dcp), page_tokens)


def reported_block_tokens(*, block_count: Any, page_tokens: Any, dcp: Any) -> Any:
    """Return the logged size of old releases, all blocks [tokens]. Source: vllm through 0.20.0 kv_cache_utils.py."""
    return block_count * page_tokens * dcp


def reported_size_tokens(*, block_count: Any, needed_blocks: Any, context_length: Any) -> Any:
    """Return the logged size: concurrency x max_model_len in doubles, cut [tokens].

    Source: vllm 0.20.2 kv_cache_utils.py.
    """
    return truncated(quotient(block_count, needed_blocks) * context_length)


def whole_page_tokens(*, budget_bytes: Any, cell_bytes: Any, page_tokens: Any) -> Any:
    """Return tokens in whole pages [tokens]. Source: tensorrt-llm pyexecutor/_util.py, resource_manager.py."""
    return most(budget_bytes, 0) // cell_bytes // page_tokens * page_tokens


def sharding_scratch_bytes(
    *,
    copies: Any,
    context_length: Any,
    ranks: Any,
    chunk_tokens: Any,
    page_tokens: Any,
    main_kv_record_bytes: Any,
    index_k_record_bytes: Any,
) -> Any:
    """Return KV sharding's fixed scratch [B]. Source: sglang 0.5.23 pool_configurator.py, enable_kv_cache_sharding."""
    return (
        copies
        * 2
        * (8 * round_up(context_length, ranks * page_tokens) + round_up(chunk_tokens, page_tokens) + page_tokens)
        * (main_kv_record_bytes + index_k_record_bytes)
    )


def concurrency(*, block_count: Any, needed_blocks: Any) -> Any:
    """Return longest requests that the blocks hold, as logged [share]. Source: vllm v1/core/kv_cache_utils.py."""
    return quotient(block_count, needed_blocks)


def blocks_bytes(*, block_count: Any, page_tokens: Any, cell_bytes: Any) -> Any:
    """Return allocated bytes of so many blocks, null block included [B]. Source: vllm v1/core/kv_cache_planning.py."""
    return block_count * page_tokens * cell_bytes
