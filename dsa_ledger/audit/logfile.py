"""Reads a log of any length in bounded memory and yields the few lines that may hold a start-up figure.

Most of a log is load lines; a line is looked at only where one of a few rare words is found in it.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.errors import BadInput, Fault, Said

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 18
WORDS = (
    b"avail mem",
    b"KV Cache",
    b"GiB",
    b"KV cache s",  # size; not "KV cache usage", which vLLM prints every ten seconds
    b"max_",
    b"ersion",
    b"er_args=",
    b"default args",
    b"LLM Args",
    b"llm_args=",
    b"MiB",
    b"mem usage",
    b"k-cache",
    b" backend",
    b"max seq len",
    b"tokens per",
    b"DSA",
    b"host memory",
    b"KV cache format",
    b"KV cache layout",
    b"kv-cache for",
    b"cache block size",
    b"Layer shard plan",
    b"num_gpu_blocks",
    b"# GPU blocks",
    b"paged KV cache",
    b"k/v cache",
    b"no GPU memory",
    b"Not enough memory",
    b"the cache blocks",
    b"in kvCache",
    b"insufficient GPU",
    b"could not be created",
)
# Once a server runs, its log grows by lines that hold none of the words; few words then tell a restart or a failure,
# and the block before is looked at again with all of them.
STEADY_WORDS = (b"avail mem=", b"llocate", b"KV cache s")  # `llocate`: pools of two engines, and out of memory
STEADY_AFTER_BYTES = 8 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_KEYS = ("log", "message", "msg", "MESSAGE", "text", "line", "body", "@message", "content")
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "lzma"), (b"BZh", "bz2"), (b"\x28\xb5\x2f\xfd", "zstd"))


class Line(NamedTuple):
    """One line, stripped of colours and wrappers, and its number from 1."""

    number: int
    text: str


class LogLines:
    """The interesting lines of a log; after the walk it knows how many lines there were and how many were cut."""

    def __init__(self, name: str) -> None:
        """Take a path, or `-` for standard input."""
        self.name = name
        self.lines = 0
        self.cut = 0
        self._quiet_bytes = 0  # since the last line that was looked at
        self._before = b""  # the block before, in the steady state only looked through for the few words

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines that hold one of the words (BadInput where the file cannot be read)."""
        try:
            with _opened(self.name) as file:
                yield from self._from(file)
        except (OSError, EOFError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput([Fault("LOG", self.name[-64:], f"a log that can be read: {reason}")]) from None

    def _from(self, file: IO[bytes]) -> Iterator[Line]:
        rest = b""
        while chunk := file.read(CHUNK_BYTES):
            block = rest + chunk
            end = block.rfind(b"\n") + 1
            if not end:
                if len(block) <= LONGEST_LINE_BYTES:
                    rest = block
                    continue
                # A line without end: its start is looked at, the rest is dropped until a line ends.
                block, self.cut = block[:LONGEST_LINE_BYTES] + b"\n", self.cut + 1
                yield from self._in(block)
                rest = _after_line(file)
                continue
            rest = block[end:]
            yield from self._in(block[:end])
        if rest:
            yield from self._in(rest + b"\n")

    def _in(self, block: bytes) -> Iterator[Line]:
        if self._quiet_bytes >= STEADY_AFTER_BYTES and not any(word in block for word in STEADY_WORDS):
            self.lines += block.count(b"\n")
            self._before = block
            return
        if self._before:
            again, self._before = self._before, b""
            self.lines -= again.count(b"\n")
            yield from self._searched(again)
        yield from self._searched(block)

    def _searched(self, block: bytes) -> Iterator[Line]:
        starts = sorted(_line_starts(block))
        self._quiet_bytes = 0 if starts else self._quiet_bytes + len(block)
        counted = 0
        for start in starts:
            self.lines += block.count(b"\n", counted, start)
            counted = start
            end = block.find(b"\n", start)
            raw = block[start : min(end, start + LONGEST_LINE_BYTES)]
            self.cut += end - start > LONGEST_LINE_BYTES
            for text in _unwrapped(raw.decode("utf-8", "replace")):
                yield Line(self.lines + 1, text)
        self.lines += block.count(b"\n", counted)


def _line_starts(block: bytes) -> set[int]:
    """Return where the lines begin that hold one of the words; each line is found once per word at most."""
    found: set[int] = set()
    for word in WORDS:
        place = block.find(word)
        while place >= 0:
            found.add(block.rfind(b"\n", 0, place) + 1)
            end = block.find(b"\n", place)
            place = block.find(word, end) if end >= 0 else -1
    return found


def _after_line(file: IO[bytes]) -> bytes:
    while chunk := file.read(CHUNK_BYTES):
        end = chunk.find(b"\n")
        if end >= 0:
            return chunk[end + 1 :]
    return b""


def _unwrapped(text: str) -> list[str]:
    """Return the lines that a log shipper's JSON holds, else the line itself; colours and progress bars taken off."""
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        inner = _message(stripped)
        if inner is not None:
            return [line for part in inner.splitlines() for line in _clean(part)]
    return _clean(text)


def _clean(text: str) -> list[str]:
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    pieces = [piece for piece in re.split(r"\r+", text) if piece.strip()]
    return pieces if len(pieces) > 1 else [text.rstrip("\r\n")]


def _message(text: str) -> str | None:
    try:
        table: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for _ in range(3):
        for key in _KEYS:
            value = table.get(key)
            if isinstance(value, str):
                return value
            if isinstance(value, dict):
                table = value
                break
        else:
            return None
    return None


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Open a path or standard input as plain bytes, decompressed where its first bytes say so."""
    if name == "-":
        yield _decompressed(sys.stdin.buffer, name)
        return
    path = Path(name)
    if not path.is_file():
        raise BadInput([Fault("LOG", name[-64:], Said("no regular file" if path.exists() else "no such file"))])
    with path.open("rb") as file, closing(_decompressed(file, name)) as plain:
        yield plain


def _decompressed(file: Any, name: str) -> Any:
    start = file.peek(6)[:6] if hasattr(file, "peek") else b""
    kind = next((kind for magic, kind in _MAGIC if start.startswith(magic)), None)
    if kind is None:
        return file
    module = "compression.zstd" if kind == "zstd" else kind  # from Python 3.14
    try:
        return importlib.import_module(module).open(file)
    except ImportError:
        expected = f"a log that this Python can unpack; it has no {kind}: zstd -dc LOG | dsa-ledger audit -"
        raise BadInput([Fault("LOG", name[-64:], expected)]) from None
