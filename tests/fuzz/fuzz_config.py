"""Feeds bytes and mutated JSON to the config parser; only a Model, bad input or "not modelled" may come back.

Run by hand, where atheris and this project are installed:
`python tests/fuzz/fuzz_config.py -runs=100000 -max_len=4096 -len_control=0`. Each find becomes a plain test in
test_config.py or test_catalog_files.py; pytest neither collects this file nor needs atheris.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of the tests
with atheris.instrument_imports(include=["dsa_ledger"]):
    from tiny_model import TINY

    from dsa_ledger.catalog import load_gpu, load_model
    from dsa_ledger.catalog.config import KEYS
    from dsa_ledger.errors import BadInput, NotModelled
    from dsa_ledger.schema import Model

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-config-"))
WORDS: list[Any] = [
    None,
    True,
    0,
    1,
    4,
    -1,
    1 << 70,
    0.5,
    "",
    "full",
    "shared",
    "FSFS",
    "fp8",
    "modelopt",
    "NVFP4",
    "FP8",
    "float",
    "GlmMoeDsaForCausalLM",
    "deepseek_v32",
    "model.layers.1*",
    "model.layers.2.mlp.experts.?.*",
    "*[*",
    "lm_head",
    ["full", "full", "shared", "shared"],
    [128, 128],
]
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"}
PARTS = ["model", "layers", "1", "3", "*", "?", "[01]", "[!1]", "self_attn", "o_proj", "indexer", "mlp", "experts"]
INNER = ["quant_method", "weight_block_size", "modules_to_not_convert", "ignore", "quant_algo", "group_size"]
INNER += ["config_groups", "weights", "num_bits", "type", "kv_cache_scheme", "kv_cache_quant_algo", "quantization"]
DEEPEST = 4


def value(data: atheris.FuzzedDataProvider, depth: int = 0) -> Any:
    """Return a word of the format, or a list, a table, a number or text of the fuzzer's own."""
    kind = data.ConsumeIntInRange(0, 9)
    if kind == 0 and depth < DEEPEST:
        return [value(data, depth + 1) for _ in range(data.ConsumeIntInRange(0, 4))]
    if kind <= 2 and depth < DEEPEST:
        return {data.PickValueInList(INNER): value(data, depth + 1) for _ in range(data.ConsumeIntInRange(0, 5))}
    if kind == 3:
        return data.ConsumeUnicode(24)
    if kind == 4:
        return data.ConsumeInt(9)
    return data.PickValueInList(WORDS)


def patterns(data: atheris.FuzzedDataProvider) -> list[str]:
    """Return exclusions made of the parts of module names, and now and then of anything."""
    found = []
    for _ in range(data.ConsumeIntInRange(0, 6)):
        parts = [data.PickValueInList(PARTS) for _ in range(data.ConsumeIntInRange(1, 6))]
        found.append(data.PickValueInList([".", ""]).join(parts) if data.ConsumeBool() else data.ConsumeUnicode(24))
    return found


def mutated(data: atheris.FuzzedDataProvider) -> dict[str, Any]:
    """Return the tiny config with some keys replaced or taken away."""
    config = dict(TINY)
    if data.ConsumeBool():
        table: dict[str, Any] = dict(data.PickValueInList([FP8, NVFP4]))
        if data.ConsumeBool():
            table[data.PickValueInList(["ignore", "modules_to_not_convert"])] = patterns(data)
        if data.ConsumeIntInRange(0, 3) == 0:
            table[data.PickValueInList(INNER)] = value(data)
        config["quantization_config"] = table
    for _ in range(data.ConsumeIntInRange(0, 4) // 2):
        key = data.PickValueInList(list(KEYS))
        if data.ConsumeBool():
            config[key] = value(data)
        else:
            config.pop(key, None)
    return config


def written(name: str, content: bytes) -> str:
    """Return the path of a file with this content."""
    (FOLDER / name).write_bytes(content)
    return str(FOLDER / name)


def one(raw: bytes) -> None:
    """Try one input; anything but the three outcomes is a find."""
    data = atheris.FuzzedDataProvider(raw)
    way = data.ConsumeIntInRange(0, 7)
    overrides: dict[str, Any] = {}
    (FOLDER / "hf_quant_config.json").unlink(missing_ok=True)
    try:
        if way == 0:
            load_gpu(written("gpu.toml", data.ConsumeBytes(1 << 12)))
            return
        if way == 1:
            path = written("config.json", data.ConsumeBytes(1 << 12))
        else:
            if way == 2:
                written("hf_quant_config.json", json.dumps(value(data)).encode())
            if data.ConsumeIntInRange(0, 3) == 0:
                overrides = {data.PickValueInList([*KEYS, "index_topk_fre", ""]): value(data)}
            path = written("config.json", json.dumps(mutated(data)).encode())
        model = load_model(path, overrides)
        if Model.model_validate_json(model.model_dump_json()) != model:
            raise AssertionError("the model does not survive JSON")
    except (BadInput, NotModelled) as refused:
        if any("\n" in line for line in refused.lines()):
            raise AssertionError(f"more than one line: {refused.lines()!r}") from refused


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
