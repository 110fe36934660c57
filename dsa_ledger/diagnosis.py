"""Why a server's speed falls with the context: the ledger's entries that grow, in order of size, and what is left.

Either a table of measured speeds (context, batch, tok/s or ms) or one gap (tokens per second seen and expected).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.account.deploy import deploy
from dsa_ledger.account.timing import wanted_series
from dsa_ledger.engines.releases import READ
from dsa_ledger.errors import BadInput, Fault, Faults
from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.timing.tables import machine_from, versions
from dsa_ledger.units import UnitError, parse_count, parse_pace, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

SHORT = 1024  # the context a gap is counted from
NEWER = {"sglang": "0.5.15"}  # the first version with the kernel known by a prior only
MOST_FAULTS = 20
MOST = 1e12  # beyond it a unit was mistaken; neither NaN nor infinite passes

# What each full layer of the target adds with the context: key of the layer's part, and what it is.
PARTS = (
    ("time.layer.topk_s", "top-k and scan of this engine version, all scores tied"),
    ("time.layer.bytes_s", "index-K and logits bytes at the sustained bandwidth"),
    ("time.layer.gather_s", "sparse attention up to 2,048 tokens"),
)
# What may come on top, none of it in the estimate.
CANDIDATES = (
    ("time.layer.hidden_s", "bytes that a warm L2 hid in the measurement"),
    ("time.layer.repeat_s", "flattened verify rows that read the keys again"),
    ("time.layer.topk_older_s", "the older top-k kernel"),
)
LEAST_S = 1e-6  # what adds less to a step cannot be seen in any
MOSTLY = 0.5  # of what is to be explained
OVER = -0.1  # so much more than was seen is no rounding
FRAGMENTED_SHARE = 0.10  # far end of the prior: not measured
SCATTERED = "scattered pages, not measured: 0 to this"
UNSHARED_DRAFTS = "MTP index sharing off: each draft forward scores again"


class Seen(NamedTuple):
    """One measured speed: context, batch, seconds a step."""

    context: int
    batch: int
    step_s: float


class Span(NamedTuple):
    """Two contexts at one batch."""

    short: int
    long: int
    batch: int


class Cause(NamedTuple):
    """One entry's part of a slope or gap: seconds, share of the whole, whether the estimate holds it."""

    entry: str
    seconds: float
    share: float
    in_estimate: bool
    says: str


class Diagnosis(NamedTuple):
    """What was to be explained, by what, what is left, and what other engine versions would explain."""

    what: str
    seconds: float
    causes: list[Cause]
    left_s: float
    left_share: float
    conclusion: str
    by_engine: list[dict[str, Any]]
    intercept: list[dict[str, Any]]
    warnings: list[str]


def tokens_per_step(scenario: Scenario) -> float:
    """Return the tokens of a request that a step gives on average (BadInput: drafts are on, and nobody said)."""
    if not scenario.draft.steps:
        return 1.0
    if scenario.draft.accepted is None:
        wanted = (
            "the mean tokens kept per step, such as 2.5: drafts are on, so tokens per second alone tell no step time"
        )
        raise BadInput([Fault("draft.accepted (--accepted)", None, wanted)])
    return scenario.draft.accepted


