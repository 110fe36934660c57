"""Layouts tried, ranked and counted: nothing that fits is lost, and the first is the best by the goal."""

from __future__ import annotations

import json
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
from dsa_ledger.plan.ranking import GOALS, order, rank
from dsa_ledger.plan.tried import Deployment, Machine
from dsa_ledger.render.ranking import kv_text, ranking_text, step_text
from dsa_ledger.schema import Engine
from dsa_ledger.units import Unit


def scenario(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "kv_dtype": "fp8_e4m3"}
    return Scenario.model_validate(base | {"load": {"context": 100_000, "batch": 4}} | tables)


SGLANG, VLLM = Engine(name="sglang", version="0.5.23"), Engine(name="vllm", version="0.33.0")
TRTLLM = Engine(name="tensorrt-llm", version="1.4.0rc2")


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
    refused = sum(count for _, count in found.refused)
    assert found.tried == len(found.best) + len(found.short) + len(found.near_misses) + refused
    assert all(one.outcome.fits for one in found.best)


@pytest.mark.parametrize(
    ("goal", "figure"),
    [("requests", lambda one: -one.requests), ("context", lambda one: -one.longest), ("gpus", lambda one: one.gpus)],
)
def test_the_first_is_the_best_by_the_goal(goal, figure):
    found = rank(scenario(), [Machine("H200", 16)], [SGLANG], ["fp8"], goal)
    assert [figure(one) for one in found.best] == sorted(figure(one) for one in found.best)


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


def test_what_is_short_of_memory_outside_the_pool_is_a_third_verdict():
    """TensorRT-LLM scores 8,192 rows of 256,000 keys at once, 7.8 GiB of fp32 that no pool of these layouts leaves."""
    asked = scenario(engine="tensorrt-llm@1.4.0rc2", kv_dtype="auto", load={"context": 256_000, "batch": 4})
    found = rank(asked, [Machine("H200", 8)], [TRTLLM], ["auto"], "requests")
    assert 8192 * 256_000 * 4 / 2**30 == 7.8125
    assert found.best == ()
    assert found.short
    for one in found.short:
        assert one.outcome.holds
        assert not one.outcome.fits
        assert one.outcome.short.startswith("short by ")
        assert one.outcome.short.endswith(" GiB in prefill")
        assert one.breaks == f"memory outside the pool: {one.outcome.short}"


def test_what_is_short_is_shown_behind_what_fits_and_gets_no_command():
    asked = scenario(engine="tensorrt-llm@1.4.0rc2", kv_dtype="auto", load={"context": 256_000, "batch": 4})
    machines = [Machine("H200", 8), Machine("B200", 8)]
    found = rank(asked, machines, [TRTLLM], ["auto"], "requests", top=99)
    records = json.loads(ranking_text(found, "json", 99))["deployments"]
    verdicts = [record["verdict"] for record in records]
    assert {"fits"} < set(verdicts)
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict != "fits")
    assert all(bool(record["command"]) == (record["verdict"] == "fits") for record in records)


def test_the_best_of_each_machine_comes_first_and_a_machine_without_one_says_why():
    asked = scenario(kv_dtype="auto", load={"context": 256_000, "batch": 32})
    machines = [Machine("H200", 8), Machine("B200", 8), Machine("GB300", 8)]
    found = rank(asked, machines, [SGLANG], ["auto"], "requests")
    assert found.leaders == 2
    assert {one.machine.gpu for one in found.best[:2]} == {"B200", "GB300"}
    for leader in found.best[:2]:
        rivals = [one.requests for one in found.best if one.machine == leader.machine]
        assert leader.requests == max(rivals)
    (nearest,) = found.nearest
    assert nearest.machine.gpu == "H200"
    text = ranking_text(found, "table", 10)
    assert "none of 8 x H200: nearest is " in text
    assert "\nothers\n" in text


def test_the_format_is_the_one_that_is_stored():
    """Auto stores bf16 on H200, 512 + 64 values of 2 B, and fp8 on B200, 576 B (SGLang's default by GPU)."""
    asked = scenario(kv_dtype="auto", load={"context": 100_000, "batch": 2})
    found = rank(asked, [Machine("H200", 8), Machine("B200", 8)], [SGLANG], ["auto"], "requests")
    said = {one.machine.gpu: kv_text(one.outcome) for one in found.best}
    assert said == {"H200": "bf16 1,152", "B200": "fp8 576"}


def test_refusals_of_one_kind_are_counted_together_and_told_as_the_first_was():
    found = rank(scenario(), [Machine("H200", 8)], [SGLANG], ["fp8", "bf16"], "requests")
    ((reason, count),) = found.refused
    assert count > 1
    assert reason.startswith("sharding.dcp: 2: ")
    assert "SM100" in reason


def test_a_step_of_pipeline_stages_is_told_as_the_sum_that_it_is():
    found = rank(scenario(), [Machine("H200", 8)], [SGLANG], ["fp8"], "requests")
    one = next(one for one in found.best if one.layout.sharding.pp > 1)
    assert one.pessimistic_s is not None
    assert not [text for text in one.outcome.warnings if "no step time" in text and "stages" in text]
    assert any("sum of the stages" in text for text in one.outcome.warnings)


@pytest.mark.parametrize("more", [{}, {"kv_dtype": "auto", "engine": "tensorrt-llm@1.4.0rc2"}])
def test_a_table_has_eighty_columns_and_each_warning_once(more):
    asked = scenario(load={"context": 256_000, "batch": 4}, **more)
    found = rank(asked, [Machine("H200", 8), Machine("GB300", 16)], [asked.engine], [asked.kv_dtype], "requests",
                 prices={"": 123.45})  # fmt: skip
    lines = ranking_text(found, "table", 10).splitlines()
    assert max(len(line) for line in lines if "serve" not in line) <= 80
    said = lines[lines.index("warnings") + 1 :]
    starts = [line for line in said if line.startswith(" - ")]
    assert len(starts) == len(set(starts)) > 0


def test_both_ends_of_a_step_have_one_unit():
    found = rank(scenario(), [Machine("H200", 8)], [SGLANG], ["fp8"], "requests")
    one = found.best[0]
    ledger = one.outcome.ledger
    assert ledger is not None
    for key in [key for key in ledger.entries if "time.step_" in key]:
        del ledger.entries[key]
    for key, value in (("time.step_low_s", 0.0009), ("time.step_high_s", 0.0012)):
        ledger.given(key, value, Unit.SECONDS, Source("prior", "a test", ""))
    assert step_text(one) == "~0.9-1.2 ms"


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
    for one in [*found.best, *found.short, *found.near_misses]:
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


def test_of_layouts_whose_weights_leave_no_pool_the_nearest_leaves_most():
    found = rank(scenario(), [Machine("H100", 8)], [SGLANG], ["fp8"], "requests")
    (nearest,) = found.nearest
    left = [one.outcome.value("memory.free_after_bytes") for one in found.near_misses]
    assert nearest.outcome.value("memory.free_after_bytes") == max(left) < 0
    assert nearest.layout.servers == 1


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
    with pytest.raises(BadInput, match="--max-step-time: '25': expected a time with its unit"):
        Question("8xH200", max_step_time="25").ranking(asked)


def key(one: Deployment) -> tuple[Any, ...]:
    return (one.layout, one.outcome.scenario.kv_dtype)
