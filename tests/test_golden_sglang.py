"""SGLang against facts from outside: release packages, pull requests, logs. No expectation here is computed by our code."""

from __future__ import annotations

import pytest
from golden_cases import cases, ledger_of, misses


@pytest.mark.parametrize(("scenario", "expect"), cases("cells"))
def test_cell(scenario, expect):
    assert misses(ledger_of(scenario), expect) == []
