"""Compose and Kubernetes files: references as kubelet and Compose fill them, one server of two pods, what is unset."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_command import fields, read

from dsa_ledger.audit.launch import source_of
from dsa_ledger.errors import BadInput

SERVE = "sglang serve --model-path zai-org/GLM-5.2-FP8"
POD = """
apiVersion: v1
kind: Pod
spec:
  containers:
    - image: lmsysorg/sglang:v0.5.18
      env: [{name: MODEL, value: zai-org/GLM-5.2-FP8}, {name: TP, value: "8"}]
      command: ["sh", "-c"]
      args: ["exec sglang serve --model-path $(MODEL) --tp $(TP) --dist-init-addr $(HOST):5000"]
"""
COMPOSE = """
services:
  server:
    image: lmsysorg/sglang:v0.5.18
    environment: {MODEL: zai-org/GLM-5.2-FP8}
    command: ["bash", "-c", "sglang serve --model-path $$MODEL --tp $${TP:-8}"]
"""


@pytest.mark.parametrize("text", [POD, COMPOSE])
def test_references_within_a_script_are_filled_from_the_container_s_environment(text):
    """The kubelet puts `$(NAME)` in before the shell starts; Compose hands `$$NAME` to the shell as `$NAME`."""
    expect = {"engine": "sglang@0.5.18", "model": "zai-org/GLM-5.2-FP8", "sharding.tp": 8}
    assert fields(text) == expect


def group(leader: str, worker: str) -> str:
    container = 'spec: {{containers: [{{image: "lmsysorg/sglang:v0.5.18", command: ["sh", "-c"], args: ["{}"]}}]}}'
    head = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n"
    pods = {"leaderTemplate": leader, "workerTemplate": worker}
    return head + "".join(f"    {name}:\n      {container.format(command)}\n" for name, command in pods.items())


@pytest.mark.parametrize("numbered", [False, True])
def test_leader_and_worker_with_one_command_are_one_server(numbered):
    """Pods of one server run the same command; their node's number alone tells them apart."""
    ranks = ("--node-rank 0", "--node-rank 1") if numbered else ("", "")
    leader, worker = (f"{SERVE} --tp 16 --nnodes 2 {rank}" for rank in ranks)
    assert fields(group(leader, worker))["sharding.tp"] == 16


def test_pods_with_different_commands_are_two_servers():
    with pytest.raises(BadInput, match="2 server commands"):
        read(group(f"{SERVE} --tp 16", f"{SERVE} --tp 8"))


@pytest.mark.parametrize("text", [f"{SERVE} --tp 8 ${{EXTRA_ARGS}}", f"{SERVE} --tp 8 $EXTRA_ARGS --port 1"])
def test_an_unset_variable_that_may_hold_flags_is_told(text):
    (note,) = [said for said in read(text).notes if "EXTRA_ARGS" in said]
    assert "is not set in the text: what it adds to the command is not read" in note


def test_a_mistyped_file_is_no_such_file():
    with pytest.raises(BadInput, match=r"'nofile\.yaml': expected a launch command, or a file .*: no such file"):
        source_of("nofile.yaml")


@pytest.mark.parametrize(
    ("command", "faults"),
    [("nofile.yaml", 1), ("sglang serve --model-path $MODEL --tp 8", 1), ("sglang serve --model-path $M --tp $T", 2)],
)
def test_one_fault_of_a_command_stays_one(command, faults):
    """What the command would have set is not reported as absent beside the reason why the command did not set it."""
    arguments = ["estimate", "--gpu", "H200", "--from-command", command]
    done = subprocess.run([sys.executable, "-m", "dsa_ledger", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == faults
    assert "absent" not in done.stderr


def test_a_flag_that_the_server_would_refuse_comes_first_with_the_nearest_one():
    arguments = ["estimate", "--gpu", "H200", "--from-command", f"{SERVE} --tp 8 --kv-cache-dtpye fp8_e4m3"]
    done = subprocess.run([sys.executable, "-m", "dsa_ledger", *arguments], capture_output=True, text=True, check=False)
    first = " ".join(done.stdout.partition("\nwarnings\n")[2].split()).removeprefix("- ")
    assert first.startswith(
        "--from-command: not applied, releases read here refuse it: sglang has no --kv-cache-dtpye;"
    )
    assert "did you mean '--kv-cache-dtype'?" in first


def test_advice_about_a_command_names_the_engine_s_flags():
    command = "vllm serve zai-org/GLM-5.2-FP8 -tp 8 --max-model-len 1048576"
    arguments = ["estimate", "--gpu", "H200", "--engine", "vllm@0.33.0", "--from-command", command]
    done = subprocess.run([sys.executable, "-m", "dsa_ledger", *arguments], capture_output=True, text=True, check=False)
    words = " ".join((done.stdout + done.stderr).split())
    assert "lower --max-model-len or --max-num-seqs - " in words
    assert "set --max-model-len to at most" in words
    assert "--context-length" not in words
    assert "--max-running-requests" not in words
