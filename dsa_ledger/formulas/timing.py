"""Seconds from bytes, rates and measured layer times."""

from __future__ import annotations

from typing import Any

from dsa_ledger.formulas.helpers import least, most, quotient, truncated


def bytes_time_s(*, moved_bytes: Any, bytes_per_s: Any) -> Any:
    """Return the time of bytes at a rate [s]. Source: bytes over bandwidth, a floor."""
    return quotient(moved_bytes, bytes_per_s)


def sustained_bytes_per_s(*, peak_bytes_per_s: Any, sustained_share: Any) -> Any:
    """Return the bandwidth that long reads keep [B/s]. Source: prior 0.82 of peak, or the box's profile."""
    return peak_bytes_per_s * sustained_share


def scan_bytes(*, record_bytes: Any, requests: Any, rows: Any, tokens: Any) -> Any:
    """Return keys read and logits written by one scoring layer [B]. Source: DeepGEMM paged logits, one pass."""
    return (record_bytes + 4 * rows) * requests * tokens


def seen_bytes(*, moved_bytes: Any, seen_share: Any) -> Any:
    """Return bytes whose time shows beside the other work [B]. Source: the table's growth against the bytes' time."""
    return truncated(moved_bytes * seen_share)


def hidden_bytes(*, moved_bytes: Any, seen_share: Any) -> Any:
    """Return bytes that a warm L2 hid in the measurement [B]. Source: replays over one layer read caches from L2."""
    return moved_bytes - seen_bytes(moved_bytes=moved_bytes, seen_share=seen_share)


def attention_s(*, full_layers: Any, full_layer_s: Any, shared_layers: Any, shared_layer_s: Any) -> Any:
    """Return the time of all attention layers of a step [s]. Source: sum over layers."""
    return full_layers * full_layer_s + shared_layers * shared_layer_s


def indexer_s(*, full_layers: Any, full_layer_s: Any, shared_layer_s: Any) -> Any:
    """Return what the indexers take [s]. Source: full minus shared layer, each full layer."""
    return full_layers * (full_layer_s - shared_layer_s)


def shared_layers(*, layers: Any, full_layers: Any) -> Any:
    """Return the layers that reuse a top-k [layers]. Source: layers that run no indexer."""
    return layers - full_layers


def attention_weights_bytes(*, layer_bytes: Any, indexer_layer_bytes: Any, layers: Any, full_layers: Any) -> Any:
    """Return weights that the layer times already hold [B]. Source: the tables time a layer with its projections."""
    return layer_bytes * layers + indexer_layer_bytes * full_layers


def other_weights_bytes(*, weights_bytes: Any, attention_bytes: Any) -> Any:
    """Return weights read outside the attention layers [B/step]. Source: the rest of the step's weights."""
    return most(weights_bytes - attention_bytes, 0)


def scaled_s(*, time_s: Any, factor: Any) -> Any:
    """Return a time at one end of its interval [s]. Source: quantiles of points left out of the fit."""
    return time_s * factor


def less_s(*, time_s: Any, saved_s: Any) -> Any:
    """Return a time without a part of it [s]. Source: difference, never below 0."""
    return most(time_s - saved_s, 0)


def rest_s(*, layers: Any, rest_per_layer_s: Any) -> Any:
    """Return the rest of a step at its worst [s]. Source: largest rest per layer in the public whole-step times."""
    return layers * rest_per_layer_s


def anchored_s(*, anchor_s: Any, attention_s: Any, anchor_attention_s: Any) -> Any:
    """Return a step time carried from a measured one [s]. Source: only the attention layers grow with the context."""
    return anchor_s + attention_s - anchor_attention_s


def tokens_per_s(*, requests: Any, accepted: Any, step_s: Any) -> Any:
    """Return the tokens that a server makes [tokens/s]. Source: tokens kept a step over the step's time."""
    return quotient(requests * accepted, step_s)


def prefill_s(*, full_layers: Any, full_layer_s: Any, shared_layers: Any, shared_layer_s: Any) -> Any:
    """Return attention time of one request's new tokens [s]. Source: sum over forwards and layers."""
    return full_layers * full_layer_s + shared_layers * shared_layer_s


def draft_attention_s(
    *, draft_layers: Any, draft_passes: Any, draft_steps: Any, full_layer_s: Any, shared_layer_s: Any
) -> Any:
    """Return the draft layers' attention in a step [s]. Source: an extend and steps - 1 drafts."""
    return draft_layers * (draft_passes * full_layer_s + most(draft_steps - draft_passes, 0) * shared_layer_s)


def repeat_bytes(*, record_bytes: Any, requests: Any, tokens: Any, rows: Any, flattens: Any) -> Any:
    """Return keys read once more by each further row of a request [B]. Source: rows flattened to requests."""
    return record_bytes * requests * tokens * (rows - 1) * flattens


def run_share(*, mean_run_pages: Any, r_half_pages: Any) -> Any:
    """Return the rate over that of pages in a row [share]. Source: the box's law, rate_inf r / (r + r_half)."""
    return quotient(mean_run_pages, mean_run_pages + r_half_pages)


def scattered_bytes_per_s(*, straight_bytes_per_s: Any, run_share: Any) -> Any:
    """Return the rate of pages in runs [B/s]. Source: the box's rate of this batch and length, times its law."""
    return straight_bytes_per_s * run_share


def share_of_peak(*, bytes_per_s: Any, peak_bytes_per_s: Any) -> Any:
    """Return a rate over the data sheet's [share]. Source: definition."""
    return quotient(bytes_per_s, peak_bytes_per_s)


def scanned_s(*, time_s: Any, reference_bytes_per_s: Any, scan_bytes_per_s: Any) -> Any:
    """Return top-k on the box [s]. Source: the table's time, by its reference's row scan rate over the box's."""
    return time_s * quotient(reference_bytes_per_s, scan_bytes_per_s)


def gather_bytes(*, record_bytes: Any, requests: Any, rows: Any, tokens: Any, picked: Any) -> Any:
    """Return records that one layer's sparse attention reads [B]. Source: top-k of the tokens there are, each row."""
    return record_bytes * requests * rows * least(tokens, picked)


def gathered_s(*, time_s: Any, prior_bytes_s: Any, bytes_s: Any) -> Any:
    """Return a gather on the box [s]. Source: its bytes' time at the prior rate, as far as it shows, is replaced."""
    return time_s + least(quotient(time_s, prior_bytes_s), 1.0) * (bytes_s - prior_bytes_s)
