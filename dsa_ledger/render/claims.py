"""The source articles' claims beside what the ledger says: one block a claim, or the records that programs read."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.render import rows_text
from dsa_ledger.render.data import CONTRACT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.claims import Answered

LINE_WIDTH = 80
VERDICTS = {"holds": "hold", "corrected": "are corrected", "depends": "depend on engine, version or GPU"}


def claims_text(found: Sequence[Answered], form: str, *, whole: bool = False) -> str:
    """Return the claims in one of the formats; `whole` adds sources and the commands that explain each figure."""
    if form == "table":
        return "\n".join(_blocks(found, whole=whole)) + "\n"
    if form == "json":
        return json.dumps({"schema": CONTRACT, "claims": [_record(one) for one in found]}, indent=1) + "\n"
    return rows_text("claims", [_row(one) for one in found], form)


def _row(one: Answered) -> dict[str, Any]:
    claim = one.claim
    row = {"id": claim.id, "verdict": claim.verdict, "claimed": one.claimed, "ledger": one.ledger}
    return row | {"reason": claim.reason, "claim": claim.says, "doubt": one.doubt}


def _record(one: Answered) -> dict[str, Any]:
    figures = [
        {
            "what": answer.figure.what,
            "claimed": answer.figure.claimed,
            "ledger": answer.text,
            "value": answer.value,
            "agrees": answer.agrees,
            "explain": list(answer.commands),
        }
        for answer in one.answers
    ]
    return _row(one) | {"figures": figures, "settled_by": one.claim.settled_by, "sources": list(one.claim.sources)}


def _blocks(found: Sequence[Answered], *, whole: bool) -> Iterator[str]:
    for one in found:
        yield from _block(one, whole=whole)
        yield ""
    if len(found) > 1:
        counts = {word: sum(one.claim.verdict == word for one in found) for word in VERDICTS}
        yield f"{len(found)} claims: " + ", ".join(f"{counts[word]} {says}" for word, says in VERDICTS.items())
        doubted = [one.claim.id for one in found if one.doubt]
        yield f"in doubt: {', '.join(doubted)}" if doubted else "the ledger bears out every verdict"
        yield "one claim with its sources and the commands behind it: dsa-ledger claims ID"


def _block(one: Answered, *, whole: bool) -> Iterator[str]:
    claim = one.claim
    yield from _wrapped(claim.says, f"{claim.id:<4}{claim.verdict:<11}")
    if one.claimed != claim.says and not whole:
        yield from _wrapped(one.claimed, "    claimed    ")
    if not whole:
        yield from _wrapped(one.ledger, "    ledger     ")
    for answer in one.answers if whole else ():
        figure = answer.figure
        note = f", {figure.note}" if figure.note else ""
        yield from _wrapped(f"{figure.what}: {answer.text}", "    ledger     ")
        if figure.claimed:
            sign = {True: "agrees", False: "differs", None: "not compared"}[answer.agrees]
            yield from _wrapped(f"{figure.claimed}{note} ({sign})", "      claimed  ")
        for command in answer.commands:
            yield f"      explain  {command}"  # never broken: it is to be copied
    yield from _wrapped(claim.reason, "    reason     ")
    if one.doubt:
        yield from _wrapped(one.doubt, "    IN DOUBT   ")
    if claim.settled_by:
        yield from _wrapped(f"only a measurement can settle this: dsa-ledger {claim.settled_by}", "    settle     ")
    for source in claim.sources if whole else ():
        yield from _wrapped(source, "    source     ")


def _wrapped(text: str, label: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, LINE_WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
    )
