"""The ledger of what a log shows: releases and formats that the log leaves open are tried, the best fit is kept."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, ExpectedError
from dsa_ledger.formulas import pool as pool_formulas
from dsa_ledger.scenario_file import put
from dsa_ledger.schema import Scenario
from dsa_ledger.units import GIB
from dsa_ledger.validation import validated

if TYPE_CHECKING:
    from dsa_ledger.audit.infer import Inferred
    from dsa_ledger.audit.seen import Seen
    from dsa_ledger.ledger import Ledger

_DTYPES = {
    "sglang": ("auto", "fp8_e4m3", "bf16"),
    "vllm": ("auto", "fp8", "fp8_e4m3", "bfloat16"),
    "tensorrt-llm": ("auto", "fp8", "bf16"),
}
_ROUNDING = 0.003  # of tokens, where they follow from free memory printed to 0.01 GiB
_WIDTHS = {1152: ("bf16", "bfloat16"), 656: ("fp8", "fp8_e4m3"), 576: ("fp8_e4m3", "fp8")}


class Prediction(NamedTuple):
    """A ledger with its scenario, what was assumed for it, and the releases that fit as well."""

    scenario: Scenario
    ledger: Ledger
    assumed: list[str]
    alike: list[str]
    version_given: bool


def predict(tables: dict[str, Any], seen: Seen, inferred: Inferred) -> Prediction | list[str]:
    """Return the ledger that fits the log best, or the reasons why there is none."""
    absent = [
        f"{name}: not named and not told by the log; give --{name}" for name in ("model", "gpu") if name not in tables
    ]
    if absent:
        return absent
    tried: list[tuple[int, int, str, Scenario, Ledger, list[str]]] = []
    reasons: list[str] = []
    given = given_version(tables) or seen.version
    versions = [given] if given else seen.releases()
    for order, version in enumerate(versions):
        for dtype in _dtypes(tables, seen, inferred):
            trial, assumed = _trial(tables, seen, inferred, version, dtype)
            try:
                scenario = validated(Scenario, trial)
                ledger = estimate(scenario)
            except BadInput as bad:
                reasons += [line for line in bad.lines() if line not in reasons]
                continue
            except ExpectedError as unknown:
                reasons.append(str(unknown))
                continue
            tried.append((-_score(ledger, seen, inferred), order, version, scenario, ledger, assumed))
    if not tried:
        return reasons[:8]
    tried.sort(key=lambda one: one[:2])
    best = tried[0]
    alike = [one[2] for one in tried if one[0] == best[0] and one[3].kv_dtype == best[3].kv_dtype]
    return Prediction(best[3], best[4], best[5], list(dict.fromkeys(alike)), given is not None)


def given_version(tables: dict[str, Any]) -> str | None:
    """Return the engine version that a scenario names."""
    engine = tables.get("engine")
    if isinstance(engine, dict):
        return engine.get("version")
    return (engine.partition("@")[2] or None) if isinstance(engine, str) else None


def _dtypes(tables: dict[str, Any], seen: Seen, inferred: Inferred) -> list[str | None]:
    """Return the KV dtypes to try: the one given, the one the log says, else those that could make the record."""
    if "kv_dtype" in tables and str(tables["kv_dtype"]) != "auto":
        return [None]
    if seen.dtype and seen.engine == "sglang":
        return [seen.dtype]
    if seen.dtype and seen.engine == "vllm":
        return [seen.dtype, "fp8"]
    fitting = _WIDTHS.get(inferred.values.get("record.main_kv_bytes", 0), ())
    words = [word for word in _DTYPES[seen.engine] if word in fitting]
    return [None, *words]


def _trial(
    tables: dict[str, Any], seen: Seen, inferred: Inferred, version: str, dtype: str | None
) -> tuple[dict[str, Any], list[str]]:
    trial, assumed = copy.deepcopy(tables), []
    trial["engine"] = {"name": seen.engine, "version": version}
    if dtype is not None:
        trial["kv_dtype"] = dtype
        assumed.append(f"KV dtype {dtype}")
    drafts = inferred.values.get("model.draft_layers")
    table = trial.get("draft")
    steps = table.get("steps") if isinstance(table, dict) else None
    if drafts and not steps:
        put(trial, "draft.steps", 1)
        assumed.append("draft steps: at least 1, since a draft layer has a pool")
    for path, value in (("observed.free_before", seen.free_before), ("observed.free_after", seen.free_after)):
        if value and seen.engine == "sglang" and value < 1 << 50:
            _put_absent(trial, path, round(value / GIB, 6))
    if seen.kv_bytes is not None and seen.engine != "sglang":
        _put_absent(trial, "observed.kv_bytes", max(seen.kv_bytes, 0))
    if seen.context:
        _put_absent(trial, "limits.context_length", seen.context)
    if inferred.values.get("sharding.dcp", 1) > 1:
        _put_absent(trial, "sharding.dcp", inferred.values["sharding.dcp"])
    return trial, assumed


def _put_absent(tables: dict[str, Any], path: str, value: Any) -> None:
    name, _, below = path.partition(".")
    table = tables.get(name, {})
    if isinstance(table, dict) and table.get(below) is None:
        put(tables, path, value)


def _score(ledger: Ledger, seen: Seen, inferred: Inferred) -> int:
    """Return how many of the log's figures a ledger meets to the digit."""
    score = 0
    target = stored_target(ledger, seen)
    if target is not None and seen.target and abs(target - seen.target.size_bytes) <= seen.target.within_bytes:
        score += 4
    score += 2 * int(ledger["record.main_kv_bytes"] == inferred.values.get("record.main_kv_bytes"))
    layers = inferred.values.get("model.index_k_layers")
    prefix = stage_prefix(ledger, seen)
    score += 2 * int(layers is not None and _held(ledger, prefix, "pool.index_k_layers") == layers)
    if seen.tokens and abs(ledger["pool.reported_tokens"] - seen.tokens) <= _ROUNDING * seen.tokens:
        score += 1
    if seen.cell_bytes is not None and ledger["cell.bytes"] == seen.cell_bytes:
        score += 4
    return score


