"""What one full and one shared layer take over all forwards of a chunked prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.timing import evaluate
from dsa_ledger.timing.layer_times import MICROSECOND, REFERENCE
from dsa_ledger.timing.tables import choose, load, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.siblings import Machine


class PrefillTimes(NamedTuple):
    """Seconds of one layer over all forwards, the ends of their interval, and where they come from."""

    full_s: float
    shared_s: float
    shared_is_prior: bool
    is_prior: bool
    ends: tuple[float, float]
    source_ref: str
    source_date: str
    warnings: tuple[str, ...]


def forwards(context: int, new: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield new tokens and tokens before them of each forward."""
    for start in range(0, new, chunk):
        yield min(chunk, new - start), context - new + start


def prefill_times(
    engine: str, version: str, machine: Machine, wanted: Wanted, *, context: int, new: int, chunk: int
) -> PrefillTimes | None:
    """Return the layers' times of one request's new tokens, None where no table serves the machine.

    Only SGLang 0.5.14 and vLLM 0.24.0 were measured; TensorRT-LLM has no prefill table.
    """
    known = next((name for name in reversed(versions(engine)) if load(engine, name)["prefill"]), None)
    chosen = choose(engine, known, "prefill", "full_layer", machine) if known else None
    if known is None or chosen is None:
        return None
    said = [] if known == version else [f"{engine} {version} has no prefill table: that of {known} is used"]
    is_prior = machine.name not in chosen.gpus
    if is_prior:
        said.append(
            f"{machine.name} has no prefill table: carried from {' and '.join(chosen.gpus)}, with a wider interval"
        )
    if wanted.kind != "fp8":
        said.append("prefill was measured with FP8 KV only: its time is used")
    pieces = list(forwards(context, new, chunk))
    full = [evaluate.prefill(chosen.table, wanted, 1, *piece, scores=True) for piece in pieces]
    shared_table = choose(engine, known, "prefill", "shared_layer", machine)
    if shared_table is not None and machine.name != "H200":
        shared = sum(evaluate.prefill(shared_table.table, wanted, 1, *piece, scores=False).total for piece in pieces)
    else:  # not measured, or on a disturbed machine: the full layer without its scores and top-k
        shared = sum(part.projections + part.attention for part in full)
    source = load(engine, known)["source"]
    return PrefillTimes(
        full_s=sum(part.total for part in full) * MICROSECOND,
        shared_s=min(shared, sum(part.total for part in full)) * MICROSECOND,
        shared_is_prior=shared_table is None or machine.name == "H200" or (engine, known) != REFERENCE,
        is_prior=is_prior,
        ends=chosen.interval,
        source_ref=f"{source['ref'].replace('GPU', ' and '.join(chosen.gpus))}: {engine} {known}",
        source_date=source["date"],
        warnings=tuple(said),
    )
