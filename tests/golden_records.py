"""Golden records: pools and weights that real servers showed (`golden/records.toml`), checked and laid out as a table.

`python tests/golden_records.py` prints the table; with `--write` it goes to tests/golden/README.md.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from golden_cases import GIB, GOLDEN, ledger_of, merged

from dsa_ledger.formulas import cells, pool

README = GOLDEN / "README.md"
FORMS = {"value": 1, "tokens": 1, "printed": 1, "gib": GIB, "gb": 10**9}
COMPARISONS = ("before/now", "now/before", "before-now")
REQUIRED = {"id", "url", "date", "engine", "version", "kind", "model", "gpu", "read"}
CHECKED = {"rules", "rules_why", "scenario", "before", "layout", "kv_gib", "starts", "observed"}
OBSERVATION = {*FORMS, "per", "within", "within_share", "compare", "why", "outside"}
BLOCK_TOKENS = 64
NAMES = {"gib": " GiB", "gb": " GB"}
Figures = dict[str, Any]


class Span(NamedTuple):
    """Both ends of what a figure may be."""

    low: Fraction
    high: Fraction

    def meets(self, other: Span) -> bool:
        """Tell whether the two have a number in common."""
        return self.low <= other.high and other.low <= self.high


class Row(NamedTuple):
    """One observation beside its prediction."""

    record: str
    key: str
    measured: Span
    predicted: Span
    seen: str
    foretold: str
    inside: bool
    outside: str
    why: str

    @property
    def error(self) -> Fraction:
        """Return how far the nearest prediction lies from the middle of the measured span, as a share of it."""
        middle = (self.measured.low + self.measured.high) / 2
        nearest = min(max(middle, self.predicted.low), self.predicted.high)
        return nearest / middle - 1


@cache
def records() -> tuple[dict[str, Any], ...]:
    """Return the records as typed, checked for their form."""
    found = tomllib.loads((GOLDEN / "records.toml").read_text(encoding="utf-8"))["record"]
    for record in found:
        _check(record)
    names = [record["id"] for record in found]
    assert len(names) == len(set(names)), "an id stands twice"
    return tuple(found)


def _check(record: dict[str, Any]) -> None:
    name = record.get("id", record)
    assert set(record) >= REQUIRED, f"{name} lacks {REQUIRED - set(record)}"
    assert set(record) <= REQUIRED | CHECKED | {"missing"}, f"{name} has unknown fields"
    assert record["kind"] in ("release", "fork"), name
    assert record["url"].startswith("https://"), name
    ways = [way for way in ("scenario", "layout", "missing") if way in record]
    assert len(ways) == 1, f"{name}: one of scenario, layout and missing, not {ways}"
    if ways == ["missing"]:
        assert not CHECKED & set(record), f"{name}: what is missing cannot be checked"
        return
    assert ways == ["layout"] or record["scenario"]["engine"].startswith(f"{record['engine']}@{record['rules']}"), name
    assert record["observed"], f"{name} observes nothing"
    for key, want in observations(record):
        assert sum(form in want for form in FORMS) == 1, f"{name} {key}: one form of {list(FORMS)}"
        assert set(want) <= OBSERVATION, f"{name} {key} has unknown fields"
        assert want.get("compare", "now/before") in COMPARISONS, f"{name} {key}"
        assert not {"within", "within_share"} & set(want) or "why" in want, f"{name} {key}: why that tolerance?"


def observations(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return key and observation, one pair each."""
    pairs = record.get("observed", {}).items()
    return [(key, want) for key, wants in pairs for want in (wants if isinstance(wants, list) else [wants])]


def printed_span(text: str) -> Span:
    """Return what a number may have been before it was rounded to its last printed digit."""
    half = Fraction(1, 2 * 10 ** len(text.partition(".")[2]))
    return Span(Fraction(text) - half, Fraction(text) + half)


def measured(want: dict[str, Any]) -> Span:
    """Return the span that an observation allows, in the key's unit."""
    form = next(form for form in FORMS if form in want)
    scale, figure = FORMS[form], Fraction(str(want[form]))
    span = printed_span(want[form]) if isinstance(want[form], str) else Span(figure, figure)
    more = max(Fraction(str(want.get("within", 0))), figure * scale * Fraction(str(want.get("within_share", 0))))
    slack = max((span.high - figure) * scale, more)
    per = want.get("per", 1)
    least, most = per if isinstance(per, list) else (per, per)
    return Span((figure * scale - slack) / most, (figure * scale + slack) / least)


