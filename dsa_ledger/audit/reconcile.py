"""Observed against predicted, line by line, each difference with the hypothesis that explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.audit.predict import SAME_WEIGHTS, fitting_tp, stage_prefix, stored_target
from dsa_ledger.audit.seen import PAGE_TOKENS
from dsa_ledger.units import GIB, MIB

if TYPE_CHECKING:
    from dsa_ledger.audit.infer import Inferred
    from dsa_ledger.audit.predict import Prediction
    from dsa_ledger.audit.seen import Pool, Seen
    from dsa_ledger.ledger import Ledger

_NORMAL_HELD = 3 * GIB  # what context, NCCL and the driver's own take at most before weights
_CLOSE = 0.002
_SAME = 1e-6
_THREE_DIGITS = 0.0005
_DIGITS = 6  # of a difference; more are noise of the subtraction


class Check(NamedTuple):
    """One figure of the log beside the ledger's, and the likely cause of the difference."""

    key: str
    observed: float
    predicted: float | None
    difference: float | None
    cause: str


def checks_of(seen: Seen, inferred: Inferred, prediction: Prediction | None) -> list[Check]:
    """Return the checks, pool first."""
    ledger = prediction.ledger if prediction else None
    cells = _cells(seen, inferred, ledger)
    records_agree = bool(cells) and cells[0].cause.startswith("agrees")
    found = [*cells, *_pools(seen, inferred, ledger, records_agree=records_agree)]
    if ledger is not None and prediction is not None:
        found += _tokens(seen, ledger)
        found += _weights(seen, prediction)
        found += _memory(seen, ledger)
    return found


def _check(key: str, observed: float, predicted: float | None, cause: str) -> Check:
    difference = None if predicted is None else observed - predicted
    difference = round(difference, _DIGITS) if isinstance(difference, float) else difference
    return Check(key, observed, predicted, difference, cause)


def _cells(seen: Seen, inferred: Inferred, ledger: Ledger | None) -> list[Check]:
    """Hold the bytes of a row against the records and layers of the ledger."""
    observed = inferred.values.get("cell.observed_bytes")
    if observed is None:
        return []
    key = "cell.target_bytes" if seen.engine == "sglang" else "cell.bytes"
    if ledger is None:
        one = inferred.hypothesis
        said = one.says if one else "no combination of records and layers gives it"
        return [_check(key, observed, one.cell_bytes if one else None, said)]
    prefix = stage_prefix(ledger, seen)
    name = prefix + key if prefix + key in ledger else key
    predicted = ledger[name]
    found = [_check(key, observed, predicted, _cell_cause(seen, inferred, ledger, predicted))]
    main, owners = inferred.values.get("record.main_kv_bytes"), inferred.values.get("model.index_k_layers")
    if main is not None:
        stored = ledger["record.main_kv_bytes"]
        found.append(
            _check("record.main_kv_bytes", main, stored, "" if main == stored else _record_cause(main, stored))
        )
    if owners is not None:
        held = int(
            ledger[f"{prefix}pool.index_k_layers"]
            if f"{prefix}pool.index_k_layers" in ledger
            else ledger["pool.index_k_layers"]
        )
        found.append(
            _check("pool.index_k_layers", owners, held, "" if owners == held else _owner_cause(owners, held, inferred))
        )
    drafts = inferred.values.get("model.draft_layers")
    if drafts is not None:
        wanted = ledger["model.draft_layers"]
        cause = (
            ""
            if drafts == wanted
            else "the log has a draft layer in its pool"
            if drafts
            else "no draft pool in the log"
        )
        found.append(_check("model.draft_layers", drafts, wanted, cause))
    return found


def _record_cause(main: int, stored: int) -> str:
    words = {576: "raw fp8 (trtllm)", 656: "packed fp8 (flashmla_kv)", 1152: "bf16"}
    return f"the pool stores {words.get(main, f'{main}-byte')} records, not {words.get(stored, f'{stored}-byte')}"


def _owner_cause(owners: int, held: int, inferred: Inferred) -> str:
    one = inferred.hypothesis
    if owners == 0:
        return "the printed size leaves the index-K out, as SGLang before late 2025 did"
    if one is not None and owners == one.main_layers:
        return f"index-K is allocated on all {owners} layers, not on the {held} that own one: {owners - held} are dead"
    return f"index-K on {owners} layers instead of {held}: another release, or another layer pattern"


