"""Launch commands: what people wrote, what the engine's own parser would make of it, and hostile text."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger.audit.flagtable import flag_table
from dsa_ledger.audit.launch import Source, read_launch
from dsa_ledger.engines.releases import sort_key
from dsa_ledger.errors import BadInput

if TYPE_CHECKING:
    from dsa_ledger.audit.reading import Reading

HERE = Path(__file__).parent
COMMANDS = tomllib.loads((HERE / "commands.toml").read_text(encoding="utf-8"))["command"]
SERVE = "sglang serve --model-path zai-org/GLM-5.2-FP8"


def read(text: str, engine: str | None = None, version: str | None = None) -> Reading:
    return read_launch([Source(text)], engine, version)


def fields(text: str, version: str | None = None) -> dict[str, object]:
    return {path: setting.value for path, setting in read(text, version=version).settings.items()}


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case["id"])
def test_public_commands_set_the_fields_read_off_by_hand(case):
    reading = read(case["text"])
    found = {
        path: list(setting.value) if isinstance(setting.value, tuple) else setting.value
        for path, setting in reading.settings.items()
    }
    assert found == case["expect"]
    assert sorted(reading.missing) == sorted(case.get("missing", []))
    assert not [said for said in reading.unknown if "belongs to no flag" not in said]


def test_there_are_commands_of_both_engines():
    engines = [case["expect"]["engine"] for case in COMMANDS]
    assert len(engines) >= 17
    assert min(engines.count("sglang"), engines.count("vllm")) >= 5


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        (f"{SERVE} --tp=4", "sharding.tp", 4),
        (f"{SERVE} --tp 2 --tp-size 4", "sharding.tp", 4),  # the last wins
        ("sglang serve zai-org/GLM-5.2-FP8 --tp 8", "model", "zai-org/GLM-5.2-FP8"),
        (f"{SERVE} --context-length 128k", "limits.context_length", 128_000),
        (f"{SERVE} --context-length 1Mi", "limits.context_length", 1 << 20),
        (f"{SERVE} --expert-parallel-size 8", "sharding.ep", 8),
        (f"{SERVE} --attn-dp-size 4 --tp 8", "sharding.dp_attention", 4),
        (f"{SERVE} --tp 8 --enable-prefill-cp", "sharding.cp", 8),
        (f"{SERVE} --tp 8 --moe-a2a-backend deepep", "sharding.ep", 8),
        ("docker run lmsysorg/sglang:v0.5.6 sglang serve m --tp 8", "sharding.tp", 8),  # older than any flags read
        (f"{SERVE} --tp 8 --dp 2 --enable-dp-attention --enable-prefill-cp", "sharding.cp", 4),
        (f"{SERVE} --cuda-graph-bs 1 2 4 96 --tp 8", "limits.graph_requests", 96),
        (f"{SERVE} --nsa-decode-backend flashmla_kv", "backends.decode", "flashmla_kv"),
        (f"{SERVE} --disaggregation-mode decode", "features", ("pd-decode",)),
        (f"{SERVE} --enable-hisparse --hisparse-config '{{\"host_to_device_ratio\": 4}}'", "hisparse.ratio", 4),
        (f"{SERVE} --json-model-override-args '{{\"index_topk_freq\": 4}}'", "model_overrides.index_topk_freq", 4),
        (f"SGLANG_PP_LAYER_PARTITION=39,39 {SERVE} --pp-size 2", "sharding.pp_partition", [39, 39]),
        (f"export SGLANG_PP_LAYER_PARTITION=39,39\n{SERVE} --pp-size 2", "sharding.pp_partition", [39, 39]),
        (f"{SERVE} --chunked-prefill-size -1 --max-prefill-tokens 4096", "limits.chunked_prefill", 4096),
        (f"{SERVE} --speculative-algorithm NEXTN", "draft.steps", 3),
        ("vllm serve m --gpu-memory 0.9", "limits.mem_fraction", 0.9),
        ("vllm serve m --kv-cache-memory=20G", "observed.kv_bytes", 20 << 30),
        ("vllm serve m --max-model-len 8k", "limits.context_length", 8000),
        ("vllm serve m --max_model_len 8K", "limits.context_length", 8192),
        ("vllm serve m -pcp 2", "sharding.cp", 2),
        ("vllm serve m --spec-method mtp --spec-tokens 3", "draft.steps", 3),
        ("vllm serve m -sc.method=mtp -sc.num_speculative_tokens=2", "draft.steps", 2),
        ("python3 -m vllm.entrypoints.openai.api_server --model zai-org/GLM-5", "model", "zai-org/GLM-5"),
        ("docker run --gpus all vllm/vllm-openai:v0.28.0 --model zai-org/GLM-5 -tp 8", "engine", "vllm@0.28.0"),
        (
            "docker run lmsysorg/sglang:v0.5.15.post1-cu130 bash -c 'sglang serve x --tp 8'",
            "engine",
            "sglang@0.5.15.post1",
        ),
        ("trtllm-serve nvidia/GLM-5.2-NVFP4 --tp_size 8 --max_seq_len 4096", "limits.context_length", 4096),
        (
            'TP=8\nARGS=(--tp $TP --ep ${EP:-4})\npython -m sglang.launch_server --model x "${ARGS[@]}"',
            "sharding.ep",
            4,
        ),
    ],
)
def test_spellings(text, path, value):
    assert fields(text)[path] == value


def test_a_flag_of_another_release_is_named_with_the_release_that_had_it():
    said = read(f"{SERVE} --nsa-prefill-backend trtllm", version="0.5.23").unknown
    assert said == [
        "sglang 0.5.23 has no --nsa-prefill-backend (0.5.9 to 0.5.19); did you mean '--dsa-prefill-backend'?"
    ]
    assert not read(f"{SERVE} --nsa-prefill-backend trtllm", version="0.5.14").unknown


def test_an_unknown_flag_takes_its_value_along_and_is_named_with_the_nearest():
    reading = read(f"{SERVE} --tp-sise 4 --tp 8")
    assert reading.settings["sharding.tp"].value == 8
    assert reading.unknown == ["sglang has no --tp-sise; did you mean '--tp-size'?"]


def test_an_ambiguous_prefix_is_refused_as_argparse_does():
    reading = read(f"{SERVE} --pp 2", version="0.5.23")
    assert "sharding.pp" not in reading.settings
    assert reading.unknown[0].startswith("--pp is ambiguous: sglang has")


def test_what_changes_nothing_is_listed():
    reading = read(f"{SERVE} --port 30000 --trust-remote-code --disable-radix-cache")
    assert reading.ignored == ["--port 30000", "--trust-remote-code", "--disable-radix-cache"]


def test_a_command_without_a_version_says_which_releases_know_its_flags():
    notes = read(f"{SERVE} --cuda-graph-max-bs 16").notes
    assert any("the command fits 0.5.9 to 0.5.19" in note for note in notes)


@cache
def argparse_of(version: str) -> tuple[list[str], argparse.ArgumentParser]:
    """Return the long options of a release, and the standard library's own parser of them."""
    flags = flag_table("sglang").flags.items()
    names = [name for name, flag in flags if flag.known_to(sort_key(version)) and name.startswith("--")]
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for name in names:
        parser.add_argument(name, dest=name, nargs="?")
    return names, parser


