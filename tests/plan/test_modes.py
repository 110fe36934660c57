"""One question at a time: what `plan` needs, what it takes, and no option ignored in silence."""

from __future__ import annotations

import json
from functools import partial

import pytest

from dsa_ledger.catalog import load_gpu
from dsa_ledger.errors import BadInput, Faults
from dsa_ledger.plan.modes import kept, mode_of, numbers
from dsa_ledger.plan.price import cost, price_of, prices
from dsa_ledger.plan.question import usual
from dsa_ledger.plan.ranking import rank
from dsa_ledger.plan.tried import Deployment, Machine
from dsa_ledger.schema import Engine, Scenario

BUYER = ["--model", "zai-org/GLM-5.3", "--context", "256k"]
STATED = [*BUYER, "--gpu", "H200", "--engine", "sglang@0.5.23"]


@pytest.fixture
def run(run):
    return partial(run, "plan")


def test_a_first_command_needs_neither_gpu_nor_engine(run):
    code, out, err = run(*BUYER, "--machines", "8xB200,8xGB300", "--engines", "any", "--batch", "8")
    assert (code, err) == (0, "")
    assert "8 x B200 or 8 x GB300, 8 requests of 256,000 tokens" in out
    assert run(*BUYER, "--machines", "8xB200,8xGB300", "--batch", "8") == (code, out, err), "no engine: all of them"


