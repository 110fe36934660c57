"""Five places to look at when decoding slows with the context, in the order of what each costs in the scenario asked.

Costs are the ledger's own times at the scenario's load; where no kernel table serves the GPU, bytes at the sustained
bandwidth stand for a layer's indexing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.account.box import FRAGMENTED_SHARE
from dsa_ledger.account.deploy import deploy
from dsa_ledger.engines.layers import published_full_layers
from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario


class Check(NamedTuple):
    """One place to look: what it costs a step, whether the estimate holds it, the entry, what was found, what to do."""

    name: str
    seconds: float
    share: float
    counted: bool
    entry: str
    found: str
    do: str


class Checklist(NamedTuple):
    """The five, largest first, beside the entry that their shares are of."""

    whole: str
    whole_s: float
    checks: list[Check]
    warnings: list[str]


def checklist_of(scenario: Scenario) -> Checklist:
    """Return the five checks at the scenario's load (BadInput without a context)."""
    if scenario.load.context is None:
        raise BadInput([Fault("load.context", None, "the context at which it is slow")])
    plan, ledger = deploy(scenario), estimate(scenario)
    whole = next(key for key in ("time.step_s", "time.step_low_s", "time.step_floor_s") if key in ledger)
    layer_s = _indexing_s(ledger)
    found = [
        _slope(ledger, layer_s),
        _layers(plan, layer_s),
        _drafts(scenario, ledger, layer_s),
        _logits(scenario, ledger),
        _pages(ledger),
    ]
    found = [check._replace(share=check.seconds / ledger[whole]) for check in found]
    return Checklist(whole, ledger[whole], sorted(found, key=lambda check: -check.seconds), list(ledger.warnings))


def _indexing_s(ledger: Ledger) -> float:
    """Return what one full layer takes more than one that reuses a top-k."""
    if "time.full_layer_s" in ledger:
        return float(ledger["time.full_layer_s"] - ledger["time.shared_layer_s"])
    return float(ledger["time.layer.scan_bytes"] / ledger["time.sustained_bytes_per_s"])


def _slope(ledger: Ledger, layer_s: float) -> Check:
    table = "time.full_layer_s" in ledger
    return Check(
        "indexer",
        ledger["model.full_layers"] * layer_s,
        0.0,
        counted=True,
        entry="time.indexer_s" if table else "time.layer.scan_bytes",
        found=f"{ledger['model.full_layers']} full layers score every cached token in each step",
        do="hold measured speeds against it: diagnose --seen-table FILE; then a release with a newer top-k",
    )


def _layers(plan: Deployment, layer_s: float) -> Check:
    wanted, runs = len(published_full_layers(plan.model)), len(plan.layers.full)
    spare = max(runs - wanted, 0)
    if spare:
        found = f"{plan.release.label} runs {runs} full layers where the checkpoint asks for {wanted}"
    else:
        others = plan.model.layers - runs
        found = (
            f"{plan.release.label} runs {runs}, none too many; all {others + runs} would add {_time(others * layer_s)}"
        )
    return Check(
        "layer list",
        spare * layer_s,
        0.0,
        counted=True,
        entry="model.full_layers",
        found=found,
        do="what each release runs: dsa-ledger layers MODEL",
    )


def _drafts(scenario: Scenario, ledger: Ledger, layer_s: float) -> Check:
    steps = scenario.draft.steps
    passes, layers = (ledger["step.draft_passes"], ledger["model.draft_layers"]) if steps else (0, 0)
    more = layers * max(steps - passes, 0) * layer_s
    repeats = ledger["model.full_layers"] * ledger["time.layer.repeat_s"] if "time.layer.repeat_s" in ledger else 0.0
    if not steps:
        found = "no drafts"
    elif more:
        found = f"index sharing leaves {passes} of {steps} passes; without it {_time(more)} more"
    else:
        found = f"no index sharing in the draft loop: {passes} passes"
    if repeats:
        found += f"; flattened verify rows read the keys again, up to {_time(repeats)}"
    return Check(
        "drafts",
        layers * passes * layer_s,
        0.0,
        counted=True,
        entry="step.draft_passes",
        found=found,
        do="index_share_for_mtp_iteration, fewer draft steps, a row count that the kernel takes whole"
        if steps
        else "nothing",
    )


def _time(seconds: float) -> str:
    return brief(seconds, Unit.SECONDS) if seconds else "nothing"


def _logits(scenario: Scenario, ledger: Ledger) -> Check:
    moved = ledger["step.logits_write_bytes"] + ledger["step.logits_read_bytes"]
    key = "workspace.prefill_chunks"
    cut = f"; the last prefill forward is cut into {ledger[key]}" if key in ledger and ledger[key] > 1 else ""
    unknown = "" if scenario.load.new_tokens else " (--new-tokens shows a prefill's cuts)"
    return Check(
        "logits",
        float(moved / ledger["time.sustained_bytes_per_s"]),
        0.0,
        counted=True,
        entry="step.logits_write_bytes",
        found=f"fp32 scores, written and read once; decode rows are never cut{cut}",
        do=f"a smaller prefill chunk; lowering the memory fraction raises the budget{unknown}",
    )


def _pages(ledger: Ledger) -> Check:
    """Return what scattered pages cost: as the block table and profile given say, else the prior's far end."""
    told = "time.layer.fragmented_s" in ledger
    if told:
        layer_s = ledger["time.layer.fragmented_s"]
        found = "scattered pages, at the run length given; the page size is fixed"
    else:
        layer_s = ledger["time.layer.scan_bytes"] / ledger["time.sustained_bytes_per_s"] * FRAGMENTED_SHARE
        found = "scattered pages: 0 to this, a prior; the page size is fixed"
    return Check(
        "pages",
        float(ledger["model.full_layers"] * layer_s),
        0.0,
        counted=False,
        entry="time.layer.fragmented_s" if told else "time.layer.scan_bytes",
        found=found,
        do="measure: dsa-ledger calibrate --out FILE, then --profile FILE --mean-run-pages N",
    )
