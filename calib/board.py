"""What the tasks of a fleet are asked, and the board on which they meet: plain Python, run by Ray elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calib.run import Plan


@dataclass(frozen=True)
class Asked:
    """What each task is to do. `busy`: also where others work; a GPU that Ray has lent is never taken from them."""

    device: str
    plan: Plan
    time_limit_s: float = 300.0  # of one task, from its start
    free_limit_s: float = 60.0  # for a task to start
    busy: bool = False
    version: str = field(default_factory=lambda: version("dsa-ledger"))


@dataclass(frozen=True)
class Job:
    """One task: its name for people, its node, how many tasks that node has, and what tells its host's nodes apart."""

    name: str
    node: str
    peers: int
    host: str = ""
    alone: bool = True  # the one node of its host, which the host's name is enough for

    @property
    def box(self) -> str:
        """Return the name of the node's CPU: a node alone on its host keeps it when Ray starts anew."""
        return self.host if self.alone else self.node


class Board:
    """An actor that tasks tell how far they are, and that lets each GPU be measured once."""

    def __init__(self, known: Iterable[str]) -> None:
        """Start with the boxes that need no measurement."""
        self.known = set(known)
        self.claimed: dict[str, str] = {}
        self.started: dict[str, float] = {}
        self.nodes: dict[str, str] = {}
        self.far: dict[str, tuple[int, int]] = {}

    def start(self, job: Job) -> None:
        """Note that a task runs; one that Ray runs again starts anew."""
        self.started[job.name], self.nodes[job.name] = time.monotonic(), job.node

    def running_on(self, node: str) -> int:
        """Return how many tasks have started on a node."""
        return sum(one == node for one in self.nodes.values())

    def claim(self, box: str, job: Job) -> str:
        """Return "" where the task is to measure the box, "known", or the name of the task that has it."""
        if box in self.known:
            return "known"
        owner = self.claimed.setdefault(box, job.name)
        return "" if owner == job.name else owner

    def tell(self, job: Job, done: int, total: int) -> None:
        """Note how many cases a task has done."""
        self.far[job.name] = (done, total)

    def seen(self) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
        """Return for how long each task has run [s], and the cases done and to do."""
        now = time.monotonic()
        return {name: now - began for name, began in self.started.items()}, self.far
