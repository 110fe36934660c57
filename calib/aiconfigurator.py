"""Reads the public layer tables of ai-dynamo/aiconfigurator (parquet) as rows of the documented CSV: a user's priors.

What is left out, and counted: decode rows of a ragged or dense kernel, which a paged decode step never runs, and with
them the scoring table `*_mqa_logits_module`, whose kernel is not the paged one (at one row a request it runs on one
thread block). Other models' tables are not read. Top-k is there twice, with tied and with separated scores: a band.

Layout and columns: ai-dynamo/aiconfigurator 095f58a5, `aic-core/src/aiconfigurator_core/systems/data/<gpu>/
sparse_attention/<engine>/<version>/*_perf.parquet`; latencies there are milliseconds, `step` is the cached prefix.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.errors import BadInput, Fault, Faults, Words
from dsa_ledger.timing.measured import COLUMNS, SCORE_MODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ENGINES = {"sglang": "sglang", "vllm": "vllm", "trtllm": "tensorrt-llm"}
LAYERS = ("dsa_generation_module", "dsa_context_module")
KERNELS = {"topk_module": "topk_kernel", "dsa_attn_module": "sparse_mla_kernel"}
SCORING = "mqa_logits_module"
SUFFIX = "_perf.parquet"
NEEDED = ("model", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", "isl", "step", "latency")
US_PER_MS = 1e3
MOST_FAULTS = 20
LEAST_BAND_TOKENS = 32_768  # below this a row fits a first-level cache and top-k's slope is another


class Imported(NamedTuple):
    """Rows by column name, and how many were left out, by reason."""

    rows: list[dict[str, Any]]
    left_out: dict[str, int]


def read_folder(folder: Path) -> Imported:
    """Return every row below a folder (BadInput: no folder, no table, no pyarrow, faults named by file and row)."""
    if not folder.is_dir():
        raise BadInput([Fault("folder", str(folder), "a folder with aiconfigurator's tables")])
    files = [path for path in sorted(folder.rglob(f"*{SUFFIX}")) if _kind(path)]
    if not files:
        expected = f"files such as sparse_attention/sglang/0.5.14/{LAYERS[0]}{SUFFIX} below it"
        raise BadInput([Fault("folder", str(folder), expected)])
    faults, left_out = Faults(), Counter[str]()
    rows: list[dict[str, Any]] = []
    for path in files:
        rows += _rows_of(path, faults, left_out)
        if len(faults.found) >= MOST_FAULTS:
            break
    faults.stop_if_any()
    if not rows:
        raise BadInput([Fault("folder", str(folder), "a table with rows of a DSA layer or kernel")])
    return Imported(rows, dict(left_out))


def csv_text(rows: list[dict[str, Any]]) -> str:
    """Return rows as the CSV that `validate --measured` and `calib.fit_tables` read."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def save_csv(rows: list[dict[str, Any]], path: Path) -> Path:
    """Write the CSV, gzipped where the name ends in .gz (BadInput where nothing can be written)."""
    content = csv_text(rows).encode()
    try:
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    except OSError as failure:
        raise BadInput([Fault("out", str(path), f"a place that can be written: {failure.strerror}")]) from None
    return path


def summary_rows(found: Imported) -> list[dict[str, Any]]:
    """Return rows and cells by GPU, engine, version, phase and module."""
    counts = Counter(tuple(row[name] for name in COLUMNS[:5]) for row in found.rows)
    return [dict(zip((*COLUMNS[:5], "rows"), (*group, count), strict=True)) for group, count in sorted(counts.items())]


def band_rows(found: Imported) -> list[dict[str, Any]]:
    """Return top-k of one decode row by GPU and version: nanoseconds a token, scores separated to tied."""
    cells: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for row in found.rows:
        if row["module"] == "topk_kernel" and row["phase"] == "decode" and row["batch"] == 1:
            of_mode = cells.setdefault((row["gpu"], row["engine"], row["version"]), {})
            of_mode.setdefault(row["score_mode"], {})[row["prefix_tokens"]] = row["latency_us"]
    bands = []
    for group, by_mode in sorted(cells.items()):
        slopes = {mode: _slope(times) for mode, times in by_mode.items()}
        low, high = slopes.get("top_last"), slopes.get("flat")
        if low is not None and high is not None:
            bands.append(
                dict(zip(("gpu", "engine", "version"), group, strict=True))
                | {"separated_ns_per_token": round(low, 4), "tied_ns_per_token": round(high, 4)}
            )
    return bands


