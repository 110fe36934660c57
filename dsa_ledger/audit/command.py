"""Finds the server command in shell text and reads its flags as the engine's own parser would."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.audit.flagtable import flag_table
from dsa_ledger.audit.reading import MOST_SHOWN, Given, Reading, one_line
from dsa_ledger.audit.shell import Script, Word, assignment, script_of
from dsa_ledger.engines.releases import key_of
from dsa_ledger.errors import BadInput, Fault, Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.audit.flagtable import FlagTable, Found

OPTION = "--from-command"
_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang_router.launch_server": "sglang",
    "dynamo.sglang": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "dynamo.vllm": "vllm",
    "tensorrt_llm.commands.serve": "tensorrt-llm",
}
_PROGRAMS = {"sglang": ("sglang", True), "vllm": ("vllm", True), "trtllm-serve": ("tensorrt-llm", False)}
_IMAGES = re.compile(
    r"(?:^|/)(sglang|vllm-openai|vllm|tensorrt-llm[\w.-]*|tensorrtllm[\w.-]*)(?::([\w.+-]+))?(?:@\S+)?$"
)
_TAG = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?(?:rc\d+)?)")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "zsh", "/usr/bin/bash")
_NUMBER = re.compile(r"-\d+(\.\d+)?$")
_NODE = ("--node-rank", "--node_rank")
_NODE_IS = tuple(f"{name}=" for name in _NODE)
MOST_NESTED = 4
MOST_HINTS = 8


class Launch(NamedTuple):
    """A server command: engine, its words after the program, variables in front, the image it runs in."""

    engine: str
    words: tuple[Word, ...]
    environment: dict[str, Word]
    files: dict[str, str]
    image: str = ""

    @property
    def shown(self) -> str:
        """Return the start of the command for a message."""
        return one_line(" ".join(word.text for word in self.words), 60)


class Text(NamedTuple):
    """All that a text holds: its server commands, and what was not read."""

    launches: list[Launch]
    faults: list[str]
    notes: list[str]


def launches_of(text: str) -> Text:
    """Return the server commands of shell text."""
    script = script_of(text)
    found = list(_in_script(script, 0))
    notes = [f"default taken for an unset variable: {default}" for default in script.defaults[:20]]
    return Text(found, script.faults[:20], notes)


def _in_script(script: Script, depth: int) -> Iterator[Launch]:
    for words in script.statements:
        yield from launches_in(words, script, depth)


def launches_in(words: Sequence[Word], script: Script, depth: int = 0, image: str = "") -> Iterator[Launch]:
    """Yield the server command among the words of one statement, also within `bash -c` and `docker run`."""
    environment = {name: value for name, value in script.variables.items() if len(value) == 1}
    around = {name: value[0] for name, value in environment.items()}
    for place, word in enumerate(words):
        pair = assignment(word)
        if pair:
            around[pair[0]] = Word(pair[1], word.missing)
        if word.text in _SHELLS and depth < MOST_NESTED:
            inner = _shell_text(words[place + 1 :])
            if inner is not None:
                nested = script_of(inner, {name: value.text for name, value in around.items() if not value.missing})
                script.faults.extend(nested.faults)
                yield from (launch._replace(image=launch.image or image) for launch in _in_script(nested, depth + 1))
                return
        hit = _program(words, place)
        if hit:
            engine, start = hit
            yield Launch(engine, tuple(words[start:]), around, script.files, image)
            return
        found = _IMAGES.search(word.text) if "/" in word.text or ":" in word.text else None
        if found:
            image = word.text
            if _starts_flags(words, place + 1) and found[1] == "vllm-openai":
                yield Launch("vllm", tuple(words[place + 1 :]), around, script.files, image)
                return


def _starts_flags(words: Sequence[Word], place: int) -> bool:
    return place < len(words) and words[place].text.startswith("--")


def _shell_text(words: Sequence[Word]) -> str | None:
    for place, word in enumerate(words[:-1]):
        if word.text.startswith("-") and word.text.endswith("c") and not word.text.startswith("--"):
            return words[place + 1].text
        if not word.text.startswith("-"):
            return None
    return None


def _program(words: Sequence[Word], place: int) -> tuple[str, int] | None:
    """Return engine and first word of the flags where a server program starts at `place`."""
    name = words[place].text.rpartition("/")[2]
    after = words[place + 1].text if place + 1 < len(words) else ""
    if name == "-m" and after in _MODULES:
        engine, start = _MODULES[after], place + 2
        return engine, start + (start < len(words) and words[start].text == "serve")
    if name in ("launch_server.py", "api_server.py"):
        return ("sglang" if name.startswith("launch") else "vllm"), place + 1
    if name in _PROGRAMS:
        engine, needs_serve = _PROGRAMS[name]
        if after == "serve":
            return engine, place + 2
        return None if needs_serve else (engine, place + 1)
    return None


def version_of_image(image: str) -> tuple[str, str] | None:
    """Return engine and version that an image's name and tag say, if they do."""
    found = _IMAGES.search(image.strip())
    if not found:
        return None
    name = found[1]
    engine = "sglang" if name == "sglang" else "vllm" if name.startswith("vllm") else "tensorrt-llm"
    tag = _TAG.match(found[2] or "")
    return engine, tag[1] if tag else ""


