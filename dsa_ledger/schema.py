"""The inputs: pydantic models, frozen, unknown fields refused, every fault reported at once with its dotted path."""

# Annotations are values here, not text: pydantic would compile each one anew, 5 ms a start.
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from dsa_ledger.units import parse_bytes, parse_count, parse_gib, parse_rate, parse_seconds


def _whole(value: Any) -> Any:
    """Refuse true and false, which Python counts as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a whole number, not true or false")  # noqa: TRY004 - pydantic turns a ValueError into a fault
    return value


def _reading(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that reads text by `parse` and leaves numbers to pydantic."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else _whole(value))


# They stand last in an annotation: put before the bounds, the bounds would be missing from the JSON Schema.
WHOLE = BeforeValidator(_whole)
TOKENS, BYTES, RATE, GIB = map(_reading, (parse_count, parse_bytes, parse_rate, parse_gib))
# Up to here score arithmetic, quadratic in the context, stays within 64 bits in a sweep's arrays.
LONGEST_CONTEXT = 1 << 22
Positive = Annotated[int, Field(ge=1, le=1 << 40), WHOLE]
Natural = Annotated[int, Field(ge=0), WHOLE]
Ways = Annotated[int, Field(ge=1, le=4096), WHOLE]
Tokens = Annotated[int, Field(ge=1, le=LONGEST_CONTEXT), TOKENS]
Requests = Annotated[int, Field(ge=1, le=1 << 24), TOKENS]
SharingKind = Literal["full", "shared"]


class Frozen(BaseModel):
    """Base of all inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Provenance(Frozen):
    """The public source of a catalog fact."""

    kind: Literal["config", "datasheet", "driver", "measured", "prior", "scenario"]
    ref: str = Field(min_length=1)
    date: str = ""


class Quant(Frozen):
    """How one kind of tensor is stored: bits an element, and one scale per block of rows x columns."""

    name: str
    bits: Annotated[int, Field(ge=1, le=64), WHOLE]
    scale_bytes: Annotated[int, Field(ge=0, description="bytes of one block's scale"), WHOLE] = 0
    block_rows: Positive = 1
    block_columns: Positive = 1
    fixed_bytes: Annotated[int, Field(ge=0, description="bytes per matrix beside elements and block scales"), WHOLE] = 0
    scale_tensors: Annotated[int, Field(ge=0, description="extra tensors per matrix in the checkpoint"), WHOLE] = 0


BF16 = Quant(name="bf16", bits=16)


class QuantSpan(Frozen):
    """The format of one module over a run of layers [first, last]."""

    module: str
    first: Natural
    last: Natural
    quant: Quant


class IndexSharing(Frozen):
    """The keys of config.json that decide which layers run an indexer, as written; `nulls` names explicit nulls."""

    indexer_types: tuple[SharingKind, ...] | None = None
    cli_factor: Positive | None = None
    index_topk_pattern: str | None = Field(None, pattern=r"^[FS]*$", max_length=4096)
    index_topk_freq: Positive | None = None
    index_skip_topk_offset: Positive | None = None
    nulls: tuple[str, ...] = ()


class Model(Frozen):
    """What the ledger needs of a model's config.json, in elements and layers."""

    name: str
    architecture: str
    hidden: Positive
    vocabulary: Positive
    layers: Ways
    dense_layers: Annotated[int, Field(ge=0, description="leading layers with a dense MLP"), WHOLE]
    draft_layers: Annotated[int, Field(ge=0, le=16, description="MTP (nextn) layers in the checkpoint"), WHOLE]
    heads: Positive
    qk_nope: Natural
    qk_rope: Natural
    v_head: Positive
    q_lora: Positive
    kv_lora: Positive
    experts: Positive
    experts_per_token: Positive
    shared_experts: Natural
    dense_intermediate: Positive
    expert_intermediate: Positive
    index_heads: Positive
    index_head_dim: Positive
    index_topk: Positive
    index_kpool: Positive = Field(1, description="tokens that one index key stands for")
    index_kpool_compress: bool = Field(False, description="the pool's open tail of keys is kept per request")
    linear_layers: tuple[int, ...] = Field((), description="layers of linear attention: they cache no tokens")
    weights_modelled: bool = Field(True, description="false: some tensors' shapes are not known; caches only")
    max_position: Positive
    sharing: IndexSharing = IndexSharing()
    published_sharing: IndexSharing | None = Field(None, description="of the checkpoint, where `sharing` is overridden")
    index_share_for_mtp: bool = False
    indexer_rope_interleave: bool = False
    draft_owns_embedding: bool = Field(False, description="the checkpoint repeats embedding and head in the MTP layer")
    quantization: tuple[QuantSpan, ...] = ()
    kv_quant: str | None = Field(None, description="KV format named by a ModelOpt checkpoint")
    quant_method: str = "none"
    provenance: Provenance

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """Return the ids of the layers that cache tokens: every layer but the linear ones."""
        linear = set(self.linear_layers)
        return tuple(layer for layer in range(self.layers) if layer not in linear)


