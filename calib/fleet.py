"""Many machines on Ray: one task a GPU, or one a node for its CPU. Scheduling, retries and loss of nodes are Ray's.

The one module that imports Ray. It connects to a cluster and starts none. A Ray cluster runs whatever it is sent, by
anyone who reaches it: keep its ports in a closed network.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# Ray asks a cluster that does not answer twenty times, half a minute each; both are read when Ray is imported.
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else a call after a lost connection starts a cluster

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

from calib import run
from calib.board import Asked, Board, Job
from calib.profile import Profile, save_in
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Progress = Callable[[int, int, str], None]
    MakeBackend = Callable[[str, bool], run.Backend]  # device, also where others use it

RETRIES = 2  # of a task whose worker or node was lost, by Ray
LOOK_S = 0.5  # between looks at how far the tasks are
REACH_S = 5.0  # to answer a connection
GATHER_S = 30.0  # for the tasks of one node to start, so that each holds a GPU of its own
ASK_S = 10.0  # for the board to answer
LOST_LOOKS = 3  # in a row without an answer of the board: what it ran on is lost, and the tasks' word with it
LOST = (ConnectionError, RuntimeError, ray.exceptions.RayError)


@dataclass
class Outcome:
    """What became of the boxes: files written, boxes that had one, and a line for each that failed."""

    written: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: list[Fault] = field(default_factory=list)

    def take(self, job: Job, ref: Any, out: Path) -> Path | None:
        """Keep what a task brought; return the file of its profile."""
        try:
            answer, content = ray.get(ref)
            if answer == "profile":
                self.written.append(save_in(Profile.model_validate(content), out))
                return self.written[-1]
        except ray.exceptions.RayError as failure:
            lines = str(failure).strip().splitlines() or [""]
            said = lines[-1 if isinstance(failure, ray.exceptions.RayTaskError) else 0][:200]
            self.failed.append(Fault(job.name, type(failure).__name__, f"a task that ends: {said}"))
        except BadInput as bad:  # the disk is full, or the folder gone: the next one may have room
            self.failed += [fault._replace(path=f"{job.name}: {fault.path}") for fault in bad.faults]
        else:
            if answer == "known":
                self.kept.append(job.name)
            else:
                self.failed.append(Fault(job.name, *content))
        return None


def calibrate_fleet(
    address: str,
    asked: Asked,
    out: Path,
    make_backend: MakeBackend,
    *,
    known: Iterable[str] = (),
    progress: Progress = lambda *_: None,
    tell: Callable[[Path], None] = lambda _: None,
    joined: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Measure every box of the cluster that `known` does not name, each profile written as it comes (`tell`).

    `joined` hears which cluster it is, before any task starts: "auto" is what was started last on this machine.
    BadInput: no cluster there, another version of Ray or Python, or nothing to measure on. What fails on one node is
    in the outcome; an interrupt ends the tasks and keeps what was written.
    """
    progress(0, 1, f"connecting to {address}")
    _connect(address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        has = ", ".join(f"{sum(node.get(kind, 0) for node in nodes):g} {kind}s" for kind in ("GPU", "CPU"))
        joined(f"{ray.get_runtime_context().gcs_address}: nodes {len(nodes)}, {has}")
        return _run(asked, out, make_backend, known=set(known), progress=progress, tell=tell)
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    address = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address  # as Ray reads it
    reached = address.removeprefix("ray://").rpartition(":")
    expected = "auto, or HOST:PORT or ray://HOST:PORT of a Ray cluster that runs (with tokens: RAY_AUTH_MODE=token)"
    if address != "auto":
        if not reached[0] or not reached[2].isdigit():  # "local" would start a cluster
            raise BadInput([Fault("ray", address, expected)])
        try:
            socket.create_connection((reached[0].strip("[]"), int(reached[2])), REACH_S).close()
        except (OSError, OverflowError) as failure:
            raise BadInput([Fault("ray", address, f"{expected}: {failure}")]) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (*LOST, ValueError) as failure:
        with contextlib.suppress(Exception):  # Ray's client would stay half connected
            ray.util.disconnect()
        said = " ".join(str(failure).split())
        if "ersion mismatch" in said:
            expected = "the same Ray and Python on driver and cluster"
        raise BadInput([Fault("ray", address, f"{expected}: {said[:300]}")]) from None


def _jobs(asked: Asked) -> list[tuple[Job, dict[str, float]]]:
    """Return the tasks and what each asks of Ray: a GPU, or all CPUs of a node, so that it starts when they idle."""
    found: list[tuple[Job, dict[str, float]]] = []
    nodes = [node for node in ray.nodes() if node["Alive"]]
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    for node in nodes:
        identity, host, has = node["NodeID"], node["NodeManagerHostname"], node["Resources"]
        name = f"{host}/{identity[:8]}"
        if asked.device.partition(":")[0] == "cpu":
            if has.get("CPU", 0) >= 1:
                job = Job(name, identity, 1, host, hosts[host] == 1)
                found.append((job, {"num_cpus": 1 if asked.busy else has["CPU"]}))
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
    is_known = {job: asked.device.startswith("cpu") and job.box in known for job, _ in jobs}
    outcome = Outcome(kept=[job.name for job, is_one in is_known.items() if is_one])
    if all(is_known.values()):
        return outcome
    here = OnNode(ray.get_runtime_context().get_node_id(), soft=True)
    board: Any = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here).remote(known)
    shared = ray.put(asked)  # once, not with each task: a dumped block table may be megabytes
    pending = {
        ray.remote(_work)
        .options(
            **wants,
            max_retries=RETRIES,
            name=f"calibrate {job.name}",
            scheduling_strategy=OnNode(job.node, soft=False),
        )
        .remote(job, shared, board, make_backend): job
        for job, wants in jobs
        if not is_known[job]
    }
    try:
        for job, ref in _ended(pending, asked, board, outcome, progress):
            if (path := outcome.take(job, ref, out)) is not None:
                tell(path)
    except LOST as failure:
        said = " ".join(str(failure).split())[:200] or type(failure).__name__
        outcome.failed += [Fault(job.name, said, "a cluster that answers to the end") for job in pending.values()]
    finally:
        with contextlib.suppress(Exception):  # what Ray's client raises, as such, once its cluster is lost
            for ref in pending:
                ray.cancel(ref, force=True)
    return outcome


