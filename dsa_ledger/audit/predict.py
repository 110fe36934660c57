"""The ledger of what a log shows: releases and formats that the log leaves open are tried, the best fit is kept."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.errors import BadInput, ExpectedError
from dsa_ledger.formulas import pool as pool_formulas
from dsa_ledger.scenario_file import put
from dsa_ledger.schema import Load, Scenario
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
_TP = (1, 2, 4, 8, 16, 32, 64)
SAME_WEIGHTS = 0.02
_ONE_FIGURE = 2  # what a record or a number of layers adds to a score
_ROUNDING = 0.003  # of tokens, where they follow from free memory printed to 0.01 GiB
_WIDTHS = {1152: ("bf16", "bfloat16"), 656: ("fp8", "fp8_e4m3"), 576: ("fp8_e4m3", "fp8")}


class Trial(NamedTuple):
    """A scenario tried against a log: how many figures it meets, its place among the releases, what was assumed."""

    score: int
    order: int
    version: str
    scenario: Scenario
    ledger: Ledger
    assumed: list[str]


class Prediction(NamedTuple):
    """A ledger with its scenario, what was assumed for it, and the releases that fit as well.

    `log_of` holds the releases that meet more of the log's figures than the one that was named, the newest first, and
    `logged` the scenario and ledger of that newest one; where none does it is the prediction's own.
    """

    scenario: Scenario
    ledger: Ledger
    assumed: list[str]
    alike: list[str]
    version_given: bool
    logged: tuple[Scenario, Ledger]
    log_of: list[str]

    def as_logged(self, tokens: int | None) -> Scenario:
        """Return the scenario of the log's own release, its pool as large as the log counts it [tokens].

        A log's token count replaces what priors make of the budget: tokens x bytes a token, as the engine divides it.
        """
        scenario, ledger = self.logged
        if scenario.engine.name == "vllm" or not tokens or tokens == ledger["pool.reported_tokens"]:
            return scenario
        observed = scenario.observed.model_copy(update={"kv_bytes": int(tokens) * int(ledger["cell.bytes"])})
        return scenario.model_copy(update={"observed": observed})


def predict(tables: dict[str, Any], seen: Seen, inferred: Inferred) -> Prediction | list[str]:
    """Return the ledger that fits the log best, or the reasons why there is none."""
    absent = [
        f"{name}: not named and not told by the log; give --{name}" for name in ("model", "gpu") if name not in tables
    ]
    if absent:
        return absent
    given = given_version(tables) or seen.version
    tried, reasons = _tried(tables, seen, inferred, [given] if given else seen.releases())
    if not tried:
        return reasons[:8]
    best = tried[0]
    logged, log_of = (best.scenario, best.ledger), []
    if given and not seen.prints_version:
        others, _ = _tried(tables, seen, inferred, [name for name in seen.releases() if name != given])
        if others and others[0].score >= best.score + _ONE_FIGURE:
            logged, log_of = (others[0].scenario, others[0].ledger), _alike(others)
    return Prediction(best.scenario, best.ledger, best.assumed, _alike(tried), given is not None, logged, log_of)


def _tried(
    tables: dict[str, Any], seen: Seen, inferred: Inferred, versions: list[str]
) -> tuple[list[Trial], list[str]]:
    """Return the releases and formats tried, the best fit first, and why others gave no ledger."""
    tried: list[Trial] = []
    reasons: list[str] = []
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
                reasons += [str(unknown)] if str(unknown) not in reasons else []
                continue
            tried.append(Trial(_score(ledger, seen, inferred), order, version, scenario, ledger, assumed))
    return sorted(tried, key=lambda one: (-one.score, one.order)), reasons


def _alike(tried: list[Trial]) -> list[str]:
    """Return the releases that meet as many figures as the best, in the same KV format, the newest first."""
    best = tried[0]
    alike = [one for one in tried if one.score == best.score and one.scenario.kv_dtype == best.scenario.kv_dtype]
    return list(dict.fromkeys(one.version for one in alike))


def fitting_tp(prediction: Prediction, weights: int) -> int | None:
    """Return the tensor parallelism at which the ledger's weights meet the log's within 2%, None where none does."""
    scenario = prediction.scenario
    for tp in _TP:
        cut = scenario.sharding.model_copy(update={"tp": tp})
        try:
            ledger = estimate(scenario.model_copy(update={"sharding": cut, "gpus": None}))
        except ExpectedError:
            continue
        if abs(weights - ledger["weights.rank_bytes"]) <= SAME_WEIGHTS * weights:
            return tp
    return None


def without_load(scenario: Scenario) -> Ledger:
    """Return the ledger of the same server without requests: what a start-up log can show."""
    return estimate(scenario.model_copy(update={"load": Load(), "profile": None}))


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
