"""A start that ends for want of memory says how much was short and what the engine's own flag would have to be."""

from __future__ import annotations

import pytest
from test_audit import audited, run

SGLANG = """\
[2026-11-20 10:00:00] server_args=ServerArgs(model_path='zai-org/GLM-5.2-FP8', tp_size=8, kv_cache_dtype='fp8_e4m3', \
mem_fraction_static=0.6, chunked_prefill_size=8192)
[2026-11-20 10:00:11 TP0] Load weight begin. avail mem=138.60 GB
[2026-11-20 10:03:11 TP0] Load weight end. elapsed=180.00 s, type=GlmMoeDsaForCausalLM, quant=fp8, \
avail mem=49.50 GB, mem usage=89.10 GB.
Traceback (most recent call last):
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
"""
NEWER = SGLANG.replace(
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. Raise "
    "--mem-fraction-static above 0.643 (minimum viable = 1 - available/pre = 0.6429).",
)
H200 = {"gpu": "H200"}


@pytest.mark.parametrize("text", [SGLANG, NEWER])
def test_weights_that_leave_no_pool_are_told_with_what_is_short_and_the_least_fraction(text):
    """SGLang keeps (1 - 0.6) x 138.60 = 55.44 GiB aside: 5.94 more than 49.50; 1 - 49.50 / 138.60 = 0.6429."""
    report = audited(text, H200)
    (stop,) = report.stops
    assert stop.line == 5
    assert "weights leave no pool" in stop.says
    assert stop.says.endswith("keeps 55.44 GiB of the 138.60 GiB before them out of it: 5.94 GiB short")
    assert report.advice[0].startswith("--mem-fraction-static above 0.643 ")


def test_a_server_that_did_not_start_is_exit_code_3():
    done = run("audit", "-", "--gpu", "H200", stdin=SGLANG)
    assert done.returncode == 3
    assert "did not start, line 5: weights leave no pool" in done.stdout
    assert "--mem-fraction-static above 0.643" in done.stdout
    assert not done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_csv_which_has_no_place_for_sentences_says_it_on_standard_error():
    done = run("audit", "-", "--gpu", "H200", "--format", "csv", stdin=SGLANG)
    assert done.returncode == 3
    assert "did not start: weights leave no pool" in done.stderr


def test_the_line_alone_is_enough_to_be_told():
    (stop,) = audited("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", {}).stops
    assert stop.says == "weights leave no pool"
    assert stop.change.startswith("--mem-fraction-static higher")


def test_a_start_that_went_well_after_one_that_failed_counts():
    retried = SGLANG.replace("mem_fraction_static=0.6", "mem_fraction_static=0.886").replace("RuntimeError: Not", "--")
    pool = "[2026-11-20 11:03:12 TP0] KV Cache is allocated. #tokens: 671616, KV size: 33.74 GB\n"
    report = audited(SGLANG + retried + pool, H200)
    assert not report.stops
    assert report.inferred["record.main_kv_bytes"] == 656


VLLM = "(Worker_TP0 pid=1) INFO 11-20 10:02:00 [gpu_worker.py:773] Available KV cache memory: -2.80 GiB\n"
KNOWN = {"model": "zai-org/GLM-5.2-FP8", "gpu": "H200", "engine": "vllm@0.33.0", "sharding": {"tp": 8}}


def test_vllm_without_a_block_says_what_is_short_of_the_whole_gpu():
    """2.80 GiB of the 140.40 GiB that an H200 has are a share of 0.0199: 0.60 must rise above 0.6199."""
    refused = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when ..."
    (stop,) = audited(VLLM + refused, {**KNOWN, "limits": {"mem_fraction": 0.6}}).stops
    assert stop.says.endswith("leave no pool: 2.80 GiB short")
    assert stop.change.startswith("--gpu-memory-utilization above 0.620;")


def test_a_request_longer_than_vllm_s_pool_says_the_longest():
    """https://github.com/vllm-project/vllm/issues/44376 (6.66 GiB asked, 5.44 there) and V0's own words (#11391)."""
    newer = (
        "ValueError: To serve at least one request with the model's max seq len (30000), (6.66 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (5.44 GiB). Based on the available memory, the estimated "
        "maximum model length is 13528."
    )
    (stop,) = audited(newer, {}).stops
    assert stop.says == "one request of 30,000 tokens needs 6.66 GiB of pool, it has 5.44 GiB: 1.22 GiB short"
    assert stop.change.startswith("--max-model-len at most 13,528")
    older = (
        "ValueError: The model's max seq len (56000) is larger than the maximum number of tokens that can be stored in "
        "KV cache (43328). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
    )
    (stop,) = audited(older, {}).stops
    assert stop.change.startswith("--max-model-len at most 43,328")


def test_a_gpu_that_others_hold_is_told_as_that():
    """12.38 / 287.69 = 0.0430."""
    text = (
        "ValueError: Free memory on device cuda:0 (12.38/287.69 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 264.67 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    (stop,) = audited(text, {}).stops
    assert stop.says == "12.38 of 287.69 GiB are free at the start, --gpu-memory-utilization asks for 264.67"
    assert stop.change.endswith("or --gpu-memory-utilization at most 0.043")


NOT_CREATED = "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
NAMED = NOT_CREATED + "The following component could not be created: "


@pytest.mark.parametrize(
    ("text", "says", "change"),
    [
        ("AssertionError: Impossible to fit in any sequence in kvCache", "the pool holds not one block", "higher"),
        (
            f"{NAMED}KV cache\nFree GPU memory before component creation attempt (GiB): 31.07\n",
            "out of memory while making: KV cache, with 31.07 GiB free before it",
            "free_gpu_memory_fraction lower",
        ),
        (f"{NAMED}Model\n", "out of memory while making: Model", "a smaller max_num_tokens, or more GPUs"),
    ],
)
def test_tensorrt_llm_names_what_it_could_not_make(text, says, change):
    (stop,) = audited(text, {}).stops
    assert stop.says == says
    assert change in stop.change


def test_arguments_that_limit_nothing_are_read_as_well():
    """Of these arguments none has max_ in its name; the model among them is what a ledger needs."""
    arguments = "{'model_tag': 'zai-org/GLM-5.3', 'model': 'zai-org/GLM-5.3', 'tensor_parallel_size': 8}"
    text = f"(APIServer pid=1) INFO [utils.py:233] non-default args: {arguments}\n{VLLM}"
    shown = run("audit", "-", "--gpu", "H200", "--engine", "vllm@0.24.0", stdin=text).stdout
    assert "from the arguments that the log prints: sharding.tp, model" in " ".join(shown.split())
    assert "no ledger to hold the log against" not in shown


def test_a_release_that_was_not_read_is_said_once():
    """Two formats are tried of a log that names none; both fail for the release alone."""
    text = (
        "[TensorRT-LLM] TensorRT-LLM version: 1.2.0\n"
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 97.02 GiB, available KV cache "
        "memory when calculating max tokens: 72.51 GiB, fraction is set 0.9, kv size is 47700. device total memory "
        "178.36 GiB\n"
    )
    warnings = audited(text, {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "sharding": {"tp": 8}}).warnings
    assert sum(said.count("its rules were not read") for said in warnings) == 1


def test_the_component_that_was_not_made_ends_with_a_letter():
    text = f"{NAMED}Additional executor resources (temporary for KV cache size estimation)\n"
    (name,) = [figure.value for figure in audited(text, {}).observed if figure.key == "component.name"]
    assert name == "Additional executor resources"
