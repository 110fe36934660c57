"""One question across engines and releases.

GLM-5.2: 78 layers of which 21 are full (config.json `indexer_types`); records of 576, 656 or 1,152 B, index-K 132 B.
SGLang: github.com/sgl-project/sglang/pull/30531, in 0.5.18. vLLM: shared layers own no index-K from 0.24
(github.com/vllm-project/vllm/pull/45895), GLM on SM100 takes fp8 by itself from 0.32. TensorRT-LLM:
github.com/NVIDIA/TensorRT-LLM/pull/15088 prints 110,448 charged for 100,152 held, /pull/16558 asserts 21 layers.
"""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest

from dsa_ledger.engines.releases import READ
from dsa_ledger.errors import BadInput, NotModelled
from dsa_ledger.matrix import WORDS, asked_of, engines_named, matrix
from dsa_ledger.schema import Engine, Scenario

MODEL = "zai-org/GLM-5.2-FP8"
SHARED = ["--model", MODEL, "--tp", "8", "--context", "100k"]
WIDTH = 80
KEYS = ("record.main_kv_bytes", "cell.bytes", "model.index_k_layers")
# On eight B200 with the KV format left to the engine.
EXPECTED = {
    ("sglang", "0.5.10"): (576, 55_224, 78),
    ("sglang", "0.5.14"): (576, 55_224, 78),
    ("sglang", "0.5.17"): (576, 55_224, 78),
    ("sglang", "0.5.18"): (576, 47_700, 21),
    ("sglang", "0.5.23"): (576, 47_700, 21),
    ("vllm", "0.19.0"): (1_152, 100_152, 78),
    ("vllm", "0.23.0"): (1_152, 100_152, 78),
    ("vllm", "0.24.0"): (1_152, 92_628, 21),
    ("vllm", "0.31.0"): (1_152, 92_628, 21),
    ("vllm", "0.32.0"): (576, 47_700, 21),
    ("vllm", "0.33.0"): (576, 47_700, 21),
    ("tensorrt-llm", "1.3.0rc17"): (1_152, 110_448, 78),
    ("tensorrt-llm", "1.3.0rc25"): (1_152, 92_628, 21),
}


def scenario(gpu: str = "B200", **fields: object) -> Scenario:
    tables = {"model": MODEL, "gpu": gpu, "engine": "sglang", "sharding": {"tp": 8}, "load": {"context": 100_000}}
    return Scenario.model_validate(tables | fields)


@pytest.fixture(scope="module")
def found():
    return matrix(scenario(), engines_named(""))


@pytest.mark.parametrize("release", EXPECTED)
def test_glm_on_eight_b200(found, release):
    engine, version = release
    (answer,) = [one for one in found.answers if one.engine == engine and version in one.releases]
    assert tuple(answer.figures[key] for key in KEYS) == EXPECTED[release]


def test_every_read_release_is_in_one_row_and_neighbours_differ(found):
    for engine, versions in READ.items():
        answers = [answer for answer in found.answers if answer.engine == engine]
        assert [version for answer in answers for version in answer.releases] == list(versions)
        for one, after in itertools.pairwise(answers):
            assert (one.figures, one.verdict, one.reason) != (after.figures, after.verdict, after.reason)


def test_consecutive_releases_with_the_same_figures_are_one_span(found):
    assert "0.5.18 - 0.5.23" in [answer.span for answer in found.answers if answer.engine == "sglang"]


def test_what_changed_names_the_rule_and_the_release(found):
    changes = {(change.engine, change.version, change.key): change for change in found.changes}
    assert "PR #30531" in changes["sglang", "0.5.18", "model.index_k_layers"].source_b
    assert "PR #45895" in changes["vllm", "0.24.0", "model.index_k_layers"].source_b
    assert (
        changes["vllm", "0.20.0", "engine.mem_fraction"].a,
        changes["vllm", "0.20.0", "engine.mem_fraction"].b,
    ) == (
        0.9,
        0.92,
    )


def test_the_pool_of_vllm_and_tensorrt_llm_is_an_upper_bound_unless_its_bytes_are_given(found):
    for answer in found.answers:
        assert answer.pool_is_upper_bound == (answer.engine != "sglang" and bool(answer.figures))
    given_bytes = matrix(scenario(observed={"kv_bytes": "60 GiB"}), engines_named("vllm@0.33.0,sglang@0.5.18"))
    assert [answer.pool_is_upper_bound for answer in given_bytes.answers] == [False, False]


def test_a_refused_format_is_a_row_with_the_reason():
    found = matrix(scenario(gpu="H200", kv_dtype="nvfp4"), engines_named("sglang@0.5.18,sglang@0.5.19,vllm@0.33.0"))
    first = found.answers[0]
    assert (first.engine, first.releases, first.verdict, first.figures) == (
        "sglang",
        ("0.5.18", "0.5.19"),
        "refused",
        {},
    )
    assert "kv_dtype: 'nvfp4'" in first.reason
    assert "SGLang takes only bf16 and fp8_e4m3" in first.reason


