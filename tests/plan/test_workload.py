"""Mixes of requests: read line by line, held in whole pages, a shared prefix once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_ledger import BadInput, Scenario, estimate
from dsa_ledger.plan.outcome import changed
from dsa_ledger.workload import Request, Workload, mix, parse_workload


def scenario(**tables: Any) -> Scenario:
    base = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "kv_dtype": "fp8_e4m3"}
    return Scenario.model_validate(base | {"sharding": {"tp": 8}, "observed": {"kv_bytes": "20 GiB"}} | tables)


def test_a_trace_and_a_histogram_are_read():
    trace = parse_workload("ContextTokens,GeneratedTokens\n100,7\n\n200,9\n")
    assert trace.requests == (Request(100, 7, 0, 1.0), Request(200, 9, 0, 1.0))
    histogram = parse_workload("prompt,output,share,cached\n1000,10,0.75,500\n9000,10,0.25,\n")
    assert histogram.mean([one.prompt for one in histogram.requests]) == 3000
    assert histogram.quantile(0.5) == 1010
    assert histogram.quantile(0.95) == 9010
    assert parse_workload("prompt,output\n20k,1Ki\n").requests == (Request(20_000, 1024, 0, 1.0),)


def test_every_bad_line_is_named_and_the_rest_used_only_when_asked():
    text = "prompt,output\n100,7\nx,7\n100,-1\n50,5\n100\n"
    with pytest.raises(BadInput) as bad:
        parse_workload(text)
    assert [fault.path for fault in bad.value.faults] == [
        "--workload: line 3: prompt", "--workload: line 4: output", "--workload: line 6: output",
    ]  # fmt: skip
    good = parse_workload(text, skip_bad=True)
    assert len(good.requests) == 2
    assert good.skipped == (3, 4, 6)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "prompt,output\n", "prompt,output\nx,y\n", "prompt,output,cached\n5,1,6\n"]
)
def test_a_file_without_a_request_is_refused(text):
    with pytest.raises(BadInput, match="--workload"):
        parse_workload(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    """Hostile text ends in requests or in BadInput, never in another error."""
    try:
        found = parse_workload("prompt,output\n" + text, skip_bad=True)
    except BadInput:
        return
    assert found.requests


def test_a_mix_of_one_length_is_what_the_ledger_says():
    """Requests that end at 100,000 tokens are those of `--context 100k`: 20 GiB hold 398,080 tokens, 3 such."""
    found = mix(scenario(), Workload((Request(99_000, 1000, 0, 1.0),)))
    ledger = estimate(scenario(load={"context": 100_000}))
    assert found.requests == ledger["pool.requests_at_context"] == 3
    assert found.mean_tokens == 100_032


def test_a_shared_prefix_is_held_once_and_written_once():
    workload = Workload((Request(50_000, 1000, 0, 1.0),))
    alone, shared = mix(scenario(), workload), mix(scenario(), workload, 40_000)
    pool = estimate(scenario())["pool.tokens"]
    assert alone.requests == pool // 51_008 == 7
    assert shared.shared_tokens == 40_000
    assert shared.requests == (pool - 40_000) // (51_008 - 40_000) == 32
    # 132 B in 21 full layers for each token that is not shared; read by every request all the same.
    assert shared.mean_prefill_write_bytes == 132 * 21 * 10_000
    assert shared.mean_step_read_bytes == alone.mean_step_read_bytes == 132 * 21 * 50_500
    with pytest.raises(BadInput, match="--shared-prefix"):
        mix(scenario(), workload, 60_000)


def test_a_cached_prefix_is_read_and_not_written():
    plain, cached = (mix(scenario(), Workload((Request(10_000, 0, hit, 1.0),))) for hit in (0, 6000))
    assert cached.mean_prefill_write_bytes == 132 * 21 * 4000
    assert cached.mean_step_read_bytes == plain.mean_step_read_bytes
    assert cached.cached_share == pytest.approx(0.6)
    assert cached.requests == plain.requests, "another request's cached prefix still takes its place in the pool"


def test_drafted_tokens_take_slots():
    found = mix(scenario(draft={"steps": 3}), Workload((Request(6400, 0, 0, 1.0),)))
    assert found.mean_tokens == 6464, "6,400 tokens fill 100 pages; three drafted ones open another"


@settings(max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 90_000), st.integers(0, 5000)), min_size=1, max_size=6),
    shared=st.integers(0, 1000),
)
def test_a_mix_lies_between_its_shortest_and_its_longest(lengths, shared):
    """A pool holds at least as many of a mix as of its longest requests and at most as many as of its shortest."""
    requests = tuple(Request(prompt + 1000, output, 0, 1.0) for prompt, output in lengths)
    found = mix(scenario(), Workload(requests), shared)
    ends = [one.prompt + one.output for one in requests]
    longest, shortest = (
        next(one for one in requests if one.prompt + one.output == end) for end in (max(ends), min(ends))
    )
    assert mix(scenario(), Workload((longest,)), shared).requests <= found.requests
    assert found.requests <= mix(scenario(), Workload((shortest,)), shared).requests
    assert found.all_longest <= found.requests


def test_replicas_each_have_a_pool():
    one = scenario(sharding={"tp": 8, "ep": 8, "dp_attention": 8}, gpu="B200")
    workload = Workload((Request(99_000, 1000, 0, 1.0),))
    ledger = estimate(changed(one, load={"context": 100_000}))
    assert mix(one, workload).requests == 8 * ledger["pool.requests_at_context"]


def test_the_command_reads_a_file(tmp_path, run):
    path = tmp_path / "trace.csv"
    path.write_text("prompt,output\n9000,100\nbad,1\n")
    for arguments, expect in ((["--skip-bad"], 0), ([], 2)):
        code, out, err = run("plan", "glm52-8xh200-fp8", "--workload", str(path), *arguments)
        assert code == expect
        assert ("skipped 1 bad lines: 3" in out) == (code == 0)
        assert ("line 3" in err) == (code == 2)
