"""`calibrate --ray` on a real cluster of Ray on this machine: eight nodes of one logical CPU, all on 127.0.0.1."""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import made_up
import numpy as np
import pytest

from calib.board import Asked, Job
from calib.host import HostBackend
from calib.profile import load
from calib.run import Extent, Plan, differing
from calib.run import calibrate as profile_of
from dsa_ledger import cli_calibrate
from dsa_ledger.cli_fleet import calibrate_on_ray
from dsa_ledger.errors import BadInput

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: every node on the loopback address
ray = pytest.importorskip("ray", reason="needs ray; pip install 'dsa-ledger[fleet]'")
from ray.cluster_utils import Cluster  # noqa: E402 - only where there is a Ray

from calib import fleet  # noqa: E402 - as above

MIB = 2**20
TINY = Extent(
    pool_bytes=66 * MIB,
    tokens=4096,
    grid=((1, 4096),),
    scan_tokens=(1024, 2048, 4096),
    replays=3,
    replay_bytes=MIB,
    seconds=0,  # one try: noise is judged elsewhere
)
QUICK = Plan(quick=True, extent=TINY)
NODES = 8


@pytest.fixture(scope="module")
def cluster():
    """Start eight nodes, the head among them; nothing but this machine reaches them."""
    started = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "num_gpus": 0,
            "_system_config": {"health_check_period_ms": 1000},
        },
    )
    for _ in range(NODES - 1):
        started.add_node(num_cpus=1, num_gpus=0, node_ip_address="127.0.0.1", wait=False)
    started.wait_for_nodes()
    yield started
    ray.shutdown()
    started.shutdown()


def sent(do):
    """Return a backend maker that first calls `do`, by value: the workers cannot import a test."""

    def make(device: str, busy: bool) -> object:  # noqa: FBT001 - the signature of a backend's maker
        from calib.host import HostBackend as Backend

        del device, busy
        do()
        return Backend("numpy")

    return make


def asked(**changes: object):
    return Asked(**{"device": "cpu", "plan": QUICK, "time_limit_s": 60} | changes)


def alike(one, other):
    """Tell whether two JSON values have the same keys and types; noise may leave a list empty or a fit None."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return all(alike(*pair) for pair in zip(one, other, strict=False))
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return numbers or one is None or other is None or type(one) is type(other)


def test_what_is_not_alike_is_found():
    assert alike({"a": [1, {"b": "x"}]}, {"a": [2.5, {"b": "y"}, 3]})
    assert not alike({"a": 1}, {"a": "1"})
    assert not alike({"a": 1}, {"b": 1})
    assert not alike({"a": [{"b": 1}]}, {"a": [{"c": 1}]})


def test_eight_workers_calibrate_and_a_second_run_measures_what_is_missing(cluster, tmp_path, capsys):
    """The command's own part, with a tiny extent; for the second run one profile is gone and one cut short."""
    table, out = tmp_path / "table.npy", tmp_path / "out"
    out.mkdir()
    np.save(table, np.arange(1, 33).reshape(1, 32))
    plan = dataclasses.replace(QUICK, block_table=table.read_bytes())
    table.unlink()  # a worker has no file of the driver's
    asked_for = (cluster.address, "cpu:numpy", plan, out, cli_calibrate._backend)  # noqa: SLF001 - as it calls it
    calibrate_on_ray(*asked_for, busy=False, time_limit=60)
    shown, said = capsys.readouterr()
    assert shown == f"{NODES} measured, 0 had a profile, 0 failed\n"
    assert "keep its ports in a closed network" in said
    assert f"cluster {cluster.address}: nodes {NODES}, 0 GPUs, {NODES} CPUs" in said
    paths = sorted(out.iterdir())
    assert [f"written: {path}" in said for path in paths] == [True] * NODES
    found = [load(path) for path in paths]
    assert {one.host for one in found} == {platform.node()}
    assert {path.stem for path in paths} == {f"{platform.node()}-{one.node}".lower() for one in found}
    alone = profile_of(HostBackend("numpy"), plan).model_dump(mode="json")
    assert "replay" in {case["group"] for case in alone["cases"]}
    for one in found:
        assert [case.key for case in one.cases] == [case["key"] for case in alone["cases"]]
        assert alike(one.model_dump(mode="json"), alone)

    before = {path: path.read_bytes() for path in paths}
    paths[3].unlink()
    paths[5].write_bytes(before[paths[5]][:999])
    calibrate_on_ray(*asked_for, busy=True, time_limit=60)
    shown, said = capsys.readouterr()
    assert shown == f"2 measured, {NODES - 2} had a profile, 0 failed\n"
    assert f"does not count: {paths[5].name}: profile" in said
    assert {path for path in paths if path.read_bytes() != before[path]} == {paths[3], paths[5]}
    assert sorted(out.iterdir()) == paths


