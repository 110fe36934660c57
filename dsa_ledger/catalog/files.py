"""Reads small JSON and TOML files from outside: bounded, strict, and one plain sentence for whatever is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dsa_ledger.errors import BadInput, Fault, Said

MIB = 2**20
JSON_LIMIT_BYTES = 16 * MIB
# A description of one GPU is a page of text, and tomllib is slow and quadratic on hostile input.
TOML_LIMIT_BYTES = MIB // 16
_LONGEST_SHOWN = 64
_WIDEST_NUMBER_BITS = 256


def shown(value: object) -> object:
    """Return a value fit for a fault: hashable, and quick to print whatever its size."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
    if isinstance(value, int) and value.bit_length() > _WIDEST_NUMBER_BITS:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    return value


def bad(path: str, value: object, expected: str) -> BadInput:
    """Return the error for one fault."""
    return BadInput([Fault(path, shown(value), expected)])


def shown_path(path: Path) -> str:
    """Return a path cut at its front: the end is what tells files apart."""
    text = str(path)
    return text if len(text) <= _LONGEST_SHOWN else "..." + text[3 - _LONGEST_SHOWN :]


def exists(name: str) -> bool:
    """Tell whether `name` is a file or folder; a name that no file system can hold is none."""
    try:
        # The empty path would mean the current folder.
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        return False


def read_text(path: Path, what: str, limit_bytes: int) -> str:
    """Return the file's UTF-8 text, never reading more than the limit (BadInput at dotted path `what`)."""
    try:
        # A pipe or a device has no end and no length; only a regular file is read.
        if not path.is_file():
            said = Said("no regular file" if path.exists() else "no such file")
            raise bad(what, shown_path(path), said)
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise bad(what, shown_path(path), Said(f"cannot be read: {reason}")) from error
    if len(data) > limit_bytes:
        raise bad(what, shown_path(path), Said(f"longer than {limit_bytes:,} bytes"))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad(what, shown_path(path), Said(f"no UTF-8 text (byte {error.start:,})")) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)!r} stands twice in one object")
    return table


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{shown(text)} is beyond any float")
    return number


def read_json_object(path: Path, what: str) -> dict[str, Any]:
    """Return a JSON object: finite numbers, no key twice (BadInput at dotted path `what`)."""
    text = read_text(path, what, JSON_LIMIT_BYTES)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise bad(what, shown_path(path), Said("JSON nested too deeply")) from error
    except ValueError as error:
        raise bad(what, shown_path(path), Said(f"no valid JSON: {error}")) from error
    if not isinstance(value, dict):
        raise bad(what, shown_path(path), f"an object, not a JSON {type(value).__name__}")
    return value


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return a TOML table (BadInput at dotted path `what`)."""
    import tomllib

    text = read_text(path, what, TOML_LIMIT_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise bad(what, shown_path(path), Said("TOML nested too deeply")) from error
    except ValueError as error:
        raise bad(what, shown_path(path), Said(f"no valid TOML: {error}")) from error
