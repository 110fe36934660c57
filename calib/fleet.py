"""Many machines on Ray: one task a GPU, or one a node for its CPU. Scheduling, retries and loss of nodes are Ray's.

The one module that imports Ray. It connects to a cluster and starts none. A Ray cluster runs whatever it is sent, by
anyone who reaches it: keep its ports in a closed network.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# Ray asks a cluster that does not answer twenty times, half a minute each; read when Ray is imported.
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

from calib import run
from calib.profile import Profile, save
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Progress = Callable[[int, int, str], None]
    MakeBackend = Callable[[str, bool], run.Backend]  # device, also where others use it

RETRIES = 2  # of a task whose worker or node was lost, by Ray
LOOK_S = 0.5  # between looks at how far the tasks are
REACH_S = 5.0  # to answer a connection
GATHER_S = 30.0  # for the tasks of one node to start, so that each holds a GPU of its own
ASK_S = 10.0  # for the board to answer


@dataclass(frozen=True)
class Asked:
    """What each task is to do. `busy`: also where others work; a GPU that Ray has lent is never taken from them."""

    device: str
    plan: run.Plan
    time_limit_s: float = 300.0  # of one task, from its start
    free_limit_s: float = 60.0  # for a task to start
    busy: bool = False
    version: str = field(default_factory=lambda: version("dsa-ledger"))


@dataclass(frozen=True)
class Job:
    """One task: its name for people, its node, and how many tasks that node has."""

    name: str
    node: str
    peers: int


@dataclass
class Outcome:
    """What became of the boxes: files written, boxes that had one, and a line for each that failed."""

    written: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: list[Fault] = field(default_factory=list)


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


def calibrate_fleet(
    address: str,
    asked: Asked,
    out: Path,
    make_backend: MakeBackend,
    *,
    known: Iterable[str] = (),
    progress: Progress = lambda *_: None,
    tell: Callable[[Path], None] = lambda _: None,
) -> Outcome:
    """Measure every box of the cluster that `known` does not name, each profile written as it comes (`tell`).

    BadInput: no cluster there, another version of Ray or Python, or nothing to measure on. What fails on one node is
    in the outcome; an interrupt ends the tasks and keeps what was written.
    """
    _connect(address)
    try:
        return _run(asked, out, make_backend, known=set(known), progress=progress, tell=tell)
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    reached = address.removeprefix("ray://").rpartition(":")
    expected = "auto, or HOST:PORT or ray://HOST:PORT of a Ray cluster that runs"
    if address != "auto":
        if not reached[0] or not reached[2].isdigit():  # "local" would start a cluster
            raise BadInput([Fault("ray", address, expected)])
        try:
            socket.create_connection((reached[0].strip("[]"), int(reached[2])), REACH_S).close()
        except (OSError, OverflowError) as failure:
            raise BadInput([Fault("ray", address, f"{expected}: {failure}")]) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as failure:
        said = " ".join(str(failure).split())
        if "ersion mismatch" in said:
            expected = "the same Ray and Python on driver and cluster"
        raise BadInput([Fault("ray", address, f"{expected}: {said[:300]}")]) from None


def _jobs(asked: Asked) -> list[tuple[Job, dict[str, float]]]:
    """Return the tasks and what each asks of Ray: a GPU, or all CPUs of a node, so that it starts when they idle."""
    found: list[tuple[Job, dict[str, float]]] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        identity, host, has = node["NodeID"], node["NodeManagerHostname"], node["Resources"]
        name = f"{host}/{identity[:8]}"
        if asked.device.partition(":")[0] == "cpu":
            if has.get("CPU", 0) >= 1:
                found.append((Job(name, identity, 1), {"num_cpus": 1 if asked.busy else has["CPU"]}))
            continue
        count = int(has.get("GPU", 0))
        found += [(Job(f"{name}#{number}", identity, count), {"num_gpus": 1, "num_cpus": 0}) for number in range(count)]
    return found


def _run(
    asked: Asked,
    out: Path,
    make_backend: MakeBackend,
    *,
    known: set[str],
    progress: Progress,
    tell: Callable[[Path], None],
) -> Outcome:
    jobs = _jobs(asked)
    if not jobs:
        what = "CPUs" if asked.device.startswith("cpu") else "GPUs"
        raise BadInput([Fault("ray", len(ray.nodes()), f"nodes with {what} that Ray may lend")])
    here = OnNode(ray.get_runtime_context().get_node_id(), soft=True)
    board: Any = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here).remote(known)
    outcome = Outcome([], [job.name for job, _ in jobs if job.node in known])
    pending = {
        ray.remote(_work)
        .options(
            **wants,
            max_retries=RETRIES,
            name=f"calibrate {job.name}",
            scheduling_strategy=OnNode(job.node, soft=False),
        )
        .remote(job, asked, board, make_backend): job
        for job, wants in jobs
        if job.node not in known
    }
    began, total = time.monotonic(), len(pending)
    try:
        while pending:
            for ref in ray.wait(list(pending), timeout=LOOK_S)[0]:
                _take(pending.pop(ref), ref, out, outcome, tell)
            since, far = _seen(board)
            for ref, fault in _late(pending, since, time.monotonic() - began, asked):
                ray.cancel(ref, force=True)
                del pending[ref]
                outcome.failed.append(fault)
            cases = max((count for _, count in far.values()), default=1)
            done = sum(done for done, _ in far.values())
            progress(done, cases * total, f"{total - len(pending)} of {total} boxes")
    finally:
        for ref in pending:
            ray.cancel(ref, force=True)
    return outcome


def _seen(board: Any) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
    try:
        seen: tuple[dict[str, float], dict[str, tuple[int, int]]] = ray.get(board.seen.remote(), timeout=ASK_S)
    except ray.exceptions.RayError:
        return {}, {}  # without it the limits count from the start of the run
    return seen


def _late(pending: dict[Any, Job], since: dict[str, float], waited_s: float, asked: Asked) -> list[tuple[Any, Fault]]:
    """Return the tasks that are out of time, each with the reason."""
    found = []
    # Where none has said that it runs, the board may be lost: then a task has both limits.
    start_limit_s = asked.free_limit_s + (0 if since else asked.time_limit_s)
    for ref, job in pending.items():
        ran = since.get(job.name)
        if ran is not None and ran > asked.time_limit_s:
            expected = f"an end within {asked.time_limit_s:g} s: timed out and cancelled"
            found.append((ref, Fault(job.name, f"{ran:.0f} s", expected)))
        elif ran is None and waited_s > start_limit_s:
            expected = f"a start within {start_limit_s:g} s: Ray has lent it to others, or can start no worker there"
            found.append((ref, Fault(job.name, f"{waited_s:.0f} s", expected)))
    return found


def _take(job: Job, ref: Any, out: Path, outcome: Outcome, tell: Callable[[Path], None]) -> None:
    """Keep what one task brought."""
    try:
        answer, content = ray.get(ref)
    except ray.exceptions.RayError as failure:
        said = (str(failure).strip().splitlines() or [""])[
            -1 if isinstance(failure, ray.exceptions.RayTaskError) else 0
        ]
        outcome.failed.append(Fault(job.name, type(failure).__name__, f"a task that ends: {said[:200]}"))
        return
    if answer == "profile":
        outcome.written.append(save(Profile.model_validate(content), out))
        tell(outcome.written[-1])
    elif answer == "known":
        outcome.kept.append(job.name)
    else:
        outcome.failed.append(Fault(job.name, *content))


def _work(job: Job, asked: Asked, board: Any, make_backend: MakeBackend) -> tuple[str, Any]:
    """Measure one box, on its own node; return a kind of answer and its content, plain values alone."""
    ray.get(board.start.remote(job))
    if (own := version("dsa-ledger")) != asked.version:
        return "failed", (f"dsa-ledger {own}", f"dsa-ledger {asked.version}, as where it was asked")
    is_gpu = asked.device.startswith("gpu")
    until = time.monotonic() + GATHER_S
    while is_gpu and time.monotonic() < until and ray.get(board.running_on.remote(job.node)) < job.peers:
        time.sleep(LOOK_S)  # else a task that starts late could get the GPU that an early one has given back
    try:
        backend = make_backend(
            "gpu:0" if is_gpu else asked.device, asked.busy
        )  # Ray shows a task the one GPU it has lent
        owner = ray.get(board.claim.remote(backend.hardware.identity if is_gpu else job.node, job))
        if owner:
            content = (backend.hardware.identity, f"a UUID of its own: {owner} has it, or its GPU is lent to others")
            return ("known", None) if owner == "known" else ("failed", content)

        def tell(done: int, total: int, _: str) -> None:
            with contextlib.suppress(ray.exceptions.RayError):  # a lost board costs the display alone
                board.tell.remote(job, done, total)

        profile = run.calibrate(backend, asked.plan, tell)
    except BadInput as bad:
        return "failed", ("bad input", "; ".join(bad.lines()))
    return "profile", profile.model_copy(update={"node": job.node}).model_dump(mode="json")
