"""Lines of real servers, typed by hand from public threads: each figure is read, and nothing else is taken for one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dsa_ledger.audit import startup
from dsa_ledger.audit.logfile import Line, LogLines
from dsa_ledger.audit.report import audit_log

LOGS = tomllib.loads(Path(__file__).with_name("logs.toml").read_text(encoding="utf-8"))["log"]


def plain(value: object) -> object:
    """Return a printed figure in base units, by arithmetic of its own."""
    if isinstance(value, str) and value.endswith(" GiB"):
        return round(float(value.removesuffix(" GiB")) * 2**30)
    return float(value.removesuffix(" share")) if isinstance(value, str) and value.endswith(" share") else value


def read(text: str) -> startup.Log:
    return startup.log_of(Line(number, line) for number, line in enumerate(text.strip().splitlines(), 1))


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_the_figures_of_a_public_log_are_read(case):
    log = read(case["lines"])
    assert log.engine == case["engine"]
    found = [(figure.key, figure.value) for figure in log.figures]
    for key, value in case["reads"]:
        assert (key, plain(value)) in found, found
    assert log.unread == 0
    if "rank" in case:
        assert str(log.figures[0].rank) == case["rank"]
    if "arguments" in case:
        (start,) = log.starts
        assert {flag: start.arguments.get(flag) for flag in case["arguments"]} == case["arguments"]


@pytest.mark.parametrize("case", [case for case in LOGS if "inferred" in case], ids=lambda case: case["id"])
def test_what_the_thread_states_is_inferred(case):
    report = audit_log(read(case["lines"]), dict(case["with"]))
    assert {key: report.inferred.get(key) for key in case["inferred"]} == case["inferred"]


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_each_line_passes_the_sieve_of_words(case, tmp_path):
    """A line that the patterns read must hold one of the few words by which lines of a long log are found."""
    file = tmp_path / "log"
    file.write_text(case["lines"].strip() + "\n", encoding="utf-8")
    through = [line.text for line in LogLines(str(file))]
    for line in case["lines"].strip().splitlines():
        if read(line).figures:
            assert line in through


def test_there_are_enough_logs_of_three_engines():
    engines = {case["engine"] for case in LOGS}
    assert engines == {"sglang", "vllm", "tensorrt-llm"}
    assert len(LOGS) >= 25
    assert all(case["url"].startswith("https://") for case in LOGS)


@pytest.mark.parametrize(
    "line",
    [
        "NCCL version 2.27.5+cuda12.9",
        "(EngineCore pid=1) INFO 09-01 10:00:00 [loggers.py:1] Engine 000: GPU KV cache usage: 3.1%",
        "[2026-09-01 10:00:00 TP0] Decode batch, #running-req: 1, #token: 975424, token usage: 0.10",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2265.58 MiB for execution context memory.",
        "Mamba Cache is allocated. max_mamba_cache_size: 64, conv_state size: 0.10GB, ssm_state size: 2.00GB",
        "INFO transformers version 4.57.1",
    ],
)
def test_lines_that_only_look_alike_give_no_figure(line):
    assert read(line).figures == []