def read_table(path: str, scenario: Scenario) -> list[Seen]:
    """Return the rows of a CSV with columns context, batch and tok_s (of one request) or ms (of one step).

    BadInput names each fault by line; speeds need the tokens that a step keeps where drafts are on.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput([Fault("--seen-table", path, f"a CSV file that can be read: {error}")]) from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = set(reader.fieldnames or ())
    if "context" not in names or len(names & {"tok_s", "ms"}) != 1:
        raise BadInput([Fault(f"{path}:1", ", ".join(sorted(names)), "columns context, batch and one of tok_s, ms")])
    faults, rows = Faults(), []
    column, read = ("ms", _step_s) if "ms" in names else ("tok_s", parse_pace)
    tokens = 1.0 if column == "ms" else tokens_per_step(scenario)
    for row in reader:
        place = f"{path}:{reader.line_num}"
        context = _number(row.get("context"), f"{place} context", faults, parse_count)
        batch = _number(row.get("batch") or "1", f"{place} batch", faults, parse_count)
        speed = _number(row.get(column), f"{place} {column}", faults, read)
        if len(faults.found) >= MOST_FAULTS:
            break
        rows.append(Seen(int(context), int(batch), speed if column == "ms" else tokens / speed))
    faults.stop_if_any()
    if len({row.context for row in rows}) < 2:  # noqa: PLR2004 - a slope needs two
        raise BadInput([Fault(path, len(rows), "at least 2 rows at different contexts")])
    return rows


def _number(text: str | None, place: str, faults: Faults, read: Callable[[str], float]) -> float:
    try:
        value = read(text or "")
    except UnitError as wrong:
        faults.add(place, text, str(wrong))
        return 1.0
    good = 0 < value < MOST
    faults.require(good, place, text, "a number above 0")
    return value if good else 1.0


def _step_s(text: str) -> float:
    """Return seconds from milliseconds, as the column says, or from a time with its unit (UnitError)."""
    return parse_seconds(f"{text}ms" if text.strip().replace(".", "", 1).isdecimal() else text)


def of_table(scenario: Scenario, seen: list[Seen]) -> Diagnosis:
    """Return what explains the slope of the measured steps between the shortest and the longest context."""
    batch = max({row.batch for row in seen}, key=lambda batch: len({row.context for row in seen if row.batch == batch}))
    line = sorted(row for row in seen if row.batch == batch)
    first, last = line[0], line[-1]
    if first.context == last.context:
        raise BadInput([Fault("--seen-table", batch, "two contexts at the same batch")])
    grown = last.step_s - first.step_s
    ends = " and ".join(f"{row.step_s * 1e3:.2f} ms at {row.context:,} tokens" for row in (first, last))
    span = Span(first.context, last.context, batch)
    return _explained(scenario, span, grown, f"batch {batch}: {ends}", first.step_s)


def of_gap(scenario: Scenario, seen_per_s: float, expected_per_s: float) -> Diagnosis:
    """Return what explains the gap between tokens per second seen and expected at the scenario's context."""
    if scenario.load.context is None:
        raise BadInput([Fault("load.context", None, "the context at which the speed was seen")])
    tokens = tokens_per_step(scenario)
    gap = tokens / seen_per_s - tokens / expected_per_s
    kept = f" of {tokens:g} tokens" if scenario.draft.steps else ""
    what = f"{1e3 * tokens / seen_per_s:.2f} ms seen, {1e3 * tokens / expected_per_s:.2f} ms expected a step{kept}"
    return _explained(scenario, Span(SHORT, scenario.load.context, scenario.load.batch), gap, what, None)


def _at(scenario: Scenario, context: int, batch: int) -> Ledger:
    load = scenario.load.model_copy(update={"context": max(context, 1), "batch": batch, "new_tokens": None})
    return estimate(scenario.model_copy(update={"load": load}))


def _explained(scenario: Scenario, span: Span, seconds: float, what: str, step_s: float | None) -> Diagnosis:
    near, far = _at(scenario, span.short, span.batch), _at(scenario, span.long, span.batch)
    if "time.attention_s" not in far:
        raise BadInput([Fault("gpu", scenario.gpu, "a GPU that a kernel table serves")])
    layers = far["model.full_layers"]
    causes = [_cause(key, layers * (far[key] - near[key]), seconds, says, inside=True) for key, says in PARTS]
    causes += [_cause(key, layers * (far[key] - near[key]), seconds, says, inside=False) for key, says in CANDIDATES]
    bytes_s = layers * (far["time.layer.bytes_s"] - near["time.layer.bytes_s"])
    scattered = bytes_s * FRAGMENTED_SHARE
    causes.append(_cause("time.layer.fragmented_s", scattered, seconds, SCATTERED, inside=False))
    if scenario.draft.steps:
        draft = far["model.draft_layers"] * max(scenario.draft.steps - far["step.draft_passes"], 0)
        grown = draft * (far["time.full_layer_s"] - near["time.full_layer_s"])
        causes.append(_cause("step.draft_passes", grown, seconds, UNSHARED_DRAFTS, inside=False))
    causes = sorted((cause for cause in causes if cause.seconds >= LEAST_S), key=lambda cause: -cause.seconds)
    left = seconds - sum(cause.seconds for cause in causes if cause.in_estimate)
    saved = layers * far["time.layer.topk_saved_s"]
    warnings = [
        f"with separated scores top-k takes {saved * 1e3:.2f} ms less: tied scores are the worst case",
        *far.warnings,
    ]
    by_engine, intercept = _by_engine(scenario, far, span, seconds), _intercept(near, step_s)
    share = left / seconds if seconds else 0.0
    says = _conclusion(seconds, share, causes)
    return Diagnosis(what, seconds, causes, left, share, says, by_engine, intercept, warnings)


