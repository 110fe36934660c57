"""A log as starts of a server: per rank what was loaded and allocated, in the order printed: target, then draft."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsa_ledger.audit import lines_sglang, lines_trtllm, lines_vllm
from dsa_ledger.audit.figures import MOST_FIGURES, Figure, Rank, figures_of
from dsa_ledger.audit.logfile import LogLines
from dsa_ledger.audit.oom import OUT_OF_MEMORY, Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsa_ledger.audit.figures import Pattern
    from dsa_ledger.audit.logfile import Line

ENGINES: dict[str, Any] = {"sglang": lines_sglang, "vllm": lines_vllm, "tensorrt-llm": lines_trtllm}
# Lines that hold a figure about memory whoever prints it; one that no pattern reads is counted and shown.
_NOTEWORTHY = re.compile(
    r"Load weight (?:begin|end)|KV Cache is allocated|Memory pool end|max_total_num_tokens=|KV cache size:|"
    r"Available KV cache memory|Model loading took|paged KV cache|Peak memory during memory usage profiling"
)
_VALUE = r"""['"]?{}['"]?\s?[=:]\s?(?:'((?:[^'\\]|\\.){{0,300}})'|"([^"\\]{{0,300}})"|(-?[\w.+/-]{{1,200}}))"""
_FIRST_LINES = ("version", "baseline", "load_begin", "load_end", "weights")
MOST_STARTS = 100
MOST_UNREAD = 5


@dataclass
class RankStart:
    """What one rank printed in one start; the lists keep the order."""

    rank: Rank
    events: list[tuple[str, dict[str, Figure]]] = field(default_factory=list)

    def all(self, name: str) -> list[dict[str, Figure]]:
        """Return the figures of every line of one kind."""
        return [figures for kind, figures in self.events if kind == name]

    def before(self, name: str, kind: str) -> list[dict[str, Figure]]:
        """Return the lines of a kind that came before the first line `name`."""
        names = [event for event, _ in self.events]
        end = names.index(name) if name in names else len(names)
        return [figures for event, figures in self.events[:end] if event == kind]


@dataclass
class Start:
    """One start of one engine."""

    engine: str
    ranks: dict[Rank, RankStart] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)

    def add(self, rank: Rank, name: str, figures: dict[str, Figure]) -> None:
        """Keep one line."""
        self.ranks.setdefault(rank, RankStart(rank)).events.append((name, figures))

    def each(self, name: str) -> Iterator[dict[str, Figure]]:
        """Yield the figures of every line of one kind, rank by rank."""
        for start in self.ranks.values():
            yield from start.all(name)

    def values(self, key: str) -> list[Any]:
        """Return one figure from every line that has it."""
        name, _, _ = key.partition(".")
        return [figures[key].value for figures in self.each(name) if key in figures]

    @property
    def stopped(self) -> bool:
        """Tell whether the start ended for want of memory."""
        return any(True for name in ENGINES[self.engine].STOPS for _ in self.each(name))

    def first(self, key: str) -> Any:
        """Return the first such figure, or None."""
        found = self.values(key)
        return found[0] if found else None


@dataclass
class Log:
    """All that was read of a log."""

    starts: list[Start] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    lines: int = 0
    cut: int = 0
    unread: int = 0
    unread_lines: list[str] = field(default_factory=list)
    dropped: int = 0
    last: str = ""  # kind of the last line read

    @property
    def engine(self) -> str | None:
        """Return the engine whose lines the log holds most of."""
        counts: dict[str, int] = {}
        for start in self.starts:
            counts[start.engine] = counts.get(start.engine, 0) + sum(len(one.events) for one in start.ranks.values())
        return max(counts, key=lambda name: counts[name]) if counts else None

    @property
    def start(self) -> Start | None:
        """Return the last start of that engine that reached its pool or ended for want of one, else the last one."""
        own = [start for start in self.starts if start.engine == self.engine]
        sized = [start for start in own if start.stopped or any(has_pool(rank) for rank in start.ranks.values())]
        return (sized or own)[-1] if own else None


def has_pool(start: RankStart) -> bool:
    """Tell whether a rank printed a pool."""
    return any(name in ("pool", "size", "kv_memory", "peak") for name, _ in start.events)


def read_log(name: str) -> Log:
    """Return what a log says; `-` is standard input (BadInput where it cannot be read)."""
    source = LogLines(name)
    log = log_of(source)
    log.lines, log.cut = source.lines, source.cut
    return log


def log_of(lines: Iterable[Line]) -> Log:
    """Return what lines say."""
    log = Log()
    for line in lines:
        _take(log, line)
    return log


def _take(log: Log, line: Line) -> None:
    read = False
    for engine, module in ENGINES.items():
        for pattern in module.PATTERNS:
            found = pattern.regex.search(line.text)
            if found:
                read = True
                _keep(log, engine, pattern, found, line)
        if module.ARGUMENTS.search(line.text):
            _arguments(log, engine, module, line.text)
            read = True
    refused = OUT_OF_MEMORY.search(line.text)
    if refused:
        read = True
        if len(log.refusals) < MOST_STARTS:
            log.refusals.append(refusal_of(line, refused, while_capturing=log.last == "graph_begin"))
    if not read and _NOTEWORTHY.search(line.text):
        log.unread += 1
        if len(log.unread_lines) < MOST_UNREAD:
            shown = "".join(char if char.isprintable() else " " for char in line.text[:160])
            log.unread_lines.append(f"line {line.number}: {shown}")


def _keep(log: Log, engine: str, pattern: Pattern, found: re.Match[str], line: Line) -> None:
    rank = ENGINES[engine].rank_of(line.text[: found.start()] if engine == "sglang" else line.text)
    figures = figures_of(pattern, found, rank, line.number, line.text)
    if len(log.figures) + len(figures) > MOST_FIGURES:
        log.dropped += 1
        return
    log.figures.extend(figures)
    by_key = {figure.key: figure for figure in figures}
    start = _current(log, engine, restarts=_restarts(log, engine, rank, pattern.name, by_key))
    start.add(rank, pattern.name, by_key)
    log.last = pattern.name


def _current(log: Log, engine: str, *, restarts: bool) -> Start:
    own = [start for start in log.starts[-4:] if start.engine == engine]
    if own and (not restarts or len(log.starts) >= MOST_STARTS):
        return own[-1]
    start = Start(engine)
    log.starts.append(start)
    return start


def _restarts(log: Log, engine: str, rank: Rank, name: str, figures: dict[str, Figure]) -> bool:
    """Tell whether a line can only belong to a new start of the server."""
    own = [start for start in log.starts if start.engine == engine]
    if not own or rank not in own[-1].ranks:
        return False
    before = own[-1].ranks[rank]
    if own[-1].stopped and name in _FIRST_LINES and before.all(name):
        return True
    if engine == "sglang" and name == "load_end":
        loads = before.all("load_end")
        if len(loads) >= 2:  # noqa: PLR2004 - target and draft
            return True
        types = [load["load_end.type"].value for load in (*loads[:1], figures) if "load_end.type" in load]
        return len(types) == 2 and types[0] == types[1] and bool(before.all("pool"))  # noqa: PLR2004 - a pair
    if name == "version" and engine == "vllm":
        return has_pool(before)
    return name == "load_end" and engine == "vllm" and len(before.all("kv_memory")) > 0


def _arguments(log: Log, engine: str, module: Any, text: str) -> None:
    """Keep the arguments that a server prints of itself; only names that are known are looked for."""
    start = _current(log, engine, restarts=False)
    if start.stopped or any(has_pool(rank) for rank in start.ranks.values()):
        start = _current(log, engine, restarts=True)
    found = module.ARGUMENTS.search(text)
    if not found:
        return
    rest = text[found.end() :][:60_000]
    for name, flag in [*module.FIELDS.items(), *module.SWITCHES.items()]:
        value = re.search(r"(?<![\w])" + _VALUE.format(name), rest)
        if value:
            text_value = next((group for group in value.groups() if group is not None), "")
            start.arguments.setdefault(flag, text_value)
    drafted = re.search(r"num_speculative_tokens['\"]?\s?[=:]\s?(\d{1,3})", rest)
    if drafted and engine == "vllm":
        start.arguments.setdefault("--spec-tokens", drafted[1])
