"""The catalog against facts from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsa_ledger.catalog import gpu_names, load_gpu, load_model, model_names
from dsa_ledger.errors import NotModelled

if TYPE_CHECKING:
    from dsa_ledger.schema import Model

ATTENTION_AND_INDEXER = ["q_a", "q_b", "kv_a", "kv_b", "o", "wq_b", "wk"]


def spans(model: Model) -> dict[str, tuple[int, int]]:
    found = {span.module: (span.first, span.last) for span in model.quantization}
    assert len(found) == len(model.quantization), "no module of the catalog is quantised in two runs"
    return found


def block_fp8(layers: int) -> dict[str, tuple[int, int]]:
    everywhere = dict.fromkeys(ATTENTION_AND_INDEXER, (0, layers))
    return everywhere | {"dense": (0, 2), "expert": (3, layers), "shared": (3, layers)}


# Read by hand from the exclusion lists of the published configs (ai-dynamo/aiconfigurator 095f58a5, model_configs).
SPANS = {
    "zai-org/GLM-5": {},
    "zai-org/GLM-5-FP8": block_fp8(78),
    "zai-org/GLM-5.1": {},
    "zai-org/GLM-5.1-FP8": block_fp8(78),
    "zai-org/GLM-5.2": {},
    "zai-org/GLM-5.2-FP8": block_fp8(78),
    "zai-org/GLM-5.3": block_fp8(78),
    "zai-org/GLM-5.3-FP8": block_fp8(78),
    "zai-org/GLM-5.3-BF16": {},
    "nvidia/GLM-5-NVFP4": {"dense": (0, 2), "expert": (3, 77), "shared": (3, 77)},
    "nvidia/GLM-5.1-NVFP4": {"expert": (3, 77)},
    "nvidia/GLM-5.2-NVFP4": {"expert": (3, 77)},
    "incoai/GLM-5.3-NVFP4": {"expert": (3, 77)},
    "deepseek-ai/DeepSeek-V3.2": block_fp8(61),
    "deepseek-ai/DeepSeek-V3.2-Exp": block_fp8(61),
    "deepseek-ai/DeepSeek-V3.2-Speciale": block_fp8(61),
    "nvidia/DeepSeek-V3.2-NVFP4": {"o": (0, 60), "dense": (0, 2), "expert": (3, 60), "shared": (3, 60)},
}


def test_every_model_has_a_row_here():
    assert sorted(model_names()) == sorted(SPANS)


@pytest.mark.parametrize("name", SPANS)
def test_quantised_modules(name):
    model = load_model(name, {})
    assert spans(model) == SPANS[name]
    nvfp4 = name.endswith("NVFP4")
    expected = ("modelopt", "fp8") if nvfp4 else ("fp8" if SPANS[name] else "none", None)
    assert (model.quant_method, model.kv_quant) == expected
    quants = {span.quant for span in model.quantization}
    for quant in quants:
        stored = (quant.bits, quant.scale_bytes, quant.block_rows, quant.block_columns, quant.fixed_bytes)
        assert stored == ((4, 1, 1, 16, 8) if nvfp4 else (8, 4, 128, 128, 0))
        assert quant.scale_tensors == (3 if nvfp4 else 1)


@pytest.mark.parametrize("name", SPANS)
def test_geometry(name):
    model = load_model(name, {})
    deepseek = name.partition("/")[2].startswith("DeepSeek")
    widths = (model.hidden, model.vocabulary, model.layers, model.heads, model.qk_nope, model.v_head, model.q_lora)
    assert widths == ((7168, 129280, 61, 128, 128, 128, 1536) if deepseek else (6144, 154880, 78, 64, 192, 256, 2048))
    common = (model.dense_layers, model.draft_layers, model.qk_rope, model.kv_lora, model.experts)
    assert common == (3, 1, 64, 512, 256)
    assert (model.experts_per_token, model.shared_experts, model.expert_intermediate) == (8, 1, 2048)
    assert model.dense_intermediate == (18432 if deepseek else 12288)
    assert (model.index_heads, model.index_head_dim, model.index_topk) == (64 if deepseek else 32, 128, 2048)
    assert model.index_kpool == 1
    later = "GLM-5.2" in name or "GLM-5.3" in name
    assert model.max_position == (163840 if deepseek else 1048576 if later else 202752)
    assert model.indexer_rope_interleave is not deepseek
    assert model.index_share_for_mtp is later
    # DeepSeek's 685B = 671B + 14B of MTP weights; GLM's 59,585 tensors leave no room for a second embedding.
    assert model.draft_owns_embedding is deepseek
    assert model.published_sharing is None


@pytest.mark.parametrize("name", [name for name in SPANS if "GLM-5.2" in name or "GLM-5.3" in name])
def test_trained_in_sharing(name):
    """21 full layers: 0, 1, 2, then every fourth from 6 to 74 (zai-org/GLM-5.2 config.json)."""
    sharing = load_model(name, {}).sharing
    assert sharing.indexer_types is not None
    full = [layer for layer, kind in enumerate(sharing.indexer_types) if kind == "full"]
    assert full == [0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74]
    assert len(sharing.indexer_types) == 78
    assert (sharing.index_topk_freq, sharing.index_skip_topk_offset) == (4, 3)
    assert sharing.nulls == ("index_topk_pattern",)


def test_all_full_list():
    """NVIDIA's GLM-5.1 config spells out 78 full layers where zai-org's is silent."""
    assert load_model("nvidia/GLM-5.1-NVFP4", {}).sharing.indexer_types == ("full",) * 78
    assert load_model("zai-org/GLM-5.1", {}).sharing.indexer_types is None


def matrices(model: Model, full: set[int]) -> dict[str, list[tuple[int, int, int]]]:
    """Return by module the (layer, rows, columns) of each matrix, straight from the published shapes."""
    rows: dict[str, list[tuple[int, int, int]]] = {}
    hidden, moe = model.hidden, model.expert_intermediate
    for layer in range(model.layers + model.draft_layers):
        draft = layer >= model.layers
        shapes = {
            "q_a": [(model.q_lora, hidden)],
            "q_b": [(model.heads * (model.qk_nope + model.qk_rope), model.q_lora)],
            "kv_a": [(model.kv_lora + model.qk_rope, hidden)],
            "kv_b": [(model.heads * (model.qk_nope + model.v_head), model.kv_lora)],
            "o": [(hidden, model.heads * model.v_head)],
        }
        if layer in full or draft:
            shapes["wq_b"] = [(model.index_heads * model.index_head_dim, model.q_lora)]
            shapes["wk"] = [(model.index_head_dim, hidden)]
            shapes["weights_proj"] = [(model.index_heads, hidden)]
        if layer < model.dense_layers:
            wide = model.dense_intermediate
            shapes["dense"] = [(wide, hidden), (wide, hidden), (hidden, wide)]
        else:
            mlp = [(moe, hidden), (moe, hidden), (hidden, moe)]
            shapes |= {"expert": mlp * model.experts, "shared": mlp, "gate": [(model.experts, hidden)]}
        if draft:
            shapes["eh_proj"] = [(hidden, 2 * hidden)]
        for module, found in shapes.items():
            rows.setdefault(module, []).extend((layer, *shape) for shape in found)
    rows["embed"] = rows["lm_head"] = [(0, model.vocabulary, hidden)]
    return rows


GLM_5_2_FULL = {0, 1, 2, *range(6, 75, 4)}


def test_fp8_tensors_of_glm_5_3():
    """59,044 of the 59,585 tensors are block FP8 (NVIDIA-NeMo/Megatron-Bridge PR #6117)."""
    model = load_model("zai-org/GLM-5.3", {})
    quantised = spans(model)
    found = matrices(model, GLM_5_2_FULL)
    count = sum(
        quantised[module][0] <= layer <= quantised[module][1]
        for module, shapes in found.items()
        if module in quantised
        for layer, _, _ in shapes
    )
    assert count == 59_044


@pytest.mark.parametrize(
    ("name", "payload_bytes"),
    [
        # File bytes 755,632,050,320 less the safetensors headers of 141 shards.
        ("zai-org/GLM-5.2-FP8", 755_617_140_416),
        # File bytes 464,822,872,912 of incoai/GLM-5.3-NVFP4 less the headers of 87 files.
        ("incoai/GLM-5.3-NVFP4", 464_795_267_072),
    ],
)
def test_payload(name, payload_bytes):
    """The spans and formats give the published checkpoint's tensor bytes."""
    model = load_model(name, {})
    quants = {span.module: span for span in model.quantization}
    total = 0
    for module, shapes in matrices(model, GLM_5_2_FULL).items():
        for layer, rows, columns in shapes:
            span = quants.get(module)
            if span is None or not span.first <= layer <= span.last:
                total += 2 * rows * columns
                continue
            quant = span.quant
            blocks = -(-rows // quant.block_rows) * -(-columns // quant.block_columns)
            total += rows * columns * quant.bits // 8 + quant.scale_bytes * blocks + quant.fixed_bytes
    norms = (2048 + 512 + 2 * 6144) * 79 + 256 * 22 + 3 * 6144 + 6144
    router_bias = 4 * 256 * 76
    assert total + 2 * norms + router_bias == payload_bytes


@pytest.mark.parametrize("name", ["glm-5.2-fp8", "ZAI-ORG/glm-5.2-FP8", " GLM-5.2-FP8 ", "zai-org/GLM-5.2-FP8"])
def test_spelling(name):
    assert load_model(name, {}).name == "zai-org/GLM-5.2-FP8"


def test_bare_names_are_unique():
    bare = [name.lower().rpartition("/")[2] for name in model_names()]
    assert len(set(bare)) == len(bare)


@pytest.mark.parametrize("kind", ["model", "gpu"])
def test_every_figure_has_a_source(kind):
    if kind == "model":
        sources = [load_model(name, {}).provenance for name in model_names()]
    else:
        fields = {"hbm.capacity_bytes", "hbm.peak_bytes_per_s", "sms", "l2_bytes", "compute_capability"}
        gpus = [load_gpu(name) for name in gpu_names()]
        assert all(set(gpu.provenance) == fields for gpu in gpus)
        sources = [source for gpu in gpus for source in gpu.provenance.values()]
    assert all(len(source.ref) > 5 for source in sources)


def test_inferred_models_are_marked():
    prior = {name for name in model_names() if load_model(name, {}).provenance.kind == "prior"}
    assert prior == {
        "zai-org/GLM-5.3-FP8",
        "zai-org/GLM-5.3-BF16",
        "incoai/GLM-5.3-NVFP4",
        "deepseek-ai/DeepSeek-V3.2-Speciale",
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("DeepSeek-V4-Flash", "compress_ratios"),
        ("deepseek-ai/DeepSeek-V4-Pro", "compress_ratios"),
        ("LongCat-2.0", "cli_factor"),
        ("tencent/Hy4-preview", "gate"),
        ("amd/GLM-5.2-MXFP4", "quark"),
        ("amd/GLM-5.3-MXFP4", "quark"),
    ],
)
def test_neighbours_are_refused_by_name(name, reason):
    with pytest.raises(NotModelled, match=reason) as refused:
        load_model(name, {})
    assert name.rpartition("/")[2] in str(refused.value)
    assert name not in model_names()


@pytest.mark.parametrize(
    ("name", "mib", "peak_bytes_per_s", "sms", "capability"),
    [
        ("H100", 81_559, 3.35e12, 132, (9, 0)),
        ("H100-PCIe", 81_559, 2.0e12, 114, (9, 0)),
        ("H100-NVL", 95_830, 3.9e12, 132, (9, 0)),
        ("H800", 81_559, 3.35e12, 132, (9, 0)),
        ("H20", 97_871, 4.0e12, 78, (9, 0)),
        ("H20-3e", 143_771, 4.8e12, 78, (9, 0)),
        ("H200", 143_771, 4.8e12, 132, (9, 0)),
        ("B200", 183_359, 7.67e12, 148, (10, 0)),
        ("B300", 275_040, 7.75e12, 148, (10, 3)),
        ("GB200", 189_471, 8.0e12, 152, (10, 0)),
        ("GB300", 284_208, 8.0e12, 152, (10, 3)),
    ],
)
def test_gpus(name, mib, peak_bytes_per_s, sms, capability):
    gpu = load_gpu(name.lower())
    assert gpu.name == name
    assert gpu.hbm.capacity_bytes == mib * 2**20
    assert (gpu.hbm.peak_bytes_per_s, gpu.sms, gpu.compute_capability) == (peak_bytes_per_s, sms, capability)


def test_every_gpu_has_a_row_above():
    assert len(gpu_names()) == 11