def _slope(times_us: dict[int, float]) -> float | None:
    beyond = sorted((tokens, us) for tokens, us in times_us.items() if tokens >= LEAST_BAND_TOKENS and us > 0)
    if len(beyond) < 2:  # noqa: PLR2004 - a slope has two ends
        return None
    (first, start), (last, end) = beyond[0], beyond[-1]
    return (end - start) / (last - first) * 1e3


def _kind(path: Path) -> str | None:
    """Return what a table is of: a layer module, a kernel, the scoring kernel; None for other tables."""
    name = path.name.removesuffix(SUFFIX)
    if name in LAYERS:
        return name
    family, _, rest = name.partition("_")
    return rest if family in ("glm5", "dsv32") and (rest in KERNELS or rest == SCORING) else None


def _rows_of(path: Path, faults: Faults, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    engine, gpu = _place(path)
    if engine is None or gpu is None:
        faults.add(str(path), "its folders", "<gpu>/sparse_attention/<sglang, vllm or trtllm>/<version>/")
        return
    table = _table(path)
    kind = _kind(path) or ""
    columns = (*NEEDED, *(("op_name",) if kind in LAYERS else ()), *(("score_mode",) if kind == "topk_module" else ()))
    missing = [name for name in columns if table and name not in table[0]]
    if missing:
        faults.add(str(path), f"no {', '.join(missing)}", f"columns {', '.join(columns)}")
        return
    for number, given in enumerate(table):
        reason = _reason(given, kind)
        if reason:
            left_out[reason] += 1
            continue
        row = _row(given, kind) | {"gpu": gpu, "engine": engine, "version": path.parent.name}
        zero_allowed = row["module"] == "topk_kernel"
        good = math.isfinite(row["latency_us"]) and (row["latency_us"] > 0 or (zero_allowed and row["latency_us"] == 0))
        faults.require(good, f"{path} row {number} latency", given["latency"], "milliseconds above 0")
        if len(faults.found) >= MOST_FAULTS:
            return
        yield row


def _place(path: Path) -> tuple[str | None, str | None]:
    """Return engine and GPU from the folders: .../<gpu>/[sparse_attention/]<engine>/<version>/FILE."""
    parts = path.absolute().parts
    engine = ENGINES.get(parts[-3]) if len(parts) > 4 else None  # noqa: PLR2004 - /, gpu, engine, version, file
    above = parts[-5] if engine and parts[-4] == "sparse_attention" else parts[-4] if engine else None
    return engine, above.removesuffix("_sxm").replace("_", "-").upper() if above else None


def _reason(given: Mapping[str, Any], kind: str) -> str | None:
    """Return why a row is left out, None where it is not."""
    decode, kernel = kind == "dsa_generation_module" or given["isl"] == 1, str(given.get("kernel_source") or "")
    if kind == SCORING:
        return "ragged scoring of one row a request: not what decode runs" if decode else "ragged scoring kernel alone"
    if decode and ("ragged" in kernel or "dense" in kernel):
        return "decode row of a ragged or dense kernel"
    if kind == "dsa_generation_module" and given["isl"] != 1:
        return "decode row with more than one new token"
    if kind == "dsa_context_module" and given["isl"] == 1:
        return "prefill row with one new token"
    if kind == "topk_module" and given["score_mode"] not in SCORE_MODES:
        return "top-k row of another score mode"
    return None


def _row(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    module = KERNELS.get(kind) or ("shared_layer" if "skip_indexer" in str(given["op_name"]) else "full_layer")
    return {
        "phase": "decode" if given["isl"] == 1 else "prefill",
        "module": module,
        "model": given["model"],
        "kv_dtype": given["kv_cache_dtype"],
        "weight_dtype": given["gemm_type"],
        "heads": given["num_heads"],
        "batch": given["batch_size"],
        "new_tokens": given["isl"],
        "prefix_tokens": given["step"],
        "latency_us": round(float(given["latency"]) * US_PER_MS, 4),
        "score_mode": given["score_mode"] if kind == "topk_module" else "",
    }


def _table(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput(
            [Fault("pyarrow", Words("not installed"), "it, to read parquet: pip install 'dsa-ledger[parquet]'")]
        ) from None
    try:
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as failure:  # pyarrow's own errors are ValueErrors
        said = (str(failure).splitlines() or [""])[0]
        raise BadInput([Fault(str(path), "unreadable", f"a parquet file, no Git LFS pointer ({said})")]) from None
    return found
