"""Models and GPUs by name, or from a file of the user's own; both go through the same parser.

Every figure of the catalog (`models.json`, `gpus.json`) stands beside its public source.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsa_ledger.catalog.config import parse_config
from dsa_ledger.catalog.files import bad, exists, read_json_object, read_toml
from dsa_ledger.errors import BadInput, Fault, Said, nearest
from dsa_ledger.schema import Gpu, Provenance
from dsa_ledger.validation import validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import JsonValue

    from dsa_ledger.schema import Model

__all__ = ["cache_model_names", "gpu_names", "load_gpu", "load_model", "model_names", "unmodelled_names"]

_HERE = Path(__file__).parent
_SUFFIXES = (".json", ".toml")
_SEVERAL = re.compile(r"(\d{1,5})\s*[xX*]\s*(.+)")  # 8xH200, as `plan --machines` takes it
_CONFIG, _QUANT = "config.json", "hf_quant_config.json"


@cache
def _table(file: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((_HERE / file).read_text(encoding="utf-8"))
    return table


def model_names() -> list[str]:
    """Return the names of the catalog's models, as published."""
    return list(_table("models.json")["models"])


def cache_model_names() -> list[str]:
    """Return the names of models whose caches are worked out and whose weights are not."""
    return list(_table("models.json")["caches_only"])


def unmodelled_names() -> list[str]:
    """Return the names of models that are known and refused, with the reason, as not modelled."""
    return list(_table("models.json")["not_modelled"])


def gpu_names() -> list[str]:
    """Return the names of the catalog's GPUs."""
    return list(_table("gpus.json"))


def load_model(name: str, overrides: Mapping[str, JsonValue]) -> Model:
    """Return a model by catalog name (any case, with or without its organisation), config.json or folder.

    `overrides` replaces keys of config.json before every rule. Raises BadInput (path `model` or `model.KEY`) and
    NotModelled.
    """
    if name.lower().endswith(_SUFFIXES) or _is_local_model(name):
        return _local_model(Path(name), overrides)
    catalog = _table("models.json")
    known = _found(name, [*catalog["models"], *catalog["caches_only"], *catalog["not_modelled"]])
    if known is None:
        if exists(name):
            raise bad("model", name, Said(f"holds no {_CONFIG}"))
        raise bad(
            "model",
            name,
            f"a path, or a model of the catalog: {nearest(name, [*model_names(), *cache_model_names()])}",
        )
    return _plain_catalog_model(known) if not overrides else _catalog_model(known, overrides)


@cache
def _plain_catalog_model(known: str) -> Model:
    return _catalog_model(known, {})


def _catalog_model(known: str, overrides: Mapping[str, JsonValue]) -> Model:
    catalog = _table("models.json")
    entry = catalog["models"].get(known) or catalog["caches_only"].get(known)
    # A model that is not modelled is refused by the parser, from the same keys that its own config.json has.
    parts = entry["parts"] if entry else catalog["not_modelled"][known]
    source = entry["provenance"] if entry else {"kind": "prior", "ref": known}
    config: dict[str, Any] = {}
    for part in parts:
        config |= catalog["parts"][part]
    return parse_config(config, name=known, provenance=Provenance(**source), overrides=overrides)


def load_gpu(name: str) -> Gpu:
    """Return a GPU by catalog name (any case) or from a TOML file with the fields of `Gpu` (BadInput at `gpu...`)."""
    if name.lower().endswith(_SUFFIXES) or (exists(name) and Path(name).is_file()):
        return _checked_gpu(read_toml(Path(name), "gpu"))
    table = _table("gpus.json")
    known = _found(name, table)
    if known is None:
        several = _SEVERAL.fullmatch(name)
        if several and (one := _found(several[2], table)):
            raise bad("gpu", name, f"one GPU's name, and how many in --gpus: --gpu {one} --gpus {several[1]}")
        raise bad("gpu", name, f"a path, or a GPU of the catalog: {nearest(name, table)}")
    return _catalog_gpu(known)


@cache
def _catalog_gpu(known: str) -> Gpu:
    return _checked_gpu({"name": known, **_table("gpus.json")[known]})


def _found(name: str, known: Iterable[str]) -> str | None:
    """Return the catalog's spelling of a name, or None."""
    wanted = name.strip().lower()
    return next((entry for entry in known if wanted in (entry.lower(), entry.lower().rpartition("/")[2])), None)


def _is_local_model(name: str) -> bool:
    """Tell whether a name is a file, or a folder with a config; one without may only look like a catalog name."""
    return exists(name) and (Path(name).is_file() or (Path(name) / _CONFIG).exists())


def _local_model(path: Path, overrides: Mapping[str, JsonValue]) -> Model:
    file = path / _CONFIG if exists(str(path)) and path.is_dir() else path
    config = read_json_object(file, "model")
    sidecar = file.with_name(_QUANT)
    # A tokeniser's folder may hold anything by that name: it counts only where the config itself is silent.
    beside = None
    if config.get("quantization_config") is None and exists(str(sidecar)):
        beside = read_json_object(sidecar, "model.hf_quant_config")
    # The name stands in messages of one line, so a line break in a path is shown, not printed.
    name = str(path) if str(path).isprintable() else ascii(str(path))
    provenance = Provenance(kind="config", ref=str(file))
    return parse_config(config, name=name, provenance=provenance, overrides=overrides, beside=beside)


def _checked_gpu(table: Mapping[str, Any]) -> Gpu:
    gpu = validated(Gpu, table, "gpu.")
    if "hbm.capacity_bytes" not in gpu.provenance:
        expected = "the source of hbm.capacity_bytes (kind and ref)"
        raise BadInput([Fault("gpu.provenance", ", ".join(gpu.provenance) or "empty", expected)])
    return gpu