def _ended(
    pending: dict[Any, Job], asked: Asked, board: Any, outcome: Outcome, progress: Progress
) -> Iterator[tuple[Job, Any]]:
    """Yield each task as it ends, until none is pending; those out of time fail. Raises one of `LOST`."""
    began, total, lost = time.monotonic(), len(pending), 0
    while pending:
        for ref in ray.wait(list(pending), timeout=LOOK_S)[0]:
            yield pending.pop(ref), ref
        try:
            since, far = ray.get(board.seen.remote(), timeout=ASK_S)
        except ray.exceptions.RayError:
            lost += 1
            if lost == LOST_LOOKS:
                raise
            time.sleep(LOOK_S)
            continue
        lost = 0
        for ref, fault in _late(pending, since, time.monotonic() - began, asked):
            ray.cancel(ref, force=True)
            del pending[ref]
            outcome.failed.append(fault)
        cases = max((count for _, count in far.values()), default=1)
        done = sum(done for done, _ in far.values())
        progress(done, cases * total, f"{total - len(pending)} of {total} boxes")


def _late(pending: dict[Any, Job], since: dict[str, float], waited_s: float, asked: Asked) -> list[tuple[Any, Fault]]:
    """Return the tasks that are out of time, each with the reason."""
    found = []
    for ref, job in pending.items():
        ran = since.get(job.name)
        if ran is not None and ran > asked.time_limit_s:
            expected = f"an end within {asked.time_limit_s:g} s: timed out and cancelled"
            found.append((ref, Fault(job.name, f"{ran:.0f} s", expected)))
        elif ran is None and waited_s > asked.free_limit_s:
            expected = (
                f"a start within {asked.free_limit_s:g} s: Ray has lent it to others, or can start no worker there"
            )
            found.append((ref, Fault(job.name, f"{waited_s:.0f} s", expected)))
    return found


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
        device = "gpu:0" if is_gpu else asked.device  # Ray shows a task the one GPU it has lent
        backend = make_backend(device, asked.busy)
        owner = ray.get(board.claim.remote(backend.hardware.identity if is_gpu else job.box, job))
        if owner:
            content = (backend.hardware.identity, f"a UUID of its own: {owner} has it, or its GPU is lent to others")
            return ("known", None) if owner == "known" else ("failed", content)

        def tell(done: int, total: int, _: str) -> None:
            with contextlib.suppress(ray.exceptions.RayError):  # a lost board costs the display alone
                board.tell.remote(job, done, total)

        profile = run.calibrate(backend, asked.plan, tell)
    except BadInput as bad:
        return "failed", ("bad input", "; ".join(bad.lines()))
    node = "" if is_gpu or job.alone else job.node
    return "profile", profile.model_copy(update={"node": node}).model_dump(mode="json")
