"""What an audit says does not contradict itself, and every number has its unit."""

from __future__ import annotations

import csv
import io
import subprocess
import sys

import pytest
from test_audit import HEAD, MAIN, ON_GB300, audited, check, run
from test_oom import RAN_OUT
from writer import sglang_log, vllm_log

ARM_A = (
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2574848, KV size: 132.43 GB\n"
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2574848, KV size: 1.70 GB\n"
)  # https://github.com/sgl-project/sglang/pull/30531


def test_a_pool_beyond_rounding_says_by_how_much_where_its_records_agree():
    """(2,574,848 + 64) x 55,224 B are 135,609.6 MiB, 132.41 GiB 135,587.8: 16.6 beyond 0.005 GiB of rounding."""
    found = check(
        audited(ARM_A.replace("132.43", "132.41"), {**ON_GB300, "engine": "sglang@0.5.17"}), "pool.target_bytes"
    )
    assert found.cause.startswith("16.6 MiB less than tokens x records give, beyond the 5.12 MiB of rounding")
    assert "see cell.target_bytes" not in found.cause


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_a_log_of_another_release_than_named_says_so_before_it_advises(version):
    """An index-K on all 78 layers is of 0.5.14 to 0.5.17; the release named is the one whose gain is told."""
    advice = audited(ARM_A, {**ON_GB300, "engine": f"sglang@{version}"}).advice
    assert advice[0].startswith(f"this log is of sglang 0.5.14 to 0.5.17, not {version}")
    assert f"sglang {version} gives +15.5% tokens" in advice[1]


def test_a_log_of_the_release_named_says_nothing_of_others():
    for truth, version in ((MAIN, "0.5.17"), (HEAD, "0.5.18"), (HEAD, "0.5.23")):
        advice = audited(sglang_log(truth), {**ON_GB300, "engine": f"sglang@{version}"}).advice
        assert not [said for said in advice if "this log is of" in said]


def test_no_release_is_likely_where_no_combination_fits():
    report = audited(ARM_A.replace("132.43", "122.41"), ON_GB300)
    assert report.certainty["engine.version"].startswith("open: lines so worded are of 0.5.14 to ")


def test_an_upgrade_has_one_figure_in_audit_and_plan(tmp_path):
    log = tmp_path / "log"
    log.write_text(ARM_A, encoding="utf-8")
    (advice,) = [said for said in audited(ARM_A, {**ON_GB300, "engine": "sglang@0.5.17"}).advice if "dead" in said]
    command = ["plan", "pr30531-main", "--log", str(log), "--format", "csv"]
    done = subprocess.run([sys.executable, "-m", "dsa_ledger", *command], capture_output=True, text=True, check=False)
    (upgrade,) = [line for line in done.stdout.splitlines() if "sglang@0.5.18" in line]
    assert "to about 2,975,040)" in advice
    assert "2975040" in upgrade


def test_weights_of_a_cut_that_nobody_named_say_which_cut_fits():
    """GLM-5.2-FP8 at tp 8 holds an eighth of what it holds at tp 1: the log's 89.10 GiB."""
    text = RAN_OUT.replace("tp_size=8, ", "")
    report = audited(text, {"gpu": "H200", "engine": "sglang@0.5.23"})
    assert check(report, "weights.rank_bytes").cause == "no tp is named, 1 taken; tp 8 fits the log: give --tp 8"
    report = audited(text, {"gpu": "H200", "engine": "sglang@0.5.23", "sharding": {"tp": 4}})
    assert check(report, "weights.rank_bytes").cause == "tp 4 given; tp 8 fits the log: give --tp 8"


def test_every_number_of_the_table_has_its_unit():
    shown = run("audit", "-", "--gpu", "H200", stdin=RAN_OUT).stdout
    assert "656 B/token/layer" in shown
    assert "571,456 tokens" in shown
    assert "main_kv.layers = 78 layers" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("form", ["csv", "md"])
def test_files_have_a_column_of_units_and_no_noise_of_a_subtraction(form):
    shown = run("audit", "-", "--gpu", "H200", "--format", form, stdin=RAN_OUT).stdout
    if form == "md":
        table = [line for line in shown.splitlines() if line.startswith("| ")]
        shown = "\n".join(",".join(cell.strip() for cell in line.strip("|").split("|", 5)) for line in table)
    rows = {row["key"]: row for row in csv.DictReader(io.StringIO(shown))}
    assert rows["cell.target_bytes"]["unit"] == "B/token"
    assert rows["pool.reported_tokens"]["unit"] == "tokens"
    assert all(len(row["difference"]) <= 12 for row in rows.values())


def test_a_log_that_shows_no_requests_is_not_warned_about_times():
    """Kernel tables and step times are of a load, which a start-up log does not show."""
    load = {"load": {"context": 102400, "batch": 4}}
    warnings = audited(sglang_log(HEAD), {**ON_GB300, **load, "engine": "sglang@0.5.18"}).warnings
    assert not [
        said for said in warnings if "kernel table" in said or "step time" in said or "tokens per second" in said
    ]


def test_the_fault_of_a_named_engine_says_what_was_expected():
    done = run("audit", "-", "--engine", "vllm", stdin=sglang_log(MAIN))
    assert "engine.name: 'vllm': expected sglang, whose log this is" in done.stderr


def test_advice_on_a_vllm_log_names_vllm_s_flags():
    truth = MAIN._replace(engine="vllm", version=(0, 33, 0), record=656, owners=21, tokens=64 * 12_262, context=1048576)
    tables = {"model": "zai-org/GLM-5.2-FP8", "gpu": "H200", "sharding": {"tp": 8}, "kv_dtype": "fp8"}
    said = " ".join(audited(vllm_log(truth, 2_000_000), tables).warnings)
    assert "--max-num-seqs" in said
    assert "--max-running-requests" not in said


def test_figures_of_four_digits_with_the_longest_unit_stand_apart():
    """576 B a token and layer in the log, 1,152 in a ledger of bf16: each column has a blank before it."""
    shown = run("audit", "scenarios/pr30531-main.log", "pr30531-main", "--kv-dtype", "bf16").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("record.main_kv_bytes")]
    assert "  576 B/token/layer 1,152 B/token/layer  -576 B/token/layer" in line
    assert len(line) <= 80
