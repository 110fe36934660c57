"""Profiles as text: sections of rows, and the progress of a run."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsa_ledger.render import rows_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


def page_text(
    title: str,
    sections: Sequence[tuple[str, Sequence[Mapping[str, Any]]]],
    warnings: Sequence[str],
    form: str,
    *,
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]] = (),
) -> str:
    """Return titled tables and warnings, for people, as Markdown or as a page.

    A page shows `curves` as well, by name: shares of a model's median over shares of its boxes, slowest first.
    """
    if form == "html":
        from dsa_ledger.render import html

        tables = [part for name, rows in sections for part in (html.heading(name), html.table(rows))]
        picture = html.chart(
            "rate of each box as a share of its model's median, over the boxes from slowest to fastest",
            [html.Series(*curve) for curve in curves],
            across="{:.0%}".format,
            up="{:.1%}".format,
            log_x=False,
        )
        return html.page(title, picture, *tables, html.listed("Warnings", warnings))
    heading, head = ("# ", "## ") if form == "md" else ("", "")
    parts = [f"{heading}{title}\n"]
    parts += [f"{head}{name}\n\n{rows_text(name, rows, form)}" for name, rows in sections]
    if warnings:
        parts.append(f"{head}Warnings\n\n" + "".join(f"- {warning}\n" for warning in warnings))
    return "\n".join(parts)


def json_text(content: Mapping[str, Any]) -> str:
    """Return a JSON answer."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield what tells a bar on standard error how far a run is, with the time left; nothing where none is shown."""
    if not shown:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("taking memory", total=None)

        def tell(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what)

        yield tell
