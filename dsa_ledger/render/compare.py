"""A comparison as text: a table of 80 columns with numbered causes under it, json, csv and md."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.compare import SIDES
from dsa_ledger.render.causes import cause_lines, side_texts, sides_told, title_of
from dsa_ledger.render.data import CONTRACT, entry_record, rows_csv, rows_md
from dsa_ledger.render.html import Figure
from dsa_ledger.render.words import GROUPS, headline
from dsa_ledger.render.wrap import wrap
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsa_ledger.compare import Cause, Comparison, Row
    from dsa_ledger.ledger import Entry

WIDTH = 80
KEY_WIDTH, COLUMN = 29, 12
MOST_IN_TITLE = 3
EXACT_BELOW = 10_000_000  # so many digits fit the column; from here on the prefix says more
HEADLINE = tuple(key for group in GROUPS for key in group.keys)


def comparison_text(found: Comparison, form: str, *, every: bool = False) -> str:
    """Return the comparison; `every` takes in all entries, not only the headline ones."""
    rows = rows_shown(found, every=every)
    causes = numbered(rows)
    if form == "json":
        return _json(found, rows, causes)
    if form == "csv":
        return rows_csv([_record(found, row, causes) for row in rows])
    if form == "html":
        from dsa_ledger.render.html_ledger import comparison_page

        stated = [f"{field.path}: {field.a} | {field.b}" for field in found.stated]
        lists = [("Stated differently, A | B", stated)]
        lists += [(f"{side.upper()} does not fit", found.ledgers[side].shortfalls) for side in SIDES]
        lists += [(title[0].upper() + title[1:], said) for title, said in said_by(found)]
        told: dict[str, str] = {}
        why = [
            f"{number}: {title_of(found.causes[place])}; " + "; ".join(sides_told(number, found.causes[place], told))
            for place, number in causes.items()
        ]
        sides = [headline(found.scenarios[side]) for side in SIDES]
        title = "Compared: " + (", ".join(stated[:MOST_IN_TITLE]) or "nothing is stated differently")
        return comparison_page(title, sides, [_cells(row, causes) for row in rows], why, lists)
    return _md(found, rows, causes) if form == "md" else _table(found, rows, causes, every=every)


def _cells(row: Row, causes: Mapping[int, int]) -> dict[str, Any]:
    """Return a row for people: values with their units, causes in order."""
    entry = row.a or row.b
    unit = entry.unit if entry else Unit.COUNT
    return {
        "key": row.key,
        **{side.upper(): _figure(getattr(row, side)) for side in SIDES},
        "B - A": Figure(
            "-" if row.difference is None else f"{'+' * (row.difference > 0)}{brief(row.difference, unit)}"
        ),
        "B / A": Figure("-" if row.ratio is None else _ratio(row.ratio)),
        "causes": _runs(sorted(causes[place] for place in row.causes)),
    }


def _figure(entry: Entry | None) -> str:
    if entry is None:
        return "-"
    number = isinstance(entry.value, int | float) and not isinstance(entry.value, bool)
    return Figure(brief(entry.value, entry.unit)) if number else str(entry.value)


def rows_shown(found: Comparison, *, every: bool) -> list[Row]:
    """Return the rows to show: those of the headline keys in their order, or all of them as posted."""
    if every:
        return list(found.rows)
    return sorted((row for row in found.rows if row.key in HEADLINE), key=lambda row: HEADLINE.index(row.key))


def numbered(rows: Sequence[Row]) -> dict[int, int]:
    """Return the number shown for each cause of these rows, from 1 in the order met."""
    places = dict.fromkeys(place for row in rows for place in row.causes)
    return {place: number for number, place in enumerate(places, 1)}


def value_text(entry: Entry | None) -> str:
    """Return a value that fits a narrow column, or a dash where there is no entry; the key says the unit."""
    if entry is None:
        return "-"
    return _short(entry.value, entry.unit)


def _short(value: Any, unit: Unit) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and abs(value) < EXACT_BELOW:
        return f"{value:,}"
    number, _, prefixed = brief(value, unit).partition(" ")
    # `GiB/token` is `GiB` here; a unit that took no prefix is in the key.
    text = number if prefixed in ("", unit.value) else f"{number} {prefixed.partition('/')[0]}"
    if len(text) >= COLUMN - 1:  # one place is the sign's, one keeps columns apart
        text = text.replace(number, f"{float(number.replace(',', '')):,.0f}")
    return text if len(text) < COLUMN - 1 else f"{value:.4g}"


def _table(found: Comparison, rows: Sequence[Row], causes: Mapping[int, int], *, every: bool) -> str:
    lines = [
        line
        for side in SIDES
        for line in textwrap.wrap(f"{side.upper()}  {headline(found.scenarios[side])}", WIDTH, subsequent_indent="   ")
    ]
    lines += _stated(found)
    for side in SIDES:
        lines += _sentences(f"{side.upper()} does not fit", found.ledgers[side].shortfalls)
    both = [row for row in rows if row.a and row.b]
    heads = "".join(f"{head:>{COLUMN}}" for head in ("A", "B", "B - A"))
    lines += ["", "  key".ljust(KEY_WIDTH) + f"{heads}{'B / A':>7}  cause"] if both else []
    lines += [line for row in both for line in _row(row, causes)]
    for side, title in zip(SIDES, ("only in A", "only in B"), strict=True):
        alone = [row for row in rows if (row.b if side == "a" else row.a) is None]
        lines += ["", title] if alone else []
        lines += [line for row in alone for line in _row(row, causes)]
    lines += ["", "causes"] if causes else []
    told: dict[str, str] = {}
    for place, number in causes.items():
        lines += cause_lines(number, found.causes[place], told)
    more = len(found.rows) - len(rows)
    rest = "" if every or not more else f"; {more:,} more differ, shown with --all"
    lines += ["", f"{found.equal:,} entries are equal{rest}"]
    for title, sentences in said_by(found):
        lines += _sentences(title, sentences)
    return "\n".join(lines) + "\n"


def said_by(found: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield the warnings, those that both sides have once."""
    of = {side: found.ledgers[side].warnings for side in SIDES}
    both = [text for text in of["a"] if text in of["b"]]
    yield "warnings of A and B", both
    for side in SIDES:
        yield f"warnings of {side.upper()}", [text for text in of[side] if text not in both]


