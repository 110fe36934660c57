"""Puts what a launch command says into a scenario's tables: above the scenario file, below the explicit options."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.command import OPTION
from dsa_ledger.audit.launch import Source, read_launch, source_of
from dsa_ledger.errors import Said, Words
from dsa_ledger.scenario_file import put

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dsa_ledger.audit.reading import Reading
    from dsa_ledger.errors import Faults

_FROM_ELSEWHERE = ("model", "gpu")  # a command often leaves these open; a scenario file may say them


@cache
def _source(given: str) -> Source:
    """Return a source; standard input can be read once only."""
    return source_of(given)


def merge_command(
    tables: dict[str, Any], commands: Sequence[str], engine: Any, given: Collection[str], faults: Faults
) -> Reading:
    """Put the fields that the command sets, and note those it leaves open unless `given` or the file sets them."""
    name, version = named_engine(engine)
    reading = read_launch([_source(text) for text in commands], name, version)
    for path, setting in reading.settings.items():
        blocked = put(tables, path, list(setting.value) if isinstance(setting.value, tuple) else setting.value)
        if blocked:
            faults.add(f"{path} ({OPTION})", Words(setting.written), blocked)
    for path, reason in reading.missing.items():
        if path in given or (path in _FROM_ELSEWHERE and path in tables):
            reading.note(reason)
            continue
        written, _, why = reason.partition(": ")
        faults.add(f"{path} ({OPTION})", Words(written), Said(f"{why}; set it by its option or --set {path}=VALUE"))
    return reading


def named_engine(engine: Any) -> tuple[str | None, str | None]:
    """Return name and version of an engine given as text or as a table, else nothing: pydantic says what is wrong."""
    if isinstance(engine, dict):
        engine = f"{engine.get('name', '')}@{engine.get('version') or ''}"
    if not isinstance(engine, str):
        return None, None
    name, _, version = engine.partition("@")
    name = name.strip().lower().replace("trtllm", "tensorrt-llm")
    return (name, version.strip() or None) if name in ("sglang", "vllm", "tensorrt-llm") else (None, None)


def sentences(reading: Reading) -> list[str]:
    """Return what the user should know of a command: what has no effect, what is unknown, what was assumed."""
    said = [f"{OPTION}: not applied, releases read here refuse it: {unknown}" for unknown in reading.unknown]
    said += [f"{OPTION}: {note}" for note in reading.notes]
    if reading.ignored:
        said.append(f"{OPTION}: no effect on the ledger: {'; '.join(reading.ignored)}")
    return said
