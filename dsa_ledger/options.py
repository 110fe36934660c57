"""The scenario options, declared once and put on every command that asks about a scenario.

Values stay text until pydantic reads them all together: the command-line library would stop at the first bad number.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.models import ArgumentInfo

from dsa_ledger.assignment import set_path, set_value
from dsa_ledger.errors import ABSENT, BadInput, Fault, Faults, NotModelled, Said, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsa_ledger.schema import Scenario

FORMATS = ("table", "json", "csv", "md", "html")


def complete_model(incomplete: str) -> list[str]:
    """Return the catalog's models that start so."""
    from dsa_ledger.catalog import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def _gpus(incomplete: str) -> list[str]:
    from dsa_ledger.catalog import gpu_names

    return [name for name in gpu_names() if name.startswith(incomplete)]


def _engines(incomplete: str) -> list[str]:
    from dsa_ledger.engines.releases import READ

    return [
        name
        for engine, versions in READ.items()
        for name in (f"{engine}@{version}" for version in versions)
        if name.startswith(incomplete)
    ]


def _features(incomplete: str) -> list[str]:
    from dsa_ledger.schema import FEATURES

    return [name for name in FEATURES if name.startswith(incomplete)]


def complete_scenario(incomplete: str) -> list[str]:
    """Return the shipped scenarios that start so."""
    from dsa_ledger.scenario_file import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def _among(*names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    complete.__annotations__ = {"incomplete": str}
    return complete


class Option(NamedTuple):
    """One option and the scenario field it sets."""

    name: str
    path: str
    metavar: str
    help: str
    complete: Callable[[str], list[str]] | None = None

    @property
    def parameter(self) -> str:
        """Return the name of the Python parameter."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Tell whether the option takes no value."""
        return not self.metavar

    @property
    def repeats(self) -> bool:
        """Tell whether the option may be given more than once."""
        return self.name == "--feature"


OPTIONS = (
    Option("--model", "model", "ID|FILE", "Catalog name, or a local config.json.", complete_model),
    Option("--gpu", "gpu", "NAME|FILE", "Catalog name, or a TOML file.", _gpus),
    Option("--gpus", "gpus", "N", "Ranks of one server; default tp x pp."),
    Option(
        "--engine",
        "engine",
        "NAME@VERSION",
        "Inference engine; without a version the newest one known.",
        _engines,
    ),
    Option("--tp", "sharding.tp", "N", "Tensor parallelism."),
    Option("--pp", "sharding.pp", "N", "Pipeline stages."),
    Option("--ep", "sharding.ep", "N", "Expert parallelism: whole experts instead of slices."),
    Option("--dp-attention", "sharding.dp_attention", "N", "Attention data parallelism."),
    Option("--cp", "sharding.cp", "N", "Prefill context parallelism."),
    Option("--dcp", "sharding.dcp", "N", "Decode context parallelism."),
    Option("--layer-split", "sharding.layer_split", "", "Split the KV layers over the context-parallel ranks."),
    Option(
        "--kv-dtype",
        "kv_dtype",
        "WORD",
        "KV cache format in the engine's own words.",
        _among("auto", "bfloat16", "bf16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4"),
    ),
    Option("--batch", "load.batch", "N", "Requests running on the whole server; default 1."),
    Option("--context", "load.context", "TOKENS", "Cached tokens per request, such as 1M or 128Ki."),
    Option("--new-tokens", "load.new_tokens", "TOKENS", "Prompt tokens of one request computed in this prefill."),
    Option("--draft-steps", "draft.steps", "N", "Speculative tokens per step, by the MTP layers."),
    Option("--accepted", "draft.accepted", "X", "Mean tokens kept per step."),
    Option("--measured-step", "load.measured_step", "TIME@CONTEXT", "A step seen at this batch, such as 16.9ms@8192."),
    Option("--mean-run-pages", "load.mean_run_pages", "N", "Pages in a row in the block table; default contiguous."),
    Option("--block-table", "load.block_table", "FILE.npy", "Block table of a real server: its mean run of pages."),
    Option("--profile", "profile", "FILE", "Profile of the box, made by `dsa-ledger calibrate`."),
    Option("--feature", "features", "NAME", "Feature switched on; may be repeated.", _features),
    Option("--mem-fraction", "limits.mem_fraction", "SHARE", "The engine's share of memory, by its own flag."),
    Option("--context-length", "limits.context_length", "TOKENS", "Longest request; default the model's."),
    Option("--max-running-requests", "limits.max_running_requests", "N", "The engine's cap on running requests."),
    Option("--max-total-tokens", "limits.max_total_tokens", "TOKENS", "Cap on the pool."),
    Option("--free-before", "observed.free_before", "GIB", "Free memory seen before weight loading, in GiB."),
    Option("--free-after", "observed.free_after", "GIB", "Free memory seen after weight loading, in GiB."),
    Option("--kv-bytes", "observed.kv_bytes", "BYTES", 'Bytes left for the pool, such as "40 GiB".'),
)
LAYER_OPTIONS = tuple(option for option in OPTIONS if option.name in ("--engine", "--pp"))
_NOT_GIVEN: tuple[Any, ...] = (None, False, [])  # an empty text is given: it is a fault, not an absence
_BY_PATH = {option.path: option for option in OPTIONS}


class Asked(NamedTuple):
    """What the command line said about the scenario, still as text."""

    file: str | None
    values: dict[Option, Any]
    sets: list[str]
    format: str
    commands: tuple[str, ...] = ()
    stated: dict[str, str] | None = None  # field to the words of a command that set it, filled by `scenario_of`
    notes: list[str] | None = None  # what to say about the command, filled by `scenario_of`


def check_format(name: str) -> None:
    """Raise BadInput unless the format is known."""
    if name not in FORMATS:
        raise BadInput([_format_fault(name)])


def scenario_options(
    command: Callable[..., None],
    options: Sequence[Option] = OPTIONS,
    *,
    takes_file: bool = True,
    arguments: Sequence[str] | None = None,
) -> Callable[..., None]:
    """Return `command`, which takes `asked`, with these options in its signature, and SCENARIO if it takes a file.

    With `arguments` it has only the options that they name, or all where some word is to be explained or is unknown:
    typer makes a validator for every option, given or not, 0.3 ms each.
    """

    @functools.wraps(command)
    def run(**given: Any) -> None:
        own = {name: value for name, value in given.items() if name in kept}
        values = {option: given.get(option.parameter) for option in options}
        values = {option: value for option, value in values.items() if value not in _NOT_GIVEN}
        commands = tuple(given.get("from_command") or ())
        form = given.get("format", _FORMAT.default)
        asked = Asked(given.get("scenario"), values, given.get("set") or [], form, commands, {}, [])
        command(asked=asked, **own)

    signature = inspect.signature(command, eval_str=True)
    kept = {name: parameter for name, parameter in signature.parameters.items() if name != "asked"}
    positional = [parameter for parameter in kept.values() if parameter.default is parameter.empty]
    named = [parameter for parameter in kept.values() if parameter.default is not parameter.empty]
    first, last = ([_SCENARIO], [_FROM_COMMAND]) if takes_file else ([], [])
    # The command's own first: they are what its help is asked for.
    parameters = [*positional, *first, *named, *map(_parameter, options), *last, _SET, _FORMAT]
    if arguments is not None:
        words = {text.partition("=")[0] for text in arguments if text.startswith("--")}
        if words <= {_word(parameter) for parameter in parameters}:
            parameters = [parameter for parameter in parameters if _word(parameter) in {None, *words}]
    run.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _word(parameter: inspect.Parameter) -> str | None:
    """Return what sets a parameter on the command line, `--tp`; None where that is its place."""
    if isinstance(parameter.annotation.__metadata__[0], ArgumentInfo):
        return None
    return "--" + parameter.name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(option: Option) -> inspect.Parameter:
    if option.is_flag:
        return _keyword(option.parameter, Annotated[bool, typer.Option(option.name, help=option.help)], default=False)
    details = typer.Option(option.name, metavar=option.metavar, help=option.help, autocompletion=option.complete)
    return _keyword(option.parameter, Annotated[list[str] | None if option.repeats else str | None, details], None)


_SCENARIO = _keyword(
    "scenario",
    Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO", help="TOML file, or the name of a shipped scenario.", autocompletion=complete_scenario
        ),
    ],
    None,
)
_FROM_COMMAND = _keyword(
    "from_command",
    Annotated[
        list[str] | None,
        typer.Option(
            "--from-command",
            metavar="COMMAND|FILE|-",
            help="Launch command of the server, or a script, Compose or Kubernetes file that holds it.",
        ),
    ],
    None,
)
_SET = _keyword(
    "set",
    Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Any scenario field, or model.KEY of config.json; may be repeated."
        ),
    ],
    None,
)
Format = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print.", autocompletion=_among(*FORMATS))
]
_FORMAT = _keyword("format", Format, "table")


