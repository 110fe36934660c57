"""What the prefill of one request reads, writes and computes, over the whole model."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import ceil_div, choice, least, most, series


def forward_rows(*, new_tokens: Any, chunk_tokens: Any, index: Any) -> Any:
    """Return the rows of forward number `index`, 0 after the last [rows]. Source: chunked prefill."""
    return most(least(chunk_tokens, new_tokens - index * chunk_tokens), 0)


def forward_keys(*, context_tokens: Any, new_tokens: Any, chunk_tokens: Any, index: Any) -> Any:
    """Return the keys present in forward number `index` [tokens]. Source: chunked prefill, cached prefix first."""
    return context_tokens - new_tokens + least(new_tokens, (index + 1) * chunk_tokens)


def logits_chunks(*, rows: Any, keys: Any, budget_bytes: Any, unchecked_elements: Any) -> Any:
    """Return the cuts of one forward's logits, 0 where it has no rows [count]. Source: sglang mqa_logits_utils.py."""
    return choice(
        rows * keys < unchecked_elements,
        least(rows, 1),
        ceil_div(rows, most(1, least(rows, budget_bytes // (4 * keys)))),
    )


def keys_read_by_chunk(
    *, context_tokens: Any, new_tokens: Any, chunk_tokens: Any, budget_bytes: Any, unchecked_elements: Any
) -> Any:
    """Return keys read in a full layer, once per logits chunk of each forward [tokens].

    Source: sglang dsa_indexer.py.
    """
    return series(
        ceil_div(new_tokens, chunk_tokens),
        lambda index: (
            logits_chunks(
                rows=forward_rows(new_tokens=new_tokens, chunk_tokens=chunk_tokens, index=index),
                keys=forward_keys(
                    context_tokens=context_tokens, new_tokens=new_tokens, chunk_tokens=chunk_tokens, index=index
                ),
                budget_bytes=budget_bytes,
                unchecked_elements=unchecked_elements,
            )
            * forward_keys(context_tokens=context_tokens, new_tokens=new_tokens, chunk_tokens=chunk_tokens, index=index)
        ),
    )


def keys_read_by_tile(*, context_tokens: Any, new_tokens: Any, chunk_tokens: Any, tile_rows: Any) -> Any:
    """Return keys read in a full layer, once per query tile of each forward [tokens].

    Source: DeepGEMM, 128 head rows.
    """
    return series(
        ceil_div(new_tokens, chunk_tokens),
        lambda index: (
            ceil_div(forward_rows(new_tokens=new_tokens, chunk_tokens=chunk_tokens, index=index), tile_rows)
            * forward_keys(context_tokens=context_tokens, new_tokens=new_tokens, chunk_tokens=chunk_tokens, index=index)
        ),
    )


def tile_rows(*, index_heads: Any) -> Any:
    """Return query rows that share one read of the keys [rows]. Source: DeepGEMM 54e2261, 128 head rows a tile."""
    return most(128 // index_heads, 1)


def index_k_read_bytes(*, record_bytes: Any, full_layers: Any, keys: Any, scores: Any) -> Any:
    """Return index-K read in a prefill [B]. Source: keys of each pass x record x full layers."""
    return record_bytes * full_layers * keys * scores


def index_k_write_bytes(*, record_bytes: Any, full_layers: Any, new_tokens: Any) -> Any:
    """Return index-K written in a prefill [B]. Source: sglang dsa_indexer.py, every full layer, scored or not."""
    return record_bytes * full_layers * new_tokens


def score_flops(
    *, index_heads: Any, index_head_dim: Any, full_layers: Any, context_tokens: Any, new_tokens: Any, scores: Any
) -> Any:
    """Return multiply-adds of scoring, two flop each, causal half of the new block [flop].

    Source: DeepSeek-V3.2 report.
    """
    return (
        index_heads
        * index_head_dim
        * full_layers
        * (2 * new_tokens * (context_tokens - new_tokens) + new_tokens * new_tokens)
        * scores
    )


def transfer_bytes(*, record_bytes: Any, layers: Any, context_tokens: Any) -> Any:
    """Return one copy of a request's cache sent from prefill to decode [B].

    Source: sglang disaggregation, tokens not pages.
    """
    return record_bytes * layers * context_tokens


def seed_bytes(*, index_topk: Any, index_kpool: Any, draft_layers: Any) -> Any:
    """Return the MTP seed: top-k indices in int32 [B/request]. Source: sglang 0.5.15 disaggregation."""
    return (index_topk + index_kpool - 1) * 4 * draft_layers
