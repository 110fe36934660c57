"""Launch commands in Compose and Kubernetes YAML: image, command, arguments, environment of each container."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.command import Launch, launches_in
from dsa_ledger.audit.shell import Script, Word, script_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_NODES = 20_000
DEEPEST = 40
_MARKS = re.compile(r"^\s*(?:-\s*)?(?:services|apiVersion|kind|containers|spec|extraPodSpec):", re.MULTILINE)
MOST_REFERENCES = 1000
_BEFORE_A_SHELL = re.compile(r"\$\$|\$\((\w+)\)")
_REFERENCE = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}$]*))?\}|\$(\w+)")


def looks_like_yaml(text: str) -> bool:
    """Tell whether a text is Compose or Kubernetes YAML rather than shell."""
    return bool(_MARKS.search(text[:20_000])) and not text.startswith("#!")


def launches_in_documents(documents: list[Any]) -> tuple[list[Launch], list[str]]:
    """Return the server commands of all containers, and what could not be read."""
    files = dict(_config_maps(documents))
    found, faults = [], []
    for table in _tables(documents):
        if not any(key in table for key in ("command", "args", "entrypoint")):
            continue
        script = Script(files=dict(files))
        words, around = _words(table)
        script.variables = {name: [Word(value)] for name, value in around.items()}
        image = table.get("image")
        image = image if isinstance(image, str) else ""
        entry = [Word(image)] if image and words and words[0].text.startswith("--") else []
        for launch in launches_in([*entry, *words], script, image=image):
            own = launch._replace(environment={**{k: Word(v) for k, v in around.items()}, **launch.environment})
            found.append(own._replace(files=files | own.files))
        faults += script.faults
    return found, faults


def config_of(documents: list[Any]) -> dict[str, Any] | None:
    """Return an engine's own settings where a document is a plain table of them."""
    tables = [document for document in documents if isinstance(document, dict)]
    return tables[0] if len(tables) == 1 else None


def _tables(documents: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield every table once, however often an alias repeats it."""
    waiting: list[tuple[Any, int]] = [(document, 0) for document in reversed(documents)]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_NODES:
        node, depth = waiting.pop()
        if not isinstance(node, dict | list) or id(node) in seen or depth > DEEPEST:
            continue
        seen.add(id(node))
        below = node.values() if isinstance(node, dict) else node
        waiting.extend((child, depth + 1) for child in reversed(list(below)))
        if isinstance(node, dict):
            yield node


def _config_maps(documents: list[Any]) -> Iterator[tuple[str, str]]:
    for document in documents:
        if (
            isinstance(document, dict)
            and document.get("kind") == "ConfigMap"
            and isinstance(document.get("data"), dict)
        ):
            for name, text in document["data"].items():
                if isinstance(text, str):
                    yield name, text


def _words(table: Mapping[str, Any]) -> tuple[list[Word], dict[str, str]]:
    """Return the words that a container runs, and its environment."""
    around = _environment(table.get("environment", table.get("env")))
    parts = [table.get("entrypoint"), table.get("command"), table.get("args")]
    words: list[Word] = []
    for part in parts:
        if isinstance(part, str):
            statements = script_of(part.replace("$$", "$"), around).statements
            words.extend(word for statement in statements for word in [*statement, Word(";")])
        elif isinstance(part, list):
            words.extend(_filled(item, around) for item in part if isinstance(item, str))
    while words and words[-1].text == ";":
        words.pop()
    return words, around


def _environment(given: Any) -> dict[str, str]:
    if isinstance(given, dict):
        return {str(name): value for name, value in given.items() if isinstance(value, str)}
    found = {}
    for item in given if isinstance(given, list) else []:
        if isinstance(item, str) and "=" in item:
            name, _, value = item.partition("=")
            found[name] = value
        elif isinstance(item, dict) and isinstance(item.get("value"), str) and isinstance(item.get("name"), str):
            found[item["name"]] = item["value"]
    return found


def _filled(text: str, around: Mapping[str, str]) -> Word:
    """Return a list item with references to the container's own environment filled in, once.

    The kubelet fills `$(NAME)` wherever it stands and makes `$$` one dollar sign, as Compose does; `$NAME` in a script
    is left to the shell that reads it.
    """
    missing: list[str] = []
    if "$" not in text or text.count("$") > MOST_REFERENCES:
        return Word(text)
    if re.search(r"\s", text):
        return Word(_BEFORE_A_SHELL.sub(lambda found: around.get(found[1], found[0]) if found[1] else "$", text))

    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[4]
        if name in around:
            return around[name]
        if found[3] is not None:
            return found[3]
        missing.append(name)
        return found[0]

    return Word(_REFERENCE.sub(fill, text.replace("$$", "$")), tuple(missing))