@pytest.mark.parametrize("version", ["0.5.9", "0.5.14", "0.5.19", "0.5.23"])
@given(data=st.data())
def test_prefixes_resolve_as_argparse_resolves_them(version, data):
    """A long option may be cut to any unambiguous prefix of the release's own flags (argparse, allow_abbrev)."""
    names, parser = argparse_of(version)
    name = data.draw(st.sampled_from(names))
    cut = name[: data.draw(st.integers(3, len(name)))]
    ours = flag_table("sglang").find(cut, version).flag
    try:
        hits = [key for key, value in vars(parser.parse_args([cut, "value"])).items() if value == "value"]
    except argparse.ArgumentError:
        hits = []
    except SystemExit:
        hits = []
    assert ([ours.name] if ours else []) == hits


COMPOSE = """
services:
  server:
    image: lmsysorg/sglang:v0.5.18-cu130
    environment:
      - TP=8
    command: >
      python3 -m sglang.launch_server --model-path zai-org/GLM-5.2-FP8
      --tp ${TP} --kv-cache-dtype fp8_e4m3
"""
KUBERNETES = """
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: main
      image: vllm/vllm-openai:v0.29.0
      env:
        - name: UTIL
          value: "0.9"
      args: ["--model", "zai-org/GLM-5.2-FP8", "-tp", "8", "--gpu-memory-utilization", "$(UTIL)"]
"""
SHELL_POD = """
kind: Deployment
spec:
  template:
    spec:
      containers:
        - image: lmsysorg/sglang:v0.5.17
          command: ["/bin/sh", "-c"]
          args:
            - |
              exec sglang serve zai-org/GLM-5.2-FP8 \\
                --tp 4   # comment
"""


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        (
            COMPOSE,
            {"engine": "sglang@0.5.18", "model": "zai-org/GLM-5.2-FP8", "sharding.tp": 8, "kv_dtype": "fp8_e4m3"},
        ),
        (
            KUBERNETES,
            {"engine": "vllm@0.29.0", "model": "zai-org/GLM-5.2-FP8", "sharding.tp": 8, "limits.mem_fraction": 0.9},
        ),
        (SHELL_POD, {"engine": "sglang@0.5.17", "model": "zai-org/GLM-5.2-FP8", "sharding.tp": 4}),
    ],
)
def test_containers(text, expect):
    assert fields(text) == expect


