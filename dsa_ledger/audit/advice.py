"""What would change something: an upgrade, a flag, with the tokens or bytes it brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.account import estimate
from dsa_ledger.audit.oom import CONTEXT_FLAGS
from dsa_ledger.audit.seen import PAGE_TOKENS
from dsa_ledger.engines.releases import key_of
from dsa_ledger.errors import ExpectedError
from dsa_ledger.schema import Engine
from dsa_ledger.units import GIB

if TYPE_CHECKING:
    from dsa_ledger.audit.infer import Inferred
    from dsa_ledger.audit.predict import Prediction
    from dsa_ledger.audit.seen import Seen
    from dsa_ledger.schema import Scenario

_FIRST_WITH_OWNERS = {"sglang": "0.5.18", "vllm": "0.24.0", "tensorrt-llm": "1.3.0rc25"}
_STORE_RAW = (10, 100, 103)  # compute capability as logs print it: Blackwell stores raw fp8 records
_WORTH = GIB // 2  # captured logits below this are not worth a shorter context
_FP8 = {
    "sglang": "--kv-cache-dtype fp8_e4m3",
    "vllm": "--kv-cache-dtype fp8",
    "tensorrt-llm": "kv_cache_config.dtype: fp8",
}


def advice_of(seen: Seen, inferred: Inferred, prediction: Prediction | None) -> list[str]:
    """Return sentences that each name a change and what it brings."""
    said = [_another_release(seen, prediction), _dead_index(seen, inferred, prediction), _bf16(seen, inferred)]
    said += [_overshoot(prediction), _logits(seen, prediction)]
    return [sentence for sentence in said if sentence]


def _another_release(seen: Seen, prediction: Prediction | None) -> str:
    """Tell that the log was not printed by the release that was named."""
    if prediction is None or not prediction.log_of:
        return ""
    newest, oldest = prediction.log_of[0], prediction.log_of[-1]
    span = newest if newest == oldest else f"{oldest} to {newest}"
    named = prediction.scenario.engine.version
    return f"this log is of {seen.engine} {span}, not {named}"


def _dead_index(seen: Seen, inferred: Inferred, prediction: Prediction | None) -> str:
    """Tell layers that own an index-K that nothing reads, and what the release without them gives."""
    one, guessed = inferred.hypothesis, ""
    sharing = [fit for fit in inferred.fitting if fit.plain and fit.index_layers == fit.main_layers > fit.shape.owners]
    if one is not None and one.index_layers == one.main_layers == one.shape.owners and sharing:
        one, guessed = sharing[0], f"if the model is {sharing[0].shape.model}: "
    tokens = seen.tokens or (seen.target.tokens if seen.target else None)
    if one is None or tokens is None or one.index_layers != one.main_layers or one.shape.owners >= one.main_layers:
        return ""
    dead = one.index_layers - one.shape.owners
    rows = seen.target.tokens + PAGE_TOKENS if seen.target else tokens
    wasted = dead * one.index_bytes * rows * one.index_rows
    said = (
        f"{guessed}index-K is allocated on all {one.index_layers} layers and {dead} of the buffers are dead "
        f"({wasted / GIB:.2f} GiB): "
    )
    first = _FIRST_WITH_OWNERS[seen.engine]
    if prediction is None:
        drafts = inferred.values.get("model.draft_layers") or 0
        draft_cell = 0 if one.draft_layers else drafts * (one.main_bytes + one.index_bytes)
        before = one.cell_bytes + draft_cell
        after = before - dead * one.index_bytes * one.index_rows
        gain = tokens * before // after // PAGE_TOKENS * PAGE_TOKENS
        return f"{said}{seen.engine} {first} gives {_gained(tokens, gain)}"
    named = prediction.scenario.engine.version if prediction.version_given and prediction.log_of else None
    newer = named if named and key_of(named) > key_of(first) else first
    return said + _upgraded(seen, prediction, newer, tokens)


def _gained(tokens: int, gain: int) -> str:
    return f"{gain / tokens - 1:+.1%} tokens from the same bytes ({tokens:,} to about {gain:,})"


def _upgraded(seen: Seen, prediction: Prediction, version: str, tokens: int) -> str:
    """Return what a release gives on the same bytes, and with the weights that it does not load."""
    was = prediction.as_logged(tokens)
    now = was.model_copy(update={"engine": Engine(name=was.engine.name, version=version)})
    try:
        ledger, freed = estimate(now), _freed_weights(was, now)
        said = f"{seen.engine} {version} gives {_gained(tokens, ledger['pool.reported_tokens'])}"
        if freed <= 0:
            return said
        observed = now.observed.model_copy(update={"kv_bytes": int(ledger["pool.budget_bytes"]) + freed})
        more = int(estimate(now.model_copy(update={"observed": observed}))["pool.reported_tokens"])
    except ExpectedError as refused:
        return f"{seen.engine} {version} stores it on the full layers only, and does not take this layout: {refused}"
    gained = f"{more / tokens - 1:+.1%} (about {more:,})"
    return f"{said}, {gained} with the {freed / GIB:.2f} GiB of indexer weights it no longer loads"


def _freed_weights(was: Scenario, now: Scenario) -> int:
    """Return the weights of one rank that the newer release does not load [B]."""
    return int(estimate(was)["weights.rank_bytes"] - estimate(now)["weights.rank_bytes"])


def _bf16(seen: Seen, inferred: Inferred) -> str:
    one = inferred.hypothesis
    if one is None or one.main_bytes != 1152:  # noqa: PLR2004 - the bf16 record
        return ""
    width = 576 if seen.sm in _STORE_RAW else 656
    slim = one._replace(main_bytes=width).cell_bytes
    gain = f"x{one.cell_bytes / slim:.1f} tokens ({one.cell_bytes:,} to {slim:,} B/token)"
    return f"KV is bf16: {_FP8[seen.engine]} gives {gain}"


def _overshoot(prediction: Prediction | None) -> str:
    """Tell a packed record that is charged as a raw one: the pool takes more than its budget."""
    key = "record.charged_main_kv_bytes"
    if prediction is None or key not in prediction.ledger:
        return ""
    ledger = prediction.ledger
    if ledger[key] >= ledger["record.main_kv_bytes"]:
        return ""
    over = ledger["pool.target_bytes"] - ledger["pool.budget_bytes"]
    stored = ledger["record.main_kv_bytes"]
    return (
        f"the pool is charged {ledger[key]} B a record and stores {stored}: it takes {over / GIB:.2f} GiB more than "
        "its budget; upgrade to 0.5.17, or cap it with --max-total-tokens"
    )


def _logits(seen: Seen, prediction: Prediction | None) -> str:
    """Tell how much the decode logits of the longest request hold, and half of it."""
    key = "workspace.decode_logits_bytes"
    if prediction is None or key not in prediction.ledger or prediction.ledger[key] < _WORTH:
        return ""
    held, context = prediction.ledger[key], prediction.ledger["limits.context_length"]
    limits = prediction.scenario.limits.model_copy(update={"context_length": max(context // 2, 1)})
    try:
        less = estimate(prediction.scenario.model_copy(update={"limits": limits}))[key]
    except ExpectedError:
        return ""
    return (
        f"lower {CONTEXT_FLAGS[seen.engine]}: {held / GIB:.2f} GiB of decode logits are held for requests of "
        f"{context:,} tokens, half the length takes {less / GIB:.2f} GiB"
    )
