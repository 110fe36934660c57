"""A comparison as text: a table of 80 columns with numbered causes under it, json, csv and md."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from dsa_ledger.compare import SIDES
from dsa_ledger.explain import formula_text, origin, quantity
from dsa_ledger.render.data import CONTRACT, rows_csv, rows_md
from dsa_ledger.render.words import GROUPS, headline
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsa_ledger.compare import Cause, Comparison, Row
    from dsa_ledger.ledger import Entry

WIDTH = 80
KEY_WIDTH, COLUMN = 29, 12
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

        titles = [headline(found.scenarios[side]) for side in SIDES]
        said = [f"{field.path}: {field.a} | {field.b}" for field in found.stated]
        said += [f"{side.upper()} does not fit: {text}" for side in SIDES for text in found.ledgers[side].shortfalls]
        said += [f"warning of {side.upper()}: {text}" for side in SIDES for text in found.ledgers[side].warnings]
        numbers = [{"causes": ", ".join(str(causes[place]) for place in row.causes)} for row in rows]
        shown = [_record(found, row, causes) | number for row, number in zip(rows, numbers, strict=True)]
        why = [
            f"{number}: {found.causes[place].keys[0]}: {' | '.join(side_texts(found.causes[place]))}"
            for place, number in causes.items()
        ]
        return comparison_page(titles, shown, why, said)
    return _md(found, rows, causes) if form == "md" else _table(found, rows, causes, every=every)


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
    for place, number in causes.items():
        lines += _cause(number, found.causes[place])
    more = len(found.rows) - len(rows)
    rest = "" if every or not more else f"; {more:,} more differ, shown with --all"
    lines += ["", f"{found.equal:,} entries are equal{rest}"]
    for side in SIDES:
        lines += _sentences(f"warnings of {side.upper()}", found.ledgers[side].warnings)
    return "\n".join(lines) + "\n"


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


def _cause(number: int, cause: Cause) -> Iterator[str]:
    """Yield the lines of one cause: its keys, then value, formula and source of each side."""
    says = ["stated by the scenario"] if cause.kind == "scenario" else []
    says += ["on one side only"] if cause.differs == "presence" else []
    first, *also = cause.keys
    title = first + (f" ({', '.join(says)})" if says else "") + (f"; also {', '.join(also[:3])}" if also else "")
    title += f" and {len(also) - 3} more" if len(also) > 3 else ""  # noqa: PLR2004 - so many were named
    yield from textwrap.wrap(title, WIDTH, initial_indent=f"{number:>3} ", subsequent_indent="    ")
    for side, text in zip(SIDES, side_texts(cause), strict=True):
        yield from textwrap.wrap(
            f"{side.upper()} {text}", WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
        )
    if cause.kind != "scenario" and cause.a and cause.b and cause.a.source == cause.b.source:
        yield "    (one source for both: it follows from what is stated differently)"


def side_texts(cause: Cause) -> tuple[str, str]:
    """Return value, formula and source of each side of a cause."""
    return _side(cause, cause.a, cause.b), _side(cause, cause.b, cause.a)


def _side(cause: Cause, entry: Entry | None, other: Entry | None) -> str:
    if entry is None:
        return "no such entry"
    formula = formula_text(entry) if cause.differs == "formula" else None
    made = f" = {textwrap.shorten(formula, 120, placeholder=' ...')}" if formula else ""
    if cause.differs == "input" and other:  # the same formula: what it takes is what tells the two apart
        own = [used for _, used in entry.inputs if used not in dict(other.inputs).values()]
        made = f" with {', '.join(own)}" if own else ""
    return f"{quantity(entry)}{made}  {origin(entry.source)}"


def _sentences(title: str, sentences: Sequence[str]) -> list[str]:
    if not sentences:
        return []
    wrapped = (textwrap.wrap(text, WIDTH, initial_indent=" - ", subsequent_indent="   ") for text in sentences)
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
    for side in SIDES:
        for title, sentences in (
            ("does not fit", found.ledgers[side].shortfalls),
            ("warnings", found.ledgers[side].warnings),
        ):
            if sentences:
                lines += ["", f"## {side.upper()}: {title}", "", *(f"- {sentence}" for sentence in sentences)]
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
    if entry is None:
        return None
    source = entry.source
    return {
        "value": entry.value,
        "unit": entry.unit.value,
        "formula": formula_text(entry),
        "inputs": dict(entry.inputs),
        "source": {"kind": source.kind, "ref": source.ref, "date": source.date},
    }
