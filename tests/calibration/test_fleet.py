"""`calibrate --ray` on a real cluster of Ray on this machine: eight nodes of one logical CPU, all on 127.0.0.1."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time

import made_up
import pytest

from calib.host import HostBackend
from calib.profile import load
from calib.run import Extent, Plan
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
    return fleet.Asked(**{"device": "cpu", "plan": QUICK, "time_limit_s": 60} | changes)


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


def test_eight_workers_calibrate_and_a_second_run_has_nothing_to_do(cluster, tmp_path):
    told, heard = [], []
    outcome = fleet.calibrate_fleet(
        cluster.address,
        asked(),
        tmp_path,
        sent(lambda: None),
        progress=lambda *far: heard.append(far),
        tell=told.append,
    )
    assert outcome.failed == []
    assert len(outcome.written) == len(set(outcome.written)) == len(list(tmp_path.iterdir())) == NODES
    assert told == outcome.written
    assert heard[-1][2] == "8 of 8 boxes"
    found = [load(path) for path in outcome.written]
    assert {one.host for one in found} == {platform.node()}
    assert {path.stem for path in outcome.written} == {f"{platform.node()}-{one.node}".lower() for one in found}
    alone = profile_of(HostBackend("numpy"), QUICK).model_dump(mode="json")
    for one in found:
        assert [case.key for case in one.cases] == [case["key"] for case in alone["cases"]]
        assert alike(one.model_dump(mode="json"), alone)


def test_the_command_measures_what_is_missing_and_says_what_it_did(cluster, tmp_path, capsys):
    """The command's own part, with a tiny extent; of two nodes the profiles are missing, one of them cut short."""
    asked_for = (cluster.address, "cpu:numpy", QUICK, tmp_path, cli_calibrate._backend)  # noqa: SLF001 - as it calls it
    calibrate_on_ray(*asked_for, busy=False, time_limit=60)
    shown, said = capsys.readouterr()
    assert shown == f"{NODES} measured, 0 had a profile, 0 failed\n"
    assert "keep its ports in a closed network" in said
    paths = sorted(tmp_path.iterdir())
    assert [f"written: {path}" in said for path in paths] == [True] * NODES
    before = {path: path.read_bytes() for path in paths}
    paths[3].unlink()
    paths[5].write_bytes(before[paths[5]][:999])
    calibrate_on_ray(*asked_for, busy=True, time_limit=60)
    shown, said = capsys.readouterr()
    assert shown == f"2 measured, {NODES - 2} had a profile, 0 failed\n"
    assert f"measured again: {paths[5].name}: profile" in said
    assert {path for path in paths if path.read_bytes() != before[path]} == {paths[3], paths[5]}
    assert sorted(tmp_path.iterdir()) == paths


def test_a_worker_that_dies_is_run_again_by_ray_and_one_that_hangs_is_named(cluster, tmp_path):
    marks = tmp_path / "marks"
    out = tmp_path / "out"
    marks.mkdir()
    out.mkdir()
    died, hangs = str(marks / "died"), str(marks / "hangs")

    def do() -> None:
        import os
        import time

        for mark, act in ((died, lambda: os._exit(1)), (hangs, lambda: time.sleep(600))):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            act()

    began = time.monotonic()
    outcome = fleet.calibrate_fleet(cluster.address, asked(time_limit_s=12), out, sent(do))
    assert time.monotonic() - began < 60
    assert len(outcome.written) == NODES - 1
    [fault] = outcome.failed
    assert fault.path.startswith(f"{platform.node()}/")
    assert "timed out" in fault.expected
    left = {load(path).node[:8] for path in outcome.written}
    assert fault.path.rpartition("/")[2] not in left, "the one named is the one that has no profile"


def test_workers_of_another_version_are_named(cluster, tmp_path):
    outcome = fleet.calibrate_fleet(cluster.address, asked(version="0.0.0"), tmp_path, sent(lambda: None))
    assert outcome.written == []
    assert len(outcome.failed) == NODES
    assert all("dsa-ledger 0.0.0, as where it was asked" in str(fault) for fault in outcome.failed)


def test_an_interrupt_keeps_what_was_written(cluster, tmp_path):
    def stop(_) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.calibrate_fleet(cluster.address, asked(), tmp_path, sent(lambda: None), tell=stop)
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


def test_a_node_that_is_killed_loses_nothing_that_was_finished(cluster, tmp_path):
    """The victim's task waits for its death; all others end, and their files were there before."""
    victim = cluster.list_all_nodes()[-1]
    name, out = victim.node_id, tmp_path / "out"
    out.mkdir()

    def do() -> None:
        import time

        if ray.get_runtime_context().get_node_id() == name:
            time.sleep(600)

    killed = []

    def tell(path) -> None:
        if not killed:
            killed.append(path)
            threading.Thread(target=cluster.remove_node, args=(victim,), kwargs={"allow_graceful": False}).start()

    outcome = fleet.calibrate_fleet(cluster.address, asked(time_limit_s=90), out, sent(do), tell=tell)
    assert killed[0].exists()
    assert len(outcome.written) == NODES - 1
    assert all(load(path).node != name for path in outcome.written)
    [fault] = outcome.failed
    assert name[:8] in fault.path
    assert "timed out" not in str(fault), "the loss was noticed, not waited for"
    cluster.add_node(num_cpus=1, num_gpus=0, node_ip_address="127.0.0.1")  # tests come in any order


def test_a_box_that_is_lent_to_others_is_named_and_not_waited_for():
    jobs = {1: fleet.Job("busy/1", "a", 1), 2: fleet.Job("runs/2", "b", 1), 3: fleet.Job("hangs/3", "c", 1)}
    since = {"runs/2": 59.0, "hangs/3": 61.0}
    found = dict(fleet._late(jobs, since, 61.0, asked()))  # noqa: SLF001 - the rule by itself
    assert set(found) == {1, 3}
    assert str(found[1]).startswith("busy/1: '61 s': a start within 60 s: Ray has lent it to others")
    assert str(found[3]) == "hangs/3: '61 s': an end within 60 s: timed out and cancelled"
    assert fleet._late(jobs, {}, 119.0, asked()) == []  # noqa: SLF001 - a board that does not answer


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:9", "auto, or HOST:PORT or ray://HOST:PORT of a Ray cluster that runs: [Errno"),
        ("ray://127.0.0.1:9", "[Errno"),
        ("nowhere.invalid:6379", "of a Ray cluster that runs: "),
        ("local", "auto, or HOST:PORT"),
        ("127.0.0.1:99999", "of a Ray cluster that runs: "),
    ],
)
def test_an_address_where_no_cluster_is(tmp_path, address, said):
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
