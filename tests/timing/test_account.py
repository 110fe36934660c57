"""Entries of time in a ledger: sums, anchors, ends, what is absent and why; the commands about time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsa_ledger import Scenario, estimate

BASE = {
    "model": "GLM-5.2-FP8",
    "gpu": "H200",
    "engine": "sglang@0.5.14",
    "kv_dtype": "fp8_e4m3",
    "sharding": {"tp": 8},
    "load": {"context": 131072},
}


def ledger(**changes: object):
    return estimate(Scenario.model_validate({**BASE, **changes}))


def run(*arguments: str):
    return subprocess.run([sys.executable, "-m", "dsa_ledger", *arguments], capture_output=True, text=True, check=False)


def test_a_step_is_the_sum_of_its_layers():
    found = ledger()
    assert found["time.attention_s"] == pytest.approx(
        21 * found["time.full_layer_s"] + 57 * found["time.shared_layer_s"]
    )
    assert found["time.step_low_s"] == pytest.approx(found["time.attention_s"] + found["time.weights_s"])
    # 132 B x 21 layers x 131,072 tokens over 4.8 TB/s
    assert found["time.indexer_floor_s"] == pytest.approx(132 * 21 * 131072 / 4.8e12)
    assert found["time.step_floor_s"] < found["time.step_low_s"] < found["time.step_high_s"]
    assert found["time.attention_low_s"] < found["time.attention_s"] < found["time.attention_high_s"]


def test_the_measured_layer_is_met():
    # H200, GLM-5-FP8, 8 heads, FP8 KV, one request, 131,072 tokens: 152.2 us full; shared 51.5 us (github.com/
    # ai-dynamo/aiconfigurator@095f58a5, sglang 0.5.14). The heads of a rank here are 64 / 8.
    found = ledger()
    assert found["time.full_layer_s"] == pytest.approx(152.2e-6, rel=0.06)
    assert found["time.shared_layer_s"] == pytest.approx(51.5e-6, rel=0.03)


def test_without_an_anchor_there_is_no_single_step_time():
    found = ledger()
    assert "time.step_s" not in found
    assert any("--measured-step" in sentence for sentence in found.warnings)
    assert "time.tokens_per_s" not in found
    assert found["time.tokens_per_s_low"] < found["time.tokens_per_s_high"]


def test_a_measured_step_is_met_at_its_own_context_and_grows_by_the_layers():
    load = {"context": 8192, "measured_step": "16.9 ms@8192"}
    assert ledger(load=load)["time.step_s"] == pytest.approx(16.9e-3)
    # The article's case: 38 tokens/s seen at 10^6, 60 expected; the layers' growth of 9.0-9.6 ms explains it.
    grown = ledger(load=load | {"context": 1_000_000})["time.step_s"] - 16.9e-3
    assert 8.9e-3 <= grown <= 9.6e-3


def test_a_public_step_anchors_its_own_layout_alone():
    here = {"engine": "vllm@0.24.0", "kv_dtype": "fp8", "load": {"context": 1024}}
    assert ledger(**here)["time.step_s"] == pytest.approx(19.0e-3)  # mstar-project/mstar PR #272: 52.6 tok/s
    assert "time.step_s" not in ledger(**here, gpu="B200")
    assert "time.step_s" not in ledger(**here | {"load": {"context": 1024, "batch": 2}})


def test_tokens_per_second_need_the_accepted_length_when_drafts_are_on():
    load = {"context": 8192, "measured_step": "10ms@8192"}
    plain = ledger(load=load, draft={"steps": 3})
    assert "time.tokens_per_s" not in plain
    assert any("--accepted" in sentence for sentence in plain.warnings)
    assert ledger(load=load, draft={"steps": 3, "accepted": 2.5})["time.tokens_per_s"] == pytest.approx(250)


def test_scattered_pages_widen_the_high_end_alone_and_say_not_measured():
    near, far = ledger(), ledger(load=BASE["load"] | {"mean_run_pages": 2})
    assert far["time.attention_s"] == near["time.attention_s"]
    assert far["time.attention_high_s"] > near["time.attention_high_s"]
    assert "not measured" in far.entries["time.layer.fragmented_s"].note


def test_other_versions_name_the_table_they_take():
    found = ledger(engine="sglang@0.5.23")
    assert any("0.5.14" in sentence for sentence in found.warnings)
    assert any("top-k v2" in sentence for sentence in found.warnings)
    assert found["time.full_layer_s"] < ledger()["time.full_layer_s"]
    assert found["time.layer.topk_older_s"] > 0


def test_vllm_shared_layers_are_marked_as_a_prior():
    found = ledger(engine="vllm@0.24.0", kv_dtype="fp8")
    assert found.entries["time.shared_layer.floor_s"].source.kind == "prior"
    assert found.weakest("time.attention_s") == "prior"


def test_a_prefill_of_a_cached_prefix_costs_more_than_one_without():
    cold = ledger(load={"context": 8192, "new_tokens": 8192})
    warm = ledger(load={"context": 131072, "new_tokens": 8192})
    assert warm["prefill.attention_s"] > cold["prefill.attention_s"] > 0
    assert warm["prefill.indexer_s"] > cold["prefill.indexer_s"]
    # H200, GLM-5-FP8, 8 heads, 8,192 new tokens, no prefix: 7,430 us a full layer (same public source).
    assert cold["prefill.full_layer_s"] == pytest.approx(7430e-6, rel=0.05)


RTX = """
name = "RTX PRO 6000"
sms = 188
l2_bytes = "128 MiB"
compute_capability = [12, 0]
hbm = { capacity_bytes = "97887 MiB", peak_bytes_per_s = "1.79 TB/s" }
[provenance]
"hbm.capacity_bytes" = { kind = "driver", ref = "nvidia-smi of this part" }
"""


def test_a_gpu_without_table_or_sibling_says_why_no_step_can_be_carried(tmp_path):
    """The curve 16.94 / 17.53 / 17.82 / 18.18 ms (GLM-5.1, 8 x RTX PRO 6000) has no kernel table for its GPU."""
    place = tmp_path / "rtx.toml"
    place.write_text(RTX)
    done = run(
        "estimate", "--model", "GLM-5.1-FP8", "--gpu", str(place), "--engine", "sglang@0.5.23", "--tp", "8",
        "--context", "16384", "--measured-step", "16.94ms@0", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 3, (
        done.stderr
    )  # FP8 weights do not fit on eight of them; the ledger is printed all the same
    answer = json.loads(done.stdout)
    assert any("no kernel table" in sentence for sentence in answer["warnings"])
    keys = {entry["key"] for entry in answer["entries"]}
    assert {"time.step_floor_s", "time.attention_low_s", "time.attention_high_s"} <= keys
    assert keys & {"time.step_s", "time.attention_s", "time.step_high_s"} == set()


def test_diagnose_explains_the_million_token_case():
    done = run("diagnose", "slow-at-1m", "--seen", "38", "--expected", "60", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seconds"] == pytest.approx(9.65e-3, abs=0.01e-3)  # 1/38 - 1/60 s
    assert found["causes"][0]["entry"] == "time.layer.topk_s"
    shares = {(row["engine"], row["version"]): row for row in found["by_engine"]}
    assert 0.93 <= shares["sglang", "0.5.14"]["tied_share"] <= 1.0
    assert 0.53 <= shares["sglang", "0.5.14"]["separated_share"] <= 0.60
    assert 0.10 <= shares["vllm", "0.24.0"]["tied_share"] <= 0.20
    assert shares["tensorrt-llm", "1.3.0rc10"]["tied_share"] > 3


def test_a_diagnosis_with_drafts_counts_the_tokens_that_a_step_keeps():
    """A step gives as many tokens as it keeps: 3 a step at 20 and 60 tokens/s are 150 and 50 ms a step."""
    asked = ("diagnose", "glm52-8xh200-fp8", "--set", "load.new_tokens=null", "--seen", "20", "--expected", "60")
    unsaid = run(*asked)
    assert unsaid.returncode == 2
    assert "draft.accepted (--accepted): absent: expected the mean tokens kept per step" in unsaid.stderr
    said = run(*asked, "--accepted", "3").stdout
    assert said.startswith("150.00 ms seen, 50.00 ms expected a step of 3 tokens; to explain: 100 ms\n")
    # Most of it is in none of the entries that grow with the context: the answer says so, and what to do.
    assert "conclusion: 9" in said
    assert "--checklist" in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (("--seen", "60", "--expected", "38"), "--seen: '60': expected a speed below --expected, 38"),
        (("--seen", "fast", "--expected", "38"), "--seen: 'fast': expected tokens per second, such as 38"),
        (("--seen", "38"), "--expected: absent: expected tokens per second"),
    ],
)
def test_a_speed_that_is_none_says_what_was_expected(seen, says):
    done = run("diagnose", "slow-at-1m", *seen)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_time_of_a_token_is_a_speed():
    """25 ms a token are 40 tokens/s."""
    times, speeds = (
        run("diagnose", "slow-at-1m", "--seen", seen, "--expected", expected).stdout
        for seen, expected in (("25ms", "20 ms"), ("40", "50"))
    )
    assert times == speeds


def test_a_measured_step_outside_the_ends_is_warned_of():
    """time.step_s stands between its ends; where a statement puts it outside, somebody is wrong."""
    for stated, outside in (("1ms@8192", True), ("16.9ms@8192", False), ("16.9s@8192", True)):
        found = ledger(load=BASE["load"] | {"measured_step": stated})
        assert any("outside time.step_low_s to time.step_high_s" in said for said in found.warnings) == outside


def test_a_sum_is_as_weak_as_its_parts():
    """A sum adds no fact: its own source names the weakest kind among what it adds, as the table's column does."""
    found = ledger()
    for key in ("time.step_low_s", "time.step_high_s", "time.attention_s", "time.full_layer_s", "time.indexer_s"):
        assert found.entries[key].source.kind == found.weakest(key) == "prior", key