def _cell_cause(seen: Seen, inferred: Inferred, ledger: Ledger, predicted: int) -> str:
    observed = inferred.values["cell.observed_bytes"]
    one = inferred.hypothesis
    if abs(observed - predicted) <= _CLOSE * predicted and (one is None or one.cell_bytes != predicted):
        return "agrees"
    if one is None:
        return "no combination of records and layers gives it"
    if one.cell_bytes == predicted or abs(observed - predicted) <= _CLOSE * predicted:
        charged = _charged(ledger)
        if charged is not None and charged != ledger["record.main_kv_bytes"]:
            return f"charged {charged} B a record, stored {ledger['record.main_kv_bytes']}"
        return f"agrees: {one.says}"
    parts = []
    if one.main_bytes != ledger["record.main_kv_bytes"]:
        charged = _charged(ledger)
        if charged is not None and charged != one.main_bytes and one.main_bytes == ledger["record.main_kv_bytes"]:
            parts.append("undercharge")
        parts.append(_record_cause(one.main_bytes, ledger["record.main_kv_bytes"]))
    held = ledger["pool.index_k_layers"]
    if seen.engine == "sglang" and one.index_layers != held:
        parts.append(_owner_cause(one.index_layers, held, inferred))
    if one.draft_layers and not ledger["model.draft_layers"]:
        parts.append("a draft layer lies in the pool")
    return "; ".join(parts) or f"the log fits {one.says}"


def _charged(ledger: Ledger) -> int | None:
    key = "record.charged_main_kv_bytes"
    return int(ledger[key]) if key in ledger else None


def _pools(seen: Seen, inferred: Inferred, ledger: Ledger | None, *, records_agree: bool) -> list[Check]:
    found = []
    for pool, key, draft in ((seen.target, "pool.target_bytes", False), (seen.draft, "pool.draft_bytes", True)):
        if pool is None:
            continue
        predicted = _predicted_bytes(seen, inferred, ledger, pool, draft=draft)
        cause = _pool_cause(pool, predicted, inferred, draft=draft, records_agree=records_agree)
        found.append(_check(key, pool.size_bytes, predicted, cause))
    other = [
        _check("pool.other_bytes", pool.size_bytes, None, f"contradicts the pool before it (line {pool.line})")
        for pool in seen.other
    ]
    return [*found, *other]


def _predicted_bytes(seen: Seen, inferred: Inferred, ledger: Ledger | None, pool: Pool, *, draft: bool) -> int | None:
    """Return the bytes of the printed tokens: by the ledger, else by the records that the log itself shows."""
    if seen.engine == "sglang" and ledger is not None:
        return stored_target(ledger, seen, draft=draft)
    one = inferred.hypothesis
    if one is None:
        return None
    if draft:
        layers = int(inferred.values.get("model.draft_layers") or 0)
        return (pool.tokens + PAGE_TOKENS) * layers * (one.main_bytes + one.index_bytes) or None
    pad = int(inferred.values.get("pool.pad_tokens", 0))
    return (pool.tokens + pad) * one.cell_bytes


def _pool_cause(
    pool: Pool, predicted: int | None, inferred: Inferred, *, draft: bool, records_agree: bool = False
) -> str:
    if predicted is None:
        return "not predicted: no record and layers fit"
    if abs(pool.size_bytes - predicted) <= pool.within_bytes:
        pad = inferred.values.get("pool.pad_tokens", PAGE_TOKENS if draft else 0)
        return f"agrees to the last printed digit{', pad page included' if pad else ''}"
    if draft:
        return "the draft pool has other records or layers than the ledger's"
    if records_agree:
        off = pool.size_bytes - predicted
        beyond, rounding = (abs(off) - pool.within_bytes) / MIB, pool.within_bytes / MIB
        return (
            f"{beyond:,.1f} MiB {'more' if off > 0 else 'less'} than tokens x records give, beyond the "
            f"{rounding:.2f} MiB of rounding: rows beside the tokens and their page, or a figure not copied as printed"
        )
    return "other records or layers than the ledger's: see cell.target_bytes"


