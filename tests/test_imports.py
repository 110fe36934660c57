"""What a command loads: a start that loads less is faster, and unlike a clock `sys.modules` never wavers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import atexit, json, sys
atexit.register(lambda: print("LOADED" + json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv = ["dsa-ledger", *{arguments!r}]
from dsa_ledger.__main__ import main
main()
"""
HEAVY = {"rich", "numpy", "torch", "cupy"}
HELP_FREE_OF = {"pydantic", "pydantic_core", "tomllib", "importlib.metadata", "dsa_ledger.schema"} | HEAVY
ESTIMATE = ["estimate", "--model", "zai-org/GLM-5.2-FP8", "--gpu", "H200", "--tp", "8", "--engine", "sglang@0.5.23"]


def loaded(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(arguments=list(arguments))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(json.loads(done.stderr.rpartition("LOADED")[2]))


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_help_and_version_load_no_heavy_module(arguments: list[str]) -> None:
    assert loaded(*arguments) & HELP_FREE_OF == set()


def test_version_does_not_even_load_the_command_line_library() -> None:
    assert loaded("--version") & {"typer", "dsa_ledger.cli", "dsa_ledger.errors"} == set()


@pytest.mark.parametrize("form", ["json", "csv", "md"])
def test_estimate_loads_no_heavy_module_unless_it_draws(form: str) -> None:
    modules = loaded(*ESTIMATE, "--format", form)
    assert "pydantic" in modules
    assert modules & (HEAVY | {"tomllib"}) == set()


def test_estimate_loads_no_other_command_and_no_other_engine() -> None:
    ours = {name.removeprefix("dsa_ledger.") for name in loaded(*ESTIMATE, "--format", "json")}
    assert {"cli", "engines.sglang", "account.sglang_pool"} <= ours
    assert [name for name in ours if name.startswith(("audit", "calib", "cli_", "compare", "plan", "sweep"))] == []
    assert [name for name in ours if name.startswith(("engines.vllm", "engines.trtllm"))] == []
    assert [name for name in ours if name.startswith(("account.vllm", "account.trtllm", "account.prefill"))] == []


def test_explain_loads_no_heavy_module() -> None:
    assert loaded("explain", "pool.tokens", *ESTIMATE[1:]) & HEAVY == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert "rich" in loaded(*ESTIMATE)


def test_the_package_alone_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import dsa_ledger; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"dsa_ledger", "__future__"}


def test_the_public_names_are_there() -> None:
    import dsa_ledger

    for name in dsa_ledger.__all__:
        assert getattr(dsa_ledger, name) is not None
    assert set(dsa_ledger.__all__) <= set(dir(dsa_ledger))
    with pytest.raises(AttributeError, match="nothing"):
        _ = dsa_ledger.nothing  # type: ignore[attr-defined]