def test_diagnose_reads_a_table_of_speeds(tmp_path):
    place = tmp_path / "seen.csv"
    place.write_text("context,batch,ms\n8192,1,16.9\n1000000,1,26.3\n")
    done = run("diagnose", "slow-at-1m", "--seen-table", str(place), "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seconds"] == pytest.approx(9.4e-3)
    assert {row["entry"] for row in found["intercept"]} >= {"time.attention_s", "time.weights_s"}
    place.write_text("context,batch,ms\n8k,1,16.9ms\n1M,1,26.3\n")  # numbers as everywhere else
    said = run("diagnose", "slow-at-1m", "--seen-table", str(place)).stdout
    assert "to explain: 9.4 ms" in said
    assert "0%" not in [line.split()[3] for line in said.splitlines() if line.startswith("time.layer")]
    place.write_text("context,batch,ms\n8192,1,fast\n1000000,1,0\n")
    done = run("diagnose", "slow-at-1m", "--seen-table", str(place))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "seen.csv:2 ms" in done.stderr
    assert "seen.csv:3 ms" in done.stderr


def test_an_estimate_in_json_loads_no_numpy_and_no_calibration():
    program = (
        "import sys, contextlib, io\n"
        "from dsa_ledger.__main__ import main\n"
        "sys.argv = ['dsa-ledger', 'estimate', '--model', 'GLM-5.2-FP8', '--gpu', 'H200', '--engine', 'sglang@0.5.14',"
        " '--tp', '8', '--context', '4096', '--new-tokens', '1024', '--format', 'json']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "print(sorted({'numpy', 'calib', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_validate_prints_the_groups_of_a_csv(root):
    done = run("validate", "--measured", str(root / "tests/timing/measured_rows.csv"), "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fields = {"gpu", "engine", "version", "phase", "module", "n", "median_error", "p95_error", "bias", "coverage"}
    assert all(fields <= set(group) for group in found["groups"])
    assert run("validate").returncode == 0
    shown = run("validate", "--published").stdout
    assert "yes" in shown
    assert "True" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "IndexCache" in run("validate", "--published").stdout or run("validate", "--published").returncode == 0


def test_dcp_s_step_time_says_what_is_not_in_it():
    """The layers' times are of whole reads; a plan said so of DCP 8, an estimate of the same layout did not."""
    said = "with DCP the step time is that without it"
    asked = {"gpu": "B200", "engine": "vllm@0.33.0", "kv_dtype": "fp8"}
    assert any(text.startswith(said) for text in ledger(**asked, sharding={"tp": 8, "dcp": 8}).warnings)
    assert not any(text.startswith(said) for text in ledger(**asked).warnings)