TRT_YAML = """
enable_attention_dp: true
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  dtype: fp8
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
sparse_attention_config:
  indexer_k_dtype: fp4
print_iter_log: true
"""


@pytest.mark.parametrize("here", [True, False])
def test_the_yaml_of_trtllm_serve_is_read_from_a_here_document_or_a_second_file(here):
    command = "trtllm-serve nvidia/GLM-5.2-NVFP4 --tp_size 8 --extra_llm_api_options extra.yaml"
    if here:
        sources = [Source(f"cat > extra.yaml << 'EOF'\n{TRT_YAML}EOF\n{command}\n")]
    else:
        sources = [Source(command), Source(TRT_YAML, is_yaml=True)]
    reading = read_launch(sources)
    assert {path: setting.value for path, setting in reading.settings.items()} == {
        "engine": "tensorrt-llm",
        "model": "nvidia/GLM-5.2-NVFP4",
        "sharding.tp": 8,
        "limits.mem_fraction": "0.85",
        "kv_dtype": "fp8",
        "draft.steps": "3",
        "features": ("fp4-index-k",),
        "sharding.dp_attention": 8,
    }
    assert reading.ignored == ["print_iter_log: true"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello", "no server command found"),
        ("sglang serve a; vllm serve b", "2 server commands"),
        ("sglang serve 'a", "a ' is not closed"),
    ],
)
def test_a_text_without_one_command_is_bad_input(text, said):
    with pytest.raises(BadInput) as caught:
        read(text)
    assert any(said in line for line in caught.value.lines())


def test_the_engine_of_the_options_must_be_that_of_the_command():
    with pytest.raises(BadInput, match=r"engine\.name: 'vllm'"):
        read(SERVE, engine="vllm")


HOSTILE = "$(touch {0}) `touch {0}` --config {0} --model-path {0} --tp $(touch {0})"


def test_nothing_in_a_command_is_run_or_opened(tmp_path, monkeypatch):
    victim = tmp_path / "config.json"
    opened = []
    read("sglang serve m")  # our own flag table is read once, and not counted below
    monkeypatch.setattr(Path, "open", lambda self, *_a, **_k: opened.append(self))
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **_k: pytest.fail(f"ran {a}"))
    reading = read("sglang serve " + HOSTILE.format(victim))
    assert not victim.exists()
    assert opened == []
    assert set(reading.missing) == {"model", "sharding.tp"}


def test_yaml_makes_nothing_but_text():
    text = "services:\n  a:\n    image: x\n    command: !!python/object/apply:os.system ['sglang serve m']\n"
    with pytest.raises(BadInput):
        read(text)


