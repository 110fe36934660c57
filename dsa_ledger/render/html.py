"""One self-contained HTML page: no script, nothing fetched, everything escaped, light and dark, print and phone.

The same input gives the same bytes. Lines are SVG; words stay HTML, so that they keep their size on a phone.
"""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger import picture
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dsa_ledger.render.budget import Part

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
COLOURS = ("#1f6feb", "#d1701f", "#2da44e", "#a040c0", "#c0392b", "#0f8b8d", "#b08900", "#6e7781")
PART_COLOURS = {
    "bright_black": "#8c959f",
    "blue": "#1f6feb",
    "cyan": "#0f8b8d",
    "green": "#2da44e",
    "bright_green": "#7bc96f",
    "yellow": "#d4a72c",
    "red": "#cf222e",
    "default": "transparent",
}
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--faint:#57606a;--rule:#d0d7de;--soft:#f3f5f7;--bad:#b3141f}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14171a;--faint:#a3acb6;--rule:#3a424b;--soft:#1e2329;
--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1100px;font:16px/1.45 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1,h2,p,li,pre,summary code{overflow-wrap:anywhere}
h1{font-size:1.35rem;line-height:1.25;margin:.2em 0}h2{font-size:1.1rem;margin:1.6em 0 .4em}
.faint,figcaption,th{color:var(--faint)}.bad{color:var(--bad)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}
th,td{padding:.2em .7em .2em 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:600;white-space:nowrap}td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
pre,code{font:.85rem/1.4 ui-monospace,monospace}pre{background:var(--soft);padding:.7em;white-space:pre-wrap}
pre.text{white-space:pre;overflow-x:auto;overflow-wrap:normal}
details{border-bottom:1px solid var(--rule);padding:.25em 0}summary{cursor:pointer}
.row summary{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1.1fr) 6em;gap:0 1em}
.row b{font-variant-numeric:tabular-nums;text-align:right}
@media (max-width:600px){.row summary{grid-template-columns:minmax(0,1fr) 6em}.row summary code{grid-column:1/3}
.stack thead{display:none}.stack,.stack tbody,.stack tr,.stack td{display:block;width:100%}
.stack tr{border-bottom:1px solid var(--rule);padding:.5em 0}
.stack td,.stack td.n{border:0;display:flex;gap:1em;justify-content:space-between;text-align:right;white-space:normal}
.stack td::before{content:attr(data-of);color:var(--faint);text-align:left}}
.bar{display:flex;height:28px;border:1px solid var(--rule);margin:.4em 0}.bar div{min-width:1px}
.key{display:flex;flex-wrap:wrap;gap:.2em 1.2em;font-size:.9rem;padding:0;margin:0;list-style:none}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border:1px solid var(--rule)}
figure{margin:1em 0}.plot{position:relative;height:240px;margin:.4em .8em 2.2em 4.6em;border:solid var(--rule);
border-width:0 0 1px 1px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
.plot span{position:absolute;font-size:.8rem;color:var(--faint);white-space:nowrap}
.x{transform:translateX(-50%);top:calc(100% + 3px)}.y{right:calc(100% + 6px);transform:translateY(50%)}
@media print{body{max-width:none}details{break-inside:avoid}.bar,.key i{print-color-adjust:exact}}
"""


class Series(NamedTuple):
    """One line of a chart, or with `top` a band up to a second line."""

    name: str
    points: Sequence[tuple[float, float]]
    top: Sequence[tuple[float, float]] = ()


def page(title: str, *parts: str) -> str:
    """Return the whole document; the parts are HTML already."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def text_page(title: str, text: str) -> str:
    """Return a page that shows text as it is, its columns kept: a line too long for the screen scrolls in its box."""
    return page(title, f'<pre class="text">{escape(text)}</pre>')


def heading(text: str, says: str = "") -> str:
    """Return a heading with a faint word beside it."""
    return f'<h2>{escape(text)} <span class="faint">{escape(says)}</span></h2>'


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, of a class where one is given."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def listed(title: str, sentences: Iterable[str], kind: str = "") -> str:
    """Return a titled list, nothing where it is empty."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'{heading(title)}<ul class="{kind}">{items}</ul>' if items else ""


def command_block(text: str) -> str:
    """Return a command to copy."""
    return f"<pre>{escape(text)}</pre>"


def table(
    rows: Sequence[Mapping[str, Any]], show: Callable[[str, Any], str] | None = None, *, stacked: bool = False
) -> str:
    """Return records as a table that scrolls sideways where it must; numbers to the right.

    A `stacked` one has on a phone a line for each cell, with the column's name, so that nothing lies off the screen.
    """
    if not rows:
        return ""
    said = show or (lambda _, value: cell(value))
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{"n" if _is_number(value) else "w"}" data-of="{escape(name)}">{escape(said(name, value))}</td>'
            for name, value in row.items()
        )
        + "</tr>"
        for row in rows
    )
    kind = "stack" if stacked else "plain"
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


class Figure(str):
    """A number with its unit, set as numbers are."""

    __slots__ = ()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Figure) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """Return a value for people: grouped digits, yes and no, a dash for nothing, lists joined by +."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def memory_bar(title: str, parts: Sequence[Part]) -> str:
    """Return one rank's memory as a bar with its legend."""
    taken = [part for part in parts if part.title != "missing"]
    whole = max(*(part.scale_bytes for part in parts), *(part.end_bytes for part in taken))
    pieces = "".join(
        f'<div style="width:{picture.share(part.value_bytes, whole)};background:{_colour(part)}"></div>'
        for part in taken
    )
    words = "".join(
        f'<li><i style="background:{_colour(part)}"></i>'
        f"{escape(part.title)} {escape(brief(part.value_bytes, Unit.BYTES))}</li>"
        for part in parts
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><div class="bar" role="img" aria-label="{escape(title)}">'
        f'{pieces}</div><ul class="key">{words}</ul></figure>'
    )


def _colour(part: Part) -> str:
    return PART_COLOURS.get(part.colour, "#8c959f")


def chart(
    title: str,
    series: Sequence[Series],
    across: Callable[[float], str],
    up: Callable[[float], str],
    *,
    log_x: bool = True,
    log_y: bool = False,
) -> str:
    """Return lines and bands over axes with labelled ticks; nothing where no series has a point."""
    points = [point for one in series for point in (*one.points, *one.top) if not log_y or point[1] > 0]
    if not points:
        return ""
    horizontal = picture.scale([x for x, _ in points], logarithmic=log_x)
    vertical = picture.scale([y for _, y in points], logarithmic=log_y)
    coloured = list(zip(series, itertools.cycle(COLOURS), strict=False))
    shapes = "".join(_shape(one, colour, horizontal, vertical, log_y=log_y) for one, colour in coloured)
    labels = "".join(
        f'<span class="x" style="left:{at}%">{escape(said)}</span>' for at, said in picture.labelled(horizontal, across)
    )
    labels += "".join(
        f'<span class="y" style="bottom:{at}%">{escape(said)}</span>' for at, said in picture.labelled(vertical, up)
    )
    key = "".join(f'<li><i style="background:{colour}"></i>{escape(one.name)}</li>' for one, colour in coloured)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><div class="plot" role="img" aria-label="{escape(title)}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{shapes}</svg>{labels}</div>'
        f'<ul class="key">{key}</ul></figure>'
    )


def _shape(one: Series, colour: str, across: picture.Scale, up: picture.Scale, *, log_y: bool) -> str:
    drawn = [point for point in one.points if not log_y or point[1] > 0]
    if one.top:
        return f'<polygon points="{picture.band(drawn, one.top, across, up)}" fill="{colour}" fill-opacity=".3"/>'
    return f'<polyline points="{picture.line(drawn, across, up)}" stroke="{colour}"/>'


def count_text(value: float) -> str:
    """Return a number with its digits grouped."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def seconds_text(value: float) -> str:
    """Return a time with its prefix."""
    return brief(value, Unit.SECONDS) if value else "0"
