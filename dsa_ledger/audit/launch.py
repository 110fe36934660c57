"""From the texts of `--from-command` to a reading: which command, which engine and version, which fields it sets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.audit import effects_sglang, effects_trtllm, effects_vllm
from dsa_ledger.audit.command import OPTION, Launch, Text, given_flags, launches_of, only_launch, version_of_image
from dsa_ledger.audit.container import config_of, launches_in_documents, looks_like_yaml
from dsa_ledger.audit.effects import last_of
from dsa_ledger.audit.reading import Reading, one_line
from dsa_ledger.audit.shell import LONGEST_TEXT, Word
from dsa_ledger.audit.yamltext import documents
from dsa_ledger.catalog.files import read_text
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TAKE = {"sglang": effects_sglang.take, "vllm": effects_vllm.take, "tensorrt-llm": effects_trtllm.take}
_MOST_CONFIG = 1000
_MODEL_FLAGS = ("--model-path", "--model")


class Source(NamedTuple):
    """A text given for a command, and whether it is YAML by its file's name."""

    text: str
    is_yaml: bool = False


def source_of(given: str) -> Source:
    """Return what one `--from-command` means: `-` standard input, the path of a file, else the command itself."""
    if given == "-":
        return Source(sys.stdin.read(LONGEST_TEXT + 1))
    path = Path(given)
    if not any(mark in given for mark in " \n\t") and _is_file(path):
        text = read_text(path, OPTION, LONGEST_TEXT)
        return Source(text, path.suffix in (".yaml", ".yml"))
    if not any(mark in given for mark in " \n\t") and (path.suffix or "/" in given):
        raise BadInput(
            [Fault(OPTION, given[-64:], f"a launch command, or a file that can be read: {_why_no_file(path)}")]
        )
    return Source(given)


def _why_no_file(path: Path) -> str:
    try:
        return "no regular file" if path.exists() else "no such file"
    except (OSError, ValueError):
        return "no such file"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_launch(sources: Iterable[Source], engine: str | None = None, version: str | None = None) -> Reading:
    """Return what the one server command of the texts says (BadInput); engine and version are those given beside it."""
    launches: list[Launch] = []
    faults: list[str] = []
    notes: list[str] = []
    configs: list[dict[str, Any]] = []
    for source in sources:
        if source.is_yaml or looks_like_yaml(source.text):
            found = documents(source.text, OPTION)
            inside, wrong = launches_in_documents(found)
            launches += inside
            faults += wrong
            table = config_of(found)
            if not inside and table is not None:
                configs.append(table)
        else:
            text = launches_of(source.text)
            launches += text.launches
            faults += text.faults
            notes += text.notes
    launch = only_launch(Text(launches, faults, notes))
    reading = _started(launch, engine, version)
    for sentence in notes:
        reading.note(one_line(sentence))
    _read(launch, reading, configs)
    return reading


def _started(launch: Launch, engine: str | None, version: str | None) -> Reading:
    if engine is not None and engine != launch.engine:
        raise BadInput([Fault("engine.name", engine, f"{launch.engine}, whose command {OPTION} holds")])
    tagged = version_of_image(launch.image) if launch.image else None
    reading = Reading(launch.engine, version)
    if version is None and tagged and tagged[0] == launch.engine and tagged[1]:
        reading.version = tagged[1]
        reading.note(f"{launch.engine} {tagged[1]} by the tag of {one_line(launch.image, 80)}")
    named = f"{launch.engine}@{reading.version}" if reading.version else launch.engine
    reading.set("engine", named, one_line(launch.image) if version is None and reading.version else launch.engine)
    return reading


def _read(launch: Launch, reading: Reading, configs: Sequence[dict[str, Any]]) -> None:
    given, positional = given_flags(launch, reading)
    name = next((one.values[0] for one in given if one.name == "--config" and one.values), None)
    tables = list(configs)
    if name is not None and not tables:
        text = launch.files.get(name) or launch.files.get(name.rpartition("/")[2])
        if text is None:
            reading.note(f"--config {one_line(name, 80)} is not opened: give it as another {OPTION} FILE.yaml")
        else:
            tables = [table for table in (config_of(documents(text, OPTION)),) if table]
    if launch.engine != "tensorrt-llm" and tables:
        words = [word for table in tables for word in _as_words(table)]
        launch = launch._replace(words=(*words, *launch.words))
        reading.unknown.clear()
        given, positional = given_flags(launch, reading)
    given = [one for one in given if one.name != "--config"]
    TAKE[launch.engine](reading, last_of(given), positional, launch.environment)
    if launch.engine == "tensorrt-llm":
        for table in tables:
            effects_trtllm.take_yaml(reading, table)
    named = any(one.name in _MODEL_FLAGS for one in given)
    for word in positional if named else positional[1:]:
        if word.missing:
            reading.note(f"{one_line(word.text, 60)} is not set in the text: what it adds to the command is not read")
        else:
            reading.unknown.append(f"{one_line(word.text, 60)} belongs to no flag")


def _as_words(table: dict[str, Any]) -> list[Word]:
    """Return an engine's own YAML as the flags it stands for; they come before the command's, which win."""
    words: list[Word] = []
    for key, value in list(table.items())[:_MOST_CONFIG]:
        name = "--" + str(key).replace("_", "-")
        if value in ("false", "False", "null", ""):
            continue
        if value in ("true", "True"):
            words.append(Word(name))
        elif isinstance(value, list):
            words += [Word(name), *(Word(str(item)) for item in value)]
        elif isinstance(value, dict):
            words += [Word(name), Word(json.dumps(value))]
        else:
            words.append(Word(f"{name}={value}"))
    return words