def test_a_stated_gpu_or_engine_is_kept(run):
    code, out, _ = run(*STATED, "--machines", "8xB200", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert (found["scenario"]["gpu"], found["scenario"]["engine"]["version"]) == ("H200", "0.5.23")


def test_a_machine_without_a_count_has_eight_gpus_or_as_many_as_hold_the_weights():
    """703.7 GiB of FP8 weights: 8 x 140.4 GiB hold them, 8 x 80 GiB do not, 16 do (config and safetensors index)."""
    asked = Scenario.model_validate({"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23"})
    assert usual(asked, "H200") == 8
    assert load_gpu("H100").hbm.capacity_bytes * 8 < 703.7 * 2**30 < load_gpu("H100").hbm.capacity_bytes * 16
    assert usual(asked, "H100") == 16


@pytest.mark.parametrize(
    ("given", "options", "mode"),
    [
        (["--price-per-gpu-hour"], ["--tp"], "demand"),
        (["--price-per-gpu-hour"], ["--gpus"], "ranking"),
        (["--price-per-gpu-hour"], ["--gpus", "--tp"], "demand"),
        (["--price-per-gpu-hour", "--machines"], ["--tp"], "ranking"),
        (["--requests-per-s", "--output", "--price-per-gpu-hour"], [], "demand"),
        (["--log"], [], "changes"),
        (["--log", "--machines"], [], "ranking"),
        (["--safe-chunk"], [], "answers"),
        ([], [], "ranking"),
    ],
)
def test_the_options_name_the_question(given, options, mode):
    assert mode_of(given, options, takes_file=False) == mode


def test_what_a_question_has_no_use_for_is_bad_input(run, tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("prompt,output\n1000,100\n")
    more = ["--requests-per-s", "1", "--price-per-gpu-hour", "4", "--batch", "32"]
    code, out, err = run(*STATED, "--tp", "8", "--workload", str(path), *more)
    assert (code, out) == (2, "")
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "--requests-per-s", "--price-per-gpu-hour", "--batch", "--context",
    ]  # fmt: skip
    for arguments in (
        ["--changes", "--goal", "step"],
        ["--safe-chunk", "--machines", "8xH200"],
        ["--gpus", "8", "--spare", "1"],
    ):
        code, out, err = run(*STATED, *arguments)
        assert (code, out) == (2, ""), arguments
        assert "has no use" in err


def test_a_ranking_holds_fast_what_is_stated_of_the_cut(run):
    """Rule: --tp, --pp, --dp-attention and --dcp beside a count of GPUs are what every layout in the table has."""
    asked = ["--gpus", "8", "--kv-dtype", "fp8_e4m3", "--batch", "4", "--format", "json"]
    free = json.loads(run(*STATED, *asked)[1])
    held = json.loads(run(*STATED, *asked, "--tp", "2", "--dp-attention", "2")[1])
    assert held["deployments"]
    assert {(one["tp"], one["dp_attention"]) for one in held["deployments"]} == {(2, 2)}
    assert held["tried"] < free["tried"]
    code, out, err = run(*STATED, *asked, "--tp", "3")
    assert (code, out) == (2, "")
    assert "tp 3: expected a cut of 8 x H200 into powers of two" in err


@pytest.mark.parametrize(
    ("mode", "given", "options", "fields"),
    [
        ("ranking", {}, ["--gpus", "--tp", "--dcp"], ("tp", "dcp")),
        ("ranking", {"--machines": "8xH200,8xB200"}, ["--tp"], ("tp",)),
        ("ranking", {"--machines": "8xH200,B200"}, ["--tp"], ()),  # --tp counts the GPUs of B200
        ("ranking", {}, ["--tp"], ()),
        ("ranking", {}, ["--gpus", "--tp", "--kv-bytes"], ()),  # the layout is that of the server seen
        ("ranking", {"--log": "x"}, ["--gpus", "--tp"], ()),
        ("smallest", {}, ["--tp"], ("tp",)),
        ("answers", {}, ["--gpus", "--tp"], ()),
    ],
)
def test_a_cut_is_held_fast_only_where_it_neither_counts_gpus_nor_is_of_a_server_seen(mode, given, options, fields):
    assert kept(mode, given, options) == fields


def test_a_search_takes_no_layout_for_it_tries_them_all(run):
    for arguments, name in (
        (["--machines", "8xB200", "--ep", "4"], "--ep"),
        (["--gpus", "8", "--cp", "2"], "--cp"),
        (["--machines", "8xB200", "--gpus", "16"], "--gpus"),
        (["--smallest-machine", "--gpus", "16"], "--gpus"),
    ):
        code, out, err = run(*STATED, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith(f"bad input: {name}: "), arguments
    code, _, err = run(*STATED, "--tp", "8", "--machines", "H200", "--batch", "1")
    assert (code, err) == (0, ""), "the layout counts the GPUs where the machine does not"


def test_counts_take_the_suffixes_that_a_context_takes():
    given = {"--prompt": "250k", "--output": "1Ki", "--requests-per-s": "0.5"}
    assert numbers(given, "--prompt", "--output", "--requests-per-s", "--shared-prefix") == [250_000, 1024, 0.5, None]
    with pytest.raises(BadInput) as bad:
        numbers({"--prompt": "1q", "--requests-per-s": "x"}, "--prompt", "--requests-per-s")
    assert [fault.path for fault in bad.value.faults] == ["--prompt", "--requests-per-s"]


def test_a_price_is_of_every_gpu_or_of_each_by_name():
    faults = Faults()
    assert prices("3", faults) == {"": 3.0}
    assert prices("h200=3, B200=5", faults) == {"H200": 3.0, "B200": 5.0}
    assert faults.found == []
    assert price_of({"H200": 3.0}, "B200") is None
    for text in ("abc", "H200=0", "foo=2", "3,4", ","):
        wrong = Faults()
        prices(text, wrong)
        assert [fault.path for fault in wrong.found] == ["--price-per-gpu-hour"], text


def timed(one: Deployment, low_s: float, high_s: float) -> Deployment:
    """Let a deployment have these ends of its step time."""
    from dsa_ledger.ledger import Source
    from dsa_ledger.units import Unit

    ledger = one.outcome.ledger
    assert ledger is not None
    for key in [key for key in ledger.entries if "time.step_" in key]:
        del ledger.entries[key]
    for key, value in (("time.step_low_s", low_s), ("time.step_high_s", high_s)):
        ledger.given(key, value, Unit.SECONDS, Source("prior", "a test", ""))
    return one


def test_a_million_tokens_cost_what_the_gpus_cost_while_they_are_made():
    """Two requests each 20 to 40 ms are 100 to 50 tokens/s; 8 GPUs at 3 an hour: 24 / (3,600 x 100) a token."""
    asked = Scenario.model_validate(
        {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "load": {"context": 100_000, "batch": 2}}
    )
    best = rank(asked, [Machine("H200", 8)], [Engine(name="sglang", version="0.5.23")], ["fp8"], "requests").best
    one = timed(next(one for one in best if one.layout.servers == 1), 0.020, 0.040)
    found = cost(one, {"H200": 3.0, "B200": 99.0})
    assert found is not None
    assert found.million_low == pytest.approx(24 / 3600 / 100 * 1e6)
    assert found.million_high == pytest.approx(24 / 3600 / 50 * 1e6)
    assert found.month == 24 * 730
    assert cost(one, {"B200": 99.0}) is None


def test_a_ranking_has_a_column_of_cost(run):
    code, out, _ = run(*STATED, "--machines", "8xB200,8xGB300", "--batch", "8", "--price-per-gpu-hour", "B200=5")
    assert code == 0
    assert "a million output tokens cost" in out
    assert "8 x B200: 29,200 a month of 730 hours" in out, "8 x 5 x 730"
    assert "8 x GB300: no price was given" in out
    code, out, _ = run(*STATED, "--machines", "8xB200", "--price-per-gpu-hour", "5", "--format", "json")
    (first, *_) = json.loads(out)["deployments"]
    assert 0 < first["cost_per_million_output_tokens_low"] <= first["cost_per_million_output_tokens_high"]


def test_a_stated_layout_that_does_not_start_says_why(run):
    code, out, err = run(*STATED, "--requests-per-s", "1", "--output", "1k")
    assert (code, out) == (2, "")
    assert "the weights take" in err
    assert "--machines" in err
