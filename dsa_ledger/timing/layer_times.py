"""What one full and one shared layer take at a load, split into parts, with their ends and where they come from."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.engines.releases import key_of, sort_key
from dsa_ledger.timing import evaluate
from dsa_ledger.timing.evaluate import PRIOR_ETA, SCORE_BYTES, TOPK
from dsa_ledger.timing.siblings import SLOW_AT_MATRICES
from dsa_ledger.timing.tables import choose, load, nearest_version

if TYPE_CHECKING:
    from dsa_ledger.timing.evaluate import Wanted
    from dsa_ledger.timing.siblings import Machine
    from dsa_ledger.timing.tables import Chosen

REFERENCE = ("sglang", "0.5.14")  # the one engine whose shared layers were measured
V2_FROM = {"sglang": "0.5.15"}
V2_KNEE = 32768
V2_BLOCKS = 8  # CTAs of a row in top-k v2 (sgl-project/sglang PR #30274, kernel of PR #26788)
V2_SAID = (
    "{engine} {version} has top-k v2: beyond 32,768 tokens an eighth of the older kernel's time is taken (prior: 8 "
    "blocks a row, sgl-project/sglang PR #30274); the high end keeps the older kernel"
)
SEPARATED_SHARE = 0.5  # separated over tied scores in SGLang's kernel, 0.45-0.55 on all GPUs
MICROSECOND = 1e-6


class LayerTimes(NamedTuple):
    """Seconds of one full and one shared layer, and what belongs to their ends."""

    version: str
    gpus: tuple[str, ...]
    floor_s: float
    gather_s: float
    topk_s: float
    bytes_seen_share: float
    shared_floor_s: float
    shared_gather_s: float
    topk_saved_s: float
    topk_high_s: float
    shared_is_prior: bool
    full_ends: tuple[float, float]
    shared_ends: tuple[float, float]
    source_ref: str
    source_date: str
    warnings: tuple[str, ...]


class Load(NamedTuple):
    """Query rows of the rank in one step, requests they belong to, tokens scored per request."""

    query_rows: int
    requests: int
    tokens: int


def layer_times(engine: str, version: str, machine: Machine, wanted: Wanted, load_: Load) -> LayerTimes | None:
    """Return the parts of a full and a shared layer, None where no table of the engine serves the machine."""
    known = nearest_version(engine, version)
    chosen = choose(engine, known, "decode", "full_layer", machine) if known else None
    if known is None or chosen is None:
        return None
    batch, tokens = load_.query_rows, load_.tokens
    full = evaluate.decode(chosen.table, wanted, batch, tokens, indexer=True)
    seen = _seen_us(chosen, wanted, batch, tokens)
    moved = SCORE_BYTES * batch * tokens / (PRIOR_ETA * wanted.peak)
    beyond = max(tokens - TOPK, 0) / max(tokens, 1)
    gathered = max(full.gather - seen * (1 - beyond), 0.0)
    topk = max(full.gather + full.growth - seen - gathered, 0.0)
    said = [*_versions(engine, version, known), *_range(chosen, machine, batch, tokens)]
    shared = _shared(
        choose(engine, known, "decode", "shared_layer", machine),
        wanted,
        load_,
        machine=machine,
        full_floor=full.floor,
        gathered=gathered,
        full_ends=chosen.interval,
    )
    scaled, high = topk, topk
    if has_newer_topk(engine, version):
        said.append(V2_SAID.format(engine=engine, version=version))
        kept = min(topk, evaluate.decode(chosen.table, wanted, batch, V2_KNEE, indexer=True).growth)
        scaled = kept + (topk - kept) / V2_BLOCKS
    source = load(engine, known)["source"]
    return LayerTimes(
        version=known,
        gpus=chosen.gpus,
        floor_s=full.floor * MICROSECOND,
        gather_s=gathered * MICROSECOND,
        topk_s=scaled * MICROSECOND,
        bytes_seen_share=min(seen / moved, 1.0) if moved else 0.0,
        shared_floor_s=shared.floor * MICROSECOND,
        shared_gather_s=shared.gather * MICROSECOND,
        topk_saved_s=_saved_share(machine, wanted, batch, tokens) * scaled * MICROSECOND,
        topk_high_s=high * MICROSECOND,
        shared_is_prior=shared.is_prior,
        full_ends=chosen.interval,
        shared_ends=shared.ends,
        source_ref=f"{source['ref'].replace('GPU', ' and '.join(chosen.gpus))}: {engine} {known}",
        source_date=source["date"],
        warnings=tuple(said),
    )


def _seen_us(chosen: Chosen, wanted: Wanted, batch: int, tokens: int) -> float:
    """Return how much of the growth is the bytes' time: between nodes their full price, at most the growth."""
    nodes = chosen.table["tokens"]
    stops = [*nodes[: bisect_left(nodes, tokens)], tokens]
    price = SCORE_BYTES * batch / (PRIOR_ETA * wanted.peak)
    seen, before, start = 0.0, 0.0, 0
    for stop in stops:
        after = evaluate.growth(chosen.table, wanted.kind, batch, stop)
        seen += min(max(after - before, 0.0), price * (stop - start))
        before, start = after, stop
    return seen


