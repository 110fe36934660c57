"""From a scenario to its ledger: the only package that posts entries."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dsa_ledger.account.box import box_of
from dsa_ledger.account.deploy import check_load, deploy
from dsa_ledger.account.headroom import post_headroom, post_prefill_headroom
from dsa_ledger.account.model import post_model
from dsa_ledger.account.network import post_host, post_network
from dsa_ledger.account.records import post_machine, post_records
from dsa_ledger.account.step import post_held_requests, post_load, post_requests, post_step
from dsa_ledger.account.timing import post_timing
from dsa_ledger.account.verdict import judge_load, judge_weights, post_need
from dsa_ledger.account.weights import post_checkpoint, post_layout, post_rank
from dsa_ledger.account.worst import post_worst, post_worst_capacity
from dsa_ledger.ledger import Ledger, Scope
from dsa_ledger.schema import Load, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsa_ledger.account.many import Loads
    from dsa_ledger.engines.base import Build, Deployment
    from dsa_ledger.ledger import Entry
    from dsa_ledger.schema import Model
    from dsa_ledger.timing.box import Box

__all__ = ["capacity", "estimate"]


def estimate(scenario: Scenario) -> Ledger:
    """Return the whole ledger of one scenario; `shortfalls` names what does not fit.

    Raises BadInput with every fault found, and NotModelled where no rule is known.
    """
    plan, ledger = _before_timing(scenario)
    box = box_of(scenario)  # a file that is no profile is a fault, load or no load
    return _timed(ledger, plan, scenario, box)


def estimate_boxes(scenario: Scenario, boxes: Iterable[Box]) -> Iterator[Ledger]:
    """Yield the ledger of `estimate` with each box's profile; what no profile changes is worked out once.

    Raises as `estimate` does.
    """
    plan, ledger = _before_timing(scenario)
    for box in boxes:
        yield _timed(ledger.copy(), plan, scenario, box)


def _before_timing(scenario: Scenario) -> tuple[Deployment, Ledger]:
    plan, base = still(scenario)
    ledger = base.copy()
    check_load(scenario, plan.model)
    if scenario.load.context is not None:
        _post_load(ledger, plan, scenario, scenario.load)
    return plan, ledger


def _timed(ledger: Ledger, plan: Deployment, scenario: Scenario, box: Box | None) -> Ledger:
    """Return the ledger with what a box may change, and all that follows from it."""
    if scenario.load.context is not None:
        post_timing(ledger, plan, scenario, scenario.load, box)
    post_worst(ledger, plan)
    if scenario.load.context is not None:
        judge_load(ledger, plan)
    return ledger


def capacity(scenario: Scenario) -> Ledger:
    """Return what decides whether a load fits, and nothing of the step: for searches over thousands of layouts.

    Each entry in it is the one `estimate` posts. Raises as `estimate` does.
    """
    plan, ledger = _worked_out(scenario)  # a search asks each deployment once: keeping it would be in vain
    check_load(scenario, plan.model)
    if scenario.load.context is not None:
        post_requests(ledger, plan, scenario.load)
        for stage in plan.stages:
            post_held_requests(Scope(ledger, stage.prefix), plan)
        post_prefill_headroom(ledger, plan)
    post_worst_capacity(ledger, plan)
    if scenario.load.context is not None:
        judge_load(ledger, plan)
    return ledger


def post_loads(scenario: Scenario, loads: Loads) -> Ledger:
    """Return a ledger whose load is one of arrays; see `many.estimate_many`, which checks them first."""
    plan, base = still(scenario)
    ledger = base.copy()
    _post_load(ledger, plan, scenario, loads)
    post_worst(ledger, plan)
    post_need(ledger, plan)
    return ledger


def still(scenario: Scenario) -> tuple[Deployment, Ledger]:
    """Return the deployment and its ledger without a load; both are shared and must not be changed."""
    still = scenario.model_copy(update={"load": Load()})
    return _deployment(still.model_dump_json(by_alias=True, exclude_defaults=True))


@lru_cache(maxsize=64)
def _deployment(scenario_text: str) -> tuple[Deployment, Ledger]:
    """Return everything that does not depend on the load; a sweep over loads pays for it once."""
    return _worked_out(Scenario.model_validate_json(scenario_text))


def _worked_out(scenario: Scenario) -> tuple[Deployment, Ledger]:
    plan = deploy(scenario)
    ledger = _weights(plan.build).copy()
    for sentence in plan.warnings:
        ledger.warn(sentence)
    post_machine(ledger, plan)
    post_records(ledger, plan)
    _post_pool(ledger, plan)
    post_headroom(ledger, plan)
    post_host(ledger, plan)
    judge_weights(ledger, plan)
    return plan, ledger


def _post_pool(ledger: Ledger, plan: Deployment) -> None:
    """Post the pool as the engine sizes it; what the other engines do is not loaded."""
    if plan.release.engine == "sglang":
        from dsa_ledger.account import sglang_pool, sglang_tiers, sglang_workspace

        sglang_pool.post_pool(ledger, plan)
        sglang_workspace.post_workspace(ledger, plan)
        sglang_tiers.post_tiers(ledger, plan)
    elif plan.release.engine == "vllm":
        from dsa_ledger.account import vllm_pool

        vllm_pool.post_pool(ledger, plan)
    else:
        from dsa_ledger.account import trtllm_pool

        trtllm_pool.post_pool(ledger, plan)


@lru_cache(maxsize=64)
def _weights(build: Build) -> Ledger:
    """Return model, checkpoint and weights of each rank, which no limit and no KV format changes."""
    ledger = Ledger()
    post_model(ledger, build)
    if not build.model.weights_modelled:
        return ledger
    post_layout(ledger, build)
    _post_known_checkpoint(ledger, build)
    for stage in build.stages:
        post_rank(ledger, build, stage)
    return ledger


_CHECKPOINTS: dict[Model, tuple[Entry, ...]] = {}
MOST_CHECKPOINTS = 16


def _post_known_checkpoint(ledger: Ledger, build: Build) -> None:
    """Post the checkpoint's entries, which follow from the model alone: a search over layouts works them out once."""
    known = _CHECKPOINTS.get(build.model)
    if known is not None:
        for entry in known:
            ledger.post(entry)
        return
    before = len(ledger.entries)
    post_checkpoint(ledger, build)
    if len(_CHECKPOINTS) >= MOST_CHECKPOINTS:
        _CHECKPOINTS.clear()
    _CHECKPOINTS[build.model] = tuple(ledger.entries.values())[before:]


def _post_load(ledger: Ledger, plan: Deployment, scenario: Scenario, load: Load | Loads) -> None:
    post_load(ledger, plan, load)
    for stage in plan.stages:
        post_step(Scope(ledger, stage.prefix), plan)
    post_prefill_headroom(ledger, plan)
    if load.new_tokens is not None:
        from dsa_ledger.account.prefill import post_prefill

        post_prefill(ledger, plan, load)
    if scenario.has("pd-prefill") or scenario.has("pd-decode"):
        from dsa_ledger.account.prefill import post_transfer

        post_transfer(ledger, plan)
    if plan.model.weights_modelled:
        post_network(ledger, plan)
