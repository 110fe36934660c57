"""What a sceptical reader tried first: settings that do nothing, loads beyond the engine, odd outputs, bad advice."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from dsa_ledger import BadInput, NotModelled, Scenario, estimate
from dsa_ledger.catalog.config import SWITCHES, WHOLE
from dsa_ledger.compare import compare
from dsa_ledger.render.compare import comparison_text
from dsa_ledger.scenario_file import find, read, shipped

H200 = {"model": "zai-org/GLM-5.2-FP8", "gpu": "H200", "engine": "sglang@0.5.23", "sharding": {"tp": 8}}
FP8 = {"kv_dtype": "fp8_e4m3"}
VLLM = {"engine": "vllm@0.33.0"}
TINY = {
    "name": "tiny",
    "hbm": {"capacity_bytes": 1 << 20, "peak_bytes_per_s": 1},
    "sms": 1,
    "l2_bytes": 0,
    "compute_capability": (9, 0),
    "provenance": {"hbm.capacity_bytes": {"kind": "driver", "ref": "made up"}},
}


NEW_WARNINGS = (
    "runs at most",
    "exceed its memory by",
    "changes nothing",
    "kernels are for",
    "read different fp8 records",
    "is beyond the model's",
)


def ledger_of(**fields: object):
    return estimate(Scenario.model_validate(H200 | fields))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (FP8 | {"draft": {"steps": 3}, "load": {"context": 2048, "batch": 64}}, "runs at most 48 requests on a rank"),
        ({"limits": {"max_running_requests": 16}, "load": {"context": 99, "batch": 17}}, "runs at most 16 requests"),
        (
            VLLM | {"limits": {"max_running_requests": 16}, "load": {"context": 99, "batch": 17}},
            "runs at most 16 requests",
        ),
        (
            # 0.5.22 divides 4 by 8 attention groups and gets none; 0.5.23 keeps one.
            {
                "engine": "sglang@0.5.22",
                "sharding": {"tp": 8, "dp_attention": 8},
                "limits": {"max_running_requests": 4},
                "load": {"context": 99},
            },
            "runs at most 0 requests",
        ),
        ({"limits": {"mem_fraction": 0.999}}, "exceed its memory by"),
        ({"hisparse": {"ratio": 4}}, "hisparse.ratio = 4 changes nothing"),
        ({"hicache": {"ratio": 4}}, "hicache.ratio = 4.0 changes nothing"),
        ({"draft": {"topk": 2}}, "draft.topk = 2 changes nothing"),
        (VLLM | {"backends": {"decode": "trtllm"}}, "backends.decode = trtllm changes nothing"),
        (VLLM | {"limits": {"graph_requests": 8}}, "limits.graph_requests = 8 changes nothing"),
        (FP8 | {"backends": {"prefill": "trtllm", "decode": "trtllm"}}, "kernels are for SM100"),
        ({"gpu": "B200", "backends": {"prefill": "trtllm", "decode": "flashmla_kv"}}, "read different fp8 records"),
        (
            {"model": "zai-org/GLM-5.1-FP8", "limits": {"context_length": 202_753}},
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        ),
    ],
)
def test_a_warning_names_what_the_engine_would_not_do(fields, says):
    assert [sentence for sentence in ledger_of(**fields).warnings if says in sentence]


@pytest.mark.parametrize(
    "fields",
    [
        FP8 | {"draft": {"steps": 3}, "load": {"context": 2048, "batch": 48}},
        {"features": ("hicache",), "hicache": {"ratio": 4}},
        {"gpu": "B200", "backends": {"prefill": "trtllm", "decode": "trtllm"}},
        {"limits": {"context_length": 1_048_576}},
    ],
)
def test_no_such_warning_where_all_is_well(fields):
    said = "\n".join(ledger_of(**fields).warnings)
    assert not [part for part in NEW_WARNINGS if part in said]


def test_an_empty_pool_never_passes_for_one_that_fits():
    capped = ledger_of(limits={"max_total_tokens": 63})
    assert capped["pool.tokens"] == 0
    assert capped.shortfalls == ["--max-total-tokens 63 is less than a page of 64 tokens: the pool holds none"]
    scratch = ledger_of(
        gpu="B200",
        sharding={"tp": 8, "cp": 8},
        features=("pd-prefill", "kv-sharding"),
        draft={"steps": 3},
        observed={"free_after": 40},
    )
    assert scratch["pool.budget_bytes"] > 0
    assert scratch["pool.tokens"] == 0
    assert "of KV-sharding scratch hold no page" in scratch.shortfalls[0]


def test_advice_can_be_followed():
    one = ledger_of(limits={"max_total_tokens": 64}, load={"context": 1000}).shortfalls[-1]
    assert "attention DP" not in one  # which splits requests, and there is one
    two = ledger_of(limits={"max_total_tokens": 64}, load={"context": 1000, "batch": 2}).shortfalls[-1]
    assert "attention DP" in two
    old = ledger_of(engine="vllm@0.28.0", observed={"kv_bytes": "1 GiB"}, load={"context": 100_000}).shortfalls[-1]
    assert "--kv-dtype fp8 shrinks" in old  # fp8_e4m3 has no backend on Hopper before 0.30
    short = ledger_of(observed={"free_after": 0.001}).shortfalls[0]
    assert "--mem-fraction" not in short  # above 1 there is none


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"observed": {"free_before": 141}}, "observed.free_before"),  # an H200 has 140.40 GiB
        ({"observed": {"free_after": 141}}, "observed.free_after"),
        ({"observed": {"free_before": 100, "free_after": 100.5}}, "observed.free_after"),
    ],
)
def test_more_free_memory_than_there_is_was_not_observed(fields, path):
    with pytest.raises(BadInput) as caught:
        ledger_of(**fields)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_gpu_generations_that_nothing_was_read_for_get_no_figures():
    for engine in ("sglang", "tensorrt-llm"):
        with pytest.raises(NotModelled, match="SM80"):
            ledger_of(gpu=TINY | {"compute_capability": (8, 0)}, engine=engine)


def test_the_smallest_gpu_is_a_shortfall_not_a_division_by_zero():
    assert ledger_of(gpu=TINY).shortfalls


def test_new_tokens_without_a_context_say_what_is_missing():
    with pytest.raises(BadInput, match="--context") as caught:
        ledger_of(load={"new_tokens": 5})
    assert "None" not in str(caught.value)


@pytest.mark.parametrize("key", [*WHOLE, *SWITCHES, "index_topk_pattern", "indexer_types", "index_topk_frequency"])
def test_no_sentence_about_a_config_stutters(key):
    try:
        ledger_of(model_overrides={key: {"a": 1}})
    except BadInput as bad:
        said = str(bad)
        assert "expected expected" not in said
        assert "expected unknown" not in said


def test_any_two_shipped_scenarios_compare_in_columns_that_stay_apart():
    scenarios = [Scenario.model_validate(read(find(name))) for name in shipped()]
    for a, b in itertools.combinations(scenarios, 2):
        text = comparison_text(compare(a, b), "table", every=True)
        rows = text.split("B / A  cause")[1].split("\ncauses")[0]
        assert all(len(line) <= 80 for line in rows.splitlines() if len(line.split()) > 1)
        assert not [word for word in rows.split() if word.count(",") > 3]  # two numbers run into one


def run_shell(command):
    text = f"{sys.executable} -m dsa_ledger {command}"
    return subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("model", "dcp", "batched", "mib"),
    [
        # MiB beside the 394 without DCP: the buffer formulas of vLLM 0.33.0, run on a CPU.
        ("zai-org/GLM-5.3", 1, 16_384, 0),
        ("zai-org/GLM-5.3", 8, 8_192, 1025),
        ("zai-org/GLM-5.3", 8, 16_384, 2049),
        ("deepseek-ai/DeepSeek-V3.2", 8, 16_384, 4097),
    ],
)
def test_flashinfer_takes_more_under_dcp(model, dcp, batched, mib):
    ledger = ledger_of(
        model=model,
        gpu="B200",
        engine="vllm@0.33.0",
        kv_dtype="fp8",
        sharding={"tp": 8, "dcp": dcp},
        limits={"chunked_prefill": batched},
    )
    assert ledger["workspace.flashinfer_bytes"] == (394 + mib) * 2**20


@pytest.mark.parametrize("command", ["estimate glm52-8xh200-fp8", "models", "gpus --format json"])
def test_an_answer_that_cannot_be_written_is_one_sentence(command):
    for where in (">&-", ">/dev/full"):
        done = run_shell(f"{command} {where}")
        assert done.returncode == 1
        assert done.stderr.startswith("cannot write: ")
        assert done.stderr.count("\n") == 1


def test_a_complaint_never_joins_the_answer():
    done = run_shell("estimate no-such-scenario 2>&-")
    assert (done.returncode, done.stdout) == (2, "")
