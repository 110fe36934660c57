"""What a scenario states and the engine does not read, or reads and was not built for; GPUs no rule was read for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.errors import Faults, NotModelled
from dsa_ledger.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.engines.base import RecordLayout
    from dsa_ledger.engines.releases import Release
    from dsa_ledger.schema import Gpu, Model, Scenario

SGLANG, VLLM = "sglang", "vllm"
GENERATIONS = (9, 10, 12)  # majors of the compute capability that some rule was read for
FIRST_TRTLLM = 10
LONGER = {
    SGLANG: "SGLang starts so only with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    VLLM: "vLLM starts so only with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
}


def check_machine(scenario: Scenario, gpu: Gpu, release: Release) -> None:
    """Raise BadInput where more memory was seen free than the GPU has, NotModelled for a generation not read."""
    faults, observed, capacity = Faults(), scenario.observed, gpu.hbm.capacity_bytes / GIB
    has = f"at most the {capacity:.2f} GiB of one {gpu.name}"
    before = capacity if observed.free_before is None else observed.free_before
    faults.require(before <= capacity, "observed.free_before", observed.free_before, has)
    most = has if observed.free_before is None else f"at most observed.free_before = {before}"
    after = observed.free_after
    faults.require(after is None or after <= before, "observed.free_after", after, most)
    faults.stop_if_any()
    major, minor = gpu.compute_capability
    if major not in GENERATIONS:
        read = ", ".join(f"SM{known}x" for known in GENERATIONS)
        raise NotModelled(
            f"SM{major}{minor} ({gpu.name})", release.label, f"its DSA kernels were read for {read} alone"
        )


def setting_notes(scenario: Scenario, model: Model, gpu: Gpu, release: Release, record: RecordLayout) -> Iterator[str]:
    """Yield a sentence for each setting that changes nothing, or that the engine runs only against its own advice."""
    for path, value, needs in _idle(scenario, release):
        yield f"{path} = {value} changes nothing: {needs}"
    if release.engine == SGLANG and record != "bf16":
        yield from _backend_notes(scenario, gpu, release)
    length = scenario.limits.context_length
    if length is not None and length > model.max_position and release.engine in LONGER:
        yield (
            f"--context-length {length:,} is beyond the model's max_position_embeddings {model.max_position:,}: "
            f"{LONGER[release.engine]}"
        )


def _idle(scenario: Scenario, release: Release) -> Iterator[tuple[str, object, str]]:
    """Yield path, value and what would be needed of each setting that nothing reads; defaults state nothing."""
    groups = [
        ("hisparse", scenario.hisparse, scenario.has("hisparse"), "it needs --feature hisparse"),
        ("hicache", scenario.hicache, scenario.has("hicache"), "it needs --feature hicache"),
        ("backends", scenario.backends, release.engine == SGLANG, "only SGLang's record follows its backends"),
    ]
    for name, table, used, needs in groups:
        if not used:
            for field, value in table.model_dump(exclude_defaults=True).items():
                yield f"{name}.{field}", value, needs
    draft, captured = scenario.draft, scenario.limits.graph_requests
    if not draft.steps:
        for field, value in draft.model_dump(exclude_defaults=True).items():
            yield f"draft.{field}", value, "without --draft-steps no draft layer runs"
    if captured is not None and release.engine != SGLANG:
        yield "limits.graph_requests", captured, "it is SGLang's cuda_graph_max_bs"


def _backend_notes(scenario: Scenario, gpu: Gpu, release: Release) -> Iterator[str]:
    """Yield what is wrong with backends stated for an fp8 pool: kernels of another GPU, or two layouts in one pool."""
    stated = scenario.backends
    major = gpu.compute_capability[0]
    if "trtllm" in (stated.prefill, stated.decode) and major < FIRST_TRTLLM:
        yield f"backend trtllm on {gpu.name}: its kernels are for SM100 on, {release.label} picks it there alone"
    if stated.prefill and stated.decode and (stated.prefill == "trtllm") != (stated.decode == "trtllm"):
        yield (
            f"backends {stated.prefill} (prefill) and {stated.decode} (decode) read different fp8 records, the pool "
            "holds one layout (inferred: one of them cannot read it)"
        )
