"""The memory of one rank cut into its parts, for drawing: what is left over is the only figure made here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsa_ledger.ledger import Ledger

CAPACITY, BEFORE, AFTER = "gpu.capacity_bytes", "memory.free_before_bytes", "memory.free_after_bytes"
WORKSPACE = ("workspace.decode_logits_bytes", "workspace.req_to_token_bytes", "workspace.page_table_bytes")


class Part(NamedTuple):
    """One slice of a rank's memory, and where its bar begins and ends on a scale of so many bytes."""

    title: str
    value_bytes: int
    begin_bytes: int
    end_bytes: int
    scale_bytes: int
    colour: str


def budgets(ledger: Ledger) -> Iterator[tuple[str, list[Part]]]:
    """Yield a title and the parts for one rank, or for a rank of each pipeline stage."""
    if CAPACITY not in ledger:
        return
    stages = sorted({int(found[1]) for key in ledger.entries if (found := re.match(r"stage\[(\d+)\]\.", key))})
    for prefix, title in [(f"stage[{i}].", f"of one rank of stage {i}") for i in stages] or [("", "of one rank")]:
        yield title, _parts(ledger, prefix)


def fullest(ledger: Ledger) -> Iterator[tuple[str, list[Part]]]:
    """Yield the one rank, or of the pipeline stages that with the least memory left."""
    found = list(budgets(ledger))
    if not found:
        return

    def left_bytes(parts: list[Part]) -> int:
        return -parts[-1].value_bytes if parts[-1].title == "missing" else parts[-1].value_bytes

    title, parts = min(found, key=lambda one: left_bytes(one[1]))
    yield title + (f", the fullest of {len(found)}" if len(found) > 1 else ""), parts


def _parts(ledger: Ledger, prefix: str) -> list[Part]:
    capacity = int(ledger[CAPACITY])
    found = []
    taken = 0
    for title, colour, used in _slices(ledger, prefix):
        if used:
            found.append(Part(title, used, taken, taken + used, capacity, colour))
        taken += used
    if taken > capacity:
        found.append(Part("missing", taken - capacity, 0, taken - capacity, capacity, "red"))
    else:
        # A model whose weights are not modelled: nothing says how much of the rest they take.
        weighed = AFTER in ledger or any(key.endswith("weights.rank_bytes") for key in ledger.entries)
        rest = "free" if weighed or BEFORE not in ledger else "weights and free"
        found.append(Part(rest, capacity - taken, taken, capacity, capacity, "default"))
    return found


def _slices(ledger: Ledger, prefix: str) -> Iterator[tuple[str, str, int]]:
    """Yield title, colour and bytes of each part, in the order in which an engine takes the memory."""

    def of(*keys: str) -> int:
        known = [ledger.entries.get(prefix + key) or ledger.entries.get(key) for key in keys]
        return sum(int(entry.value) for entry in known if entry)

    before = of(BEFORE)
    if before:
        yield "context and NCCL", "bright_black", int(ledger[CAPACITY]) - before
    if AFTER in ledger and ledger.entries[AFTER].formula is None:
        yield "weights, observed", "blue", before - of(AFTER)
    else:
        yield "weights", "blue", of("weights.rank_bytes")
        yield "draft weights", "cyan", of("weights.draft_rank_bytes")
    yield "pool, target", "green", of("pool.target_bytes")
    yield "pool, draft", "bright_green", of("pool.draft_bytes")
    fixed = f"{prefix}workspace.fixed_bytes" in ledger or "workspace.fixed_bytes" in ledger
    yield "workspace", "yellow", of("workspace.fixed_bytes") if fixed else of(*WORKSPACE)
