"""What one rank reads and writes in one step."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, choice, least, most, round_up


def rows_of_request(*, draft_steps: Any) -> Any:
    """Return query rows of one request in a step [rows]. Source: the last token and the drafted ones to verify."""
    return draft_steps + 1


def index_k_passes(*, full_layers: Any, draft_layers: Any, draft_passes: Any) -> Any:
    """Return full reads of a request's index-K in a step [passes]. Source: sglang eagle_worker_v2.py."""
    return full_layers + draft_layers * draft_passes


def draft_passes(*, scoring_forwards: Any) -> Any:
    """Return index-K reads of one MTP layer: draft-extend and the draft forwards that score [passes].

    Source: sglang.
    """
    return 1 + scoring_forwards


def most_index_k_passes(
    *,
    full_layers: Any,
    rows: Any,
    tile_rows: Any,
    verify_flattens: Any,
    draft_layers: Any,
    scoring_forwards: Any,
    extend_flattens: Any,
) -> Any:
    """Return reads where no row and no query tile hits L2 [passes]. Source: sglang dsa_backend.py, DeepGEMM."""
    return full_layers * choice(verify_flattens > 0, rows, ceil_div(rows, tile_rows)) + draft_layers * (
        choice(extend_flattens > 0, rows, ceil_div(rows, tile_rows)) + scoring_forwards
    )


def index_k_read_bytes(*, record_bytes: Any, passes: Any, tokens: Any, requests: Any) -> Any:
    """Return index-K read in a step, tokens not pages [B/step]. Source: DeepGEMM fp8_paged_mqa_logits."""
    return record_bytes * passes * tokens * requests


def index_k_page_read_bytes(*, record_bytes: Any, passes: Any, tokens: Any, page_tokens: Any, requests: Any) -> Any:
    """Return index-K read in a step in whole pages [B/step]. Source: DeepGEMM fp8_paged_mqa_logits, 64-token pages."""
    return record_bytes * passes * round_up(tokens, page_tokens) * requests


def cached_tokens(*, context_tokens: Any, dcp_shards: Any) -> Any:
    """Return the cached tokens of a request that one rank scores [tokens].

    Source: vllm DCP interleave; sglang scores all.
    """
    return ceil_div(context_tokens, dcp_shards)


def pooled_keys(*, context_tokens: Any, state_tokens: Any) -> Any:
    """Return a request's whole pools, one scored key each [tokens]. Source: sglang dsa_indexer.py, index_kpool."""
    return context_tokens // state_tokens


def selection_width(*, index_topk: Any, index_kpool: Any) -> Any:
    """Return the most tokens that a row selects, the open pool's among them [tokens].

    Source: sglang dsa_indexer.py, index_topk + index_kpool - 1.
    """
    return index_topk + index_kpool - 1


def scored_layers(*, full_layers: Any, draft_layers: Any) -> Any:
    """Return layers that write index-K and logits: full and MTP [layers]. Source: sglang deepseek_v2.py."""
    return full_layers + draft_layers


def index_k_write_bytes(*, record_bytes: Any, layers: Any, rows: Any, requests: Any) -> Any:
    """Return index-K written in a step, rejected rows included [B/step]. Source: sglang dsa_indexer.py."""
    return record_bytes * layers * rows * requests


def logits_traffic_bytes(*, requests: Any, rows: Any, tokens: Any, layers: Any) -> Any:
    """Return fp32 logits written, and again read by top-k [B/step]. Source: DeepGEMM attention.hpp."""
    return 4 * requests * rows * tokens * layers


def main_kv_read_bytes(
    *, record_bytes: Any, layers: Any, context_tokens: Any, index_topk: Any, rows: Any, requests: Any
) -> Any:
    """Return main KV gathered by sparse attention, target layers [B/step]. Source: sglang dsa_backend.py."""
    return record_bytes * layers * least(context_tokens, index_topk) * rows * requests


def main_kv_write_bytes(*, record_bytes: Any, layers: Any, rows: Any, requests: Any) -> Any:
    """Return main KV written in a step, target layers [B/step]. Source: sglang memory_pool.py set_mla_kv_buffer."""
    return record_bytes * layers * rows * requests


def index_query_traffic_bytes(*, requests: Any, rows: Any, index_heads: Any, index_head_dim: Any, layers: Any) -> Any:
    """Return indexer queries and head weights, written once and read once [B/step]. Source: sglang dsa_indexer.py."""
    return requests * rows * index_heads * (index_head_dim + 4) * layers


def page_table_read_bytes(*, requests: Any, tokens: Any, page_tokens: Any, passes: Any) -> Any:
    """Return block-table entries read by the scoring kernel [B/step]. Source: DeepGEMM fp8_paged_mqa_logits."""
    return 4 * requests * ceil_div(tokens, page_tokens) * passes


def running_indexer_bytes(*, indexer_bytes: Any, running_layers: Any, built_layers: Any) -> Any:
    """Return weights of the indexers that run, of all that are built [B/step]. Source: sglang dsa_indexer.py."""
    return indexer_bytes * running_layers // most(built_layers, 1)


def always_read_bytes(*, other_bytes: Any, indexer_bytes: Any) -> Any:
    """Return weights read whatever the batch: all but experts and idle indexers [B/step].

    Source: sglang deepseek_v2.py.
    """
    return other_bytes + indexer_bytes
