"""The catalog as records for `models` and `gpus`."""

from __future__ import annotations

from typing import Any

from dsa_ledger.catalog import cache_model_names, gpu_names, load_gpu, load_model, model_names

WIDEST_NAME = 36


def model_rows() -> list[dict[str, Any]]:
    """Return the key facts of each catalog model."""
    rows = []
    for name in [*model_names(), *cache_model_names()]:
        model = load_model(name, {})
        rows.append(
            {
                # `--model` takes a name without its organisation; the longest would break the table's columns.
                "name": name if len(name) <= WIDEST_NAME else name.rpartition("/")[2],
                "layers": model.layers,
                "draft": model.draft_layers,
                "experts": model.experts,
                "max_tokens": model.max_position,
                "format": model.quant_method.replace("none", "bf16") if model.weights_modelled else "caches",
            }
        )
    return rows


def gpu_rows() -> list[dict[str, Any]]:
    """Return the key facts of each catalog GPU."""
    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        rows.append(
            {
                "name": name,
                "capacity_bytes": gpu.hbm.capacity_bytes,
                "sold_as": gpu.hbm.marketing,
                "peak_bytes_per_s": gpu.hbm.peak_bytes_per_s,
                "sms": gpu.sms,
                "l2_bytes": gpu.l2_bytes,
                "compute_capability": ".".join(map(str, gpu.compute_capability)),
            }
        )
    return rows
