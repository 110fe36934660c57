"""The command line as a function, for the tests of calibration."""

from __future__ import annotations

import pytest

from dsa_ledger.cli import main


@pytest.fixture
def answer(capsys):
    def ask(*words: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        shown, said = capsys.readouterr()
        assert left.value.code == code, said
        return shown, said

    return ask
