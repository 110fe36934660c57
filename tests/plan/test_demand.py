"""Demand and money: Little's law, both ends of the step time, and nothing where no time is known."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from dsa_ledger import BadInput, Scenario, estimate
from dsa_ledger.ledger import Ledger, Source
from dsa_ledger.plan.demand import Wish, demand, record
from dsa_ledger.units import Unit

PRIOR = Source("prior", "a test", "")


def scenario(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "kv_dtype": "fp8_e4m3"}
    return Scenario.model_validate(base | {"sharding": {"tp": 8}, "load": {"context": 10_000, "batch": 16}} | tables)


def timed(low: float | None, high: float | None = None) -> Any:
    """Let the ledger have these ends of the step time, or none."""

    def ledger_of(asked: Scenario) -> Ledger:
        ledger = estimate(asked)
        for key in [key for key in ledger.entries if key.startswith("time.")]:
            del ledger.entries[key]
        for key, value in (("time.step_low_s", low), ("time.step_high_s", high)):
            if value is not None:
                ledger.given(key, value, Unit.SECONDS, PRIOR)
        return ledger

    return patch("dsa_ledger.plan.demand.estimate", ledger_of)


def test_requests_in_flight_follow_littles_law():
    with timed(0.020, 0.040):
        found = demand(scenario(), Wish(requests_per_s=3, output=500, spare=1, price_per_gpu_hour=2.5))
    assert found.low is not None
    assert found.high is not None
    # 500 tokens at 20 ms take 10 s: 3 a second are 30 in flight, two servers of 16 and a spare one.
    assert (found.low.in_flight, found.low.servers) == (30, 3)
    assert (found.high.in_flight, found.high.servers) == (60, 5)
    # 16 tokens each 20 ms are 800/s; 8 GPUs at 2.5 an hour: 20 / (3,600 x 800) a token.
    assert found.low.tokens_per_s == 800
    assert found.low.cost_per_million_output_tokens == pytest.approx(20 / 3600 / 800 * 1e6)
    assert found.low.cost_per_month == 2.5 * 24 * 730
    assert found.high.cost_per_million_output_tokens == pytest.approx(20 / 3600 / 400 * 1e6)


def test_without_a_step_time_capacity_is_answered_and_cost_is_not():
    with timed(None):
        found = demand(scenario(), Wish(requests_per_s=3, output=500, price_per_gpu_hour=2.5))
    assert found.low is found.high is None
    assert found.holds > 16
    assert any(text.startswith("step time") for text in found.not_modelled)
    assert record(found)["low"] is None


def test_drafts_need_to_know_how_many_tokens_are_kept():
    with timed(0.02, 0.02):
        unknown = demand(scenario(draft={"steps": 3}), Wish(price_per_gpu_hour=1))
        known = demand(scenario(draft={"steps": 3, "accepted": 2.5}), Wish(price_per_gpu_hour=1))
    assert unknown.low is None
    assert any("--accepted" in text for text in unknown.not_modelled)
    assert known.low is not None
    assert known.low.tokens_per_s_per_request == 125


def test_what_is_never_modelled_is_named():
    with timed(0.02, 0.02):
        said = " ".join(demand(scenario(), Wish(price_per_gpu_hour=1)).not_modelled)
    for word in ("queueing", "percentiles", "energy", "prefill time"):
        assert word in said


def with_times(step: tuple[float, float], prefill: tuple[float, float] | None, seen: list[Any]) -> Any:
    """Let every ledger have these step times and, where it has new tokens, this prefill of the attention layers."""

    def ledger_of(asked: Scenario) -> Ledger:
        seen.append((asked.load.context, asked.load.new_tokens))
        ledger = estimate(asked)
        for key in [key for key in ledger.entries if key.startswith(("time.", "prefill.attention"))]:
            del ledger.entries[key]
        pairs = list(zip(("time.step_low_s", "time.step_high_s"), step, strict=True))
        if prefill is not None and asked.load.new_tokens:
            pairs += zip(("prefill.attention_low_s", "prefill.attention_high_s"), prefill, strict=True)
        for key, value in pairs:
            ledger.given(key, value, Unit.SECONDS, PRIOR)
        return ledger

    return patch("dsa_ledger.plan.demand.estimate", ledger_of)


def test_a_request_is_in_flight_while_it_is_prefilled_and_decoded():
    seen: list[Any] = []
    with with_times((0.020, 0.040), (5.0, 8.0), seen):
        found = demand(scenario(), Wish(requests_per_s=2, prompt=8000, output=500))
    assert seen == [(8500, None), (8000, 8000), (8250, None)], "held at the end, prefilled whole, timed at the middle"
    assert (found.end_context, found.step_context) == (8500, 8250)
    assert found.low is not None
    assert found.high is not None
    # 10 s of decode and 5 of prefill: 2 a second are 30 in flight. Ten prompts are in prefill at once, and a server
    # of one attention group computes one at a time: ten servers, though two would hold the 30.
    assert (found.low.in_flight, found.low.servers) == (30, 10)
    assert (found.high.in_flight, found.high.servers) == (56, 16)
    assert any("lower bounds" in text and "experts and collectives" in text for text in found.warnings)


def test_attention_groups_prefill_side_by_side():
    with with_times((0.020, 0.020), (5.0, 5.0), []):
        found = demand(scenario(sharding={"tp": 8, "dp_attention": 8}), Wish(requests_per_s=2, prompt=8000, output=500))
    assert found.low is not None
    assert found.low.servers == 2, "ten prompts in prefill over eight groups a server; 30 in flight over 16 are two too"


def test_without_a_prefill_time_decode_alone_is_a_lower_bound_and_says_so():
    with with_times((0.020, 0.040), None, []):
        found = demand(scenario(), Wish(requests_per_s=3, prompt=8000, output=500))
        bare = demand(scenario(), Wish(requests_per_s=3, output=500))
    for one in (found, bare):
        assert one.low is not None
        assert one.low.in_flight == 30
        assert one.low.prefill_attention_s is None
        assert "decode alone" in one.warnings[0]
        assert "not modelled" in one.warnings[0]
    assert "--prompt" in bare.warnings[0]


def test_a_server_without_a_batch_runs_all_that_it_holds_at_the_end():
    asked = scenario(load={"context": 500})
    found = demand(asked, Wish(prompt=100_000, output=2000))
    held = estimate(scenario(load={"context": 102_000, "batch": 1}))
    assert found.requests == found.holds == held["pool.requests_at_context"] > 1


def test_a_prompt_that_is_too_long_is_the_fault_of_its_own_options():
    with pytest.raises(BadInput, match="--prompt plus --output: 1100000"):
        demand(scenario(), Wish(prompt=1_000_000, output=100_000))
    with pytest.raises(BadInput, match="--output"):
        Wish(prompt=5).check()
    with pytest.raises(BadInput, match="--prompt"):
        Wish(prompt=0, output=5).check()


def test_input_tokens_have_no_price_and_are_named(run):
    code, out, said = run("plan", "glm52-8xh200-fp8", "--draft-steps", "0", "--requests-per-s", "1", "--prompt", "8000",
                          "--output", "100", "--price-per-gpu-hour", "2")  # fmt: skip
    assert code == 0
    assert "a million input tokens cost       not modelled" in out
    assert "not modelled: cost per million input tokens" in out
    assert "a million output tokens cost" in out
    assert "a month costs" in out
    assert "lower bounds" in said
    with timed(0.02, 0.04):
        known = record(demand(scenario(), Wish(price_per_gpu_hour=2)))
    assert known["low"]["cost_per_million_input_tokens"] is None


def test_bad_wishes_are_told_together():
    with pytest.raises(BadInput) as bad:
        demand(scenario(), Wish(requests_per_s=0, price_per_gpu_hour=-1, spare=-1))
    assert {fault.path for fault in bad.value.faults} == {
        "--requests-per-s", "--price-per-gpu-hour", "--spare", "--output",
    }  # fmt: skip
    with pytest.raises(BadInput, match="--batch"):
        demand(scenario(load={"context": 100_000, "batch": 999}), Wish(price_per_gpu_hour=1))


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_the_command_in_every_format(run, form):
    code, out, _ = run("plan", "glm52-8xh200-fp8", "--draft-steps", "0", "--requests-per-s", "1", "--output", "100",
                       "--price-per-gpu-hour", "2", "--format", form)  # fmt: skip
    assert code == 0
    assert out