def _stated(found: Comparison) -> list[str]:
    lines = [f"  {field.path}: {field.a} | {field.b}" for field in found.stated]
    if not lines:
        return ["", "both state the same"]
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="      ")]
    return ["", "stated differently, A | B", *wrapped]


def _row(row: Row, causes: Mapping[int, int]) -> Iterator[str]:
    key = f"  {row.key}"
    if len(key) >= KEY_WIDTH:  # on a line of its own; broken it could not be copied to `explain`
        yield key
        key = ""
    entry = row.a or row.b
    difference = "" if row.difference is None or not entry else _signed(row.difference, entry.unit)
    ratio = "" if row.ratio is None else _ratio(row.ratio)
    numbers = _runs(sorted(causes[place] for place in row.causes))
    columns = "".join(f"{text:>{COLUMN}}" for text in (value_text(row.a), value_text(row.b), difference))
    start = f"{key:<{KEY_WIDTH}}{columns}{ratio:>7} "
    start += " " * (len(start) + max(map(len, numbers.split()), default=0) < WIDTH)
    wrapped = textwrap.wrap(numbers, WIDTH - len(start), break_on_hyphens=False, break_long_words=False)
    first, *others = wrapped or [""]
    yield (start + first).rstrip()
    yield from (" " * len(start) + other for other in others)


