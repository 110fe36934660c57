"""The strict mode of `.ci/run`: a skip that hides a test fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='{0}')\ndef test_it(): pass\n",
    "call": "import pytest\ndef test_it(): pytest.skip('{0}')\n",
    "fixture": "import pytest\n@pytest.fixture\ndef box(): pytest.skip('{0}')\ndef test_it(box): pass\n",
    "module": "import pytest\npytest.skip('{0}', allow_module_level=True)\n",
}


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "no:randomly")


@pytest.mark.parametrize("kind", SKIPS)
def test_strict_mode_fails_a_skip_and_names_it(pytester, monkeypatch, kind):
    monkeypatch.setenv("DSA_LEDGER_STRICT", "1")
    result = run(pytester, SKIPS[kind].format("needs numpy"))
    assert result.ret != pytest.ExitCode.OK
    assert "skipped" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*skipped (needs numpy), and DSA_LEDGER_STRICT=1 allows only 'no GPU'*"])


@pytest.mark.parametrize("kind", SKIPS)
def test_strict_mode_lets_a_missing_gpu_pass(pytester, monkeypatch, kind):
    monkeypatch.setenv("DSA_LEDGER_STRICT", "1")
    assert run(pytester, SKIPS[kind].format("no GPU: no driver")).parseoutcomes() == {"skipped": 1}


def test_strict_mode_fails_a_missing_package(pytester, monkeypatch):
    monkeypatch.setenv("DSA_LEDGER_STRICT", "1")
    result = run(pytester, "import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n")
    assert result.parseoutcomes() == {"errors": 1}


def test_an_expected_failure_is_no_skip(pytester, monkeypatch):
    monkeypatch.setenv("DSA_LEDGER_STRICT", "1")
    source = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_it(): assert False\n"
    assert run(pytester, source).parseoutcomes() == {"xfailed": 1}


@pytest.mark.parametrize("kind", SKIPS)
def test_without_strict_mode_a_skip_is_a_skip(pytester, monkeypatch, kind):
    monkeypatch.delenv("DSA_LEDGER_STRICT", raising=False)
    assert run(pytester, SKIPS[kind].format("needs numpy")).parseoutcomes() == {"skipped": 1}
