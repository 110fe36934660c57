"""What every test shares: hypothesis settings, and the strict mode of `.ci/run`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# A few hundred examples; no deadline, because a shared machine pauses where it likes. In CI they are the same each
# time, so that a change is judged by what it changes; by hand they are drawn anew.
hypothesis.settings.register_profile(
    "house", max_examples=200, deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("house")

# A shell that runs the tests in its background has them ignore SIGINT, and what they start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
LEFT_BEHIND = {"__pycache__", "build", "dist"}  # by tools, where no git is there to say so

# With DSA_LEDGER_STRICT=1 a skip is a failure unless its reason starts so: a missing package must not hide a test.
ALLOWED_SKIP = "no GPU"


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure unless a GPU is what is missing; an expected failure (xfail) is no skip."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("DSA_LEDGER_STRICT") != "1":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIP):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped ({reason}), and DSA_LEDGER_STRICT=1 allows only '{ALLOWED_SKIP}'"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skip of one test."""
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge the skip of a whole module, as pytest.importorskip does it."""
    report = yield
    _forbid_skip(report)
    return report


def _listed_by_git() -> list[str]:
    """Return the tracked paths, or the untracked ones before the first commit; none without git or a repository."""
    for which in (("--cached",), ("--others", "--exclude-standard")):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *which]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return []
        if done.stdout:
            return done.stdout.split("\0")[:-1]
    return []


def _listed_by_hand() -> list[str]:
    """Return every file but hidden ones and what tools leave behind."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [
        str(path)
        for path in found
        if not any(part in LEFT_BEHIND or part.startswith(".") or part.endswith(".egg-info") for part in path.parts)
    ]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """Run the command line in this process; return exit code, standard output and standard error."""

    def run_it(*arguments: str) -> tuple[object, str, str]:
        from dsa_ledger.cli import main

        with pytest.raises(SystemExit) as left:
            main(arguments)
        return left.value.code, *capsys.readouterr()

    return run_it


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the top of the project."""
    return ROOT


@pytest.fixture(scope="session")
def project_files() -> list[str]:
    """Return the project's files, relative to its top."""
    return sorted(path for path in _listed_by_git() or _listed_by_hand() if (ROOT / path).is_file())