def _ratio(ratio: float) -> str:
    """Return B / A in at most six characters, so that its column keeps its width."""
    plain = f"{ratio:.3f}" if ratio < 100 else f"{ratio:.0f}"  # noqa: PLR2004 - three digits before the point say enough
    return plain if len(plain) <= 6 else f"{ratio:.0e}"  # noqa: PLR2004 - the column is seven wide


def _runs(numbers: Sequence[int]) -> str:
    """Return sorted numbers as `1 4-7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _signed(value: float, unit: Unit) -> str:
    return f"{'-' if value < 0 else '+'}{_short(abs(value), unit)}"


def _sentences(title: str, sentences: Sequence[str]) -> list[str]:
    if not sentences:
        return []
    wrapped = (wrap(text, " - ", "   ") for text in sentences)
    return ["", title, *(line for lines in wrapped for line in lines)]


def _record(found: Comparison, row: Row, causes: Mapping[int, int]) -> dict[str, Any]:
    """Return one row for csv and md: raw values, and the causes in words."""
    words = [f"{found.causes[place].keys[0]}: {' | '.join(side_texts(found.causes[place]))}" for place in row.causes]
    return {
        "key": row.key,
        "a": row.a.value if row.a else None,
        "b": row.b.value if row.b else None,
        "unit": row.unit,
        "difference": row.difference,
        "ratio": row.ratio,
        "causes": "; ".join(f"[{causes[place]}] {text}" for place, text in zip(row.causes, words, strict=True)),
    }


def _md(found: Comparison, rows: Sequence[Row], causes: Mapping[int, int]) -> str:
    lines = [f"# {side.upper()}: {headline(found.scenarios[side])}\n" for side in SIDES]
    lines += [f"- {field.path}: `{field.a}` | `{field.b}`" for field in found.stated]
    records = [
        _record(found, row, causes) | {"causes": ", ".join(str(causes[place]) for place in row.causes)} for row in rows
    ]
    lines += ["", rows_md(records)] if records else [""]
    for place, number in causes.items():
        cause = found.causes[place]
        lines.append(f"{number}. `{'`, `'.join(cause.keys)}` ({cause.kind})")
        lines += [f"   - {side.upper()}: {text}" for side, text in zip(SIDES, side_texts(cause), strict=True)]
    lines += ["", f"{found.equal:,} entries are equal."]
    unfit = [(f"{side.upper()}: does not fit", found.ledgers[side].shortfalls) for side in SIDES]
    for title, sentences in (*unfit, *said_by(found)):
        lines += ["", f"## {title}", "", *(f"- {sentence}" for sentence in sentences)] if sentences else []
    return "\n".join(lines) + "\n"


def _json(found: Comparison, rows: Sequence[Row], causes: Mapping[int, int]) -> str:
    whole = {
        "schema": CONTRACT,
        "scenarios": {side: found.scenarios[side].model_dump(mode="json", by_alias=True) for side in SIDES},
        "stated": [field._asdict() for field in found.stated],
        "entries": [_record(found, row, causes) | {"causes": [causes[place] for place in row.causes]} for row in rows],
        "causes": [_cause_record(number, found.causes[place]) for place, number in causes.items()],
        "equal": found.equal,
        "differing": len(found.rows),
        "shortfalls": {side: found.ledgers[side].shortfalls for side in SIDES},
        "warnings": {side: found.ledgers[side].warnings for side in SIDES},
    }
    return json.dumps(whole, indent=1) + "\n"


def _cause_record(number: int, cause: Cause) -> dict[str, Any]:
    return {
        "number": number,
        "keys": list(cause.keys),
        "kind": cause.kind,
        "differs": cause.differs,
        "a": _entry_record(cause.a),
        "b": _entry_record(cause.b),
    }


def _entry_record(entry: Entry | None) -> dict[str, Any] | None:
    """Return an entry as the JSON contract spells it, without key and note."""
    if entry is None:
        return None
    return {name: value for name, value in entry_record(entry).items() if name not in ("key", "note")}