def predictions(record: dict[str, Any]) -> list[tuple[Figures, Figures]]:
    """Return the figures of both arms (the same twice where there is one), for each end of the printed KV bytes."""
    ends: list[int | None] = [None]
    if "kv_gib" in record:
        span = printed_span(record["kv_gib"])
        ends = [int(span.low * GIB), int(span.high * GIB)]
    arms = []
    for kv_bytes in ends:
        now = _figures(record, kv_bytes, {})
        arms.append((_figures(record, kv_bytes, record["before"]) if "before" in record else now, now))
    return arms


def _figures(record: dict[str, Any], kv_bytes: int | None, changed: dict[str, Any]) -> Figures:
    if "layout" in record:
        return _by_layout(record["layout"], kv_bytes)
    known: dict[str, Any] = {} if kv_bytes is None else {"observed": {"kv_bytes": kv_bytes}}
    ledger = ledger_of(merged(merged(record["scenario"], known), changed))
    return {entry.key: entry.value for entry in ledger} | {"starts": not ledger.shortfalls}


def _by_layout(layout: dict[str, Any], kv_bytes: int | None) -> Figures:
    """Return what the formulas alone make of a layout, with blocks as vLLM counts them."""
    main, index = layout["main_kv_record_bytes"], layout["index_k_record_bytes"]
    cell = (
        cells.main_kv_cell_bytes(record_bytes=main, layers=layout["layers"])
        + cells.index_k_cell_bytes(record_bytes=index, layers=layout["index_k_layers"], replicas=1)
        + cells.draft_cell_bytes(
            main_kv_record_bytes=main,
            index_k_record_bytes=index,
            draft_layers=layout["draft_layers"],
            dcp=1,
            main_ratio=1,
            index_ratio=1,
        )
    )
    figures: Figures = {"cell.bytes": cell}
    if kv_bytes is not None:
        longest = layout["context_length"]
        blocks = pool.blocks(
            budget_bytes=kv_bytes,
            one_block_bytes=pool.block_bytes(page_tokens=BLOCK_TOKENS, cell_bytes=cell),
        )
        needed = pool.blocks_of_request(context_length=longest, dcp=layout["dcp"], page_tokens=BLOCK_TOKENS)
        figures["pool.concurrency"] = pool.concurrency(block_count=blocks, needed_blocks=needed)
        figures["pool.reported_tokens"] = (
            pool.reported_block_tokens(block_count=blocks, page_tokens=BLOCK_TOKENS, dcp=layout["dcp"])
            if layout["logged"] == "blocks"
            else pool.reported_size_tokens(block_count=blocks, needed_blocks=needed, context_length=longest)
        )
    return figures


def rows_of(record: dict[str, Any]) -> list[Row]:
    """Return each observation of a record beside its prediction."""
    if "missing" in record:
        return []
    arms = predictions(record)
    rows = []
    for key, want in observations(record):
        values = [_compared(want.get("compare"), before[key], now[key]) for before, now in arms]
        predicted, seen = Span(min(values), max(values)), measured(want)
        inside = seen.meets(predicted)
        texts = _seen(want, seen), _foretold(want, predicted)
        rows.append(
            Row(record["id"], key, seen, predicted, *texts, inside, want.get("outside", ""), want.get("why", ""))
        )
    return rows


def _compared(how: str | None, before: Any, now: Any) -> Fraction:
    first, second = Fraction(before), Fraction(now)
    if how is None:
        return second
    if how == "before-now":
        return first - second
    return first / second if how == "before/now" else second / first


def misses(record: dict[str, Any]) -> list[str]:
    """Return one sentence per observation that is not as the record says: inside, or outside for a named reason."""
    said = []
    for row in rows_of(record):
        if row.inside == bool(row.outside):
            verdict = "inside, though the record says why not" if row.inside else "outside"
            said.append(f"{row.record} {row.key}: measured {row.seen}, predicted {row.foretold}: {verdict}")
    if record.get("starts") is False and any(now["starts"] for _, now in predictions(record)):
        said.append(f"{record['id']}: the server did not start, the ledger says that it does")
    return said


# --- the table


def _number(value: Fraction, digits: int = 2) -> str:
    if value.denominator == 1:
        return f"{value.numerator:,}"
    return f"{float(value):,.{4 if abs(value) < 10 else digits}f}"


def _unit(want: dict[str, Any]) -> tuple[int, str]:
    if "per" in want or not {"gib", "gb"} & set(want):
        return 1, ""
    form = "gib" if "gib" in want else "gb"
    return FORMS[form], NAMES[form]


def _seen(want: dict[str, Any], span: Span) -> str:
    form = next(form for form in FORMS if form in want)
    text = want[form] if isinstance(want[form], str) else f"{want[form]:,}"
    scale, unit = _unit(want)
    half = float((span.high - span.low) / 2 / scale)
    if "per" in want:
        text += f"{NAMES.get(form, '')} / {_per(want['per'])} = {_number((span.low + span.high) / 2, 1)}"
    if half:
        text += f" ± {half:,.0f}" if half >= 100 else f" ± {half:.2g}"
    return text + unit