def test_what_is_not_modelled_is_a_row_with_the_reason(found):
    (answer,) = [one for one in found.answers if "1.3.0rc23" in one.releases]
    assert answer.verdict == "not modelled"
    assert "16558" in answer.reason


def test_a_fault_that_all_engines_have_alike_is_bad_input():
    with pytest.raises(BadInput, match="GLM-9"):
        matrix(scenario(model="GLM-9"), engines_named("sglang@0.5.18,vllm@0.33.0"))


def test_where_nothing_is_modelled_nothing_is_shown():
    with pytest.raises(NotModelled):
        matrix(scenario(), engines_named("sglang@0.4.0,vllm@0.1.0"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("auto", ("auto", "auto", "auto")),
        ("bf16", ("bf16", "bfloat16", "bf16")),
        ("fp8", ("fp8_e4m3", "fp8", "fp8")),
        ("FP8_E4M3", ("fp8_e4m3", "fp8", "fp8")),
        ("nvfp4", ("nvfp4", "nvfp4_ds_mla", "nvfp4")),
        ("int4", ("int4", "int4", "int4")),
    ],
)
def test_one_word_for_the_format_fits_every_engine(word, expected):
    asked = [asked_of(scenario(kv_dtype=word), Engine(name=name, version="1")) for name in READ]  # type: ignore[arg-type]
    assert tuple(each.kv_dtype for each in asked) == expected


def test_every_word_of_the_table_is_spelled_for_every_engine():
    assert all(set(spelled) == set(READ) for spelled in WORDS.values())


def test_engines_are_named_with_or_without_a_version():
    named = engines_named(" trtllm@1.2.1, vllm ,vllm@0.33.0")
    assert (named[0].name, named[0].version) == ("tensorrt-llm", "1.2.1")
    assert [engine.version for engine in named[1:]] == list(READ["vllm"])  # the one named twice counts once
    with pytest.raises(BadInput) as bad:
        engines_named("sgalng,vllm@new")
    assert [fault.path for fault in bad.value.faults] == ["--engines", "--engines"]
    assert "did you mean 'sglang'" in bad.value.faults[0].expected


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_the_matrix_in_every_format(run, form):
    code, out, err = run("compare", "--engine-matrix", *SHARED, "--gpu", "B200", "--format", form)
    assert (code, err) == (0, "")
    if form == "table":
        assert max(map(len, out.splitlines())) <= WIDTH
        assert "  0.5.18 - 0.5.23          576  47,700      21" in out
        assert "<= " in out
    elif form == "json":
        rows = json.loads(out)["rows"]
        (row,) = [row for row in rows if "0.5.17" in row["releases"]]
        assert (row["cell.bytes"], row["model.index_k_layers"], row["verdict"]) == (55_224, 78, "fits")
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert {row["engine"] for row in rows} == set(READ)
    else:
        assert "| sglang | 0.5.18 - 0.5.23 | auto |" in out


def test_the_matrix_shows_a_refusal_in_its_row(run):
    code, out, _ = run(
        "compare", "--engines", "sglang@0.5.18,vllm@0.33.0", *SHARED, "--gpu", "B200", "--kv-dtype", "nvfp4"
    )
    assert code == 0
    assert "  0.5.18                 refused (1): kv_dtype: 'nvfp4': SGLang takes only" in out


def test_the_matrix_without_context_has_no_requests(run):
    code, out, _ = run("compare", "--engines", "sglang@0.5.18", "--model", MODEL, "--gpu", "B200", "--tp", "8")
    assert code == 0
    assert "requests" not in out


def test_the_matrix_refuses_what_contradicts_it(run):
    base = ["compare", "--engine-matrix", *SHARED, "--gpu", "B200"]
    for more in (["--engine", "sglang"], ["--b", "kv_dtype=bf16"], ["--engines", "lmdeploy"], ["--format", "xml"]):
        code, out, err = run(*base, *more)
        assert (code, out) == (2, ""), more
        assert more[0] in err


def test_the_matrix_takes_a_launch_command_of_any_engine(run):
    for command in (f"sglang serve --model-path {MODEL} --tp 8", f"vllm serve {MODEL} --tensor-parallel-size 8"):
        code, out, err = run(
            "compare", "--engines", "sglang@0.5.18,vllm@0.33.0", "--gpu", "B200", "--from-command", command
        )
        assert (code, err) == (0, "")
        assert "  0.5.18 " in out
        assert "  0.33.0 " in out


def test_a_verdict_and_the_number_of_its_reason_are_told_apart(run):
    code, out, _ = run(
        "compare", "--engines", "sglang@0.5.23", "--model", MODEL, "--gpu", "H200", "--tp", "8", "--context", "100k",
        "--batch", "400",
    )  # fmt: skip
    assert code == 0
    assert " no (1)\n" in out
    assert "\n  (1) 400 requests" in out
