"""The answer of `layers`: which layers run an indexer, by engine and version."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.render.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsa_ledger.engines.layer_table import LayerRow
    from dsa_ledger.schema import Model

MAP_WIDTH = 60
UNREAD = "not modelled: "


class Span(NamedTuple):
    """Releases in a row that treat the layers alike; the newest one speaks for them."""

    first: LayerRow
    last: LayerRow

    @property
    def label(self) -> str:
        """Return `sglang 0.5.10..0.5.17`."""
        first, last = self.first.release, self.last.release
        upto = f"..{last.version}" if first.version != last.version else ""
        return f"{first.engine} {first.version}{upto}"


def spans(rows: Iterable[LayerRow]) -> list[Span]:
    """Return the rows with neighbours that agree put together."""
    found = []
    for _, group in itertools.groupby(rows, key=_answer):
        alike = list(group)
        found.append(Span(alike[0], alike[-1]))
    return found


def _answer(row: LayerRow) -> tuple[Any, ...]:
    layers = row.layers
    # Releases that refuse for one reason stand on one line: the reason names each.
    refused = (row.refusal.replace(row.release.label, row.release.engine),)
    what = (layers.decided_by, layers.full, layers.owners, layers.built) if layers else refused
    return (row.release.engine, *what)


def layer_records(found: Sequence[Span]) -> list[dict[str, Any]]:
    """Return one record per span, layer ids in lists."""
    return [
        {
            "engine": span.last.release.engine,
            "from": span.first.release.version,
            "to": span.last.release.version,
            "decided_by": span.last.layers.decided_by if span.last.layers else None,
            "full": list(span.last.layers.full) if span.last.layers else None,
            "index_k": list(span.last.layers.owners) if span.last.layers else None,
            "indexers": list(span.last.layers.built) if span.last.layers else None,
            "stages": list(span.last.cuts),
            "refusal": span.last.refusal,
            "source": span.last.layers.source.ref if span.last.layers else None,
        }
        for span in found
    ]


def layers_text(model: Model, rows: Sequence[LayerRow], warnings: Sequence[str], form: str) -> str:
    """Return the layers in one of the formats; the table shows each distinct plan once, as a map."""
    from dsa_ledger.render import data

    found = spans(rows)
    if form == "json":
        return data.layers_json(model.name, layer_records(found), warnings)
    if form == "csv":
        return data.rows_csv(layer_records(found))
    if form == "md":
        return data.rows_md(layer_records(found))
    text = "\n".join(_table(model, found, warnings)) + "\n"
    if form == "html":
        from dsa_ledger.render.html import text_page

        return text_page(f"layers of {model.name}", text)
    return text


def _table(model: Model, found: Sequence[Span], warnings: Sequence[str]) -> Iterator[str]:
    plans = {span.last.layers.full: None for span in found if span.last.layers}
    letters = dict(zip(plans, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    yield f"{model.name}: {model.layers} layers, {model.draft_layers} MTP"
    yield ""
    yield f"  {'releases':34} {'decided by':18} {'full':>4} {'index-K':>7} {'built':>5}  plan"
    for span in found:
        layers = span.last.layers
        if layers is None:
            yield f"  {span.label:34} {'not modelled' if span.last.refusal.startswith(UNREAD) else 'would not start'}"
            continue
        counts = f"{len(layers.full):4} {len(layers.owners):7} {len(layers.built):5}"
        yield f"  {span.label:34} {layers.decided_by:18} {counts}  {letters.get(layers.full, '-')}"
    yield ""
    yield "full: layers that run an indexer; index-K: layers that own its cache;"
    third = "; -: linear attention" if model.linear_layers else ""
    yield f"built: layers that hold its weights; F: full, s: reuses the last F's top-k{third}."
    for full, letter in letters.items():
        yield ""
        yield f"plan {letter}"
        linear = set(model.linear_layers)
        signs = "".join("-" if layer in linear else "F" if layer in full else "s" for layer in range(model.layers))
        for start in range(0, len(signs), MAP_WIDTH):
            tens = " ".join(textwrap.wrap(signs[start : start + MAP_WIDTH], 10))
            yield f"  {start:4}  {tens}"
    newest = {span.last.release.engine: span for span in found}
    for span in newest.values():
        if len(span.last.cuts) > 1:
            yield ""
            yield from _stages(span)
    if warnings:
        yield ""
        yield "warnings"
        for sentence in warnings:
            yield from wrap(sentence, " - ")


def _stages(span: Span) -> Iterator[str]:
    yield f"pipeline stages, {span.label}"
    layers = span.last.layers
    for stage, (start, count) in enumerate(zip(span.last.starts, span.last.cuts, strict=True)):
        held = range(start, start + count)
        owned = ""
        if layers:
            full = sum(layer in held for layer in layers.full)
            owners = sum(layer in held for layer in layers.owners)
            owned = f", {full} full, {owners} with index-K"
        yield f"  stage {stage}: layers {held[0]} to {held[-1]}{owned}"
