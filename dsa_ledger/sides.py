"""The two scenarios of a comparison, and the one of a matrix, as the command line names them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dsa_ledger.errors import ABSENT, BadInput, Fault, NotModelled
from dsa_ledger.options import OPTIONS, named, scenario_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.compare import Comparison
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.matrix import Matrix
    from dsa_ledger.options import Asked
    from dsa_ledger.schema import Scenario

_ENGINE = next(option for option in OPTIONS if option.name == "--engine")


def comparison(asked: Asked, other: str | None, changes: Sequence[str]) -> Comparison:
    """Return A, the scenario asked, compared with B: the file `other`, or A itself, with the changes on top.

    BadInput and NotModelled name the side, or both where they say the same.
    """
    from dsa_ledger.compare import SIDES, compare

    if other is None and not changes:
        expected = "a second scenario, or --b PATH=VALUE for what is different in it"
        raise BadInput([Fault("B", ABSENT, expected)])
    whole = {"a": asked, "b": _changed(asked, other, changes)}
    answers: dict[str, tuple[Scenario, Ledger]] = {}
    faults: dict[str, tuple[Fault, list[str]]] = {}  # by text: a fault's value may have no hash
    gaps: dict[str, NotModelled] = {}
    for side in SIDES:
        try:
            answers[side] = _ledger(whole[side])
        except BadInput as bad:
            for fault in bad.faults:
                own = _by_b(fault, changes) if side == "b" else fault
                faults.setdefault(str(own), (own, []))[1].append(side)
        except NotModelled as gap:
            gaps[side] = gap
    if faults:
        raise BadInput(fault._replace(path=f"{', '.join(sides)}: {fault.path}") for fault, sides in faults.values())
    _raise_gap(gaps)
    (a, of_a), (b, of_b) = answers["a"], answers["b"]
    return compare(a, b, (of_a, of_b))


def refuse(other: str | None, changes: Sequence[str] | None) -> None:
    """Raise BadInput where a matrix is asked for together with a second scenario."""
    expected = "none with --engine-matrix, which compares one scenario across engines"
    faults = [Fault(name, value, expected) for name, value in (("B", other), ("--b", changes)) if value]
    if faults:
        raise BadInput(faults)


def engine_matrix(asked: Asked, engines: str) -> Matrix:
    """Return one scenario across engines; the engine that its file names does not matter (BadInput, NotModelled)."""
    from dsa_ledger.matrix import engines_named, matrix

    if _ENGINE in asked.values:
        raise BadInput([Fault("--engine", asked.values[_ENGINE], "none: --engine-matrix asks all; use --engines")])
    listed = engines_named(engines)
    # A scenario has an engine: that of the launch command, whose flags are its own words, else any.
    engine = {} if asked.commands else {_ENGINE: f"{listed[0].name}@{listed[0].version}"}
    scenario = scenario_of(asked._replace(values={**asked.values, **engine}))
    try:
        return replace(matrix(scenario, listed), warnings=tuple(asked.notes or ()))
    except BadInput as bad:
        raise named(bad, asked) from None


def _changed(asked: Asked, other: str | None, changes: Sequence[str]) -> Asked:
    """Return what B was asked: the shared options but for the fields that the changes set."""
    paths = [text.partition("=")[0].strip() for text in changes]
    values = {option: value for option, value in asked.values.items() if option.path not in paths}
    sets = [text for text in asked.sets if text.partition("=")[0].strip() not in paths]
    return asked._replace(file=other or asked.file, values=values, sets=[*sets, *changes], stated={}, notes=[])


def _ledger(asked: Asked) -> tuple[Scenario, Ledger]:
    from dsa_ledger.account import estimate

    scenario = scenario_of(asked)
    try:
        ledger = estimate(scenario)
    except BadInput as bad:
        raise named(bad, asked) from None
    for sentence in asked.notes or ():
        ledger.warn(sentence)
    return scenario, ledger


def _by_b(fault: Fault, changes: Sequence[str]) -> Fault:
    """Return a fault of B with `--b` where it stands in one of the changes, which are read as `--set` is."""
    if fault.path == "--set" and fault.value in changes:
        return fault._replace(path="--b")
    bare = fault.path.removesuffix(" (--set)")
    changed = [text.partition("=")[0].strip().replace("model.", "model_overrides.") for text in changes]
    if bare != fault.path and any(f"{bare}.".startswith(f"{path}.") for path in changed):
        return fault._replace(path=f"{bare} (--b)")
    return fault


def _raise_gap(gaps: dict[str, NotModelled]) -> None:
    """Raise what is not modelled, with the side that asked for it."""
    for side, gap in gaps.items():
        both = {str(other) for other in gaps.values()}
        sides = ", ".join(gaps) if len(both) == 1 else side
        raise NotModelled(f"{sides}: {gap.feature}", gap.version, gap.reason)
