"""Workload mixes, demand and money as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsa_ledger.plan.demand import record
from dsa_ledger.render.data import rows_csv, rows_md
from dsa_ledger.render.html import text_page
from dsa_ledger.render.plan import json_text
from dsa_ledger.render.words import between, headline
from dsa_ledger.render.wrap import wrap
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from dsa_ledger.plan.demand import Demand, End
    from dsa_ledger.schema import Scenario
    from dsa_ledger.workload import Mix, Workload

TITLE_WIDTH = 34


def mix_text(scenario: Scenario, workload: Workload, found: Mix, form: str) -> str:
    """Return what a server holds of a workload in one of the formats."""
    figures = found._asdict() | {"requests_read": len(workload.requests), "lines_skipped": len(workload.skipped)}
    if form == "json":
        return json_text(scenario, "mix", figures | {"skipped": list(workload.skipped)})
    if form in ("csv", "md"):
        return rows_csv([figures]) if form == "csv" else rows_md([figures])
    longest = f"{found.longest_tokens:,} tokens"
    too_long = "" if found.longest_tokens <= found.longest_allowed else f" (refused above {found.longest_allowed:,})"
    rows = [
        ("requests read", f"{len(workload.requests):,}"),
        ("half of them end below", f"{found.median_tokens:,} tokens"),
        ("95% of them end below", f"{found.p95_tokens:,} tokens"),
        ("the longest ends at", longest + too_long),
        ("in the pool each, on average", f"{found.mean_tokens:,} tokens at its end, in whole pages"),
        ("in the pool once for all", f"{found.shared_tokens:,} tokens"),
        (
            "at once on the server",
            f"{found.requests:,} requests on average, {found.all_longest:,} of the longest",
        ),
        ("found in the cache", f"{found.cached_share:.1%} of the prompt tokens"),
        ("index-K read a step and request", brief(found.mean_step_read_bytes, Unit.BYTES_PER_STEP)),
        ("index-K written a prefill", brief(found.mean_prefill_write_bytes, Unit.BYTES)),
        ("sent a request between PD workers", brief(found.mean_transfer_bytes, Unit.BYTES)),
    ]
    lines = [*wrap(headline(scenario)), "", *_lines(rows)]
    if workload.skipped:
        shown = ", ".join(map(str, workload.skipped[:10]))
        lines += [f"  skipped {len(workload.skipped):,} bad lines: {shown}"]
    lines += ["  queueing and how long requests of a mix overlap: not modelled"]
    text = "\n".join(lines) + "\n"
    return text_page(headline(scenario), text) if form == "html" else text


def demand_text(found: Demand, form: str) -> str:
    """Return demand and money in one of the formats; both ends of the step time's interval side by side."""
    if form == "json":
        return json_text(found.scenario, "demand", record(found))
    if form in ("csv", "md"):
        ends = [{"end": name} | value for name, value in record(found).items() if isinstance(value, dict)]
        return (rows_csv(ends) if form == "csv" else rows_md(ends)) if ends else ""
    lines = [*wrap(headline(found.scenario)), ""]
    rows = [("a server runs and holds at most", f"{found.requests:,} and {found.holds:,} requests")]
    if found.wish.prompt is not None:
        rows.append(("held at, steps timed at", f"{found.end_context:,} and {found.step_context:,} tokens of context"))
    if found.low and found.high:
        rows += _ends(found.low, found.high)
    lines += _lines(rows)
    for text in found.not_modelled:
        lines += wrap(f"not modelled: {text}", "  ", "    ")
    text = "\n".join(lines) + "\n"
    return text_page(headline(found.scenario), text) if form == "html" else text


def _ends(low: End, high: End) -> list[tuple[str, str]]:
    """Return the rows that the step time decides, from its lower to its upper end."""
    rows = [
        ("step time", between(brief(low.step_s, Unit.SECONDS), brief(high.step_s, Unit.SECONDS))),
        ("output tokens/s of a server", between(f"{low.tokens_per_s:,.0f}", f"{high.tokens_per_s:,.0f}")),
        (
            "output tokens/s of a request",
            between(f"{low.tokens_per_s_per_request:,.1f}", f"{high.tokens_per_s_per_request:,.1f}"),
        ),
    ]
    if low.in_flight is not None and high.in_flight is not None:
        rows += [
            ("requests in flight, at least", between(f"{low.in_flight:,}", f"{high.in_flight:,}")),
            ("servers, at least", between(f"{low.servers:,}", f"{high.servers:,}")),
        ]
    if low.prefill_attention_s is not None and high.prefill_attention_s is not None:
        ends = (brief(value, Unit.SECONDS) for value in (low.prefill_attention_s, high.prefill_attention_s))
        rows.append(("a prefill's attention layers take", between(*ends)))
    if low.cost_per_million_output_tokens is not None and high.cost_per_million_output_tokens is not None:
        month = "a month costs" if low.in_flight is None else "a month costs, at least"
        cheap, dear = low.cost_per_million_output_tokens, high.cost_per_million_output_tokens
        rows += [
            ("a million input tokens cost", "not modelled"),
            ("a million output tokens cost", between(f"{cheap:,.2f}", f"{dear:,.2f}")),
            (month, between(f"{low.cost_per_month:,.0f}", f"{high.cost_per_month:,.0f}")),
        ]
    return rows


def _lines(rows: list[tuple[str, str]]) -> list[str]:
    return [line for title, text in rows for line in wrap(text, f"  {title:<{TITLE_WIDTH}}")]
