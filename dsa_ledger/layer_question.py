"""What `layers` asks: a model, an engine or all of them, pipeline stages; checked as a scenario is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.catalog import load_model
from dsa_ledger.engines.layer_table import layer_table, newest_releases
from dsa_ledger.engines.registry import ENGINES
from dsa_ledger.engines.releases import READ, resolve
from dsa_ledger.errors import BadInput, Faults
from dsa_ledger.options import OPTIONS, named, scenario_of
from dsa_ledger.schema import Engine

if TYPE_CHECKING:
    from dsa_ledger.engines.layer_table import LayerRow
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.options import Asked
    from dsa_ledger.schema import Model


def layer_question(asked: Asked, name: str) -> tuple[Model, list[LayerRow], list[str]]:
    """Return the model, a row per release and the warnings (BadInput with every fault, NotModelled).

    With an engine: its version, and the newest release of the others; without: every release that was read.
    """
    faults = Faults()
    for text in asked.sets:
        faults.require(text.startswith("model."), "--set", text, "model.KEY=VALUE; layers need nothing else")
    faults.stop_if_any()
    by_path = {option.path: option for option in OPTIONS}
    # The GPU is not asked for here; any one makes the scenario whole.
    values = {by_path["model"]._replace(name="MODEL"): name, by_path["gpu"]: "H200", by_path["engine"]: "sglang"}
    one_engine = by_path["engine"] in asked.values
    asked = asked._replace(values=values | asked.values)
    scenario = scenario_of(asked)
    try:
        model = load_model(name, scenario.model_overrides)
        stages = scenario.sharding.pp
        faults.require(stages <= model.layers, "sharding.pp", stages, f"at most {model.layers}, one layer each")
        faults.stop_if_any()
        newest = newest_releases()
        if one_engine:
            release, said = resolve(scenario.engine)
            shown = [release, *(other for other in newest if other.engine != release.engine)]
        else:
            shown, said = every_release(), []
        rows, warnings = layer_table(model, shown, stages)
        if not one_engine:  # old releases that differ from the newest are no news
            _, warnings = layer_table(model, newest, stages)
    except BadInput as bad:
        raise named(bad, asked) from None
    return model, rows, [*said, *warnings]


def every_release() -> list[Release]:
    """Return every release that was read, of the engines whose rules are in place."""
    return [resolve(Engine.model_validate(f"{name}@{version}"))[0] for name in ENGINES for version in READ[name]]