def only_launch(text: Text) -> Launch:
    """Return the one server command of a text (BadInput where there is none, or more than one)."""
    faults = [Fault(OPTION, one_line(reason), "shell text that can be read to its end") for reason in text.faults]
    if not text.launches:
        expected = "a command of `sglang serve`, `vllm serve`, `trtllm-serve` or their `python -m` forms"
        faults.append(Fault(OPTION, "no server command found", expected))
    different: dict[tuple[str, ...], Launch] = {}
    for launch in text.launches:
        different.setdefault(_told_apart(launch), launch)
    if len(different) > 1:
        listed = "; ".join(f"{launch.engine}: {launch.shown}" for launch in [*different.values()][:4])
        faults.append(Fault(OPTION, Words(f"{len(different)} server commands"), f"one; found {listed}"))
    if faults:
        raise BadInput(faults)
    return text.launches[0]


def _told_apart(launch: Launch) -> tuple[str, ...]:
    """Return what makes a command another one: leader and worker of one server differ in their node's number alone."""
    texts = [word.text for word in launch.words]
    places = {place for place, text in enumerate(texts) if text in _NODE}
    words = (text for place, text in enumerate(texts) if not {place, place - 1} & places)
    return (launch.engine, launch.image, *(text for text in words if not text.startswith(_NODE_IS)))


def given_flags(launch: Launch, reading: Reading) -> tuple[list[Given], list[Word]]:
    """Return the flags of a command and its positional words; what is unknown goes to the reading."""
    table = flag_table(launch.engine)
    given: list[Given] = []
    positional: list[Word] = []
    words, place = launch.words, 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.text in (">", ">>", "2>", "<", "&>") or word.text.endswith(">&1"):
            place += not word.text.endswith(">&1")
            continue
        if not word.text.startswith("-") or word.text == "-" or _NUMBER.fullmatch(word.text):
            positional.append(word)
            continue
        written, equals, value = word.text.partition("=")
        name, dot, below = written.partition(".")
        if launch.engine != "vllm" or not dot:
            name, below = written, ""
        found = _found(table, name, reading)
        flag = found.flag
        if flag is None:
            taken = _loose_values(words, place)
            if len(reading.unknown) < MOST_SHOWN:
                reading.unknown.append(one_line(found.problem))
            place += 0 if equals else taken
            continue
        values: tuple[str, ...] = (value,) if equals else ()
        missing = list(word.missing)
        if not equals:
            count = _count(flag.arity, words, place)
            values = tuple(taken.text for taken in words[place : place + count])
            missing += [name for taken in words[place : place + count] for name in taken.missing]
            place += count
        if flag.arity in ("1", "+") and not values:
            reading.unknown.append(f"{written} has no value")
            continue
        shown = f"{flag.main}.{below}" if below else flag.main
        given.append(Given(shown, written, values, found.negated, tuple(missing)))
    _fits(given, launch.engine, reading)
    return given, positional


def _found(table: FlagTable, name: str, reading: Reading) -> Found:
    # Each hint costs milliseconds, and a text of so many unknown flags is no command.
    return table.find(name, reading.version, hint=len(reading.unknown) < MOST_HINTS)


def _loose_values(words: Sequence[Word], place: int) -> int:
    """Return how many words may belong to a flag that nobody knows: those up to the next flag, at most one."""
    return int(place < len(words) and not words[place].text.startswith("-"))


def _count(arity: str, words: Sequence[Word], place: int) -> int:
    """Return how many of the next words a flag takes."""
    if arity in ("0", "b"):
        return 0
    most = 1 if arity in ("1", "?") else len(words)
    count = 0
    while count < most and place + count < len(words):
        text = words[place + count].text
        if (text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text)) or text in (">", ">>", "2>"):
            break
        count += 1
    return count


def _fits(given: Sequence[Given], engine: str, reading: Reading) -> None:
    """Say which releases know every flag, where the command itself does not name one."""
    if reading.version:
        return
    table = flag_table(engine)
    flags = [table.flags[name] for one in given if (name := one.written.partition(".")[0]) in table.flags]
    dated = [flag for flag in flags if flag.last]
    if dated:
        oldest = min(dated, key=lambda flag: key_of(flag.last))
        first = max((flag.first for flag in flags), key=key_of)
        reading.note(
            f"{oldest.name} is a flag of {engine} {oldest.span}: the command fits {first} to {oldest.last}; "
            f"name your version with --engine {engine}@VERSION"
        )
