"""Shell text to words, without a shell: quotes, escapes, comments, here-documents and literal variables, nothing else.

`$NAME` is looked up among the assignments of the same text only. What a shell would have to run (`$(...)`, backticks)
or look up elsewhere stays as written, and the word names it as missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_TEXT = 1 << 20
MOST_WORDS = 20_000
LONGEST_VALUE = 1 << 16
MOST_PUT_IN = 1 << 20  # characters put in for variables: they could double with every assignment

_OPERATORS = re.compile(r"&&|\|\||;;|[;&|()\n]|\d?>>?&?\d?|<(?!<)")
_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>#]+|#")
_NAME = re.compile(
    r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?(:?-[^}]*)?\}|\((.*?)\)|([0-9@*#?!$]))", re.DOTALL
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_HERE = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_PIECES = re.compile(r"(?:\$\([^)]{0,512}\)|`[^`]{0,512}`|\S)+")  # what would be run is one piece, blanks and all
_BLANK = re.compile(r"(?:[ \t]|\\\r?\n)+")


class Word(NamedTuple):
    """One word as the program would get it; `missing` names what the text itself does not say."""

    text: str
    missing: tuple[str, ...] = ()


@dataclass
class Script:
    """The statements of a text, the variables it sets, and the files it writes by here-document."""

    statements: list[list[Word]] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    put_in: int = 0  # characters put in for variables so far


class _Reader:
    def __init__(self, text: str, script: Script) -> None:
        self.text, self.place, self.script = text, 0, script
        self.words: list[Word] = []
        self.parts: list[str] | None = None  # of the word being read
        self.missing: list[str] = []
        self.spread: list[Word] | None = None  # an array that is the whole word
        self.array: str | None = None
        self.here: list[tuple[str, str | None]] = []  # here-documents that start on the next line
        self.count = 0
        self.closed = False

    def run(self) -> None:  # noqa: C901 - one branch per kind of character
        text, end = self.text, len(self.text)
        while self.place < end and self.count < MOST_WORDS and not self.closed:
            char = text[self.place]
            if blank := _BLANK.match(text, self.place):
                self._end_word()
                self.place = blank.end()
            elif char == "#" and self.parts is None:
                line = text.find("\n", self.place)
                self.place = end if line < 0 else line
            elif char == "'":
                close = text.find("'", self.place + 1)
                self._add(text[self.place + 1 : close if close >= 0 else end])
                self._unclosed(close, "'")
            elif char == '"':
                self._double()
            elif char == "\\":
                self._add(text[self.place + 1 : self.place + 2])
                self.place += 2
            elif char in "$`":
                self._expand(quoted=False)
            elif here := _HERE.match(text, self.place):
                self._end_word()
                self.here.append((here[2], None))
                self.place = here.end()
            elif self._array_starts() or self._operator():
                continue
            else:
                plain = _PLAIN.match(text, self.place)
                self._add(plain[0] if plain else char)
                self.place = plain.end() if plain else self.place + 1
        if self.count >= MOST_WORDS:
            self.script.faults.append(f"more than {MOST_WORDS} words: the rest was not read")
        self._end_statement()

    def _unclosed(self, close: int, quote: str) -> None:
        if close < 0:
            self.script.faults.append(f"a {quote} is not closed")
        self.place = len(self.text) if close < 0 else close + 1

    def _add(self, text: str) -> None:
        if self.parts is None:
            self.parts = []
        self.parts.append(text)

    def _double(self) -> None:
        self._add("")
        self.place += 1
        text, end, start = self.text, len(self.text), self.place
        while self.place < end:
            char = text[self.place]
            if char == '"':
                self._add(text[start : self.place])
                self.place += 1
                return
            if char == "\\" and text[self.place + 1 : self.place + 2] in ('"', "\\", "$", "`", "\n"):
                self._add(text[start : self.place] + text[self.place + 1 : self.place + 2].strip("\n"))
                self.place += 2
                start = self.place
            elif char in "$`":
                self._add(text[start : self.place])
                self._expand(quoted=True)
                start = self.place
            else:
                self.place += 1
        self._add(text[start:])
        self.script.faults.append('a " is not closed')

    def _expand(self, *, quoted: bool) -> None:
        """Read `$NAME`, `${NAME}`, `${NAME:-default}`; what would have to be run stays as written and is missing."""
        text = self.text
        if text[self.place] == "`":
            close = text.find("`", self.place + 1)
            self._keep(text[self.place : len(text) if close < 0 else close + 1])
            return
        found = _NAME.match(text, self.place, min(len(text), self.place + 512))
        if not found:
            self._add("$")
            self.place += 1
            return
        name = found[1] or found[2]
        value = self._looked_up(name, found[3]) if name else None
        if value is None:
            self._keep(found[0], name)
        else:
            self.place = found.end()
            self._put_in(value, quoted=quoted)

    def _looked_up(self, name: str, default: str | None) -> list[Word] | None:
        """Return what the text itself sets a name to, or the default written beside it."""
        script = self.script
        value = script.variables.get(name)
        if value is None and default is not None and not any(mark in default for mark in "$`"):
            plain = default.lstrip(":").removeprefix("-")
            script.defaults.append(f"{name}={plain}")
            value = [Word(plain)]
        if value is not None and script.put_in > MOST_PUT_IN:
            script.faults.append(f"variables make the text longer than {MOST_PUT_IN} characters")
            return None
        script.put_in += sum(len(word.text) + 1 for word in value or ())
        return value

    def _put_in(self, value: list[Word], *, quoted: bool) -> None:
        """Add a variable's value: an array as its words, text without quotes cut at its blanks."""
        if len(value) > 1 and not any(self.parts or ()):
            self.spread = value
            return
        joined = " ".join(word.text for word in value)[:LONGEST_VALUE]
        self.missing.extend(name for word in value for name in word.missing)
        if quoted or not re.search(r"\s", joined):
            self._add(joined)
            return
        first, *rest = _PIECES.findall(joined) or [""]
        self._add(first)
        for part in rest:
            self._end_word()
            self._add(part)

    def _keep(self, written: str, name: str | None = None) -> None:
        self._add(written)
        self.missing.append(name or written)
        self.place += len(written)

    def _array_starts(self) -> bool:
        """Read `NAME=(words)`, a list of words under a name."""
        if self.text[self.place] != "(" or not self.parts:
            return False
        found = _ASSIGNED.fullmatch("".join(self.parts))
        if not found or self.array:
            return False
        inner = _Reader(self.text, self.script)
        inner.place, inner.array = self.place + 1, found[1]
        inner.run()
        self.place = inner.place
        self.parts = None
        before = self.script.variables.get(found[1], []) if found[2] else []
        self.script.variables[found[1]] = [*before, *inner.words][:MOST_WORDS]
        return True

    def _operator(self) -> bool:
        found = _OPERATORS.match(self.text, self.place)
        if not found:
            return False
        if found[0] == "\n" and self.here:
            self._end_word()
            self.place = found.end()
            self._here_documents()
            return True
        if self.array:
            self._end_word()
            self.place = found.end()
            if found[0] == ")":
                self.closed = True
            return True
        if ">" in found[0] or found[0] == "<":
            self._end_word()
            self.words.append(Word(found[0]))
        else:
            self._end_statement()
        self.place = found.end()
        return True

    def _here_documents(self) -> None:
        """Keep each here-document under the name of the file that its statement writes."""
        target = next((self.words[i + 1].text for i, w in enumerate(self.words[:-1]) if ">" in w.text), None)
        for mark, _ in self.here:
            end = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*\r?$", re.MULTILINE).search(self.text, self.place)
            body = self.text[self.place : end.start() if end else len(self.text)]
            if target:
                self.script.files[target] = body
            self.place = end.end() if end else len(self.text)
        self.here = []
        self._end_statement()

    def _end_word(self) -> None:
        if self.spread is not None:
            self.words.extend(self.spread)
            self.count += len(self.spread)
        elif self.parts is not None:
            self.words.append(Word("".join(self.parts)[:LONGEST_VALUE], tuple(self.missing)))
            self.count += 1
        self.parts, self.spread, self.missing = None, None, []

    def _end_statement(self) -> None:
        self._end_word()
        if self.array:
            return
        if self.words:
            self._assign()
            self.script.statements.append(self.words)
        self.words = []

    def _assign(self) -> None:
        """Keep what a statement of assignments alone sets for those after it."""
        words = self.words[1:] if self.words[0].text in ("export", "readonly", "local", "declare") else self.words
        found = [_ASSIGNED.match(word.text) for word in words]
        if not all(found):
            return
        for word, hit in zip(words, found, strict=True):
            if hit:
                self.script.variables[hit[1]] = [Word(word.text[hit.end() :], word.missing)]


def script_of(text: str, variables: dict[str, str] | None = None) -> Script:
    """Return the statements of shell text; `variables` are those set around it (Compose, Kubernetes)."""
    script = Script(variables={name: [Word(value)] for name, value in (variables or {}).items()})
    if len(text) > LONGEST_TEXT:
        script.faults.append(f"longer than {LONGEST_TEXT} characters: the rest was not read")
    _Reader(text[:LONGEST_TEXT].replace("\r\n", "\n"), script).run()
    return script


def assignment(word: Word) -> tuple[str, str] | None:
    """Return name and value of `NAME=value`, else None."""
    found = _ASSIGNED.match(word.text)
    return (found[1], word.text[found.end() :]) if found else None