def scenario_of(asked: Asked) -> Scenario:
    """Return the scenario that file and options ask for; BadInput names every fault with its option."""
    from dsa_ledger.schema import Scenario
    from dsa_ledger.validation import validated

    tables, faults = tables_of(asked)
    try:
        scenario = validated(Scenario, tables)
    except BadInput as bad:
        hinted = BadInput(_with_hint(fault) for fault in bad.faults)
        faults.found.extend([fault for fault in named(hinted, asked).faults if not _follows(fault, faults.found)])
        faults.found.extend(_unknown_names(tables, asked))
    faults.stop_if_any()
    return scenario


def tables_of(asked: Asked) -> tuple[dict[str, Any], Faults]:
    """Return the tables that file, command and options make, not yet checked, and the faults met on the way."""
    tables: dict[str, Any] = {}
    if asked.file is not None:
        from dsa_ledger.scenario_file import find, read

        tables = read(find(asked.file))
        if asked.values or asked.sets or asked.commands:
            tables.pop("title", None)  # it says what the file asks, no longer what is asked
    faults = Faults()
    if asked.format not in FORMATS:
        faults.found.append(_format_fault(asked.format))
    if asked.commands:
        _put_command(tables, asked, faults)
    for option, value in asked.values.items():
        _put(tables, option.path, value, option.name, faults)
    for text in asked.sets:
        _put_text(tables, text, asked, faults)
    return tables, faults