def _per(per: Any) -> str:
    return f"({per[0]:,} to {per[1]:,})" if isinstance(per, list) else f"{per:,}"


def _foretold(want: dict[str, Any], span: Span) -> str:
    scale, unit = _unit(want)
    ends = dict.fromkeys(_number(end / scale, 3) for end in span)
    return " to ".join(ends) + unit


def _line(*parts: str) -> str:
    return "| " + " | ".join(part.replace("|", "\\|") for part in parts) + " |\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _checked(record: dict[str, Any]) -> str:
    """Return the table lines of a record; source, version and choice of rules stand on the first."""
    source, version = f"[{record['id']}]({record['url']})", f"{record['engine']} {record['version']}"
    chosen = f"rules of {record['rules']}: {record['rules_why']}" if "rules_why" in record else ""
    text = ""
    for row in rows_of(record):
        error = f"{float(row.error):+.4%}" if row.error else "0"
        reason = " ".join(_sentence(part) for part in (row.outside or row.why, chosen) if part)
        verdict = "yes" if row.inside else "**no**"
        text += _line(source, version, f"`{row.key}`", row.seen, row.foretold, error, verdict, reason)
        source, version, chosen = record["id"], "", ""
    if "starts" in record:
        starts = all(now["starts"] for _, now in predictions(record))
        words = {True: "starts", False: "does not start"}
        verdict = "yes" if starts == record["starts"] else "**no**"
        text += _line(source, version, "start-up", words[record["starts"]], words[starts], "", verdict, "")
    return text


def _head(*titles: str) -> str:
    return _line(*titles) + "|---" * len(titles) + "|\n"


INTRODUCTION = """<!-- Made by `python tests/golden_records.py --write` from records.toml; a test compares. -->
# Golden records against the ledger

What servers showed of their pools and weights in public threads, beside what the ledger makes of the same scenario.
{counts}

- *inside*: the prediction lies in what the printed digits (±, half of the last one) and whole pages or blocks allow.
- *error*: nearest prediction over the middle of the measured span, less 1.
- Where the bytes left for the pool are printed, they are given as `--kv-bytes` at both ends of their rounding, and the
  prediction is a span. SGLang's sizes hold one pad page of 64 tokens; vLLM's tokens are whole blocks of 64.

Format of `records.toml` (its head says it in full): `id`, `url`, `date`, `engine`, `version` as in the source, `kind`
(`release` or `fork`), `model`, `gpu`, `read`; then `rules` with `rules_why`, `scenario` (fields of `Scenario`) and
`before` (the other arm); or `layout` (formulas alone); or `missing`. `kv_gib`, `starts`, and `observed`: ledger key to
one or more of `value`, `tokens`, `printed`, `gib`, `gb` with `per`, `within`, `within_share`, `compare`, `why` and
`outside`.
"""


def table() -> str:
    """Return the whole README."""
    everything = records()
    rows = [row for record in everything for row in rows_of(record)]
    by_rules = [record for record in everything if "scenario" in record]
    by_layout = [record for record in everything if "layout" in record]
    missing = [record for record in everything if "missing" in record]
    inside = sum(row.inside for row in rows)
    counts = (
        f"{len(everything)} records: {len(by_rules)} answered by a release's rules, {len(by_layout)} by the formulas "
        f"alone, {len(missing)} not checkable.\n"
        f"{len(rows)} figures: {inside} inside, {len(rows) - inside} not, each with its reason."
    )
    head = _head("record", "engine, version", "key", "measured", "predicted", "error", "inside", "reason")
    text = INTRODUCTION.format(counts=counts)
    text += "\n## By the rules of a release\n\n" + head + "".join(map(_checked, by_rules))
    text += "\n## By the formulas alone\n\n"
    text += (
        "Forks, and hardware without rules: the layout is what the source shows, so these lines prove arithmetic.\n\n"
    )
    text += head + "".join(map(_checked, by_layout))
    text += "\n## Not checkable\n\n" + _head("record", "engine, version", "kind", "what was read", "why not")
    for record in missing:
        source, version = f"[{record['id']}]({record['url']})", f"{record['engine']} {record['version']}"
        text += _line(source, version, record["kind"], record["read"], record["missing"])
    return text


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tests/golden/README.md")
    if parser.parse_args().write:
        README.write_text(table(), encoding="utf-8")
    else:
        sys.stdout.write(table())


if __name__ == "__main__":
    main()
