"""Evaluates kernel tables: microseconds of one layer or kernel at any batch and length. Plain Python, no numpy.

Between measured points lines are drawn; beyond them the last slope goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import log2
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.timing.shapes import FAMILIES, attention_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOPK = 2048
PRIOR_ETA = 0.82
SCORE_BYTES = 136
STEP = 250  # a stored correction counts four permille
FAR = 131072
WIDE = 65536
MOST_KEPT = 4096


class Wanted(NamedTuple):
    """The series asked for; `peak` is the GPU's bandwidth in bytes per microsecond."""

    family: str
    kind: str
    weight_dtype: str
    heads: int
    peak: float

    @property
    def label(self) -> str:
        """Return the key of the series in a table."""
        return f"{self.family} {self.kind} {self.weight_dtype} {self.heads}"


class Layer(NamedTuple):
    """The parts of one layer's decode time [us]: what does not grow, what grows up to top-k, what grows beyond."""

    floor: float
    gather: float
    growth: float

    @property
    def total(self) -> float:
        """Return the whole time [us]."""
        return self.floor + self.gather + self.growth


def between(place: float, nodes: Sequence[float], value: Callable[[int], float]) -> float:
    """Return the value at `place` on the line through the two nodes around it, or through the last two beyond them."""
    if len(nodes) == 1:
        return value(0)
    high = min(max(bisect_right(nodes, place), 1), len(nodes) - 1)
    low = high - 1
    first, second = value(low), value(high)
    return first + (place - nodes[low]) / (nodes[high] - nodes[low]) * (second - first)


def growth(table: dict[str, Any], kind: str, batch: float, tokens: float) -> float:
    """Return what a table's layer takes more at `tokens` than at its shortest context [us]."""
    rows = table["growth"].get(kind) or next(iter(table["growth"].values()))
    nodes = table["tokens"]
    place = max(tokens, nodes[0])

    def of_batch(index: int) -> float:
        return between(place, nodes, rows[index].__getitem__)

    last = table["batches"][-1]
    if batch > last:  # in proportion: the last slope of each length would let a longer one cost less
        return float(max(of_batch(len(table["batches"]) - 1), 0.0) * batch / last)
    return max(between(batch, table["batches"], of_batch), 0.0)


