"""The questions that `plan` answers, one at a time: which options each takes, so that none is ignored in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dsa_ledger.errors import Fault, Faults, Said
from dsa_ledger.plan.price import OPTION, price_of, prices
from dsa_ledger.units import UnitError, parse_count

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dsa_ledger.schema import Scenario

Mode = Literal["answers", "smallest", "workload", "demand", "changes", "ranking"]

SEARCH = ("--machines", "--engines", "--kv-dtypes")
TAKES: dict[Mode, tuple[str, ...]] = {
    "answers": ("--largest-context", "--max-concurrency", "--safe-chunk", "--log"),
    "smallest": ("--smallest-machine", *SEARCH, "--log"),
    "workload": ("--workload", "--skip-bad", "--shared-prefix", "--log"),
    "demand": ("--requests-per-s", "--prompt", "--output", "--spare", OPTION, "--log"),
    "changes": ("--changes", "--log"),
    "ranking": (*SEARCH, "--goal", "--top", "--max-step-time", OPTION, "--log"),
}
SAYS: dict[Mode, str] = {
    "answers": "beside --largest-context, --max-concurrency or --safe-chunk",
    "smallest": "beside --smallest-machine",
    "workload": "beside --workload",
    "demand": "for the servers or the cost of one stated layout",
    "changes": "beside --changes (or --log alone)",
    "ranking": "for a ranking of layouts",
}
# Options that ask a question by themselves.
OWN: dict[Mode, set[str]] = {
    "answers": {"--largest-context", "--max-concurrency", "--safe-chunk"},
    "smallest": {"--smallest-machine"},
    "workload": {"--workload"},
    "demand": {"--requests-per-s", "--prompt", "--output"},
}
# Options of the scenario that a question replaces.
REPLACED: dict[Mode, dict[str, str]] = {
    "answers": {"--new-tokens": "a full chunk is taken"},
    "smallest": {"--new-tokens": "a full chunk is taken"},
    "workload": dict.fromkeys(("--batch", "--context", "--new-tokens"), "each line states its own request"),
    "demand": {"--new-tokens": "--prompt states them"},
    "changes": {},
    "ranking": {"--new-tokens": "a full chunk is taken"},
}
SEARCHES: tuple[Mode, ...] = ("ranking", "smallest")
OBSERVED = ("--free-before", "--free-after", "--kv-bytes")
LAYOUT = ("--tp", "--pp", "--ep", "--dp-attention", "--cp", "--dcp")
KEPT = {"--tp": "tp", "--pp": "pp", "--dp-attention": "dp_attention", "--dcp": "dcp"}  # of a search that is told so


def mode_of(given: Collection[str], options: Collection[str], *, takes_file: bool) -> Mode:
    """Return the question that options of `plan` (`given`) and of the scenario (`options`) ask.

    A price alone is that of the stated layout; where none is stated, or others are searched for, it is the ranking's.
    """
    names = set(given)
    for mode, own in OWN.items():
        if names & own:
            return mode
    searched = names & {*SEARCH, "--goal", "--top", "--max-step-time"} or (
        "--gpus" in options and not set(options) & set(LAYOUT)
    )
    if OPTION in given and not searched and (takes_file or set(options) & set(LAYOUT)):
        return "demand"
    if "--changes" in given or ("--log" in given and not searched):
        return "changes"
    return "ranking"


def unused(mode: Mode, given: Mapping[str, object], options: Mapping[str, object]) -> list[Fault]:
    """Return a fault for each option given that the question has no use for."""
    says = SAYS[mode]
    left_out = Said(f"has no use {says}: leave it out")
    found = [Fault(name, value, left_out) for name, value in given.items() if name not in TAKES[mode]]
    replaced = REPLACED[mode] | ({"--context": "--prompt and --output state it"} if "--prompt" in given else {})
    replaced = replaced | _laid_out_anew(mode, given, options)
    found += [
        Fault(name, value, Said(f"has no use {says}: {replaced[name]}"))
        for name, value in options.items()
        if name in replaced
    ]
    return found


def _laid_out_anew(mode: Mode, given: Mapping[str, object], options: Mapping[str, object]) -> dict[str, str]:
    """Return why a search does not take a count of GPUs or a part of the cut that it tries itself."""
    found = {}
    if mode in SEARCHES and (_counted(given) or mode == "smallest"):
        found["--gpus"] = "the machines say how many" if _counted(given) else "how many is what it looks for"
    if _cuts_itself(mode, given, options):
        found |= {option: "every layout is tried" for option in LAYOUT if option not in KEPT}
    return found


def kept(mode: Mode, given: Mapping[str, object], options: Collection[str]) -> tuple[str, ...]:
    """Return the fields of the cut that a search holds fast: those stated in options, where it cuts by itself."""
    stated = tuple(field for option, field in KEPT.items() if option in options)
    return stated if _cuts_itself(mode, given, options) else ()


def _cuts_itself(mode: Mode, given: Mapping[str, object], options: Collection[str]) -> bool:
    """Tell whether a search knows its GPUs, so that a layout need not count them.

    A log, and what was seen of a server, are of their layout: there it is that server's.
    """
    is_of_a_server = "--log" in given or bool(set(options) & set(OBSERVED))
    return mode in SEARCHES and not is_of_a_server and (_counted(given) or mode == "smallest" or "--gpus" in options)


def _counted(given: Mapping[str, object]) -> bool:
    """Tell whether every machine says how many GPUs it has."""
    machines = [word.strip() for word in str(given.get("--machines", "")).split(",") if word.strip()]
    return bool(machines) and all(word[0].isdigit() for word in machines)


def numbers(given: Mapping[str, object], *names: str) -> list[float | None]:
    """Return the options' numbers, None where one was not given (BadInput with every fault); `8k` is a count."""
    faults, found = Faults(), []
    for name in names:
        text, value = given.get(name), None
        if text is not None:
            try:
                value = float(str(text)) if name == "--requests-per-s" else parse_count(str(text))
            except UnitError as wrong:
                faults.add(name, text, str(wrong))
            except ValueError:
                faults.add(name, text, "a number, such as 1.5")
        found.append(value)
    faults.stop_if_any()
    return found


def price(given: Mapping[str, object], scenario: Scenario) -> float | None:
    """Return the price of the scenario's GPU an hour (BadInput)."""
    if OPTION not in given:
        return None
    faults, name = Faults(), scenario.gpu_name
    table = prices(str(given[OPTION]), faults, name)
    faults.require(bool(faults.found) or price_of(table, name) is not None, OPTION, given[OPTION], f"a price of {name}")
    faults.stop_if_any()
    return price_of(table, name)
