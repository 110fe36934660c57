"""The source articles' claims: each a scenario with the claim in our words, answered by the ledger when it is run.

A file holds what was claimed, the verdict and which entries answer; no figure of an answer stands in it.
"""

from __future__ import annotations

import functools
import re
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.account.deploy import deploy
from dsa_ledger.assignment import set_path, set_value
from dsa_ledger.errors import BadInput, ExpectedError, Fault, nearest
from dsa_ledger.scenario_file import claim_files, put, read_claim
from dsa_ledger.schema import Frozen, Scenario
from dsa_ledger.units import PREFIXES, SECONDS
from dsa_ledger.validation import validated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsa_ledger.ledger import Ledger

Verdict = Literal["holds", "corrected", "depends"]
MOST_IDS = 8  # ids shown of a longer list


class Figure(Frozen):
    """One figure that answers a claim: where it comes from, what was claimed, how to show it.

    `key`, `less`, `times` and `over` name entries, `RUN:KEY` those of a run: (key - less) x times / over.
    """

    what: str
    run: str = ""
    key: str = ""
    less: str = ""
    times: str = ""
    over: str = ""
    gap: tuple[float, float] | None = None  # tokens per second seen and expected: divides by the seconds between
    layers: Literal["", "full"] = ""
    refused: bool = False
    warning: str = ""  # words of the warning that answers
    published: str = ""  # CONTEXT.COLUMN of the published speed-ups
    claimed: str = ""
    shown_as: str = ""  # a sample such as `0.00 MB`; the claimed figure is the sample where there is none
    within: float = 0  # what the claimed figure may miss by, in its unit; the reason says why
    cut: bool = False  # the article cut the figure instead of rounding it; the reason says so
    note: str = ""


class Claim(Frozen):
    """One claim: its words, its verdict, its reason, its sources, its runs and figures."""

    id: str
    verdict: Verdict
    says: str
    reason: str
    sources: tuple[str, ...]
    settled_by: str = ""
    runs: dict[str, tuple[str, ...]]  # what each sets on top of the scenario, PATH=VALUE
    figures: tuple[Figure, ...] = ()
    tables: dict[str, Any]


class Answer(NamedTuple):
    """One figure as the ledger gives it; `agrees` is None where the claim gave no figure to compare."""

    figure: Figure
    value: Any
    text: str
    agrees: bool | None
    commands: tuple[str, ...]


class Answered(NamedTuple):
    """A claim with its answers; `doubt` says where the ledger no longer bears the verdict out."""

    claim: Claim
    answers: tuple[Answer, ...]
    doubt: str

    @property
    def claimed(self) -> str:
        """Return what was claimed, figure by figure, each once."""
        figures = dict.fromkeys(_claimed(answer.figure) for answer in self.answers if answer.figure.claimed)
        return "; ".join(figures) or self.claim.says

    @property
    def ledger(self) -> str:
        """Return what the ledger gives, figure by figure."""
        given = "; ".join(f"{answer.figure.what}: {answer.text}" for answer in self.answers)
        return given or f"no entry can tell: {self.claim.settled_by}"


def known() -> tuple[str, ...]:
    """Return the ids of all claims, in their order."""
    return tuple(claim_files())


def find(name: str) -> Claim:
    """Return a claim by its id, in either case (BadInput with the nearest)."""
    files = claim_files()
    wanted = name.strip().upper()
    if wanted not in files:
        raise BadInput([Fault("ID", name, nearest(name, files))])
    tables, claim = read_claim(files[wanted])
    return validated(Claim, {"runs": {}} | claim | {"id": wanted, "tables": tables}, f"{wanted}.")


def answered(claim: Claim) -> Answered:
    """Run a claim's scenarios and return what the ledger says."""
    runs = _Runs(claim)
    answers = tuple(_answer(runs, figure) for figure in claim.figures)
    return Answered(claim, answers, _doubt(claim, answers))


def _doubt(claim: Claim, answers: Iterable[Answer]) -> str:
    """Return where the figures contradict the verdict: a claim that holds must be met, a corrected one missed."""
    compared = [answer for answer in answers if answer.agrees is not None]
    missed = [answer.figure.what for answer in compared if not answer.agrees]
    if claim.verdict == "holds" and missed:
        return f"the ledger no longer gives the claimed figure: {', '.join(missed)}"
    if claim.verdict == "corrected" and compared and not missed:
        return "the ledger gives every claimed figure, so nothing is corrected"
    return ""