class Hbm(Frozen):
    """The memory of one GPU."""

    capacity_bytes: Annotated[
        int, Field(ge=1 << 20, le=1 << 50, description="as the driver reports it, never the marketing figure"), BYTES
    ]
    peak_bytes_per_s: Annotated[float, Field(gt=0, le=1e15, description="data-sheet bandwidth"), RATE]
    marketing: str = ""


class Gpu(Frozen):
    """One GPU model."""

    name: str
    hbm: Hbm
    sms: Positive
    l2_bytes: Annotated[int, Field(ge=0), BYTES]
    compute_capability: tuple[Annotated[int, Field(ge=0, le=99), WHOLE], Annotated[int, Field(ge=0, le=99), WHOLE]]
    provenance: dict[str, Provenance] = Field(description="source by field; `hbm.capacity_bytes` at least")


class Engine(Frozen):
    """An inference engine and its version; without a version the newest one read is meant."""

    name: Literal["sglang", "vllm", "tensorrt-llm"]
    version: str | None = Field(None, max_length=40)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            name, _, version = value.partition("@")
            return {"name": name.strip().lower().replace("trtllm", "tensorrt-llm"), "version": version.strip() or None}
        return value


class Sharding(Frozen):
    """How one server is cut over its ranks."""

    tp: Ways = 1
    ep: Ways = 1
    pp: Annotated[int, Field(ge=1, le=256), WHOLE] = 1
    cp: Ways = 1
    dcp: Ways = 1
    dp_attention: Ways = 1
    layer_split: bool = False
    pp_partition: tuple[Positive, ...] | None = Field(
        None, description="layers per stage, where the default is overridden"
    )


class Draft(Frozen):
    """Speculative decoding by the model's MTP layers."""

    steps: Annotated[int, Field(ge=0, le=64), WHOLE] = 0
    topk: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    accepted: Annotated[float, Field(ge=1, le=65)] | None = Field(None, description="mean tokens kept per step")


class MeasuredStep(Frozen):
    """A step's time seen on the server in question, and the context at which it was seen; text is TIME@CONTEXT."""

    seconds: float = Field(gt=0, le=3600)
    context: Annotated[int, Field(ge=0, le=LONGEST_CONTEXT), TOKENS]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            time, at, context = value.partition("@")
            if not at:
                raise ValueError("TIME@CONTEXT, such as 16.9ms@8192")
            return {"seconds": parse_seconds(time), "context": context.strip()}
        return value


class Load(Frozen):
    """What the server is asked to hold and run."""

    batch: Annotated[int, Field(ge=1, le=1 << 24), WHOLE] = Field(1, description="requests running on the whole server")
    context: Tokens | None = Field(None, description="cached tokens per request")
    new_tokens: Tokens | None = Field(None, description="prompt tokens computed now")
    measured_step: MeasuredStep | None = Field(None, description="a step seen at this batch, such as 16.9ms@8192")
    mean_run_pages: Annotated[float, Field(ge=1, le=1 << 30)] | None = Field(
        None, description="pages that lie in a row in the block table; default contiguous"
    )
    block_table: str | None = Field(
        None, min_length=1, max_length=4096, description="dumped block table (.npy) that gives the mean run instead"
    )

    @model_validator(mode="after")
    def _one_run(self) -> Self:
        if self.block_table is not None and self.mean_run_pages is not None:
            raise ValueError("mean_run_pages or block_table, not both")
        return self


