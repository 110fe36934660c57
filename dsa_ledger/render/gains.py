"""Single changes by gain as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsa_ledger.account.timing import DCP_TIME
from dsa_ledger.plan.launch import command
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.words import between, headline
from dsa_ledger.render.wrap import wrap
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsa_ledger.plan.gains import Figures, Gain, Gains

NAME_WIDTH = 34


def gains_text(found: Gains, form: str) -> str:
    """Return the changes in one of the formats, the largest gain first."""
    records = [_record(gain) for gain in found.found]
    if form == "json":
        whole = {
            "schema": CONTRACT,
            "scenario": found.scenario.model_dump(mode="json", by_alias=True),
            "before": found.before._asdict(),
            "changes": records,
            "pairs": [_record(gain) for gain in found.pairs],
            "without_gain": [_record(gain) for gain in found.losses],
            "refused": [{"change": name, "reason": reason} for name, reason in found.refused],
        }
        return json.dumps(whole, indent=1) + "\n"
    records += [_record(gain) for gain in found.pairs]
    if form == "csv":
        return rows_csv(records)
    if form == "md":
        return rows_md(records) if records else "no change makes more room\n"
    return _page(found) if form == "html" else _table(found)


def _page(found: Gains) -> str:
    from dsa_ledger.render.html import Figure, heading, listed, page, table

    def row(name: str, one: Figures, price: str) -> dict[str, Any]:
        figures = {"tokens": one.system_tokens, "requests": one.requests, "step time": Figure(_step(one))}
        return {"change": name, **(figures if _stated(found) else {"tokens": one.system_tokens}), "price": price}

    def rows(gains: Sequence[Gain]) -> list[dict[str, Any]]:
        return [row(gain.change.name, gain.after, gain.change.price) for gain in gains]

    parts = [table([row("as it is", found.before, ""), *rows(found.found)], stacked=True)]
    if found.pairs:
        parts += [heading("Two changes that hold the load together"), table(rows(found.pairs), stacked=True)]
    parts.append(listed("To know", [text for text in (_of_a_length(found), _of_dcp(found)) if text]))
    parts.append(listed("No more tokens from", [gain.change.name for gain in found.losses]))
    parts.append(listed("Refused here", [f"{name}: {reason}" for name, reason in found.refused]))
    return page(headline(found.scenario), *parts)


def _table(found: Gains) -> str:
    stated = _stated(found)
    lines = [*wrap(headline(found.scenario)), ""]
    lines.append(f"{'':{NAME_WIDTH}}{'tokens':>13}{'requests':>10}{'step time':>20}")
    lines.append(f"{'as it is':<{NAME_WIDTH}}{_figures(found.before, stated=stated)}")
    lines += [line for gain in found.found for line in _gain(gain, stated=stated)]
    lines += [] if found.found else ["no single change makes more room"]
    if found.pairs:
        lines += ["", "two changes together hold the load:"]
        lines += [line for gain in found.pairs for line in _gain(gain, stated=stated)]
    for text in (_of_a_length(found), _of_dcp(found)):
        lines += ["", *wrap(text)] if text else []
    if found.losses:
        lines += ["", *wrap(f"no more tokens from: {', '.join(gain.change.name for gain in found.losses)}", "", "  ")]
    lines += ["", "refused here"] if found.refused else []
    lines += [line for name, reason in found.refused for line in wrap(f" - {name}: {reason}", "", "   ")]
    return "\n".join(lines) + "\n"


def _stated(found: Gains) -> bool:
    return found.scenario.load.context is not None


def _of_a_length(found: Gains) -> str:
    return "" if _stated(found) else "requests and step time are of a length: give --context"


def _of_dcp(found: Gains) -> str:
    return DCP_TIME if any(gain.change.scenario.sharding.dcp > 1 for gain in (*found.found, *found.pairs)) else ""


def _gain(gain: Gain, *, stated: bool) -> Iterator[str]:
    name = gain.change.name
    shown = _figures(gain.after, stated=stated)
    yield from [name, " " * NAME_WIDTH + shown] if len(name) >= NAME_WIDTH else [f"{name:<{NAME_WIDTH}}{shown}"]
    yield from wrap(gain.change.price, "   ")
    if gain.outcome.why_not:
        why = gain.outcome.why_not.partition(";")[0]
        yield from wrap(f"the load does not fit: {why}", "   ")


def _figures(one: Figures, *, stated: bool) -> str:
    requests = f"{one.requests:,}" if stated else "-"
    return f"{one.system_tokens:>13,}{requests:>10}{_step(one) if stated else '-':>20}"


def _step(one: Figures) -> str:
    if one.step_low_s is None or one.step_high_s is None:
        return "not modelled"
    return between(brief(one.step_low_s, Unit.SECONDS), brief(one.step_high_s, Unit.SECONDS))


def _record(gain: Gain) -> dict[str, Any]:
    return {
        "change": gain.change.name,
        "kind": gain.change.near.name.lower(),
        **gain.after._asdict(),
        "fits": gain.outcome.fits,
        "is_upper_bound": gain.outcome.is_bound,
        "price": gain.change.price,
        "command": command(gain.outcome.scenario),
    }
