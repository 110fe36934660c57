"""Standard output and standard error: the whole answer at once, and what went wrong beside it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CANNOT_WRITE = 1
DOES_NOT_FIT = 3
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def write(text: str) -> None:
    """Write the whole answer at once; a reader that has left is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        sys.exit(BROKEN_PIPE)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError as error:  # a full disk, for one
        _silence()
        complain("", [f"cannot write: {error.strerror}"])
        sys.exit(CANNOT_WRITE)


def stop_if_closed() -> None:
    """Leave at once where whoever started us closed standard output: there is nobody to answer."""
    if sys.stdout is None:
        complain("", ["cannot write: standard output is closed"])
        sys.exit(CANNOT_WRITE)


def _silence() -> None:
    """Send what is left to nowhere: the interpreter flushes once more at its end, and that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(prefix: str, lines: Iterable[str]) -> None:
    """Write lines to standard error, each behind the prefix; where that is closed they must not join the answer."""
    if sys.stderr is None:
        return
    for line in lines:
        print(prefix + line, file=sys.stderr)  # noqa: T201 - what went wrong
