"""From flags to scenario fields: what is common to the engines. Each engine's flags are a table of its own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.audit.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dsa_ledger.audit.reading import Given, Reading
    from dsa_ledger.audit.shell import Word

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_COUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kKmMgGtT]?)(i?)")
_JSON_LIMIT = 1 << 16
_DEEPEST = 64


class Effect(NamedTuple):
    """A flag that sets one field."""

    path: str
    convert: Callable[[str], Any]


class LastGiven(NamedTuple):
    """The last giving of each flag, looked up by its name."""

    flags: dict[str, Given]

    def text(self, name: str) -> str | None:
        """Return the flag's first value, or None where it is not given or has an unset variable in it."""
        one = self.flags.get(name)
        return one.values[0] if one and one.values and not one.missing and not one.negated else None

    def on(self, name: str) -> bool:
        """Tell whether a switch is given."""
        return name in self.flags and not self.flags[name].negated

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return the flag's value as a whole number, or the default."""
        text = self.text(name)
        return int(text) if text and re.fullmatch(r"\d{1,12}", text) else default

    def shown(self, *names: str) -> str:
        """Return the flags as written."""
        return " ".join(self.flags[name].shown for name in names if name in self.flags)


def last_of(given: Iterable[Given]) -> LastGiven:
    """Return the flags by name; argparse keeps the last."""
    return LastGiven({one.name: one for one in given})


def whole(text: str) -> int:
    """Return a whole number (ValueError)."""
    if not re.fullmatch(r"[+-]?\d{1,15}", text.strip()):
        raise ValueError("a whole number")
    return int(text)


def share(text: str) -> float:
    """Return a number between 0 and 1 (ValueError)."""
    if not re.fullmatch(r"\d{0,3}\.?\d{0,12}", text.strip()) or not re.search(r"\d", text):
        raise ValueError("a number such as 0.85")
    return float(text)


def sglang_count(text: str) -> int:
    """Return tokens as SGLang reads them: 1k is 1000, 1Ki 1024 (ValueError)."""
    found = _COUNT.fullmatch(text.strip())
    if not found or (found[3] and not found[2]):
        raise ValueError("a count such as 131072, 128k or 128Ki")
    power = 1 if not found[2] else DECIMAL[found[2].lower()]
    if found[3]:
        power = BINARY[found[2].lower()]
    return _scaled(found[1], power)


def vllm_count(text: str) -> int:
    """Return a count as vLLM reads it: lower case is decimal, upper case binary (ValueError)."""
    found = _COUNT.fullmatch(text.strip())
    if not found or found[3]:
        raise ValueError("a count such as 8192, 8k (8,000) or 8K (8,192)")
    letter = found[2]
    power = 1 if not letter else DECIMAL[letter] if letter.islower() else BINARY[letter.lower()]
    return _scaled(found[1], power)


def _scaled(number: str, power: int) -> int:
    whole_part, _, fraction = number.partition(".")
    scaled = int(whole_part + fraction) * power
    parts = int("1" + "0" * len(fraction))
    if scaled % parts:
        raise ValueError("a whole count")
    return scaled // parts


def json_table(text: str) -> dict[str, Any]:
    """Return a JSON object (ValueError); Python's own spelling of one is not evaluated."""
    if len(text) > _JSON_LIMIT or text.count("{") + text.count("[") > _DEEPEST * 8:
        raise ValueError("a smaller JSON object")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("a JSON object") from error
    if not isinstance(value, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - one kind of error for whoever converts
    return value


def apply(reading: Reading, given: LastGiven, effects: Mapping[str, Effect]) -> set[str]:
    """Set the fields of flags that stand for one field each; return the flags dealt with."""
    done = set()
    for name, one in given.flags.items():
        effect = effects.get(name)
        if effect is None:
            continue
        done.add(name)
        if one.missing:
            reading.missing[effect.path] = f"{one.shown}: {', '.join(one.missing)} is not set in the text"
            continue
        try:
            reading.set(effect.path, effect.convert(one.values[0] if one.values else ""), one.shown)
        except ValueError as wrong:
            reading.missing[effect.path] = f"{one.shown}: expected {wrong}"
    return done


def take_overrides(reading: Reading, given: LastGiven, name: str) -> None:
    """Set the model keys that a JSON flag replaces."""
    text = given.text(name)
    if text is None:
        if name in given.flags:
            reading.missing["model_overrides"] = f"{given.shown(name)}: not all of it is in the text"
        return
    try:
        for key, value in json_table(text).items():
            reading.set(f"model_overrides.{one_line(str(key), 60)}", value, one_line(f"{name} {key}"))
    except ValueError as wrong:
        reading.missing["model_overrides"] = f"{given.shown(name)}: expected {wrong}"


def take_partition(reading: Reading, environment: Mapping[str, Word], name: str) -> None:
    """Set the layers per pipeline stage from the engine's environment variable."""
    word = environment.get(name)
    if word is None:
        return
    counts = word.text.split(",")
    if word.missing or not all(re.fullmatch(r"\s*\d{1,4}\s*", count) for count in counts):
        reading.missing["sharding.pp_partition"] = one_line(
            f"{name}={word.text}: expected layers per stage, such as 39,39"
        )
        return
    reading.set("sharding.pp_partition", [int(count) for count in counts], one_line(f"{name}={word.text}"))


def list_rest(reading: Reading, given: LastGiven, done: set[str], unsupported: Mapping[str, str]) -> None:
    """Say of each remaining flag that it changes nothing here, or what it changes that is not worked out."""
    for name, one in given.flags.items():
        if name in done:
            continue
        plain = name.partition(".")[0]
        if plain in unsupported:
            reading.note(f"{one.shown}: {unsupported[plain]}")
        else:
            reading.ignored.append(one.shown)


def take_model_word(reading: Reading, given: LastGiven, flag: str, positional: Sequence[Word]) -> None:
    """Set the model from its flag, or from the first positional word."""
    name, written = given.text(flag), given.shown(flag)
    missing = given.flags[flag].missing if flag in given.flags else ()
    if flag not in given.flags and positional:
        name, written, missing = positional[0].text, one_line(positional[0].text), positional[0].missing
    if missing:
        reading.missing["model"] = f"{written}: {', '.join(missing)} is not set in the text"
    elif name:
        take_model(reading, name, written)


def take_model(reading: Reading, name: str, written: str) -> None:
    """Set the model where the catalog knows the name; a path is not opened, only its last part compared."""
    from dsa_ledger.catalog import cache_model_names, model_names, unmodelled_names

    last = name.rstrip("/").rpartition("/")[2].lower()
    known = [*model_names(), *cache_model_names(), *unmodelled_names()]
    exact = [model for model in known if model.lower() == name.lower()]
    alike = [model for model in known if model.lower().rpartition("/")[2] == last]
    if exact or len(alike) == 1:
        model = (exact or alike)[0]
        reading.set("model", model, written)
        if not exact:
            reading.note(f"{one_line(name, 80)} is taken for {model} by its name; no path in a command is opened")
        return
    if last:
        expected = "no model of the catalog goes by that name: give --model ID or --model config.json"
        reading.missing["model"] = f"{written}: {expected}"
