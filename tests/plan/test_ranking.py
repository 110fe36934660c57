"""Layouts tried, ranked and counted: nothing that fits is lost, and the first is the best by the goal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_ledger import BadInput, NotModelled, Scenario, estimate
from dsa_ledger.account import capacity
from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.ledger import Source
from dsa_ledger.plan.growth import step_seconds
from dsa_ledger.plan.layouts import layouts
from dsa_ledger.plan.question import Question
from dsa_ledger.plan.ranking import GOALS, Deployment, Machine, order, rank
from dsa_ledger.schema import Engine
from dsa_ledger.units import Unit


def scenario(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "kv_dtype": "fp8_e4m3"}
    return Scenario.model_validate(base | {"load": {"context": 100_000, "batch": 4}} | tables)


SGLANG, VLLM = Engine(name="sglang", version="0.5.23"), Engine(name="vllm", version="0.33.0")


@given(engine=st.sampled_from(["sglang", "vllm", "tensorrt-llm"]), gpus=st.sampled_from([1, 2, 4, 6, 8, 16, 64]))
def test_every_layout_uses_all_gpus_once(engine, gpus):
    """Servers x ranks is the machine, each server's factors multiply to its ranks, and no layout comes twice."""
    found = list(layouts(engine, gpus))
    assert len({(one.servers, one.sharding) for one in found}) == len(found) > 0
    for one in found:
        assert one.servers * one.ranks == gpus
        whole = Scenario.model_validate({"model": "m", "gpu": "g", "engine": engine, "sharding": one.sharding})
        assert ranks_of_server(whole) == one.ranks


def test_the_tried_are_those_that_fit_that_do_not_and_that_are_refused():
    found = rank(scenario(), [Machine("H200", 8)], [SGLANG, VLLM], ["fp8", "bf16"], "requests")
    assert found.tried == len(found.best) + len(found.near_misses) + sum(count for _, count in found.refused)
    assert all(one.outcome.fits for one in found.best)


@pytest.mark.parametrize(
    ("goal", "figure"),
    [("requests", lambda one: -one.requests), ("context", lambda one: -one.longest), ("gpus", lambda one: one.gpus)],
)
def test_the_first_is_the_best_by_the_goal(goal, figure):
    found = rank(scenario(), [Machine("H200", 16)], [SGLANG], ["fp8"], goal)
    sound = [one for one in found.best if one.outcome.value("memory.prefill_headroom_bytes") >= 0]
    assert sound == list(found.best[: len(sound)]), "what is short of memory outside the pool comes last"
    assert [figure(one) for one in sound] == sorted(figure(one) for one in sound)


@settings(max_examples=40)
@given(gpus=st.sampled_from([4, 8, 16]), batch=st.integers(1, 64), context=st.integers(1000, 200_000))
def test_a_ranked_deployment_is_what_estimate_says(gpus, batch, context):
    """A deployment's figures are those of the whole ledger of its scenario: a search has no arithmetic of its own."""
    asked = scenario(load={"batch": batch, "context": context}, gpu="B200")
    found = rank(asked, [Machine("B200", gpus)], [VLLM], ["fp8"], "requests", top=0)
    for one in found.best[:3]:
        whole, part = estimate(one.outcome.scenario), capacity(one.outcome.scenario)
        assert one.outcome.ledger is not None
        for key in part.entries:
            assert part[key] == whole[key] == one.outcome.ledger[key], key
        assert whole.shortfalls == part.shortfalls == []


def test_experts_stay_whole_where_slices_would_cut_a_block():
    """Experts of 2,048 cut in 32 leave 64 columns, half a block of 128: such layouts need whole experts."""
    for engine in (SGLANG, VLLM):
        found = rank(scenario(), [Machine("H200", 32)], [engine], ["fp8"], "requests", top=0)
        cuts = [(one.outcome.scenario.sharding, one.layout.servers) for one in found.best]
        wide = [cut for cut, servers in cuts if servers == 1 and cut.pp == 1]
        assert wide
        assert all(cut.ep == 32 for cut in wide)
        assert any(cut.ep == 1 for cut, servers in cuts if servers == 4)


def test_those_shown_have_whole_ledgers_and_ties_are_broken_by_the_step_time():
    found = rank(scenario(), [Machine("H200", 16)], [SGLANG, VLLM], ["fp8", "bf16"], "requests", top=3)
    assert all("time.step_floor_s" in one.outcome.ledger for one in found.best[:3])
    everything = rank(scenario(), [Machine("H200", 16)], [SGLANG, VLLM], ["fp8", "bf16"], "requests", top=64)
    assert [key(one) for one in found.best[:3]] == [key(one) for one in everything.best[:3]]


def test_the_load_of_several_servers_is_shared():
    found = rank(scenario(load={"context": 1000, "batch": 9}), [Machine("B200", 16)], [SGLANG], ["fp8"], "requests")
    two = next(one for one in found.best if one.layout.servers == 2)
    assert two.outcome.scenario.load.batch == 5


