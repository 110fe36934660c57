"""From printed figures to records and layers, with what speaks for and against each reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit.hypotheses import INDEX_RECORD, Hypothesis, Shape, draft_explained, explained, nearest_to
from dsa_ledger.audit.seen import PAGE_TOKENS
from dsa_ledger.engines.releases import key_of, sort_key
from dsa_ledger.formulas.pool import blocks_of_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.audit.seen import Seen

_DCP = (1, 2, 4, 8, 16, 32)
_SMALLEST = 300  # bytes of one layer; no main-KV record is so small
_DERIVED_SIZE_FROM = "0.20.2"  # vLLM: the logged size is int(concurrency x max_model_len), before it blocks x 64 x DCP
_LOOSE = 0.004  # a pool that misses every combination by more than this is explained by none


@dataclass
class Inferred:
    """What the figures say, and how certain each is: exact, likely, or open between some."""

    values: dict[str, Any] = field(default_factory=dict)
    certainty: dict[str, str] = field(default_factory=dict)
    hypothesis: Hypothesis | None = None
    fitting: list[Hypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def say(self, key: str, value: Any, certainty: str) -> None:
        """Keep one inferred figure."""
        self.values[key], self.certainty[key] = value, certainty


def inferred_from(seen: Seen, shapes: Sequence[Shape], dcp: int | None, *, named: bool) -> Inferred:
    """Return what the pools say; `named` tells that the model is known, not guessed from its layers."""
    found = Inferred()
    if seen.engine == "sglang":
        _sglang(found, seen, shapes, dcp or 1)
    elif seen.engine == "vllm":
        _vllm(found, seen, shapes, dcp)
    else:
        _tensorrt(found, seen, shapes)
    one = found.hypothesis
    if one is not None and not named:
        alike = sorted({fit.shape.model for fit in found.fitting})
        found.say("model.layers", one.shape.layers, "likely" if len(alike) == 1 else f"open: {', '.join(alike)[:120]}")
    return found


def _choose(found: Inferred, fits: list[Hypothesis], low: float, high: float, fallback: Hypothesis | None) -> None:
    """Keep the plainest hypothesis that fits; the certainty says how many others do."""
    middle = (low + high) / 2
    found.values["cell.observed_bytes"] = round(middle, 1)
    found.certainty["cell.observed_bytes"] = f"within {(high - low) / 2:.1f} B of print rounding"
    if not fits:
        if fallback is not None and abs(fallback.cell_bytes - middle) <= _LOOSE * middle:
            found.hypothesis, found.fitting = fallback, [fallback]
            off = (middle / fallback.cell_bytes - 1) * 100
            _say_shape(found, fallback, f"likely: {fallback.says} misses by {off:+.2f}%, more than the rounding")
        else:
            near = f"; nearest is {fallback.says} = {fallback.cell_bytes:,}" if fallback else ""
            found.notes.append(f"no combination of records and layers gives {middle:,.1f} B/token{near}")
        return
    plain = [fit for fit in fits if fit.plain]
    chosen = (plain or fits)[0]
    found.hypothesis, found.fitting = chosen, fits
    same = {(fit.main_bytes, fit.index_layers, fit.draft_layers, fit.index_bytes) for fit in (plain or fits)}
    if len(same) == 1:
        certainty = f"exact: {chosen.says} = {chosen.cell_bytes:,} B/token"
    else:
        others = "; ".join(fit.says for fit in (plain or fits)[1:4])
        certainty = f"open: {chosen.says} fits, so does {others}"
    _say_shape(found, chosen, certainty)


def _say_shape(found: Inferred, one: Hypothesis, certainty: str) -> None:
    found.say("record.main_kv_bytes", one.main_bytes, certainty)
    found.say("record.index_k_bytes", one.index_bytes, certainty)
    # Of that pool: where the MTP layer lies in it, it counts; `model.index_k_layers` are the target's alone.
    found.say("index_k.layers", one.index_layers + one.draft_layers * (one.index_layers > 0), certainty)
    found.say("main_kv.layers", one.main_layers + one.draft_layers, certainty)
    found.say("model.index_k_layers", one.index_layers, certainty)


def _sglang(found: Inferred, seen: Seen, shapes: Sequence[Shape], dcp: int) -> None:
    pool = seen.target
    if pool is None:
        return
    rows = (dcp,) if dcp > 1 else (1,)
    low, high = pool.cell_range(PAGE_TOKENS)
    if high < min((shape.layers for shape in shapes), default=0) * _SMALLEST:
        _lone_draft(found, low, high)
        return
    fits = explained(shapes, low, high, draft_inside=False, index_rows=rows)
    pad = PAGE_TOKENS
    if not fits:
        fits = explained(shapes, *pool.cell_range(0), draft_inside=False, index_rows=rows)
        pad = 0 if fits else PAGE_TOKENS
    if not fits and dcp == 1:
        fits = explained(shapes, low, high, draft_inside=False, index_rows=_DCP[1:])
        if fits:
            found.say("sharding.dcp", fits[0].index_rows, "likely: only replicated over so many ranks the index-K fits")
    _choose(found, fits, low, high, nearest_to(shapes, (low + high) / 2, draft_inside=False, index_rows=rows))
    if fits:
        found.say("pool.pad_tokens", pad, "exact" if pad else "likely: only without a pad page a combination fits")
    _sglang_draft(found, seen, dcp)


def _lone_draft(found: Inferred, low: float, high: float) -> None:
    fits = draft_explained(low, high, 1)
    if fits:
        found.say("model.draft_layers", fits[0].layers, "likely")
        found.notes.append(
            f"the one pool printed is of a draft: one layer of {fits[0].main_bytes} + {fits[0].index_bytes} B; "
            "the target's line is missing"
        )


def _sglang_draft(found: Inferred, seen: Seen, dcp: int) -> None:
    if seen.draft is None:
        certainty = "exact: no second pool" if seen.target else "open"
        found.say("model.draft_layers", 0, certainty)
        return
    low, high = seen.draft.cell_range(PAGE_TOKENS)
    fits = draft_explained(low, high, 4) or draft_explained(low, high, 4, dcp)
    width = found.values.get("record.main_kv_bytes")
    own = [fit for fit in fits if fit.main_bytes == width and fit.index_bytes == INDEX_RECORD]
    best = next(iter(own or fits), None)
    if best is None:
        found.say(
            "model.draft_layers", 1, f"likely: a second pool of {(low + high) / 2:,.1f} B/token that no record gives"
        )
        return
    certainty = "exact" if own else "likely"
    found.say(
        "model.draft_layers", best.layers, f"{certainty}: {best.layers} x ({best.main_bytes} + {best.index_bytes}) B"
    )


def _vllm(found: Inferred, seen: Seen, shapes: Sequence[Shape], dcp: int | None) -> None:
    if seen.tokens is None or seen.kv_bytes is None:
        return
    candidates = [dcp] if dcp else [seen.cp_world] if seen.cp_world else list(_DCP)
    for one in candidates:
        if one is None:
            continue
        blocks = vllm_blocks(seen, one)
        if not blocks:
            continue
        low = (seen.kv_bytes - seen.kv_within) / (blocks + 1) / PAGE_TOKENS
        high = (seen.kv_bytes + seen.kv_within) / blocks / PAGE_TOKENS
        fits = explained(shapes, low, high, draft_inside=True)
        plain = [fit for fit in fits if fit.plain]
        if plain or len(candidates) == 1:
            _choose(found, fits, low, high, nearest_to(shapes, (low + high) / 2, draft_inside=True))
            found.say("pool.blocks", blocks, "exact")
            found.say("sharding.dcp", one, "exact" if len(candidates) == 1 else "likely: the only DCP size that fits")
            drafts = {fit.draft_layers for fit in plain}
            if found.hypothesis:
                certainty = "exact: in the same blocks" if len(drafts) == 1 else "open: with and without one fit"
                found.say("model.draft_layers", found.hypothesis.draft_layers, certainty)
            return
    low = (seen.kv_bytes - seen.kv_within) / seen.tokens
    high = (seen.kv_bytes + seen.kv_within) / seen.tokens
    _choose(found, [], low, high, nearest_to(shapes, (low + high) / 2, draft_inside=True))
    if found.hypothesis:
        found.say("model.draft_layers", found.hypothesis.draft_layers, "likely")


def vllm_blocks(seen: Seen, dcp: int) -> int | None:
    """Return the blocks behind the printed size: it is int(blocks / needed x max_model_len), or blocks x 64 x dcp."""
    if seen.tokens is None:
        return None
    span = PAGE_TOKENS * dcp
    if not seen.context:
        return seen.tokens // span
    needed: int = blocks_of_request(context_length=seen.context, dcp=dcp, page_tokens=PAGE_TOKENS)
    version = seen.version or seen.low
    key = sort_key(version) if version else None
    if key is not None and key < key_of(_DERIVED_SIZE_FROM):
        return seen.tokens // span
    return round(seen.tokens * needed / seen.context)


def _tensorrt(found: Inferred, seen: Seen, shapes: Sequence[Shape]) -> None:
    if seen.cell_bytes is None and seen.target is None:
        return
    if seen.cell_bytes is not None:
        low = high = float(seen.cell_bytes)
    else:
        low, high = seen.target.cell_range(0) if seen.target else (0.0, 0.0)
    fits = explained(shapes, low, high, draft_inside=True)
    if not fits:
        fits = explained(shapes, low, high, draft_inside=True, index_records=(2 * INDEX_RECORD,))
        if fits:
            found.notes.append(
                "index-K is charged twice over, as TensorRT-LLM did for bf16 KV before 1.3.0rc21; it stores half"
            )
    if seen.owners is not None:
        fits = [
            fit for fit in fits if fit.index_layers + fit.draft_layers == seen.owners or fit.index_layers == seen.owners
        ] or fits
    _choose(found, fits, low, high, nearest_to(shapes, (low + high) / 2, draft_inside=True))
    if found.hypothesis:
        found.say("model.draft_layers", found.hypothesis.draft_layers, found.certainty["record.main_kv_bytes"])
