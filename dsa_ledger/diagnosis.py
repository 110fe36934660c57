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
from dsa_ledger.errors import BadInput, Fault, Faults
from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES
from dsa_ledger.timing.layer_times import Load, layer_times
from dsa_ledger.timing.tables import machine_from, versions

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

SHORT = 1024  # the context a gap is counted from
ENGINES = ("sglang", "vllm", "tensorrt-llm")
NEWER = {"sglang": "0.5.15"}  # the first version with the kernel known by a prior only
MOST_FAULTS = 20

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
FRAGMENTED_SHARE = 0.10  # far end of the prior: not measured
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
    by_engine: list[dict[str, Any]]
    intercept: list[dict[str, Any]]
    warnings: list[str]


def read_table(path: str) -> list[Seen]:
    """Return the rows of a CSV with columns context, batch and tok_s (of one request) or ms (BadInput by line)."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput([Fault("--seen-table", path, f"a readable CSV file ({error})")]) from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = set(reader.fieldnames or ())
    if "context" not in names or len(names & {"tok_s", "ms"}) != 1:
        raise BadInput([Fault(f"{path}:1", ", ".join(sorted(names)), "columns context, batch and one of tok_s, ms")])
    faults, rows = Faults(), []
    for row in reader:
        place = f"{path}:{reader.line_num}"
        context = _number(row.get("context"), f"{place} context", faults)
        batch = _number(row.get("batch") or "1", f"{place} batch", faults)
        column = "ms" if "ms" in names else "tok_s"
        speed = _number(row.get(column), f"{place} {column}", faults)
        if len(faults.found) >= MOST_FAULTS:
            break
        rows.append(Seen(int(context), int(batch), speed / 1e3 if column == "ms" else 1 / speed))
    faults.stop_if_any()
    if len({row.context for row in rows}) < 2:  # noqa: PLR2004 - a slope needs two
        raise BadInput([Fault(path, len(rows), "at least 2 rows at different contexts")])
    return rows


def _number(text: str | None, place: str, faults: Faults) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = 0.0
    good = 0 < value < 1e12  # noqa: PLR2004 - neither NaN nor infinite passes
    faults.require(good, place, text, "a positive number without unit")
    return value if good else 1.0


def of_table(scenario: Scenario, seen: list[Seen]) -> Diagnosis:
    """Return what explains the slope of the measured steps between the shortest and the longest context."""
    batch = max({row.batch for row in seen}, key=lambda batch: len({row.context for row in seen if row.batch == batch}))
    line = sorted(row for row in seen if row.batch == batch)
    first, last = line[0], line[-1]
    if first.context == last.context:
        raise BadInput([Fault("--seen-table", batch, "two contexts at the same batch")])
    tokens = scenario.draft.accepted or 1.0 if scenario.draft.steps else 1.0
    grown = (last.step_s - first.step_s) * (tokens if scenario.draft.steps else 1)
    ends = " and ".join(f"{row.step_s * 1e3:.2f} ms at {row.context:,} tokens" for row in (first, last))
    span = Span(first.context, last.context, batch)
    return _explained(scenario, span, grown, f"batch {batch}: {ends}", first.step_s)


def of_gap(scenario: Scenario, seen_per_s: float, expected_per_s: float) -> Diagnosis:
    """Return what explains the gap between tokens per second seen and expected at the scenario's context."""
    if scenario.load.context is None:
        raise BadInput([Fault("load.context", None, "the context at which the speed was seen")])
    gap = 1 / seen_per_s - 1 / expected_per_s
    what = f"{1e3 / seen_per_s:.2f} ms seen, {1e3 / expected_per_s:.2f} ms expected a token"
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
    causes.append(
        _cause(
            "time.layer.fragmented_s",
            bytes_s * FRAGMENTED_SHARE,
            seconds,
            "scattered pages, not measured: 0 to this",
            inside=False,
        )
    )
    if scenario.draft.steps:
        draft = far["model.draft_layers"] * max(scenario.draft.steps - far["step.draft_passes"], 0)
        grown = draft * (far["time.full_layer_s"] - near["time.full_layer_s"])
        causes.append(_cause("step.draft_passes", grown, seconds, UNSHARED_DRAFTS, inside=False))
    causes = sorted((cause for cause in causes if cause.seconds > 0), key=lambda cause: -cause.seconds)
    left = seconds - sum(cause.seconds for cause in causes if cause.in_estimate)
    saved = layers * far["time.layer.topk_saved_s"]
    warnings = [
        f"with separated scores top-k takes {saved * 1e3:.2f} ms less: tied scores are the worst case",
        *far.warnings,
    ]
    return Diagnosis(
        what, seconds, causes, left, _by_engine(scenario, far, span, seconds), _intercept(near, step_s), warnings
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
    for engine in ENGINES:
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
