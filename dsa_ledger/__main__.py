"""`python -m dsa_ledger` and the `dsa-ledger` command: one program."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line; `--version` answers before the command-line library is imported."""
    if sys.argv[1:] == ["--version"]:
        from dsa_ledger import __version__

        print(f"dsa-ledger {__version__}")  # noqa: T201 - the answer
        return
    # Nearly every object of a start lives to the end. Looking for garbage among them costs 6 ms on the way,
    # and 30 ms more when the interpreter clears up; frozen ones are passed over there (atexit still runs).
    gc.set_threshold(100_000)
    from dsa_ledger.cli import main as command_line

    try:
        command_line()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