def test_a_yaml_bomb_is_walked_once():
    lines = ["services:", "  a0: &a0 [x, x]"]
    lines += [f"  a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    start = time.process_time()
    with pytest.raises(BadInput, match="no server command"):
        read("\n".join(lines))
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "piece", ["'", '"', "$(", "${a", "<<A\n", "(", "a=(", "\\", "`", "--x ", "$a", "a=$a$a;", "[", "{"]
)
def test_reading_takes_time_in_proportion(piece):
    """Four times the text takes at most about four times the time; ten is a wide margin for a shared machine."""

    def took(length: int) -> float:
        start = time.process_time()
        with pytest.raises(BadInput):
            read("a=b\n" + piece * (length // len(piece)))
        return time.process_time() - start

    short, long = (min(took(length) for _ in range(3)) for length in (40_000, 160_000))
    assert long < 10 * max(short, 0.02)


@given(st.text(alphabet="sglang serve--tp 8'\"$(){}[]<>|&;\\\n=`#*.,x", max_size=300))
def test_any_text_is_read_or_refused(text):
    """A command is read, or refused as bad input with one line a fault."""
    for start in ("", "sglang serve m ", "vllm serve m "):
        try:
            reading = read(start + text)
            said = [*reading.ignored, *reading.unknown, *reading.notes]
        except BadInput as bad:
            said = bad.lines()
        assert all("\n" not in line for line in said)


def test_the_command_lies_above_the_file_and_below_the_options(tmp_path):
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        'model = "zai-org/GLM-5.2-FP8"\ngpu = "H200"\nengine = "sglang@0.5.17"\nsharding = { tp = 4, pp = 2 }\n'
    )
    arguments = ["--from-command", "sglang serve --tp 8 --mem-fraction-static 0.8 --ep $EP --port 1", "--ep", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "dsa_ledger", "estimate", str(scenario), *arguments, "--pp", "1", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert done.returncode in (0, 3), done.stderr
    assert {name: answer["scenario"]["sharding"][name] for name in ("tp", "ep", "pp")} == {"tp": 8, "ep": 8, "pp": 1}
    assert answer["scenario"]["engine"] == {"name": "sglang", "version": "0.5.17"}
    assert answer["scenario"]["limits"]["mem_fraction"] == 0.8
    assert any("no effect on the ledger: --port 1" in said for said in answer["warnings"])


def test_an_unset_variable_is_a_fault_that_names_it():
    done = subprocess.run(
        [sys.executable, "-m", "dsa_ledger", "estimate", "--gpu", "H200", "--from-command", f"{SERVE} --tp $TP"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "sharding.tp (--from-command): --tp $TP: TP is not set in the text" in done.stderr


def test_a_script_is_read_from_its_file_and_from_standard_input(tmp_path):
    script = tmp_path / "run.sh"
    lines = ["#!/bin/bash", "set -e", "TP=8  # ranks", f"exec {SERVE} \\", "  --tp $TP > server.log 2>&1 &", "wait", ""]
    script.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "dsa_ledger", "estimate", "--gpu", "H200", "--format", "json", "--from-command"]
    for given_as, stdin in ((str(script), ""), ("-", script.read_text(encoding="utf-8"))):
        done = subprocess.run([*command, given_as], input=stdin, capture_output=True, text=True, check=False)
        assert json.loads(done.stdout)["scenario"]["sharding"]["tp"] == 8, done.stderr


def test_without_pyyaml_a_yaml_file_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadInput, match=r"pip install 'dsa-ledger\[yaml\]'"):
        read(COMPOSE)
    assert fields(f"{SERVE} --tp 4")["sharding.tp"] == 4


def test_a_launcher_of_dynamo_and_a_command_within_another_are_found():
    nested = 'numactl -N 0 nohup bash -lc "cd /x && python3 -m dynamo.sglang --model-path zai-org/GLM-5.2-FP8 --tp 8"'
    assert fields(nested) == {"engine": "sglang", "model": "zai-org/GLM-5.2-FP8", "sharding.tp": 8}


@pytest.mark.parametrize(
    "head", ["$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)", "`hostname -I | cut -f1`"]
)
def test_what_would_have_to_be_run_stays_one_word_in_a_variable_too(head):
    """A batch script asks Slurm for its first host; the words of that question are no flags of the server."""
    reading = read(f"HEAD={head}\n{SERVE} --tp 16 --nnodes 2 --dist-init-addr $HEAD:20000 --context-length 131072")
    assert reading.unknown == []
    assert reading.settings["limits.context_length"].value == 131072