class _Shared(NamedTuple):
    floor: float
    gather: float
    ends: tuple[float, float]
    is_prior: bool


def _shared(
    measured: Chosen | None,
    wanted: Wanted,
    load_: Load,
    *,
    machine: Machine,
    full_floor: float,
    gathered: float,
    full_ends: tuple[float, float],
) -> _Shared:
    """Return a shared layer: measured, or the full one without SGLang's indexer constant, its spread in the ends."""
    if measured is not None:
        layer = evaluate.decode(measured.table, wanted, load_.query_rows, load_.tokens, indexer=False)
        return _Shared(layer.floor, layer.gather + layer.growth, measured.interval, is_prior=False)
    constants = indexer_constants(machine, load_.query_rows)
    middle = constants[len(constants) // 2]
    floor = max(full_floor - middle, 0.25 * full_floor)
    total = floor + gathered
    low, high = full_ends
    ends = (
        low * max(total + middle - constants[-1], 0.1 * total) / total,
        high * (total + middle - constants[0]) / total,
    )
    return _Shared(floor, gathered, ends, is_prior=True)


def indexer_constants(machine: Machine, batch: int) -> list[float]:
    """Return SGLang's full-minus-shared floors of each series that has both, in order [us]."""
    full, shared = (choose(*REFERENCE, "decode", module, machine) for module in ("full_layer", "shared_layer"))
    if full is None or shared is None:
        return [0.0]
    found = []
    for label in set(full.table["floor"]) & set(shared.table["floor"]):
        rows = (
            evaluate.between(batch, table["batches"], table["floor"][label].__getitem__)
            for table in (full.table, shared.table)
        )
        with_indexer, without = rows
        found.append(max(with_indexer - without, 0.0))
    return sorted(found) or [0.0]


def _saved_share(machine: Machine, wanted: Wanted, batch: int, tokens: int) -> float:
    """Return the share of top-k that separated scores save against tied ones, from SGLang's kernel table."""
    if tokens <= TOPK:
        return 0.0
    chosen = choose(*REFERENCE, "decode", "topk_kernel", machine)
    if chosen is None:
        return 1 - SEPARATED_SHARE
    tied, separated = (
        evaluate.decode(chosen.table, wanted._replace(kind=kind), batch, tokens, indexer=False).total
        for kind in ("flat", "top_last")
    )
    # Other engines' kernels differ: they are taken to save the same share of their own top-k.
    return max(1 - separated / tied, 0.0) if tied else 0.0


def has_newer_topk(engine: str, version: str) -> bool:
    """Tell whether a version spreads a long row over several blocks (SGLang's top-k v2)."""
    first, key = V2_FROM.get(engine), sort_key(version)
    return first is not None and key is not None and key >= key_of(first)


def _versions(engine: str, version: str, known: str) -> list[str]:
    if version == known:
        return []
    return [f"{engine} {version} has no kernel table: that of {known}, the nearest one before it, is used for times"]


def _range(chosen: Chosen, machine: Machine, batch: int, tokens: int) -> list[str]:
    said = []
    if machine.name not in chosen.gpus:
        said.append(
            f"{machine.name} has no kernel table: carried from {' and '.join(chosen.gpus)}, with a wider interval"
        )
        if machine.name in SLOW_AT_MATRICES:
            said.append(
                f"{machine.name} multiplies matrices at 148 TFLOP/s, its siblings at 989 (Dao-AILab/flash-attention "
                "issue 1310): times take its memory and clock alone, large batches and many rows may take longer"
            )
    elif len(chosen.gpus) > 1:
        said.append(f"{chosen.gpus[0]} has few measured rows: {chosen.gpus[1]}'s table is scaled to them")
    most = chosen.table.get("rows_times_tokens")
    if tokens > chosen.table["longest"] or (most and batch > 1 and batch * tokens > most):
        said.append(
            "the load lies beyond the measured batches and lengths: the last slope goes on, error 2-10% an octave"
        )
    return said
