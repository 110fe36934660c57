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
    # Imports make objects that all live to the end: looking for garbage among them costs a start 5%.
    gc.set_threshold(100_000)
    from dsa_ledger.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
