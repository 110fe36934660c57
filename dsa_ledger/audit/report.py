"""One audit from the log to the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.advice import advice_of
from dsa_ledger.audit.complete import fill
from dsa_ledger.audit.flagwords import in_engine_words
from dsa_ledger.audit.infer import Inferred, inferred_from
from dsa_ledger.audit.oom import advice_on, suspects
from dsa_ledger.audit.predict import Prediction, given_version, predict, without_load
from dsa_ledger.audit.reconcile import Check, checks_of, implied_fraction
from dsa_ledger.audit.seen import Seen, seen_of
from dsa_ledger.audit.shapes import distinct_models, shapes_of
from dsa_ledger.audit.startup import Log, Start, has_pool, read_log
from dsa_ledger.audit.stops import stops_of
from dsa_ledger.engines.releases import sort_key
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from dsa_ledger.audit.figures import Figure
    from dsa_ledger.audit.oom import Refusal, Suspect
    from dsa_ledger.audit.stops import Stop

MOST_SHOWN = 400
MOST_ADVISED = 3  # allocations that failed; the first is the one to mend


@dataclass
class Report:
    """What an audit found."""

    engine: str
    version: str | None
    observed: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    inferred: dict[str, Any] = field(default_factory=dict)
    certainty: dict[str, str] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    refusals: list[tuple[Refusal, list[Suspect]]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lines: int = 0
    prediction: Prediction | None = None


def audit(name: str, tables: dict[str, Any]) -> Report:
    """Return the audit of a log against a scenario that may be incomplete (BadInput where nothing can be read)."""
    return audit_log(read_log(name), tables, name)


def audit_log(log: Log, tables: dict[str, Any], name: str = "LOG") -> Report:
    """Return the audit of a log that was read."""
    start = log.start
    if start is None:
        engine = _engine_of(tables)
        if not log.refusals or engine is None:
            hint = " (name the engine with --engine to look at its out-of-memory line)" if log.refusals else ""
            expected = f"a start-up log of SGLang, vLLM or TensorRT-LLM; none of its {log.lines:,} lines is one{hint}"
            raise BadInput([Fault("LOG", name[-64:], expected)])
        start = Start(engine)
        log.starts.append(start)
    asked = _engine_of(tables)
    if asked is not None and asked != start.engine:
        raise BadInput([Fault("engine.name", asked, f"{start.engine}, whose log this is")])
    seen = seen_of(start)
    given = given_version(tables)
    said = []
    if seen.version is None:
        seen.version = given
    elif given and sort_key(given) != sort_key(seen.version):
        said.append(f"the log says {seen.engine} {seen.version}; the rules of {given} are used, as asked")
    said += fill(tables, start, seen)
    inferred = _inferred(tables, seen)
    predicted = predict(tables, seen, inferred)
    prediction = predicted if isinstance(predicted, Prediction) else None
    report = Report(seen.engine, _version(seen, prediction), lines=log.lines)
    report.prediction = prediction
    report.observed = log.figures[:MOST_SHOWN]
    report.checks = checks_of(seen, inferred, prediction)
    report.inferred, report.certainty = _all_inferred(seen, inferred, prediction)
    report.stops = stops_of(start, seen, prediction)
    seen.chunk = seen.chunk or _stated_chunk(prediction)
    for refusal in log.refusals[:20]:
        ledger = prediction.ledger if prediction else None
        report.refusals.append((refusal, suspects(refusal, seen.engine, ledger, seen)))
    fraction = prediction.ledger["engine.mem_fraction"] if prediction else seen.fraction
    report.advice = [stop.change for stop in report.stops]
    report.advice += [advice_on(one, seen.engine, found, fraction) for one, found in report.refusals[:MOST_ADVISED]]
    report.advice += advice_of(seen, inferred, prediction)
    told = _told(log, start, predicted)
    report.warnings = [*said, *seen.warnings, *inferred.notes, *in_engine_words(told, seen.engine)]
    return report


def _stated_chunk(prediction: Prediction | None) -> int | None:
    """Return the rows of a prefill forward on one rank, where options or a command state them."""
    if prediction is None or prediction.scenario.limits.chunked_prefill is None:
        return None
    ways = prediction.scenario.sharding.dp_attention if prediction.scenario.engine.name == "sglang" else 1
    return prediction.scenario.limits.chunked_prefill // max(ways, 1)


def _engine_of(tables: dict[str, Any]) -> str | None:
    engine = tables.get("engine")
    name = (
        engine.get("name")
        if isinstance(engine, dict)
        else engine.partition("@")[0]
        if isinstance(engine, str)
        else None
    )
    name = str(name).strip().lower().replace("trtllm", "tensorrt-llm") if name else None
    return name if name in ("sglang", "vllm", "tensorrt-llm") else None


def _inferred(tables: dict[str, Any], seen: Seen) -> Inferred:
    sharding = tables.get("sharding")
    sharding = sharding if isinstance(sharding, dict) else {}
    stages = _number(sharding.get("pp")) or seen.stages
    cuts = sharding.get("pp_partition")
    cuts = cuts if isinstance(cuts, list) and all(isinstance(count, int) for count in cuts) else None
    overrides = tables.get("model_overrides")
    overrides = overrides if isinstance(overrides, dict) else {}
    model = tables.get("model")
    named = isinstance(model, str)
    models = (model,) if isinstance(model, str) else distinct_models()
    stage = (seen.target.rank.pp or 0) if seen.target else 0
    # vLLM and TensorRT-LLM print no stage: the one with the fewest tokens rules, whose layers are not known.
    shapes = []
    for place in (stage,) if seen.engine == "sglang" else range(min(stages, 64)):
        shapes += shapes_of(models, overrides, engine=seen.engine, stages=stages, cuts=cuts, stage=place)
    return inferred_from(seen, shapes, _number(sharding.get("dcp")), named=named)


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 5 and int(text) > 0 else None  # noqa: PLR2004 - ranks


def _version(seen: Seen, prediction: Prediction | None) -> str | None:
    if seen.version:
        return seen.version
    return prediction.scenario.engine.version if prediction else None


def _all_inferred(
    seen: Seen, inferred: Inferred, prediction: Prediction | None
) -> tuple[dict[str, Any], dict[str, str]]:
    values, certainty = dict(inferred.values), dict(inferred.certainty)
    if seen.version is None and prediction is not None and not prediction.version_given:
        alike = prediction.alike
        values["engine.version"] = alike[0]
        certainty["engine.version"] = "likely" if len(alike) == 1 else f"open: {alike[-1]} to {alike[0]} fit alike"
        if inferred.hypothesis is None:
            lines = seen.releases()
            certainty["engine.version"] = (
                f"open: lines so worded are of {lines[-1]} to {lines[0]}; no figure tells more"
            )
    if prediction is not None and prediction.scenario.limits.mem_fraction is None and seen.engine == "sglang":
        implied = implied_fraction(seen, prediction.ledger["cell.bytes"])
        if implied is not None:
            values["engine.mem_fraction"] = round(implied, 3)
            certainty["engine.mem_fraction"] = "likely: from tokens and free memory, unless a cap set the tokens"
    if prediction is not None and prediction.assumed:
        values["assumed"] = "; ".join(prediction.assumed)
        certainty["assumed"] = "from the figures, since neither log nor options say it"
    return values, certainty


def _told(log: Log, start: Start, predicted: Prediction | list[str]) -> list[str]:
    """Return what the reader must know: what was not read, other starts, what is missing for a prediction."""
    said = []
    if log.unread:
        said.append(f"{log.unread} lines look like figures and were not read: {' | '.join(log.unread_lines)}")
    if len(log.figures) > MOST_SHOWN:
        said.append(f"{len(log.figures):,} figures were read; the first {MOST_SHOWN} are listed, all were used")
    if log.cut:
        said.append(f"{log.cut} lines were longer than what is read of one")
    if log.dropped:
        said.append(f"{log.dropped} further lines with figures were counted only")
    others = [one for one in log.starts if one is not start and any(has_pool(rank) for rank in one.ranks.values())]
    for other in others[:3]:
        then = seen_of(other)
        tokens = f"{then.tokens:,} tokens" if then.tokens else "no token count"
        said.append(f"the log holds another start of {other.engine}, with {tokens}; the last one counts")
    if isinstance(predicted, list):
        listed = "; ".join(predicted) or "no release fits"
        said.append(f"no ledger to hold the log against: {listed}")
    else:
        # A start-up log shows no requests: what is said of the load, its times first of all, is left out.
        kept = without_load(predicted.scenario).warnings
        said += [text for text in predicted.ledger.warnings if text in kept and "name yours as" not in text][:6]
    return said
