"""An allocation that failed: the stated chunk alone, nothing inferred beside an exact entry, advice to go down."""

from __future__ import annotations

import pytest
from test_audit import audited, run

RAN_OUT = """\
[2026-11-20 10:00:00] server_args=ServerArgs(model_path='zai-org/GLM-5.2-FP8', tp_size=8, context_length=131072, \
kv_cache_dtype='fp8_e4m3', mem_fraction_static=0.85, chunked_prefill_size=8192)
[2026-11-20 10:00:11 TP0] Load weight begin. avail mem=138.60 GB
[2026-11-20 10:03:11 TP0] Load weight end. elapsed=180.00 s, type=GlmMoeDsaForCausalLM, quant=fp8, \
avail mem=49.50 GB, mem usage=89.10 GB.
[2026-11-20 10:03:12 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 571456, KV size: 28.71 GB
[2026-11-20 10:03:13 TP0] max_total_num_tokens=571456, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=19.87 GB
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.90 GiB. GPU 0 has a total capacity of 139.80 GiB of \
which 3.10 GiB is free.
"""
H200 = {"gpu": "H200"}


def test_only_the_chunk_that_the_log_states_is_a_suspect():
    """3.90 x 2^30 / (4 x 8,192) = 127,795 keys, fewer than the 131,072 of the context."""
    ((_, found),) = audited(RAN_OUT, H200).refusals
    assert [suspect.says.partition(": ")[2] for suspect in found] == [
        "8,192 rows x about 127,795 keys x 4 B (the chunk stated)"
    ]


def test_a_chunk_that_cannot_give_the_size_gives_no_suspect():
    """5.00 x 2^30 / (4 x 8,192) = 163,840 keys, more than the context holds."""
    ((_, found),) = audited(RAN_OUT.replace("3.90 GiB", "5.00 GiB"), H200).refusals
    assert not found


def test_nothing_is_inferred_where_an_entry_gives_the_size_exactly():
    """A 1M context of vLLM 0.28 gathers 1,048,576 x 40 x 132 B = 5.16 GiB (vLLM #55221); 8,192 x 169,083 x 4 B too."""
    text = "(Worker_TP0 pid=1) INFO [x.py:1] Available KV cache memory: 60.0 GiB\nTried to allocate 5.16 GiB"
    tables = {
        "model": "zai-org/GLM-5.2-FP8",
        "gpu": "H200",
        "engine": "vllm@0.28.0",
        "sharding": {"tp": 8},
        "kv_dtype": "fp8",
    }
    ((_, found),) = audited(text, tables).refusals
    assert found
    assert all(suspect.exact for suspect in found)
    assert "--max-model-len" in found[0].shrinks


def test_advice_on_memory_that_ran_out_points_down():
    """0.80 GiB of 139.80 were short, a share of 0.0057: at most 0.844. SGLang's logits budget grows as it falls."""
    shown = run("audit", "-", "--gpu", "H200", stdin=RAN_OUT).stdout
    words = " ".join(shown.split())
    assert "a smaller --chunked-prefill-size shrinks it; a lower --mem-fraction-static leaves more room" in words
    assert (
        "or --mem-fraction-static at most 0.844 (0.80 GiB were short at 0.85)" in words.partition("what to change")[2]
    )
    assert "--mem-fraction-static shrinks" not in words
    markdown = run("audit", "-", "--gpu", "H200", "--format", "md", stdin=RAN_OUT).stdout
    assert "--chunked-prefill-size shrinks it; a lower --mem-fraction-static leaves more room" in markdown


@pytest.mark.parametrize("ran_out", [True, False])
def test_a_server_that_ran_out_of_memory_is_not_told_to_give_its_pool_more(tmp_path, ran_out):
    """A share of memory above the log's 0.85 is no change for a server that ran out of memory at 0.85."""
    from dsa_ledger.audit.report import audit
    from dsa_ledger.plan.gains import anchored, gains

    log = tmp_path / "log"
    log.write_text(RAN_OUT, encoding="utf-8")
    scenario = anchored(audit(str(log), {**H200, "load": {"context": 65536}}))
    assert scenario is not None
    found = gains(scenario, ran_out=ran_out).found
    shares = [gain.change.scenario.limits.mem_fraction or 0 for gain in found]
    assert (max(shares) > 0.85) is not ran_out


def test_a_table_made_before_the_pool_is_no_suspect_while_graphs_are_captured():
    """SGLang fills (512 + 1) x 131,076 x 4 B = 256.51 MiB before its pool (model_runner, init_memory)."""
    asked = RAN_OUT.replace("3.90 GiB", "256.51 MiB").replace("requests=2048", "requests=512")
    asked = asked.replace("mem_fraction_static", "max_running_requests=512, mem_fraction_static")
    begin = (
        "[2026-11-20 10:03:14 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=19.80 GB"
    )
    before, capturing = (
        {suspect.key for suspect in audited(text, H200).refusals[0][1]}
        for text in (asked, asked.replace("torch.OutOf", f"{begin}\ntorch.OutOf"))
    )
    assert before == {"workspace.req_to_token_bytes"}
    assert "workspace.req_to_token_bytes" not in capturing
