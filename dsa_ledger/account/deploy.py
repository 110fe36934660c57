"""From a scenario to a deployment: model, machine, release and layout resolved and checked."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dsa_ledger.catalog import load_gpu, load_model
from dsa_ledger.engines.base import Build, Deployment, stage_list
from dsa_ledger.engines.caches import cache_kinds, check_known
from dsa_ledger.engines.index_cache import quality_warning
from dsa_ledger.engines.layers import layers_of
from dsa_ledger.engines.registry import checks_of, rules_of
from dsa_ledger.engines.releases import resolve
from dsa_ledger.engines.settings import check_machine, setting_notes
from dsa_ledger.errors import BadInput, ExpectedError, Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsa_ledger.engines.layers import Layers
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

# In HGX and DGX systems; in a compute tray of NVIDIA's NVL72 racks, GB200 and GB300 (NVIDIA's data sheets).
NODE_GPUS, TRAY_GPUS = 8, 4


def deploy(scenario: Scenario) -> Deployment:
    """Return the deployment (BadInput with every fault found, NotModelled)."""
    model, gpu, release, warnings = _named(scenario)
    _check_ranks(scenario)
    rules = rules_of(release.engine)
    check_known(model, release)
    checks_of(release.engine)(scenario, model, gpu, release)
    check_machine(scenario, gpu, release)
    layers = _layers(model, release, scenario.features)
    cuts = scenario.sharding.pp_partition or rules.stage_cuts(model.layers, scenario.sharding.pp)
    build = Build(
        model=model,
        release=release,
        layers=layers,
        stages=stage_list(cuts),
        draft_layers=model.draft_layers if scenario.draft.steps else 0,
        weights=rules.weight_layout(scenario, model, release),
    )
    record = rules.record_layout(scenario, model, gpu, release)
    bits = rules.index_k_bits(scenario, gpu, release)
    costs = quality_warning(model, layers)
    notes = setting_notes(scenario, model, gpu, release, record.value)
    return Deployment(
        scenario=scenario,
        gpu=gpu,
        build=build,
        record=record,
        index_k_bits=bits,
        caches=cache_kinds(model, release, record, bits),
        step=rules.step_rules(scenario, model, gpu, release),
        prefill=rules.prefill_rules(scenario, gpu, release),
        replicas=rules.replicas(scenario, release),
        dcp=scenario.sharding.dcp,
        warnings=(*warnings, *([costs] if costs else []), *notes),
    )


@lru_cache(maxsize=64)
def _layers(model: Model, release: Release, features: tuple[str, ...]) -> Layers:
    """Return `layers_of`, once for all layouts of one model and release."""
    return layers_of(model, release, features)


def _named(scenario: Scenario) -> tuple[Model, Gpu, Release, list[str]]:
    """Return what the scenario names; the faults of model, GPU and engine are reported together."""
    faults: list[Fault] = []
    other: list[ExpectedError] = []

    def attempt(load: Callable[[], Any]) -> Any:
        try:
            return load()
        except BadInput as bad:
            faults.extend(bad.faults)
        except ExpectedError as error:
            other.append(error)
        return None

    model = attempt(lambda: _model(scenario))
    gpu = attempt(lambda: load_gpu(scenario.gpu) if isinstance(scenario.gpu, str) else scenario.gpu)
    resolved = attempt(lambda: resolve(scenario.engine))
    if faults:
        raise BadInput(faults)
    if other:
        raise other[0]
    release, warnings = resolved
    return model, gpu, release, warnings


def _model(scenario: Scenario) -> Model:
    if isinstance(scenario.model, str):
        return load_model(scenario.model, scenario.model_overrides)
    if scenario.model_overrides:
        expected = "none where the model itself is given as a table"
        raise BadInput([Fault("model_overrides", scenario.model_overrides, expected)])
    return scenario.model


def ranks_of_server(scenario: Scenario) -> int:
    """Return the GPUs of one server: tp x pp, on vLLM times data-parallel replicas and PCP, which lie outside tp."""
    sharding = scenario.sharding
    outside = sharding.dp_attention * sharding.cp if scenario.engine.name == "vllm" else 1
    return sharding.tp * sharding.pp * outside


def usual_node_gpus(gpu_name: str) -> int:
    """Return the GPUs of one node where nobody said how many."""
    return TRAY_GPUS if gpu_name.startswith("GB") else NODE_GPUS


def _check_ranks(scenario: Scenario) -> None:
    """Raise BadInput where the GPUs named are not the ranks of one server."""
    faults, ranks = Faults(), ranks_of_server(scenario)
    factors = "tp x pp x data-parallel size x cp" if scenario.engine.name == "vllm" else "tp x pp"
    expected = f"{ranks} = {factors}, the number of ranks of one server; cut the model with --tp or --pp"
    faults.require(scenario.gpus in (None, ranks), "gpus", scenario.gpus, expected)
    faults.stop_if_any()


def check_load(scenario: Scenario, model: Model) -> None:
    """Raise BadInput for a load that contradicts itself or the context length."""
    faults, load = Faults(), scenario.load
    if load.new_tokens is not None:
        most = (
            "load.context (--context), which is not given" if load.context is None else f"load.context = {load.context}"
        )
        faults.require(
            load.context is not None and load.new_tokens <= load.context,
            "load.new_tokens",
            load.new_tokens,
            f"at most {most}, which counts the new tokens in",
        )
    limit = scenario.limits.context_length or model.max_position
    faults.require(
        load.context is None or load.context <= limit,
        "load.context",
        load.context,
        f"at most the context length {limit} (limits.context_length, default max_position_embeddings)",
    )
    faults.stop_if_any()
