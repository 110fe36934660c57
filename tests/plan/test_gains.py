"""Single changes by gain, from a scenario, a launch command or a start-up log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsa_ledger import Scenario, estimate
from dsa_ledger.plan.changes import Near
from dsa_ledger.plan.gains import gains
from dsa_ledger.render.gains import gains_text


def scenario(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.2-FP8", "gpu": "H200", "engine": "sglang@0.5.17", "kv_dtype": "bf16"}
    load = {"context": 100_000, "batch": 2}
    return Scenario.model_validate(base | {"sharding": {"tp": 8}, "draft": {"steps": 3}, "load": load} | tables)


def test_each_gain_is_what_estimate_says_of_the_change():
    found = gains(scenario())
    assert found.before.system_tokens == estimate(scenario())["pool.system_tokens"]
    assert found.found
    for gain in found.found:
        ledger = estimate(gain.change.scenario)
        assert gain.after.system_tokens == ledger["pool.system_tokens"]
        assert gain.after != found.before
        assert gain.change.price
        assert gain.change.near < Near.MORE_GPUS


def test_the_most_requests_come_first():
    found = gains(scenario())
    requests = [gain.after.requests for gain in found.found]
    assert requests == sorted(requests, reverse=True)
    assert found.found[0].change.name == "--kv-dtype fp8_e4m3"
    names = [gain.change.name for gain in found.found]
    assert "--draft-steps 0" in names
    assert "--engine sglang@0.5.18" in names


def test_index_keys_of_57_layers_come_back_with_the_release_that_drops_them():
    """From PR #30531 of SGLang: 78 x (1152 + 132) = 100,152 B a token become 78 x 1152 + 21 x 132 = 92,628."""
    seen = scenario(draft={"steps": 0}, observed={"kv_bytes": "30 GiB"})
    found = gains(seen)
    after = next(gain.after for gain in found.found if gain.change.name == "--engine sglang@0.5.18")
    assert after.system_tokens / found.before.system_tokens == pytest.approx(100_152 / 92_628, abs=1e-3)


def test_a_cap_below_the_pool_is_raised():
    found = gains(scenario(limits={"max_running_requests": 1}))
    assert "--max-running-requests 3" in [gain.change.name for gain in found.found]


@pytest.mark.parametrize("form", ["table", "json", "csv", "md", "html"])
def test_from_a_launch_command(run, form):
    command = "sglang serve --model-path zai-org/GLM-5.2-FP8 --tp 8 --enable-hierarchical-cache"
    code, said, _ = run("plan", "--from-command", command, "--gpu", "H200", "--engine", "sglang@0.5.21", "--context",
                        "100k", "--changes", "--format", form)  # fmt: skip
    assert code == 0
    if form == "json":
        found = json.loads(said)
        assert found["changes"][0]["command"].startswith("sglang serve")
        assert found["before"]["requests"] >= 1
    else:
        assert "fp8_e4m3" in said


# github.com/sgl-project/sglang/pull/30531: the lines of the main arm's log that carry figures.
LOG = """
[2026-08-14 10:00:01 TP0] KV Cache is allocated. #tokens: 2574848, KV size: 132.43 GB
[2026-08-14 10:00:02 TP0] KV Cache is allocated. #tokens: 2574848, KV size: 1.70 GB
"""


def test_from_a_start_up_log(run, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(LOG)
    code, out, err = run("plan", "--log", str(path), "--model", "nvidia/GLM-5.2-NVFP4", "--gpu", "GB300", "--tp", "4",
                         "--engine", "sglang@0.5.17", "--draft-steps", "5", "--context", "100k",
                         "--format", "json")  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["before"]["system_tokens"] == 2_574_848
    names = [change["change"] for change in found["changes"]]
    assert "--engine sglang@0.5.18" in names


def test_a_log_that_says_nothing_is_bad_input(run, tmp_path):
    path = tmp_path / "empty.log"
    path.write_text("hello\n")
    code, _, err = run("plan", "--log", str(path), "--gpu", "H200")
    assert code == 2
    assert "bad input" in err


def b200(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.3", "gpu": "B200", "engine": "sglang@0.5.23", "sharding": {"tp": 8}}
    return Scenario.model_validate(base | {"load": {"context": 256_000, "batch": 32}} | tables)


def test_two_changes_are_combined_where_no_single_one_holds_the_load():
    """DCP 8 alone holds one request too few; with a larger share of memory for the pool it holds all 32."""
    found = gains(b200())
    assert not any(gain.outcome.fits for gain in found.found)
    alone = next(gain for gain in found.found if gain.change.name == "--dcp 8")
    assert alone.after.requests == 31
    pair = next(gain for gain in found.pairs if gain.change.name.startswith("--dcp 8 --mem-fraction"))
    assert pair.outcome.fits
    assert pair.after.requests >= 32
    assert gains(b200(load={"context": 256_000, "batch": 2})).pairs == ()


def test_dcp_is_cut_out_of_the_ranks_that_share_a_request():
    """Attention DP over all ranks leaves one rank a request: there is nothing that DCP could cut."""
    for gain in (*gains(b200()).found, *gains(b200()).pairs):
        cut = gain.change.scenario.sharding
        assert (cut.tp // cut.dp_attention) % cut.dcp == 0


def test_refused_changes_are_named_with_their_reason_and_losses_are_no_gains():
    found = gains(b200(gpu="H200", load={"context": 256_000, "batch": 2}))
    assert "SM100" in dict(found.refused)["--dcp 2"]
    assert all(gain.after.system_tokens < found.before.system_tokens for gain in found.losses)
    text = gains_text(found, "table")
    assert "refused here" in text
    assert "no more tokens from: --dp-attention 8" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_context_requests_and_times_are_not_said():
    text = gains_text(gains(b200(load={})), "table")
    assert "give --context" in text
    assert " 0 " not in text
    assert "not modelled" not in text


def test_the_step_time_of_dcp_says_what_is_not_in_it():
    assert "neither its exchange between ranks" in " ".join(gains_text(gains(b200()), "table").split())