_WANTED = {
    "model": "a name that `dsa-ledger models` lists, or a config.json",
    "gpu": "a name that `dsa-ledger gpus` lists, or a TOML file",
    "engine": "sglang, vllm or tensorrt-llm, as in sglang@0.5.23",
}


def _with_hint(fault: Fault) -> Fault:
    """Return the fault of a name left out with the command that lists the names."""
    return fault._replace(expected=_WANTED[fault.path]) if fault.value is ABSENT and fault.path in _WANTED else fault


def named(bad: BadInput, asked: Asked) -> BadInput:
    """Return the same faults, each path followed by the option that sets it, or by the file it stands in."""
    return BadInput(fault._replace(path=_with_option(fault.path, asked)) for fault in bad.faults)


def _follows(fault: Fault, found: Sequence[Fault]) -> bool:
    """Tell whether a field is absent only because the launch command that would set it has a fault of its own."""
    paths = {other.path.removesuffix(" (--from-command)") for other in found if "--from-command" in other.path}
    field = fault.path.partition(" ")[0]
    return fault.value is ABSENT and (field in paths or ("--from-command" in paths and field in ("model", "engine")))


def _with_option(path: str, asked: Asked) -> str:
    parts = path.partition("[")[0].split(".")
    for length in range(len(parts), 0, -1):
        start = ".".join(parts[:length])
        option = next((option for option in asked.values if option.path == start), None)
        if option:
            return f"{path} ({option.name})"
        if any(f"{set_path(text)}.".startswith(set_path(start) + ".") for text in asked.sets):
            return f"{path} (--set)"
        if asked.stated and start in asked.stated:
            return f"{path} (--from-command: {asked.stated[start]})"
        if start in _BY_PATH and asked.file is None:
            return f"{path} ({_BY_PATH[start].name})"
    return f"{path} (in {asked.file})" if asked.file else path


def _put_command(tables: dict[str, Any], asked: Asked, faults: Faults) -> None:
    from dsa_ledger.audit.merge import merge_command, sentences

    given = {option.path: value for option, value in asked.values.items()}
    paths = {*given, *map(set_path, asked.sets)}
    try:
        reading = merge_command(tables, asked.commands, given.get("engine", tables.get("engine")), paths, faults)
    except BadInput as bad:
        faults.found.extend(bad.faults)
        return
    if asked.stated is not None and asked.notes is not None:
        asked.stated.update({path: setting.written for path, setting in reading.settings.items()})
        asked.notes.extend(said for said in sentences(reading) if said not in asked.notes)


def _put(tables: dict[str, Any], path: str, value: Any, option: str, faults: Faults) -> None:
    from dsa_ledger.scenario_file import put

    blocked = put(tables, path, value)
    if blocked:
        faults.add(f"{path} ({option})", value, blocked)


def _put_text(tables: dict[str, Any], text: str, asked: Asked, faults: Faults) -> None:
    path, (_, equals, written) = set_path(text), text.partition("=")
    if not equals or not all(path.split(".")):
        faults.add("--set", text, "PATH=VALUE, such as draft.topk=2")
        return
    option = _BY_PATH.get(path)
    if option and option in asked.values:
        faults.add(f"{path} (--set)", written, Said(f"also given by {option.name}; give it once"))
        return
    _put(tables, path, set_value(written), "--set", faults)


def _format_fault(name: str) -> Fault:
    return Fault("--format", name, nearest(name, FORMATS))


def _unknown_names(tables: dict[str, Any], asked: Asked) -> list[Fault]:
    """Return the faults of model and GPU names, so that they are reported beside those that pydantic found."""
    from dsa_ledger.catalog import load_gpu, load_model

    loaders: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("model", lambda name: load_model(name, {})),
        ("gpu", load_gpu),
    )
    found: list[Fault] = []
    for field, load in loaders:
        name = tables.get(field)
        if isinstance(name, str):
            try:
                load(name)
            except BadInput as bad:
                found.extend(named(bad, asked).faults)
            except NotModelled:
                continue  # said once the input is right
    return found