def stage_prefix(ledger: Ledger, seen: Seen) -> str:
    """Return the prefix of the pipeline stage whose pool is looked at."""
    stage = (seen.target.rank.pp or 0) if seen.target else 0
    prefix = f"stage[{stage}]."
    return prefix if f"{prefix}pool.target_bytes" in ledger else ""


def _held(ledger: Ledger, prefix: str, key: str) -> int:
    """Return an entry of that stage, or the plain one where stages do not differ."""
    return int(ledger[f"{prefix}{key}"] if f"{prefix}{key}" in ledger else ledger[key])


def stored_target(ledger: Ledger, seen: Seen, *, draft: bool = False) -> int | None:
    """Return the bytes that the printed number of tokens takes by the ledger's records and layers [B]."""
    chosen = seen.draft if draft else seen.target
    if chosen is None or seen.engine != "sglang":
        return None
    prefix = stage_prefix(ledger, seen)
    layers = ("model.draft_layers", "model.draft_layers") if draft else ("pool.main_kv_layers", "pool.index_k_layers")
    value = pool_formulas.pool_bytes(
        tokens=chosen.tokens,
        pad_tokens=ledger["engine.page_tokens"],
        main_kv_record_bytes=ledger["record.main_kv_bytes"],
        main_kv_layers=_held(ledger, prefix, layers[0]),
        index_k_record_bytes=ledger["record.index_k_bytes"],
        index_k_layers=_held(ledger, prefix, layers[1]),
        main_rows_per_token=1 if draft else _held(ledger, prefix, "pool.main_rows"),
        index_rows_per_token=1 if draft else _held(ledger, prefix, "pool.index_rows"),
    )
    return int(value)
