"""`plan` on the command line: exit codes, formats, what is said where."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from functools import partial

import pytest

MILLION = ["glm53-8xh200-vllm-1m"]


@pytest.fixture
def run(run):
    return partial(run, "plan")


def test_a_wish_that_does_not_hold_exits_3_and_says_what_would(run):
    code, out, _ = run(*MILLION, "--largest-context")
    assert code == 3
    assert "largest context: 516,288 tokens; 1,048,576 asked: no" in out
    assert "--dcp 4 --engine vllm@0.29.0" in out
    assert max(len(line) for line in out.splitlines() if "serve" not in line) <= 80


def test_an_answer_in_json_has_figures_in_base_units(run):
    code, out, _ = run(*MILLION, "--largest-context", "--safe-chunk", "--format", "json")
    assert code == 3
    found = json.loads(out)
    assert found["schema"] == 1
    context, chunk = found["answers"]
    assert (context["value"], context["unit"], context["holds"]) == (516_288, "tokens", False)
    assert context["changes"][0]["command"].startswith("vllm serve")
    assert {row["chunk_tokens"] for row in chunk["chunks"]} >= {512, 8192, 131_072}


@pytest.mark.parametrize("form", ["csv", "md", "json", "table"])
def test_a_ranking_in_every_format(run, form):
    code, out, err = run(*MILLION, "--machines", "8xB200", "--kv-dtypes", "fp8,nvfp4_ds_mla", "--engine", "vllm@0.33.0",
                         "--top", "3", "--format", form)  # fmt: skip
    assert (code, err) == (0, "")
    assert "vllm@0.33.0" in out
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == 3
        assert int(rows[0]["requests"]) >= int(rows[1]["requests"])
    if form == "json":
        found = json.loads(out)
        assert found["tried"] >= found["fit"] + found["do_not_fit"]
        assert found["deployments"][0]["command"].startswith("vllm serve")


def test_a_smallest_machine(run):
    code, out, _ = run("glm52-8xh200-fp8", "--smallest-machine")
    assert code == 0
    assert "8 x H200" in out
    assert "sglang serve" in out


def test_nothing_fits_is_exit_3_with_the_nearest(run):
    code, out, _ = run("glm52-8xh200-fp8", "--machines", "2xH100")
    assert code == 3
    assert "nothing fits; nearest:" in out


def test_bad_options_are_told_together(run):
    code, out, err = run(*MILLION, "--goal", "speed", "--machines", "8xH300")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2
    assert not [line for line in err.splitlines() if "(in " in line], "an option of the command stands in no file"


@pytest.mark.parametrize(
    "arguments",
    [["--machines", ","], ["--machines", "0xH200"], ["--workload", "/no/such.csv"], ["--max-step-time", "-1 s"]],
)
def test_a_bad_option_is_named(run, arguments):
    code, out, err = run(*MILLION, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"bad input: {arguments[0]}: ")


@pytest.mark.parametrize(
    ("arguments", "free_of"),
    [
        (["plan", *MILLION, "--largest-context"], {"rich", "numpy", "torch"}),
        (["plan", "glm52-8xh200-fp8", "--machines", "8xH200", "--format", "html"], {"rich", "numpy", "torch"}),
        (["sweep", "glm52-8xh200-fp8", "--over", "context=9000", "--format", "csv"], {"rich", "torch", "pyarrow"}),
    ],
)
def test_nothing_heavy_is_loaded_that_is_not_needed(arguments, free_of):
    code = (
        "import atexit, json, sys; atexit.register(lambda: print('LOADED' + json.dumps(sorted(sys.modules)), "
        f"file=sys.stderr)); sys.argv = ['dsa-ledger', *{arguments!r}]; from dsa_ledger.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert set(json.loads(done.stderr.rpartition("LOADED")[2])) & free_of == set()


def test_rows_that_say_nothing_leave_the_reasons_on_standard_error(run):
    """Without --accepted nobody knows the tokens a step keeps: there is no row, and a file has no place to say so."""
    code, out, err = run("glm52-8xb300-hicache-0522", "--output", "8192", "--format", "csv")
    assert (code, out) == (0, "")
    assert "not modelled: tokens kept per step with drafts on: give --accepted X" in err