def test_a_full_run_is_not_done_by_a_quick_one():
    """Rule: what the folder has counts where it is at least what is asked for."""
    made = profile_of(HostBackend("numpy"), QUICK).protocol
    full = dataclasses.replace(QUICK, quick=False)
    assert differing(made, QUICK) == differing(made.model_copy(update={"quick": False}), QUICK) == []
    assert differing(made, full) == ["a quick run, a full one is asked for"]
    assert differing(made, dataclasses.replace(QUICK, one_span=True)) == ["21 tensors, 1 are asked for"]
    assert differing(made, dataclasses.replace(QUICK, block_table=b"a table")) == ["another block table"]


def test_what_cannot_be_kept_is_a_fault_of_its_box_alone(monkeypatch, tmp_path):
    """Rule: a full disk or a folder that has gone ends no run, and no file takes the folder's name."""
    made = profile_of(HostBackend("numpy"), QUICK).model_dump(mode="json")
    monkeypatch.setattr(ray, "get", lambda _: ("profile", made))
    outcome = fleet.Outcome()
    assert outcome.take(Job("a/1", "a", 1), None, tmp_path / "gone") is None
    assert outcome.take(Job("b/2", "b", 1), None, tmp_path).parent == tmp_path
    assert [fault.path for fault in outcome.failed] == ["a/1: out"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_node_alone_on_its_host_keeps_its_name_when_ray_starts_anew(monkeypatch):
    """Rule: Ray gives nodes new names at each start, so a CPU's box is its host, where the host has one node."""

    def node(name: str, host: str) -> dict[str, object]:
        return {"NodeID": name, "NodeManagerHostname": host, "Alive": True, "Resources": {"CPU": 1.0}}

    monkeypatch.setattr(ray, "nodes", lambda: [node("f00", "one"), node("ba1", "two"), node("ba2", "two")])
    assert [job.box for job, _ in fleet._jobs(asked())] == ["one", "ba1", "ba2"]  # noqa: SLF001 - the rule by itself


def test_a_lost_worker_runs_again_a_hung_one_and_a_killed_node_are_named_the_rest_is_kept(
    cluster, tmp_path, monkeypatch
):
    """One run: a worker dies once, one hangs, the node of a third is killed when the first file is there."""
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    out.mkdir()
    died, hangs, named = (str(marks / word) for word in ("died", "hangs", "named"))
    chosen, connect = [], fleet._connect  # noqa: SLF001 - the choice needs a connection

    def connect_and_choose(address: str) -> None:
        """Choose the victim: any node but the head, whose loss ends the cluster, and the one Ray has joined us to."""
        connect(address)
        own = ray.get_runtime_context().get_node_id()
        chosen.append(next(node for node in cluster.list_all_nodes()[1:] if node.node_id != own))
        (marks / "named").write_text(chosen[0].node_id, encoding="utf-8")

    monkeypatch.setattr(fleet, "_connect", connect_and_choose)

    def do() -> None:
        import os
        import pathlib
        import time

        if ray.get_runtime_context().get_node_id() == pathlib.Path(named).read_text(encoding="utf-8"):
            time.sleep(600)
        for mark, act in ((died, lambda: os._exit(1)), (hangs, lambda: time.sleep(600))):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            act()

    killed = []

    def tell(path) -> None:
        if not killed:
            killed.append(path)
            threading.Thread(target=cluster.remove_node, args=chosen, kwargs={"allow_graceful": False}).start()

    began = time.monotonic()
    outcome = fleet.calibrate_fleet(cluster.address, asked(time_limit_s=15), out, sent(do), tell=tell)
    assert time.monotonic() - began < 60
    assert killed[0].exists(), "what was finished before the loss"
    assert len(outcome.written) == len(list(out.iterdir())) == NODES - 2, outcome.failed
    faults = {fault.path.rpartition("/")[2]: fault for fault in outcome.failed}
    assert all(fault.path.startswith(f"{platform.node()}/") for fault in outcome.failed)
    assert "timed out" not in str(faults.pop(chosen[0].node_id[:8])), "the loss was noticed, not waited for"
    [(hung, fault)] = faults.items()
    assert "timed out" in fault.expected
    assert hung not in {load(path).node[:8] for path in outcome.written}, "it is the one that has no profile"
    cluster.add_node(num_cpus=1, num_gpus=0, node_ip_address="127.0.0.1")  # tests come in any order


def all_but(cluster, count: int) -> list[str]:
    """Return what leaves `count` nodes to measure, which is quicker than all eight."""
    return [node.node_id for node in cluster.list_all_nodes()[count:]]


def test_workers_of_another_version_are_named(cluster, tmp_path):
    known = all_but(cluster, 2)
    old = asked(version="0.0.0")
    outcome = fleet.calibrate_fleet(cluster.address, old, tmp_path, sent(lambda: None), known=known)
    assert outcome.written == []
    assert len(outcome.failed) == 2
    assert len(outcome.kept) == NODES - 2
    assert all("dsa-ledger 0.0.0, as where it was asked" in str(fault) for fault in outcome.failed)


def test_an_interrupt_keeps_what_was_written(cluster, tmp_path):
    def stop(_) -> None:
        raise KeyboardInterrupt

    known = all_but(cluster, 2)
    with pytest.raises(KeyboardInterrupt):
        fleet.calibrate_fleet(cluster.address, asked(), tmp_path, sent(lambda: None), tell=stop, known=known)
    assert [load(path).hardware.kind for path in tmp_path.iterdir()] == ["cpu"]
    assert not ray.is_initialized()


def test_logical_gpus_are_measured_once_each_and_a_rerun_does_what_is_missing(cluster, tmp_path):
    """Two GPUs that Ray believes in; what it lends a task is what the made-up box is named by."""
    node = cluster.add_node(num_cpus=0, num_gpus=2, node_ip_address="127.0.0.1")
    made = ray.cloudpickle
    made.register_pickle_by_value(made_up)

    def make(device: str, busy: bool) -> object:  # noqa: FBT001 - the signature of a backend's maker
        del busy
        assert device == "gpu:0"
        number = ray.get_runtime_context().get_accelerator_ids()["GPU"][0]
        box = made_up.Box()
        box.hardware = made_up.hardware(identity=f"GPU-{number}")
        return box

    try:
        first = fleet.calibrate_fleet(cluster.address, asked(device="gpu"), tmp_path, make)
        assert first.failed == []
        assert {load(path).hardware.identity for path in first.written} == {"GPU-0", "GPU-1"}
        assert {path.stem for path in first.written} == {f"{platform.node()}-gpu-{n}".lower() for n in (0, 1)}
        again = fleet.calibrate_fleet(cluster.address, asked(device="gpu"), tmp_path, make, known=["GPU-0"])
        assert [load(path).hardware.identity for path in again.written] == ["GPU-1"]
        assert len(again.kept) == 1

        def same(device: str, busy: bool) -> object:  # noqa: FBT001 - as above
            box = make(device, busy)
            box.hardware = made_up.hardware(identity="GPU-same")
            return box

        twins = fleet.calibrate_fleet(cluster.address, asked(device="gpu"), tmp_path, same)
        assert len(twins.written) == 1
        assert "a UUID of its own" in str(twins.failed[0])
    finally:
        made.unregister_pickle_by_value(made_up)
        cluster.remove_node(node)


def test_a_box_that_is_lent_to_others_is_named_and_not_waited_for():
    jobs = {1: Job("busy/1", "a", 1), 2: Job("runs/2", "b", 1), 3: Job("hangs/3", "c", 1)}
    since = {"runs/2": 59.0, "hangs/3": 61.0}
    found = dict(fleet._late(jobs, since, 61.0, asked()))  # noqa: SLF001 - the rule by itself
    assert set(found) == {1, 3}
    assert str(found[1]).startswith("busy/1: '61 s': expected a start within 60 s: Ray has lent it to others")
    assert str(found[3]) == "hangs/3: '61 s': expected an end within 60 s: timed out and cancelled"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "127.0.0.1:9",
            "auto, or HOST:PORT or ray://HOST:PORT of a Ray cluster that runs (with tokens: RAY_AUTH_MODE=token): [E",
        ),
        ("ray://127.0.0.1:9", "[Errno"),
        ("nowhere.invalid:6379", "of a Ray cluster that runs (with"),
        ("local", "auto, or HOST:PORT"),
        ("auto", "auto, or HOST:PORT"),
        ("127.0.0.1:99999", "of a Ray cluster that runs (with"),
    ],
)
def test_an_address_where_no_cluster_is(tmp_path, monkeypatch, address, said):
    monkeypatch.setenv("RAY_ADDRESS", "local")  # which Ray's auto takes, and starts a cluster
    with pytest.raises(BadInput) as bad:
        fleet.calibrate_fleet(address, asked(), tmp_path, sent(lambda: None))
    assert said in str(bad.value)
    assert not ray.is_initialized(), "no cluster was started instead"


def test_another_version_of_ray_is_named(monkeypatch, tmp_path):
    """What Ray raises for it (ray/_private/utils.py, check_version_info), without a second Ray to be had here."""

    def refuse(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.49.0\n    Python: 3.12.1")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BadInput, match=r"the same Ray and Python on driver and cluster: Version mismatch.*2.49.0"):
        fleet.calibrate_fleet("auto", asked(), tmp_path, sent(lambda: None))


def test_the_command_writes_to_the_folder_and_says_that_a_cluster_must_not_be_exposed(cluster, tmp_path):
    """The command as a user gives it, interrupted after its connection: a whole run takes the shipped extent."""
    words = [sys.executable, "-m", "dsa_ledger", "calibrate", "--ray", cluster.address, "--device", "cpu", "--quick"]
    process = subprocess.Popen([*words, "--out", tmp_path], stderr=subprocess.PIPE, text=True)
    assert "keep its ports in a closed network" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