def _tokens(seen: Seen, ledger: Ledger) -> list[Check]:
    if seen.tokens is None:
        return []
    predicted = ledger["pool.reported_tokens"]
    return [_check("pool.reported_tokens", seen.tokens, predicted, _token_cause(seen, ledger, predicted))]


def _token_cause(seen: Seen, ledger: Ledger, predicted: int) -> str:
    tokens = seen.tokens or 0
    if tokens == predicted:
        return "agrees to the token"
    cell = ledger["cell.bytes"]
    rounding = (
        2 * 0.005 * GIB / cell + 2 * PAGE_TOKENS
        if seen.engine == "sglang"
        else seen.kv_within / max(cell, 1) + PAGE_TOKENS
    )
    if abs(tokens - predicted) <= max(rounding, PAGE_TOKENS):
        return "agrees within the rounding of the free memory that the log prints"
    if seen.engine != "sglang" or seen.free_before is None or seen.free_after is None:
        observed = "--kv-bytes" if seen.engine == "vllm" else "--free-before, --free-after"
        return f"a cap, another pool budget, or what is not given (--mem-fraction, --max-total-tokens, {observed})"
    implied = implied_fraction(seen, cell)
    given = ledger["engine.mem_fraction"]
    if implied is not None and abs(implied - given) > _THREE_DIGITS:
        return (
            f"the tokens imply a memory fraction of {implied:.3f}, not {given}: another --mem-fraction-static, or a cap"
        )
    return "a cap on the pool, or another stage with fewer tokens"


def implied_fraction(seen: Seen, cell_bytes: int) -> float | None:
    """Return the memory fraction at which the printed free memory gives the printed tokens [share]."""
    if not seen.free_before or seen.free_after is None or not seen.tokens:
        return None
    return 1 - (seen.free_after - seen.tokens * cell_bytes) / seen.free_before


def _weights(seen: Seen, prediction: Prediction) -> list[Check]:
    ledger, found = prediction.ledger, []
    for observed, key in ((seen.weights, "weights.rank_bytes"), (seen.draft_weights, "weights.draft_rank_bytes")):
        if observed is None or key not in ledger:
            continue
        predicted = ledger[key]
        off = abs(observed - predicted)
        agrees = off <= SAME_WEIGHTS * max(predicted, 1)
        cause = "agrees within 2%" if agrees else _weight_cause(seen, observed, prediction, key)
        found.append(_check(key, observed, predicted, cause))
    return found


def _weight_cause(seen: Seen, observed: int, prediction: Prediction, key: str) -> str:
    cut = prediction.scenario.sharding
    fits = fitting_tp(prediction, observed) if key == "weights.rank_bytes" else None
    if fits is not None:
        taken = f"tp {cut.tp} given" if "tp" in cut.model_fields_set else f"no tp is named, {cut.tp} taken"
        return f"{taken}; tp {fits} fits the log: give --tp {fits}"
    if seen.engine == "vllm" and observed > prediction.ledger[key]:
        return "vLLM's figure holds buffers made with the model too: top-k, index groups, FlashMLA workspace"
    return "another checkpoint format or cut (tp, ep, DP attention), or weights beside the model"


def _memory(seen: Seen, ledger: Ledger) -> list[Check]:
    found = []
    capacity = ledger["gpu.capacity_bytes"]
    if seen.free_before:
        held = capacity - seen.free_before
        cause = "context and NCCL" if 0 <= held <= _NORMAL_HELD else "other processes, or another GPU than named"
        predicted = ledger["memory.held_bytes"] if "memory.held_bytes" in ledger else round(1.4 * GIB)
        found.append(
            _check("memory.held_bytes", held, predicted, f"{cause}: {held / GIB:.2f} GiB taken before the weights")
        )
    if seen.fraction is not None:
        given = ledger["engine.mem_fraction"]
        cause = (
            "agrees"
            if abs(seen.fraction - given) < _SAME
            else "the server ran with another fraction than the scenario's"
        )
        found.append(_check("engine.mem_fraction", seen.fraction, given, cause))
    if seen.host_bytes is not None and "host.pool_bytes" in ledger:
        predicted = ledger["host.pool_bytes"]
        off = abs(seen.host_bytes - predicted) > _CLOSE * predicted
        cause = "another host ratio or size, or other layers than the device pool" if off else "agrees"
        found.append(_check("host.pool_bytes", seen.host_bytes, predicted, cause))
    return found