def test_an_observed_pool_holds_for_the_layout_it_was_seen_on_alone():
    seen = scenario(sharding={"tp": 8}, observed={"kv_bytes": "20 GiB"})
    found = rank(seen, [Machine("H200", 8)], [SGLANG], ["fp8"], "requests")
    for one in [*found.best, *found.near_misses]:
        cut = one.outcome.scenario.sharding.model_dump(exclude_defaults=True)
        expected = 20 * 2**30 if cut == {"tp": 8} and one.layout.servers == 1 else None
        assert one.outcome.scenario.observed.kv_bytes == expected


def test_an_uncertain_step_time_ranks_by_its_upper_end_and_is_kept():
    found = rank(scenario(), [Machine("H200", 8)], [SGLANG], ["fp8"], "requests")
    one, two, three = found.best[:3]
    prior = Source("prior", "a test", "")
    for deployment, ends in ((one, (0.010, 0.050)), (two, (0.020, 0.030)), (three, ())):
        ledger = deployment.outcome.ledger
        assert ledger is not None
        for key in [key for key in ledger.entries if "time.step_" in key]:
            del ledger.entries[key]
        for key, value in zip(("time.step_low_s", "time.step_high_s"), ends, strict=False):
            ledger.given(key, value, Unit.SECONDS, prior)
    ordered = sorted([three, one, two], key=lambda deployment: order(deployment, "step"))
    assert ordered == [two, one, three], "20 to 30 ms before 10 to 50 ms, both before none"
    assert not two.time_is_certain


def test_nothing_fits_is_an_answer_with_the_nearest_first():
    found = rank(
        scenario(load={"context": 1_000_000, "batch": 50}), [Machine("H200", 8)], [SGLANG], ["fp8"], "requests"
    )
    assert not found.best
    tokens = [one.outcome.value("pool.tokens") for one in found.near_misses]
    assert tokens[0] >= tokens[-1]
    assert found.near_misses[0].outcome.why_not


def test_what_no_layout_can_answer_is_raised():
    with pytest.raises(BadInput):
        rank(scenario(kv_dtype="int3"), [Machine("H200", 8)], [SGLANG], ["int3"], "requests")
    with pytest.raises(NotModelled):
        rank(scenario(features=("hisparse",)), [Machine("H200", 8)], [VLLM], ["fp8"], "requests")


def test_every_fault_of_a_question_at_once():
    with pytest.raises(BadInput) as bad:
        Question("8xH2000,9999999xH200", "sglangg", "", "speed").ranking(scenario())
    assert [fault.path for fault in bad.value.faults] == ["--machines", "--machines", "--goal", "--engines"]


def test_a_ranking_needs_to_know_how_many_gpus():
    with pytest.raises(BadInput, match="--gpus"):
        Question().ranking(scenario())


def test_goals_that_need_a_load_say_so():
    bare = replace_load(scenario())
    for goal in ("requests", "step"):
        with pytest.raises(BadInput, match="--context"):
            Question("8xH200", goal=goal).ranking(bare)
    assert Question("8xH200").ranking(bare).goal == "context"
    assert set(GOALS) == {"requests", "context", "step", "gpus"}


def replace_load(asked: Scenario) -> Scenario:
    return asked.model_copy(update={"load": asked.load.model_copy(update={"context": None})})


def test_the_smallest_machine_is_where_half_of_it_does_not_do():
    asked = scenario(load={"context": 131_072, "batch": 4})
    ranking = Question().smallest(asked)[0]
    count = ranking.machines[0].gpus
    assert ranking.best
    assert count == 8, "703.7 GiB of FP8 weights leave no room on 4 x 140.4 GiB"
    half = rank(asked, [Machine("H200", count // 2)], [SGLANG], ["fp8_e4m3"], "gpus")
    assert not half.best
    assert replace(half).near_misses


def test_a_step_passes_every_pipeline_stage():
    one = scenario(sharding={"tp": 8, "pp": 2}, load={"context": 50_000, "batch": 4}, gpu="B200")
    ledger = estimate(one)
    for end in ("floor", "low", "high"):
        stages = [ledger[f"stage[{stage}].time.step_{end}_s"] for stage in (0, 1)]
        assert step_seconds(ledger, end) == sum(stages) > ledger[f"time.step_{end}_s"]


def test_a_longest_step_time_leaves_out_only_what_is_slower_for_sure():
    asked = scenario(load={"context": 100_000, "batch": 4})
    everything = rank(asked, [Machine("H200", 8)], [SGLANG], ["fp8"], "requests", top=99)
    ends = sorted((one.least_step_s, one.pessimistic_s) for one in everything.best if one.least_step_s is not None)
    limit = ends[len(ends) // 2][1]
    assert limit is not None
    found = rank(asked, [Machine("H200", 8)], [SGLANG], ["fp8"], "requests", most_step_s=limit)
    assert {*map(key, found.best), *map(key, found.too_slow)} == set(map(key, everything.best))
    assert all(one.least_step_s is None or one.least_step_s <= limit for one in found.best)
    assert all(one.least_step_s is not None and one.least_step_s > limit for one in found.too_slow)
    sure = [one.pessimistic_s is not None and one.pessimistic_s <= limit for one in found.best]
    assert sure == sorted(sure, reverse=True), "what is surely fast enough comes first"
    with pytest.raises(BadInput, match="--max-step-time"):
        Question("8xH200", max_step_time="3 parsecs").ranking(asked)


def key(one: Deployment) -> tuple[Any, ...]:
    return (one.layout, one.outcome.scenario.kv_dtype)