def _conclusion(seconds: float, share: float, causes: list[Cause]) -> str:
    """Return what the figures say together, and what to do next; `share` is what the entries leave."""
    if seconds <= 0:
        return "the step does not grow with the context: there is nothing to explain"
    if share > MOSTLY:
        return (
            f"{share:.0%} of it does not come from the context: the attention layers do not grow by so much. Look at "
            "what every step takes (experts, collectives, launches, sampling, the scheduler, other requests). Next: "
            "--checklist ranks five places to look at; --seen-table over contexts tells what grows and what does not"
        )
    if share < OVER:
        return (
            "the entries explain more than was seen: the tables' tied scores are the worst case, this server's are "
            "faster. Next: --measured-step TIME@CONTEXT anchors the estimate to what was seen"
        )
    first = next(cause for cause in causes if cause.in_estimate)
    return (
        f"the attention layers' growth explains {1 - share:.0%}, most of it {first.entry}: {first.says}. Next: another "
        "engine version (below) or a shorter context; `explain` shows where the figure comes from"
    )


def _cause(key: str, seconds: float, whole: float, says: str, *, inside: bool) -> Cause:
    return Cause(key, seconds, seconds / whole if whole else 0.0, inside, says)


def _intercept(near: Ledger, step_s: float | None) -> list[dict[str, Any]]:
    """Return what the step takes at its shortest context, largest first, and what no entry holds."""
    if step_s is None:
        return []
    parts = [
        (key, near[key]) for key in ("time.attention_s", "time.weights_s", "time.draft_attention_s") if key in near
    ]
    left = step_s - sum(value for _, value in parts)
    parts.append(("experts, collectives, launches, sampling: not in the tables", left))
    return [
        {"entry": key, "seconds": value, "share": value / step_s}
        for key, value in sorted(parts, key=lambda part: -part[1])
    ]


def _by_engine(scenario: Scenario, far: Ledger, span: Span, whole: float) -> list[dict[str, Any]]:
    """Return the full layers' growth under each engine version with a table, for tied and separated scores."""
    plan = deploy(scenario)
    machine, wanted = machine_from(plan.gpu.name, plan.gpu), wanted_series(plan)
    layers, requests = far["model.full_layers"], far["step.requests"]
    rows = []
    for engine in READ:
        for version in (*versions(engine), *((NEWER[engine],) if engine in NEWER else ())):
            first, last = (
                layer_times(engine, version, machine, wanted, Load(requests, requests, at))
                for at in (span.short, span.long)
            )
            if first is None or last is None:
                continue
            scanned = [
                SCORE_BYTES * requests * at * of.bytes_seen_share / (PRIOR_ETA * machine.peak) / 1e6
                for at, of in ((span.short, first), (span.long, last))
            ]
            tied = layers * (last.topk_s + last.gather_s - first.topk_s - first.gather_s + scanned[1] - scanned[0])
            separated = tied - layers * (last.topk_saved_s - first.topk_saved_s)
            rows.append(
                {
                    "engine": engine,
                    "version": version,
                    "measured": version in versions(engine),
                    "tied_s": tied,
                    "tied_share": tied / whole if whole else 0.0,
                    "separated_s": separated,
                    "separated_share": separated / whole if whole else 0.0,
                }
            )
    return rows
