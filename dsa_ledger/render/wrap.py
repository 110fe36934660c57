"""Text in lines of 80 columns in which no word is cut: a path too long for a line is broken behind a slash."""

from __future__ import annotations

import textwrap

WIDTH = 80
LONGEST_WORD = 40


class _Wrapper(textwrap.TextWrapper):
    """A wrapper that may also break behind the slashes of a long word."""

    def _split(self, text: str) -> list[str]:
        found: list[str] = []
        for chunk in super()._split(text):
            found += chunk.replace("/", "/\n").split("\n") if len(chunk) > LONGEST_WORD else [chunk]
        return [chunk for chunk in found if chunk]


def wrap(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """Return the lines of a text, the first and the others behind their own indent; without `rest` all begin alike."""
    below = " " * len(first) if rest is None else rest
    wrapper = _Wrapper(
        WIDTH, initial_indent=first, subsequent_indent=below, break_on_hyphens=False, break_long_words=False
    )
    return wrapper.wrap(text)
