"""Direct answers: figures from public threads, and the rule that the answer is the last that fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_ledger import BadInput, NotModelled, Scenario, estimate
from dsa_ledger.plan.answers import largest_context, max_concurrency, safe_chunk
from dsa_ledger.plan.changes import nearest
from dsa_ledger.plan.outcome import attempt, changed
from dsa_ledger.render.plan import answers_text, sentence

GIB = 2**30


def scenario(**tables: Any) -> Scenario:
    asked = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "vllm@0.28.0", "sharding": {"tp": 8}} | tables
    word = "fp8_e4m3" if asked["engine"].startswith("sglang") else "fp8"
    if asked["engine"].startswith("tensorrt") and asked["gpu"].startswith("H"):
        word = "auto"  # TensorRT-LLM's sparse attention takes fp8 from SM100 on
    return Scenario.model_validate({"kv_dtype": word} | asked)


# https://github.com/vllm-project/recipes/pull/893: 25.94 GiB for KV, 53,940 B a token, 1,048,576 does not start.
SEEN = {"observed": {"kv_bytes": "25.94 GiB"}}


def test_a_million_tokens_do_not_fit_on_8_h200_and_about_516_thousand_do():
    answer = largest_context(scenario(limits={"context_length": 1_048_576}, **SEEN))
    assert not answer.holds
    assert answer.asked == 1_048_576
    # 25.94 GiB // (64 x 53,940 B) = 8,068 blocks, one of them the null block, 64 tokens each.
    assert answer.value == 8_067 * 64 == 516_288
    assert "would not start" in answer.why_not
    names = [tried.change.name for tried in answer.changes]
    # DCP 2 gives 2 x 516,352 = 1,032,704 tokens: 1.5% short of the model's own length, enough for a million.
    assert "--dcp 4 --engine vllm@0.29.0" in names
    assert "--tp 16" in names
    assert not [name for name in names if name.startswith("--kv-dtype")], "576 B a record: 584 thousand tokens"


def test_a_million_fits_with_dcp_2_from_the_release_that_takes_it():
    answer = largest_context(scenario(limits={"context_length": 1_000_000}, **SEEN))
    assert next(tried.change.name for tried in answer.changes) == "--dcp 2 --engine vllm@0.29.0"


def test_250_thousand_on_4_cards_of_96_gb_needs_dcp_4():
    """10.3 GiB at 79 x (656 + 132) = 62,252 B a token hold 177 thousand tokens (github.com/REAP-469B, 2026)."""
    base = scenario(
        model="nvidia/GLM-5.1-NVFP4", gpu="H100-NVL", engine="vllm@0.33.0", sharding={"tp": 4}, draft={"steps": 1},
        limits={"context_length": 202_752}, observed={"kv_bytes": "10.3 GiB", "free_after": 14},
        model_overrides={"index_topk_freq": 1},
    )  # fmt: skip
    assert estimate(base)["cell.bytes"] == 62_252
    alone = largest_context(changed(base, limits={"context_length": 177_700}))
    assert alone.value == (int(10.3 * GIB) // (64 * 62_252) - 1) * 64 == 177_536
    wanted = changed(base, limits={"context_length": 250_000}, load={"context": 250_000})
    assert not attempt(wanted).holds
    assert attempt(changed(wanted, sharding={"dcp": 4})).holds
    assert "--dcp 2" in [tried.change.name for tried in nearest(wanted, lambda outcome: outcome.holds)]


def test_the_pool_without_idle_index_keys_holds_a_sixth_more_tokens():
    """47,700 against 55,224 B a token are +16% tokens (https://github.com/sgl-project/sglang/pull/30531)."""
    either = {"model": "nvidia/GLM-5.2-NVFP4", "gpu": "GB300", "kv_dtype": "auto", "sharding": {"tp": 4}}
    seen = {"observed": {"kv_bytes": "132 GiB"}, "load": {"context": 100_000}}
    before, after = (
        largest_context(scenario(engine=f"sglang@{version}", **either, **seen)).outcome.value("pool.tokens")
        for version in ("0.5.17", "0.5.18")
    )
    assert after / before == pytest.approx(55_224 / 47_700, abs=1e-3)


def test_four_bit_index_keys_give_a_tenth_with_all_owners_and_a_thirtieth_with_21():
    """128 / 2 + 4 = 68 B instead of 132: +9.9% with 78 owners (sglang PR #30546), +2.9% with 21 (TensorRT-LLM)."""
    base = scenario(engine="tensorrt-llm@1.4.0rc2", gpu="B200", observed={"kv_bytes": "60 GiB"})
    for model, gain in (("zai-org/GLM-5.3", 1.029), ("zai-org/GLM-5.1-FP8", 1.099)):
        plain = changed(base, model=model)
        before, after = (
            attempt(one).value("pool.tokens") for one in (plain, changed(plain, features=("fp4-index-k",)))
        )
        assert after / before == pytest.approx(gain, abs=1e-3)


@settings(max_examples=60)
@given(
    engine=st.sampled_from(["sglang@0.5.23", "vllm@0.33.0", "vllm@0.28.0", "tensorrt-llm@1.4.0rc2"]),
    gpu=st.sampled_from(["H200", "B200", "H20"]),
    gib=st.integers(1, 60),
    batch=st.integers(1, 9),
)
def test_the_largest_context_is_the_last_that_fits(engine, gpu, gib, batch):
    """A context is the largest when it fits and one page more does not, unless the model ends there."""
    one = scenario(
        engine=engine, gpu=gpu, observed={"kv_bytes": gib * GIB, "free_after": 70}, load={"batch": batch, "context": 64}
    )
    answer = largest_context(one)
    if answer.value:
        assert attempt(changed(one, limits={"context_length": answer.value}, load={"context": answer.value})).holds
    more = answer.value + 64
    if more <= 1_048_576:
        assert not attempt(changed(one, limits={"context_length": more}, load={"context": more})).holds


@settings(max_examples=60)
@given(
    engine=st.sampled_from(["sglang@0.5.23", "vllm@0.33.0", "tensorrt-llm@1.4.0rc2"]),
    replicas=st.sampled_from([1, 8]),
    context=st.integers(64, 200_000),
)
def test_the_most_requests_are_the_last_that_fit(engine, replicas, context):
    """So many requests fit; one more does not, unless the cap on running requests is what bounds them."""
    cut = {"tp": 8, "ep": 8, "dp_attention": replicas}
    if engine.startswith("vllm"):
        cut = {"tp": 8 // replicas, "ep": 8, "dp_attention": replicas}
    one = scenario(engine=engine, gpu="B200", sharding=cut, load={"context": context},
                   limits={"context_length": 202_752})  # fmt: skip
    answer = max_concurrency(one)
    assert attempt(changed(one, load={"batch": max(answer.value, 1)})).holds == bool(answer.value)
    if "running requests" not in answer.first_to_break:
        assert not attempt(changed(one, load={"batch": answer.value + 1})).holds


def test_requests_need_a_length():
    for question in (max_concurrency, safe_chunk):
        with pytest.raises(BadInput, match="--context"):
            question(scenario())


def test_what_is_not_modelled_is_said_and_not_answered():
    with pytest.raises(NotModelled):
        largest_context(scenario(engine="vllm@0.10.0"))


def test_a_safe_chunk_leaves_memory_and_the_next_one_does_not():
    one = scenario(gpu="H200", engine="sglang@0.5.23", kv_dtype="fp8_e4m3", load={"context": 131_072, "batch": 4})
    answer = safe_chunk(one)
    rows = {row.chunk_tokens: row for row in answer.chunks}
    assert answer.value == 8192
    assert rows[answer.value].headroom_bytes > 0
    # The default fraction keeps 1.5 MiB free for each token of the chunk: at 16,384 the load no longer fits.
    assert "pool tokens" in rows[16_384].reason
    fixed = safe_chunk(changed(one, limits={"mem_fraction": 0.88}))
    assert fixed.value > 8192, "with a fraction of one's own only the forward has to fit"
    assert "does not fit beside pool" in next(row.reason for row in fixed.chunks if not row.fits)


def test_an_answer_says_when_it_is_an_upper_bound():
    one = scenario(load={"context": 1000}, limits={"context_length": 100_000})
    assert largest_context(one).notes[0].startswith("at most")
    exact = largest_context(changed(one, observed={"kv_bytes": 20 * GIB}))
    assert not [note for note in exact.notes if note.startswith("at most")]


def test_a_change_that_drops_an_observed_figure_rests_on_priors():
    answer = largest_context(scenario(limits={"context_length": 1_048_576}, **SEEN))
    kept = {tried.change.name: tried.change.scenario.observed.kv_bytes for tried in answer.changes}
    assert kept["--dcp 4 --engine vllm@0.29.0"] == round(25.94 * GIB)
    assert kept["--tp 16"] is None


def test_a_chunk_of_a_model_whose_weights_are_not_known_is_not_modelled():
    one = scenario(
        model="zai-org/GLM-5.3-Flash", engine="sglang@0.5.23", kv_dtype="bf16", observed={"kv_bytes": "40 GiB"},
        load={"context": 100_000},
    )  # fmt: skip
    with pytest.raises(NotModelled, match="safe chunk"):
        safe_chunk(one)
    assert max_concurrency(one).value > 0


def test_a_load_that_the_pool_holds_may_be_short_outside_it():
    """8,192 rows x 256,000 keys x 4 B are 7.8 GiB of prefill logits: half the rows, or a smaller pool, make room."""
    one = scenario(
        engine="tensorrt-llm@1.4.0rc2", kv_dtype="auto", sharding={"tp": 8, "dp_attention": 8},
        load={"context": 256_000, "batch": 4},
    )  # fmt: skip
    answer = max_concurrency(one)
    assert answer.value >= 4
    assert not answer.holds
    assert sentence(answer).endswith(f"4 asked: {answer.outcome.short}")
    names = [tried.change.name.split("=")[0].split(" 0.")[0] for tried in answer.changes]
    assert names[:2] == ["--set limits.chunked_prefill", "--mem-fraction"]
    assert all(tried.outcome.fits for tried in answer.changes)


def test_the_table_of_contexts_times_the_batch_that_it_names():
    """A step is timed for the asked batch, which is named, and only where so many requests fit."""
    one = scenario(engine="sglang@0.5.23", kv_dtype="fp8_e4m3", load={"context": 1000, "batch": 16})
    answer = max_concurrency(one)
    text, batch = answers_text(one, [answer], "table"), answer.value
    words = " ".join(text.split())
    assert "logarithmic scale" in words
    assert f"a step of {batch:,} requests" in words
    rows = [line.split() for line in text.splitlines() if " #" in line and "Ki" in line]
    ends = {row[-1] for row in rows if int(row[1].replace(",", "")) < batch}
    assert ends == {"-"}


def test_columns_of_chunks_stay_apart():
    one = scenario(engine="sglang@0.5.23", kv_dtype="fp8_e4m3", load={"context": 1_000_000})
    lines = answers_text(one, [safe_chunk(one)], "table").splitlines()
    start = next(at for at, line in enumerate(lines) if line.split()[:2] == ["chunk", "fraction"])
    rows = [line for line in lines[start + 2 :] if line[:10].strip().replace(",", "").isdigit()]
    assert len(rows) >= 9
    assert {len(row.split()) for row in rows} <= {7, 8}, "six figures and a verdict, with the number of its reason"


def test_where_the_engine_s_cap_is_what_lacks_a_higher_cap_is_named():
    """SGLang runs 48 requests with drafts unless told otherwise; a rank's pool here holds more than 48 / 8."""
    one = scenario(
        model="nvidia/GLM-5.2-NVFP4", gpu="B200", engine="sglang@0.5.23", kv_dtype="auto", draft={"steps": 3},
        sharding={"tp": 8, "dp_attention": 8}, load={"context": 65_536, "batch": 64},
    )  # fmt: skip
    answer = max_concurrency(one)
    assert answer.value == 48
    assert answer.changes[0].change.name.startswith("--max-running-requests ")


def test_weights_that_do_not_fit_are_told_no_larger_share_of_what_they_leave():
    """TensorRT-LLM's share is of what the weights leave; below zero no share makes room, least of all one above 1."""
    answer = largest_context(scenario(engine="tensorrt-llm@1.4.0rc2", sharding={"tp": 4}, load={"context": 8192}))
    assert answer.value == 0
    assert not any("--mem-fraction" in tried.change.name for tried in answer.changes)
