"""Reads measured layer times from CSV: faults named by line, repeated cells averaged, zeros of top-k skipped.

Columns (anything else is ignored): gpu, engine, version, phase, module, model, kv_dtype, weight_dtype, heads, batch,
new_tokens, prefix_tokens, latency_us, score_mode. One row is an attention module of a layer, or a kernel, on one GPU.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.errors import BadInput, Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COLUMNS = (
    "gpu",
    "engine",
    "version",
    "phase",
    "module",
    "model",
    "kv_dtype",
    "weight_dtype",
    "heads",
    "batch",
    "new_tokens",
    "prefix_tokens",
    "latency_us",
    "score_mode",
)
PHASES = ("decode", "prefill")
LAYERS = ("full_layer", "shared_layer")
MODULES = (*LAYERS, "topk_kernel", "sparse_mla_kernel")
NOT_LAUNCHED = "topk_kernel"  # a latency of 0 there says that the kernel was not needed
SCORE_MODES = ("flat", "top_last")
MOST_FAULTS = 20
LARGEST_COUNT = 1 << 40
MICROSECOND = 1e-6


class Group(NamedTuple):
    """What one error figure is given for."""

    gpu: str
    engine: str
    version: str
    phase: str
    module: str


class Series(NamedTuple):
    """What is measured at several batches and lengths: model, formats, heads of one rank, kind of scores."""

    model: str
    kv_dtype: str
    weight_dtype: str
    heads: int
    score_mode: str


class Cell(NamedTuple):
    """Requests, new tokens of each, tokens already cached of each."""

    batch: int
    new_tokens: int
    prefix_tokens: int


class Row(NamedTuple):
    """One measured time, repeats averaged."""

    group: Group
    series: Series
    cell: Cell
    seconds: float


class Measured(NamedTuple):
    """The rows of a file, how many rows repeated a cell, and how many said that top-k was not launched."""

    rows: tuple[Row, ...]
    repeated: int
    not_launched: int


def family_of(model: str) -> str:
    """Return the family whose attention shapes a model shares: `glm` (GLM-5 to 5.3) or `v32` (DeepSeek-V3.2)."""
    name = model.lower()
    if "deepseek-v3" in name:
        return "v32"
    return "glm" if "glm-5" in name else model


def read(path: str | Path) -> Measured:
    """Return the measurements of a CSV file, gzipped or not (BadInput names each fault by line, at most twenty)."""
    place = Path(path)
    try:
        packed = place.read_bytes()
        text = (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed).decode("utf-8-sig")
    except OSError as error:
        raise BadInput([Fault("--measured", str(place), f"a readable CSV file ({error.strerror})")]) from None
    except (EOFError, zlib.error, UnicodeDecodeError):
        raise BadInput([Fault("--measured", str(place), "CSV text in UTF-8, gzipped or not")]) from None
    return parse(text, place.name)


def parse(text: str, name: str) -> Measured:
    """Return the measurements of CSV text; `name` stands in the faults (BadInput)."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        expected = f"a header with {', '.join(COLUMNS)}"
        raise BadInput([Fault(f"{name}:1", f"no {', '.join(missing)}", expected)])
    faults = Faults()
    sums: dict[tuple[Group, Series, Cell], tuple[float, int]] = {}
    not_launched = 0
    try:
        for found in reader:
            row = _row(found, f"{name}:{reader.line_num}", faults)
            if len(faults.found) >= MOST_FAULTS:
                break
            if row is None:
                continue
            if row.seconds == 0:
                not_launched += 1
                continue
            total, count = sums.get(row[:3], (0.0, 0))
            sums[row[:3]] = total + row.seconds, count + 1
    except csv.Error as error:
        faults.add(f"{name}:{reader.line_num}", str(error), "CSV")
    faults.stop_if_any()
    if not sums:
        raise BadInput([Fault(name, "no rows", "at least one measured row")])
    rows = tuple(Row(*key, total / count) for key, (total, count) in sums.items())
    return Measured(rows, sum(count - 1 for _, count in sums.values()), not_launched)


def _row(found: Mapping[str, str | None], place: str, faults: Faults) -> Row | None:
    """Return one row, or None once its faults are noted."""
    before = len(faults.found)
    if any(found.get(column) is None for column in COLUMNS):
        faults.add(place, "a short row", f"{len(COLUMNS)} columns")
        return None
    texts = {column: (found[column] or "").strip() for column in COLUMNS}
    module = texts["module"]
    for column, known in (("phase", PHASES), ("module", MODULES)):
        faults.require(texts[column] in known, f"{place} {column}", texts[column], f"one of {', '.join(known)}")
    modes = SCORE_MODES if module == "topk_kernel" else ("",)
    faults.require(texts["score_mode"] in modes, f"{place} score_mode", texts["score_mode"], f"one of {modes}")
    for column in ("gpu", "engine", "version", "model", "kv_dtype", "weight_dtype"):
        faults.require(bool(texts[column]), f"{place} {column}", texts[column], "a name")
    counts = [
        _count(texts[column], column, place, least, faults)
        for column, least in (("heads", 1), ("batch", 1), ("new_tokens", 1), ("prefix_tokens", 0))
    ]
    seconds = _seconds(texts["latency_us"], module, place, faults)
    if len(faults.found) > before:
        return None
    group = Group(*(texts[column] for column in Group._fields))
    kinds = texts["kv_dtype"], texts["weight_dtype"]
    series = Series(texts["model"], *kinds, counts[0], texts["score_mode"])
    return Row(group, series, Cell(*counts[1:]), seconds)


def _count(text: str, column: str, place: str, least: int, faults: Faults) -> int:
    good = text.isascii() and text.isdigit() and least <= int(text[:20]) <= LARGEST_COUNT
    faults.require(good, f"{place} {column}", text, f"a whole number of at least {least}, without unit")
    return int(text) if good else least


def _seconds(text: str, module: str, place: str, faults: Faults) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    zero_allowed = module == NOT_LAUNCHED
    good = math.isfinite(value) and (value > 0 or (zero_allowed and value == 0)) and "_" not in text
    expected = "microseconds as a bare number " + ("of at least 0" if zero_allowed else "above 0")
    faults.require(good, f"{place} latency_us", text, expected)
    return value * MICROSECOND if good else 1.0


def by_group(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """Return the rows of each group, groups in order."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return dict(sorted(groups.items()))