class Limits(Frozen):
    """The engine's own caps, by meaning."""

    mem_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    context_length: Tokens | None = None
    max_running_requests: Requests | None = None
    max_total_tokens: Annotated[int, Field(ge=1, le=1 << 48), TOKENS] | None = None
    chunked_prefill: Annotated[int, Field(ge=1, le=1 << 32), TOKENS] | None = Field(
        None, description="chunked_prefill_size, max_num_batched_tokens or max_num_tokens"
    )
    graph_requests: Requests | None = Field(
        None, description="SGLang's largest captured decode batch (cuda_graph_max_bs)"
    )


class Observed(Frozen):
    """What a running server showed: free memory around weight loading (GiB), bytes left for the pool."""

    free_before: Annotated[float, Field(gt=0, le=1 << 20), GIB] | None = None
    free_after: Annotated[float, Field(gt=0, le=1 << 20), GIB] | None = None
    kv_bytes: Annotated[int, Field(ge=0, le=1 << 50), BYTES] | None = None
    driver: str | None = Field(None, max_length=40, description="the server's driver, held against a profile's")


class Backends(Frozen):
    """SGLang's sparse attention backends, where the user names them: they decide the record's layout."""

    prefill: str | None = Field(None, max_length=40)
    decode: str | None = Field(None, max_length=40)


class HiSparse(Frozen):
    """SGLang's host-resident main KV."""

    ratio: Annotated[int, Field(ge=1, le=1024), WHOLE] = 2
    device_buffer: Annotated[int, Field(ge=1, le=1 << 24), WHOLE] | None = None


class HiCache(Frozen):
    """SGLang's host tier."""

    ratio: Annotated[float, Field(gt=0, le=1024)] = 2.0
    size_gb: Annotated[float, Field(gt=0, le=1 << 24)] | None = Field(None, description="decimal GB per rank")


class Machine(Frozen):
    """What surrounds the GPUs: a node's GPUs and host memory, and the rate of one rank's link."""

    node_gpus: Positive | None = Field(None, description="default 8, in a GB200 or GB300 tray 4")
    host_bytes: Annotated[int, Field(gt=0, le=1 << 50), BYTES] | None = None
    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15), RATE] | None = None


FEATURES = (
    "hicache",
    "hisparse",
    "pd-prefill",
    "pd-decode",
    "external-linker",
    "kv-sharding",
    "deepep",
    "two-batch-overlap",
    "fp4-index-k",
)


def _is_table(value: Any) -> str:
    return "name" if isinstance(value, str) else "table"


ModelChoice = Annotated[Annotated[str, Tag("name")] | Annotated[Model, Tag("table")], Discriminator(_is_table)]
GpuChoice = Annotated[Annotated[str, Tag("name")] | Annotated[Gpu, Tag("table")], Discriminator(_is_table)]


class Scenario(Frozen):
    """One question: a model on a machine, under an engine version and a layout, with a load."""

    schema_version: Literal[1] = Field(1, alias="schema")
    title: str = ""
    model: ModelChoice
    model_overrides: dict[str, JsonValue] = Field({}, description="keys of config.json replaced before every rule")
    gpu: GpuChoice
    gpus: Positive | None = None
    engine: Engine
    kv_dtype: str = Field("auto", max_length=40)
    features: tuple[Literal[FEATURES], ...] = ()  # type: ignore[valid-type]
    sharding: Sharding = Sharding()
    draft: Draft = Draft()
    load: Load = Load()
    limits: Limits = Limits()
    observed: Observed = Observed()
    backends: Backends = Backends()
    hisparse: HiSparse = HiSparse()
    hicache: HiCache = HiCache()
    machine: Machine = Machine()
    profile: str | None = Field(None, min_length=1, max_length=4096, description="profile file of a measured box")

    model_config = ConfigDict(populate_by_name=True)

    @property
    def model_name(self) -> str:
        """Return the model's name, given by it or in its table."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def gpu_name(self) -> str:
        """Return the GPU's name, given by it or in its table."""
        return self.gpu if isinstance(self.gpu, str) else self.gpu.name

    def has(self, feature: str) -> bool:
        """Tell whether a feature is switched on."""
        return feature in self.features