@lru_cache(maxsize=256)
def _gathering_heads(labels: tuple[str, ...], kind: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the head counts that have a gather row of a kind, in order, and the labels of their rows."""
    found = sorted((int(label.split()[-1]), label) for label in labels if label.split()[0] == kind)
    return tuple(heads for heads, _ in found), tuple(label for _, label in found)


def extra_gather(table: dict[str, Any], kind: str, heads: int, batch: float, tokens: float) -> float:
    """Return what so many heads gather more than the usual ones [us]."""
    known, labels = _gathering_heads(tuple(table["gather"]), kind)
    if not known:
        return 0.0
    batches = table["batches"]
    place = min(max(heads, known[0]), known[-1])

    def of_heads(index: int) -> float:
        return between(min(batch, batches[-1]), batches, table["gather"][labels[index]].__getitem__)

    return between(place, known, of_heads) * min(tokens, TOPK) / TOPK


def floor(
    rows: dict[str, list[float]], batches: Sequence[float], wanted: Wanted, batch: float, *, indexer: bool
) -> float:
    """Return the floor of a series [us]: as measured, on a line between measured head counts, else from the nearest."""
    if wanted.label in rows:
        return between(batch, batches, rows[wanted.label].__getitem__)
    heads = _head_counts(rows, wanted)
    if len(heads) > 1 and heads[0] < wanted.heads < heads[-1]:
        return _of_heads(rows, batches, wanted, batch)
    nearest = _parsed(min(rows, key=lambda label: _distance(label, wanted)), wanted.peak)
    start = _of_heads(rows, batches, nearest, batch)
    more = _weights_us(wanted, indexer=indexer) - _weights_us(nearest, indexer=indexer)
    if heads and wanted.heads < heads[0]:
        more = -_saved_by_fewer_heads(rows, batches, wanted, batch, indexer=indexer)
    return max(start + more, 0.25 * start)


def _head_counts(rows: dict[str, list[float]], wanted: Wanted) -> list[int]:
    """Return the measured head counts of a family, kind and weight format, in order."""
    base = f"{wanted.family} {wanted.kind} {wanted.weight_dtype} "
    return sorted(int(label.split()[-1]) for label in rows if label.startswith(base))


def _of_heads(rows: dict[str, list[float]], batches: Sequence[float], wanted: Wanted, batch: float) -> float:
    """Return the floor on the line between the measured head counts of the wanted series [us]."""
    heads = _head_counts(rows, wanted)

    def at(index: int) -> float:
        return between(batch, batches, rows[wanted._replace(heads=heads[index]).label].__getitem__)

    return at(heads.index(wanted.heads)) if wanted.heads in heads else between(wanted.heads, heads, at)


def _saved_by_fewer_heads(
    rows: dict[str, list[float]], batches: Sequence[float], wanted: Wanted, batch: float, *, indexer: bool
) -> float:
    """Return what fewer heads than measured take less than the fewest measured ones [us].

    Kernels pad heads alike for all families: what they save besides weights is taken from a family with so few, else
    a head saves what one costs over the measured counts, else its weights' bytes.
    """
    heads = _head_counts(rows, wanted)
    fewest = wanted._replace(heads=heads[0])
    weights = _weights_us(fewest, indexer=indexer) - _weights_us(wanted, indexer=indexer)
    for family in sorted({label.split()[0] for label in rows} - {wanted.family}):
        few, many = wanted._replace(family=family), fewest._replace(family=family)
        known = _head_counts(rows, few)
        if known and known[0] <= few.heads and many.heads <= known[-1]:
            saved = _of_heads(rows, batches, many, batch) - _of_heads(rows, batches, few, batch)
            theirs = _weights_us(many, indexer=indexer) - _weights_us(few, indexer=indexer)
            return max(saved - theirs + weights, 0.0)
    if len(heads) > 1:
        most = fewest._replace(heads=heads[-1])
        dearer = max(_of_heads(rows, batches, most, batch) - _of_heads(rows, batches, fewest, batch), 0.0)
        return dearer / (most.heads - fewest.heads) * (fewest.heads - wanted.heads)
    return weights


def _parsed(label: str, peak: float) -> Wanted:
    family, kind, weight_dtype, heads = label.split(" ")
    return Wanted(family, kind, weight_dtype, int(heads), peak)


def _weights_us(wanted: Wanted, *, indexer: bool) -> float:
    shape = FAMILIES.get(wanted.family, FAMILIES["glm"])
    return attention_bytes(shape, wanted.weight_dtype, wanted.heads, indexer=indexer) / (PRIOR_ETA * wanted.peak)


def _distance(label: str, wanted: Wanted) -> tuple[bool, bool, bool, float]:
    known = _parsed(label, wanted.peak)
    apart = abs(known.heads - wanted.heads)
    return known.kind != wanted.kind, known.family != wanted.family, known.weight_dtype != wanted.weight_dtype, apart


def decode(table: dict[str, Any], wanted: Wanted, batch: float, tokens: float, *, indexer: bool) -> Layer:
    """Return the decode time of a layer or kernel, as graph replays ran it."""
    tokens = max(tokens, table["tokens"][0])
    start, below, gathered = _up_to_topk(table, wanted, batch, min(tokens, TOPK), indexer=indexer)
    return Layer(start, gathered, growth(table, wanted.kind, batch, tokens) - below)


def _up_to_topk(
    table: dict[str, Any], wanted: Wanted, batch: float, tokens: float, *, indexer: bool
) -> tuple[float, float, float]:
    """Return floor, growth below top-k and gather, alike for all lengths from top-k on; kept where a table is final."""
    memo, key = table.get("memo"), (wanted, batch, tokens, indexer)
    if memo is not None and key in memo:
        return memo[key]  # type: ignore[no-any-return]
    below = growth(table, wanted.kind, batch, min(tokens, TOPK))
    start = floor(table["floor"], table["batches"], wanted, batch, indexer=indexer)
    gathered = below + extra_gather(table, wanted.kind, wanted.heads, batch, tokens)
    # Some heads gather less than the usual ones; a layer never takes less than at a shorter context (one kernel does).
    for node in () if table.get("falls") else table["tokens"]:
        if node < tokens:
            usual = growth(table, wanted.kind, batch, node)
            gathered = max(gathered, usual + extra_gather(table, wanted.kind, wanted.heads, batch, node))
    found = start, below, max(gathered, 0.0)
    if memo is not None and len(memo) < MOST_KEPT:
        memo[key] = found
    return found


def eager(table: dict[str, Any], wanted: Wanted, batch: float) -> float:
    """Return the host-bound time of a decode step that is no graph replay, 0 where the table holds none [us]."""
    rows = table.get("eager")
    if not rows or batch < table["eager_from"]:
        return 0.0
    label = wanted.label if wanted.label in rows else min(rows, key=lambda known: _distance(known, wanted))
    return float(rows[label])


def kept_keys(new: float, prefix: float) -> float:
    """Return the mean over the new tokens of min(keys, 2048)."""
    beyond = min(max(prefix + new - TOPK, 0.0), new)
    below = new - beyond
    return (below * (prefix + (below + 1) / 2) + beyond * TOPK) / new


def _law_terms(batch: float, new: float, prefix: float, *, dense: bool, scores: bool) -> list[float]:
    tokens, keys = batch * new, prefix + new
    pairs = tokens * (prefix + new / 2) * 1e-6
    if dense:
        return [pairs, batch * keys / 1e5]
    far, narrow = float(keys > FAR), float(tokens < WIDE)
    gathered = tokens * kept_keys(new, prefix) / TOPK / 1e3
    terms = [gathered, batch * keys / 1e5, far * tokens / 1e3, narrow * gathered, narrow * tokens / 1e3]
    if scores:
        ranked = pairs if keys > TOPK else 0.0
        terms += [ranked, tokens / 1e3 if keys > TOPK else 0.0]
        terms += [ranked * max(log2(keys / knot), 0.0) for knot in (8192, 65536)]
        terms += [ranked * batch * keys / 1e6, narrow * ranked]
    return terms


class Prefill(NamedTuple):
    """One layer's prefill time [us]: the law's parts before the host bound and the correction, and the whole."""

    projections: float
    attention: float
    scores: float
    total: float


def prefill(table: dict[str, Any], wanted: Wanted, batch: float, new: float, prefix: float, *, scores: bool) -> Prefill:
    """Return the prefill time of a layer or kernel."""
    is_dense = "dense" in table and prefix + new <= TOPK
    path = table["dense" if is_dense or "sparse" not in table else "sparse"]
    is_dense = path is table.get("dense")
    label = (
        wanted.label if wanted.label in path["own"] else min(path["own"], key=lambda known: _distance(known, wanted))
    )
    per_token, launch = path["own"][label]
    terms = _law_terms(batch, new, prefix, dense=is_dense, scores=scores)
    parts = [coefficient * term for coefficient, term in zip(path["law"], terms, strict=True)]
    projections = per_token * batch * new / 1e3 + 100.0 * launch
    law = projections + sum(parts)
    host = path["host"][label] + path.get("far", 0) * (prefix + new > FAR) - path.get("fresh", 0) * (prefix == 0)
    bound = max(law, host)
    factor = (1 + _correction(path, label, batch, new, prefix)) * bound / law if law else 1.0
    split = len(parts) if is_dense else 5
    attention, scored = sum(parts[:split]), sum(parts[split:])
    whole = law * factor if law else bound
    return Prefill(projections * factor, attention * factor, scored * factor, whole)


def _correction(path: dict[str, Any], label: str, batch: float, new: float, prefix: float) -> float:
    """Return the relative correction, linear between the grid's nodes in the logarithms, constant beyond."""
    values, tokens, prefixes = path["correction"][label], path["tokens"], path["prefix"]
    total, start = 0.0, 0
    weight_of = dict(_weights([log2(node) for node in path["new"]], log2(new)))
    for index, node in enumerate(path["new"]):
        held = [log2(number) for number in tokens if number >= node]
        for row, part in _weights(held, log2(batch * new)) if index in weight_of else ():
            for column, share in _weights([log2(place + 512) for place in prefixes], log2(prefix + 512)):
                total += weight_of[index] * part * share * values[start + row * len(prefixes) + column]
        start += len(held) * len(prefixes)
    return total / STEP


def _weights(nodes: Sequence[float], place: float) -> list[tuple[int, float]]:
    """Return the nodes around a place and how much each counts."""
    inside = min(max(place, nodes[0]), nodes[-1])
    high = min(bisect_right(nodes, inside), len(nodes) - 1)
    low = max(high - 1, 0)
    share = (inside - nodes[low]) / (nodes[high] - nodes[low]) if high > low else 0.0
    return [(node, part) for node, part in ((low, 1 - share), (high, share)) if part]
