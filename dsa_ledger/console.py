"""Standard output and standard error: the whole answer at once, and what went wrong beside it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def write(text: str) -> None:
    """Write the whole answer at once; a reader that has left is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def complain(prefix: str, lines: Iterable[str]) -> None:
    """Write lines to standard error, each behind the prefix."""
    for line in lines:
        print(prefix + line, file=sys.stderr)  # noqa: T201 - what went wrong
