"""The five places to look at, in the order of what each costs in the scenario asked."""

from __future__ import annotations

import json

import pytest

from dsa_ledger import Scenario, estimate
from dsa_ledger.checklist import Check, checklist_of
from dsa_ledger.errors import BadInput

NAMES = {"indexer", "layer list", "drafts", "logits", "pages"}


def scenario(**over: object) -> Scenario:
    return Scenario.model_validate(
        {
            "model": "zai-org/GLM-5.2-FP8",
            "gpu": "H200",
            "engine": "sglang@0.5.14",
            "kv_dtype": "fp8_e4m3",
            "sharding": {"tp": 8},
            "load": {"context": 100_000},
        }
        | over
    )


def by_name(asked: Scenario) -> dict[str, Check]:
    return {check.name: check for check in checklist_of(asked).checks}


@pytest.mark.parametrize(
    "asked",
    [
        scenario(),
        scenario(draft={"steps": 5}),
        scenario(engine="vllm@0.24.0", kv_dtype="fp8"),
        scenario(engine="sglang@0.5.9"),
        scenario(load={"context": 100_000, "new_tokens": 8_192, "mean_run_pages": 1}),
        scenario(sharding={"tp": 8, "pp": 2}),
    ],
)
def test_there_are_five_and_the_largest_comes_first(asked):
    found = checklist_of(asked)
    assert {check.name for check in found.checks} == NAMES
    seconds = [check.seconds for check in found.checks]
    assert seconds == sorted(seconds, reverse=True)
    assert found.checks[0].seconds > 0
    for check in found.checks:
        assert check.share == pytest.approx(check.seconds / found.whole_s)
        assert check.found
        assert check.do


def test_the_indexer_is_the_ledgers_own_time():
    assert by_name(scenario())["indexer"].seconds == pytest.approx(estimate(scenario())["time.indexer_s"])


def test_the_order_is_that_of_the_scenario():
    """With drafts that share no index their passes weigh more than the logits; without drafts they weigh nothing."""
    override = {"index_share_for_mtp_iteration": False}
    unshared = by_name(scenario(engine="sglang@0.5.23", draft={"steps": 5}, model_overrides=override))
    assert unshared["drafts"].seconds > unshared["logits"].seconds > 0
    assert by_name(scenario())["drafts"].seconds == 0


def test_sharing_that_works_says_what_it_saves():
    """One pass of five is left (sglang 0.5.15 and later), and 5 / 1 is what sharing off would cost."""
    shared = by_name(scenario(engine="sglang@0.5.23", draft={"steps": 5}))["drafts"]
    override = {"index_share_for_mtp_iteration": False}
    unshared = by_name(scenario(engine="sglang@0.5.23", draft={"steps": 5}, model_overrides=override))["drafts"]
    assert "1 of 5" in shared.found
    assert unshared.seconds == pytest.approx(5 * shared.seconds)


def test_a_release_that_runs_every_layer_is_found():
    """SGLang 0.5.9 knows no sharing: 57 layers run that the checkpoint shares."""
    old, new = (by_name(scenario(engine=f"sglang@{version}"))["layer list"] for version in ("0.5.9", "0.5.14"))
    assert "78" in old.found
    assert old.seconds > 0
    assert new.seconds == 0


def test_pages_are_a_tenth_at_most_and_not_counted():
    pages = by_name(scenario())["pages"]
    ledger = estimate(scenario())
    assert not pages.counted
    scan_s = 21 * ledger["time.layer.scan_bytes"] / ledger["time.sustained_bytes_per_s"]
    assert pages.seconds == pytest.approx(scan_s / 10)


def test_without_a_context_there_is_nothing_to_order():
    with pytest.raises(BadInput, match=r"load\.context"):
        checklist_of(scenario(load={}))


def test_the_command_prints_the_five(run):
    code, out, _ = run("diagnose", "slow-at-1m", "--checklist")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5."]


def test_the_json_has_the_same(run):
    printed = json.loads(run("diagnose", "slow-at-1m", "--checklist", "--format", "json")[1])
    assert {check["name"] for check in printed["checks"]} == NAMES


@pytest.mark.parametrize(("form", "head"), [("csv", 1), ("md", 2)])
def test_rows_have_a_line_each(form, head, run):
    out = run("diagnose", "slow-at-1m", "--checklist", "--format", form)[1]
    assert len(out.splitlines()) == head + len(NAMES)


def test_a_measured_speed_asks_for_the_other_answer(run):
    code, _, err = run("diagnose", "slow-at-1m", "--checklist", "--seen", "38")
    assert code == 2
    assert "--checklist" in err