class _Runs:
    """The runs of one claim: scenarios, and ledgers made when first asked for."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim

    @functools.cache  # noqa: B019 - a _Runs lives as long as one answer
    def scenario(self, run: str) -> Scenario:
        tables = _copied(self.claim.tables)
        for text in self.sets(run):
            blocked = put(tables, set_path(text), set_value(text.partition("=")[2]))
            if blocked:
                raise BadInput([Fault(f"{self.claim.id}.runs.{run}", text, blocked)])
        return validated(Scenario, tables, self.claim.id)

    @functools.cache  # noqa: B019 - as above
    def ledger(self, run: str) -> Ledger:
        return estimate(self.scenario(run))

    def sets(self, run: str) -> tuple[str, ...]:
        if run and run not in self.claim.runs:
            raise BadInput([Fault(f"{self.claim.id}.run", run, nearest(run, self.claim.runs))])
        return self.claim.runs[run] if run else ()

    def entry(self, named: str, default: str) -> tuple[str, str]:
        """Return run and key of `RUN:KEY`, of `KEY` alone the default run."""
        run, colon, key = named.rpartition(":")
        return (run if colon else default), key

    def value(self, named: str, default: str = "") -> Any:
        run, key = self.entry(named, default)
        ledger = self.ledger(run)
        if key not in ledger:
            raise BadInput([Fault(f"{self.claim.id}.{key}", run, nearest(key, ledger.entries))])
        return ledger[key]

    def command(self, named: str, default: str = "") -> str:
        """Return the command that explains an entry."""
        import shlex

        run, key = self.entry(named, default)
        words = ["dsa-ledger", "explain", key, self.claim.id]
        for text in self.sets(run):
            words += ["--set", text]
        return shlex.join(words)


def _copied(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, dict) else value for name, value in tables.items()}


def _answer(runs: _Runs, figure: Figure) -> Answer:
    if figure.key:
        return _number(runs, figure)
    if figure.layers:
        return _layers(runs, figure)
    if figure.published:
        return _compared(figure, _published(figure.published), ("dsa-ledger validate --published",))
    command = f"dsa-ledger estimate {runs.claim.id}" + "".join(f" --set {text}" for text in runs.sets(figure.run))
    if figure.refused:
        said = _refusal(runs, figure.run)
        return Answer(figure, said, said or "starts", None if not figure.claimed else not said, (command,))
    found = next((said for said in runs.ledger(figure.run).warnings if figure.warning in said), "")
    return Answer(figure, found, found or "no warning", None if not figure.claimed else bool(found), (command,))


def _number(runs: _Runs, figure: Figure) -> Answer:
    run = figure.run
    value = runs.value(figure.key, run)
    # A second entry belongs to the scenario itself unless it names a run.
    value = value - runs.value(figure.less) if figure.less else value
    value = value * runs.value(figure.times, run) if figure.times else value
    value = value / runs.value(figure.over) if figure.over else value
    if figure.gap:
        seen, expected = figure.gap
        value = value / (1 / seen - 1 / expected)
    named = [(figure.key, run), (figure.less, ""), (figure.times, run), (figure.over, "")]
    return _compared(figure, value, tuple(runs.command(key, of) for key, of in named if key))


def _compared(figure: Figure, value: Any, commands: tuple[str, ...]) -> Answer:
    digits, unit = _sample(figure.shown_as or figure.claimed)
    scaled = Decimal(value) / scale(unit)
    text = f"{_rounded(scaled, digits):,} {unit}"
    found = re.fullmatch(r"(?:(below|at most|over) )?([\d.,]+ .+)", figure.claimed)
    if not found:
        return Answer(figure, value, text, None, commands)
    bound, stated = found[1], Decimal(found[2].split()[0].replace(",", ""))
    digits, unit = _sample(found[2])
    scaled = Decimal(value) / scale(unit)
    if bound:
        within = {"below": scaled < stated, "at most": scaled <= stated, "over": scaled > stated}[bound]
        return Answer(figure, value, text, within, commands)
    rounding = ROUND_DOWN if figure.cut else ROUND_HALF_UP
    step = Decimal(1).scaleb(-digits)
    # A tie rounds either way: both are in use.
    exact = {scaled.quantize(step, rounding), scaled.quantize(step, ROUND_DOWN if figure.cut else ROUND_HALF_EVEN)}
    agrees = abs(scaled - stated) <= Decimal(str(figure.within)) if figure.within else stated in exact
    return Answer(figure, value, text, agrees, commands)


def _sample(text: str) -> tuple[int, str]:
    """Return the digits behind the point and the unit of a figure as printed."""
    number, _, unit = text.partition(" ")
    return len(number.partition(".")[2]), unit


def scale(unit: str) -> Decimal:
    """Return how many base units one of these is: GB, KiB, ms, %, M elements; any other word counts itself."""
    word = unit.partition(" ")[0].partition("/")[0]
    if word == "%":
        return Decimal("0.01")
    if word in SECONDS:
        return SECONDS[word]
    for ending in ("FLOP", "B", ""):
        prefix = word.removesuffix(ending)
        if word.endswith(ending) and prefix in PREFIXES:
            return Decimal(PREFIXES[prefix])
    return Decimal(1)


def _rounded(value: Decimal, digits: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)


def _claimed(figure: Figure) -> str:
    ids = _ids(figure)
    text = figure.claimed if ids is None else _short(ids)
    return f"{text} ({figure.note})" if figure.note else text


def _layers(runs: _Runs, figure: Figure) -> Answer:
    ids = list(deploy(runs.scenario(figure.run)).layers.full)
    agrees = None if not figure.claimed else ids == _ids(figure)
    return Answer(figure, ids, _short(ids), agrees, (runs.command("model.full_layers", figure.run),))


def _ids(figure: Figure) -> list[int] | None:
    """Return the layer ids that a claim lists, None where it lists none."""
    listed = figure.layers and re.fullmatch(r"\d+(,\d+)+", figure.claimed)
    return [int(part) for part in figure.claimed.split(",")] if listed else None


def _short(ids: list[int]) -> str:
    shown = [*map(str, ids[:5]), "..", str(ids[-1])] if len(ids) > MOST_IDS else [*map(str, ids)]
    return f"{', '.join(shown)} ({len(ids)})"


def _published(named: str) -> float:
    from dsa_ledger.timing.published import indexcache

    context, _, column = named.partition(".")
    return next(float(row[column]) for row in indexcache() if row["context"] == int(context))


def _refusal(runs: _Runs, run: str) -> str:
    """Return why a scenario is refused, empty where it is not."""
    try:
        runs.ledger(run)
    except ExpectedError as refused:
        return "; ".join(refused.lines())
    return ""
