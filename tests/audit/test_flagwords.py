"""An option of ours in a sentence is the engine's flag where the reader has a command or a log; other words stay."""

from __future__ import annotations

import pytest

from dsa_ledger.audit.flagtable import flag_table
from dsa_ledger.audit.flagwords import WORDS, in_engine_words


@pytest.mark.parametrize(
    ("engine", "sentence", "expect"),
    [
        ("vllm", "--context-length or --max-running-requests (max_num_seqs)", "--max-model-len or --max-num-seqs"),
        ("vllm", "--mem-fraction, --mem-fraction-static", "--gpu-memory-utilization, --mem-fraction-static"),
        ("sglang", "--mem-fraction above 0.643; --kv-bytes", "--mem-fraction-static above 0.643; --kv-bytes"),
        ("tensorrt-llm", "set --max-running-requests", "set --max_batch_size"),
        ("vllm", "give --kv-bytes from the log", "give --kv-bytes from the log"),
    ],
)  # fmt: skip
def test_options_are_put_in_the_engine_s_words(engine, sentence, expect):
    assert in_engine_words([sentence], engine) == [expect]


@pytest.mark.parametrize("engine", sorted(WORDS))
def test_every_flag_named_is_a_flag_of_the_engine(engine):
    flags = [flag for flag in WORDS[engine].values() if flag.startswith("--")]
    assert all(flag_table(engine).find(flag, None).flag for flag in flags)
