"""One question across engines and versions: a row for each stretch of releases that give the same figures."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.compare import compare
from dsa_ledger.engines.releases import READ, sort_key
from dsa_ledger.errors import BadInput, Faults, NotModelled, nearest
from dsa_ledger.schema import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

Verdict = Literal["fits", "does not fit", "refused", "not modelled"]

COLUMNS = (
    "record.main_kv_bytes",
    "cell.bytes",
    "model.index_k_layers",
    "pool.tokens",
    "pool.requests_at_context",
)
# What a word for the KV format is on each engine; a word that is not here, such as auto, goes to every engine as it is.
WORDS: dict[str, dict[str, str]] = {
    "bf16": {"sglang": "bf16", "vllm": "bfloat16", "tensorrt-llm": "bf16"},
    "bfloat16": {"sglang": "bfloat16", "vllm": "bfloat16", "tensorrt-llm": "bfloat16"},
    "fp8": {"sglang": "fp8_e4m3", "vllm": "fp8", "tensorrt-llm": "fp8"},
    "fp8_e4m3": {"sglang": "fp8_e4m3", "vllm": "fp8", "tensorrt-llm": "fp8"},
    "fp8_ds_mla": {"sglang": "fp8_e4m3", "vllm": "fp8_ds_mla", "tensorrt-llm": "fp8_ds_mla"},
    "nvfp4": {"sglang": "nvfp4", "vllm": "nvfp4_ds_mla", "tensorrt-llm": "nvfp4"},
    "nvfp4_ds_mla": {"sglang": "nvfp4", "vllm": "nvfp4_ds_mla", "tensorrt-llm": "nvfp4"},
}
_UPPER_BOUND = "pool.budget_bytes is an upper bound"


@dataclass(frozen=True, slots=True)
class Answer:
    """What consecutive releases of one engine answer alike; `figures` is empty where they refuse."""

    engine: str
    releases: tuple[str, ...]
    kv_dtype: str
    figures: dict[str, Any]
    pool_is_upper_bound: bool
    verdict: Verdict
    reason: str

    @property
    def span(self) -> str:
        """Return the releases as people write them."""
        first, last = self.releases[0], self.releases[-1]
        return first if first == last else f"{first} - {last}"


class Change(NamedTuple):
    """A rule of an engine that gives another answer from one release on."""

    engine: str
    version: str
    key: str
    a: Any
    b: Any
    source_a: str
    source_b: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """The answers in the order asked, and the rules that make neighbouring answers of one engine differ."""

    scenario: Scenario
    answers: tuple[Answer, ...]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...] = ()


def engines_named(text: str) -> list[Engine]:
    """Return the engines of `sglang@0.5.17,vllm`: a name alone means each of its read releases (BadInput)."""
    faults, found = Faults(), []
    for word in filter(None, map(str.strip, text.split(","))) if text.strip(", ") else READ:
        name, _, version = word.partition("@")
        name = name.strip().lower().replace("trtllm", "tensorrt-llm")
        faults.require(name in READ, "--engines", word, nearest(name, READ))
        faults.require(not version or sort_key(version) is not None, "--engines", word, "a version such as 0.5.18")
        versions = [version.strip()] if version else READ.get(name, ())
        found += [(name, each) for each in versions]
    faults.stop_if_any()
    return [Engine(name=name, version=version) for name, version in dict.fromkeys(found)]


def asked_of(scenario: Scenario, engine: Engine) -> Scenario:
    """Return the question as one engine understands it: its version, and its word for the KV format."""
    word = scenario.kv_dtype
    spelled = WORDS.get(word.lower(), {}).get(engine.name, word)
    return scenario.model_copy(update={"engine": engine, "kv_dtype": spelled})


def matrix(scenario: Scenario, engines: Sequence[Engine]) -> Matrix:
    """Return the answer of each engine; a fault or a gap that all of them have alike is raised, not listed."""
    answers: list[Answer] = []
    changes: list[Change] = []
    errors: list[BadInput | NotModelled] = []
    before: tuple[Scenario, Ledger] | None = None
    for engine in engines:
        asked, last = asked_of(scenario, engine), answers[-1] if answers else None
        try:
            ledger = estimate(asked)
        except (BadInput, NotModelled) as error:
            errors.append(error)
            answer, now = _refusal(asked, error), None
        else:
            answer, now = _answer(asked, ledger), (asked, ledger)
        if last and replace(answer, releases=last.releases) == last:
            answers[-1] = replace(last, releases=last.releases + answer.releases)
        else:
            if now and before and before[0].engine.name == engine.name:
                changes += _changes(*before, *now)
            answers.append(answer)
        before = now or before
    if errors and len(errors) == len(engines):
        _raise_common(errors, answers)
    return Matrix(scenario, tuple(answers), tuple(changes))


def _answer(scenario: Scenario, ledger: Ledger) -> Answer:
    return Answer(
        engine=scenario.engine.name,
        releases=(scenario.engine.version or "",),
        kv_dtype=scenario.kv_dtype,
        figures={key: ledger[key] for key in COLUMNS if key in ledger},
        pool_is_upper_bound=any(sentence.startswith(_UPPER_BOUND) for sentence in ledger.warnings),
        verdict="does not fit" if ledger.shortfalls else "fits",
        reason=_for_any_release(scenario.engine, "; ".join(ledger.shortfalls)),
    )


def _refusal(scenario: Scenario, error: BadInput | NotModelled) -> Answer:
    reason = f"{error.feature}: {error.reason}" if isinstance(error, NotModelled) else "; ".join(error.lines())
    return Answer(
        engine=scenario.engine.name,
        releases=(scenario.engine.version or "",),
        kv_dtype=scenario.kv_dtype,
        figures={},
        pool_is_upper_bound=False,
        verdict="refused" if isinstance(error, BadInput) else "not modelled",
        reason=_for_any_release(scenario.engine, reason),
    )


def _for_any_release(engine: Engine, sentence: str) -> str:
    """Return a sentence without the release in it, so that releases that say the same are told as one."""
    return re.sub(rf"{re.escape(engine.name)}[@ ]{re.escape(engine.version or '')}(?!\w)", engine.name, sentence)


def _raise_common(errors: Sequence[BadInput | NotModelled], answers: Sequence[Answer]) -> None:
    """Raise the first error where every engine gives the same reason, or where none is modelled."""
    same = len({answer.reason for answer in answers}) == 1
    if same or all(isinstance(error, NotModelled) for error in errors):
        raise errors[0]


def _changes(old: Scenario, old_ledger: Ledger, new: Scenario, new_ledger: Ledger) -> Iterator[Change]:
    """Yield the engine's rules under the figures of the table that answer differently in two releases."""
    found = compare(old, new, (old_ledger, new_ledger))
    places = dict.fromkeys(place for row in found.rows if row.key in COLUMNS for place in row.causes)
    for place in places:
        cause = found.causes[place]
        a, b = cause.a, cause.b
        if a and b and a.source != b.source:
            yield Change(
                new.engine.name, new.engine.version or "", cause.keys[0], a.value, b.value, a.source.ref, b.source.ref
            )
