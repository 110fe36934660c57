"""`calibrate` and `profiles` as a user meets them: files, formats, exit codes, and nothing left behind."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import signal
import subprocess
import sys
import time

import made_up
import numpy as np
import pytest

from calib import all_gpus, run
from calib.profile import load, save
from calib.run import Extent, Plan
from calib.run import calibrate as profile_of
from dsa_ledger import cli_calibrate
from dsa_ledger.cli import main
from dsa_ledger.errors import BadInput

MIB = 2**20
SMALL = Extent(
    pool_bytes=70 * MIB,
    tokens=4096,
    grid=((1, 4096),),
    scan_tokens=(1024, 2048, 4096),
    replays=3,
    replay_bytes=4 * MIB,
    seconds=0,  # one try: noise is judged elsewhere
)


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command line with a small extent; return exit code, standard output and standard error."""
    monkeypatch.setattr(run, "EXTENTS", dict.fromkeys(run.EXTENTS, SMALL))

    def run_it(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        return left.value.code, *capsys.readouterr()

    return run_it


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """Two profiles of a made-up box: the same but for their samples, and one of another box."""
    folder = tmp_path_factory.mktemp("boxes")
    for name, noise, identity in (("one", 0.001, "GPU-1"), ("two", 0.002, "GPU-1"), ("other", 0.001, "GPU-2")):
        box = made_up.Box(noise=noise)
        box.hardware = made_up.hardware(identity=identity)
        save(profile_of(box, Plan(quick=True, extent=SMALL)), folder / f"{name}.json")
    return folder


def test_calibrate_writes_a_labelled_profile(command, tmp_path):
    out = tmp_path / "box.json"
    code, shown, said = command("calibrate", "--device", "cpu:numpy", "--quick", "--out", out)
    assert code == 0
    assert shown.splitlines()[0].endswith("(CPU memory: never used for a GPU estimate)")
    assert f"written: {out}" in said
    profile = load(out)
    assert profile.protocol.quick
    assert profile.hardware.kind == "cpu"
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


def test_calibrate_prints_json_and_md(command, tmp_path):
    out = tmp_path / "box.json"
    code, shown, _ = command("calibrate", "--device", "cpu:numpy", "--quick", "--format", "json", "--out", out)
    answer = json.loads(shown)
    assert code == 0
    assert set(answer["over_copy"]) == {"read", "paged read"}
    assert answer["hardware"]["kind"] == "cpu"
    assert {case["key"].split("/")[0] for case in answer["cases"]} >= {
        "ceiling",
        "fragmentation",
        "grid",
        "scan",
        "gather",
    }
    code, shown, _ = command("profiles", "show", out, "--format", "md")  # printed by the same function
    assert shown.startswith("# ")
    assert "## Page order" in shown
    assert "paged read / copy" in shown


def test_quick_takes_at_most_twenty_seconds(tmp_path):
    """The extent that ships, in a process of its own, with numpy; the bound has room for a machine that others use."""
    start = time.monotonic()
    words = [sys.executable, "-m", "dsa_ledger", "calibrate", "--device", "cpu:numpy", "--quick"]
    done = subprocess.run([*words, "--out", tmp_path / "q.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 40
    assert load(tmp_path / "q.json").hardware.kind == "cpu"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "device: 'tpu': expected gpu, gpu:N, cpu"),
        (["--device", "gpu:x"], "gpu:N"),
        (["--device", "cpu:jax"], "cpu:torch or cpu:numpy"),
        (
            ["--device", "cpu", "--out", "/nowhere/at/all.json"],
            "out: '/nowhere/at/all.json': expected a folder that exists",
        ),
        (["--device", "cpu:numpy", "--block-table", "/nowhere.npy"], "block-table: '/nowhere.npy'"),
        (["--device", "cpu", "--format", "xml"], "format"),
        (["--all-gpus"], "all-gpus"),
        (["--all-gpus", "--device", "cpu", "--out", "."], "all-gpus"),
        (["--ray", "auto", "--all-gpus"], "one of the two: --ray measures every GPU by itself"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, arguments, said):
    code, shown, complaint = command("calibrate", *arguments)
    assert code == 2
    assert shown == ""
    assert said in complaint
    assert len(complaint.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(command, monkeypatch, tmp_path):
    monkeypatch.setattr("os.access", lambda _, mode, **__: mode != os.W_OK)  # root may write anywhere
    code, shown, complaint = command("calibrate", "--device", "cpu", "--out", tmp_path)
    assert (code, shown) == (2, "")
    assert complaint == f"bad input: out: {str(tmp_path)!r}: expected a place that can be written\n"


def test_a_missing_package_names_the_extra(command, monkeypatch):
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    code, _, complaint = command("calibrate", "--device", "gpu")
    assert code == 2
    assert "pip install 'dsa-ledger[gpu13]' (driver 580 or newer) or 'dsa-ledger[gpu12]'" in complaint


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    """Ctrl-C while it measures: one line, the shell's exit code, no file."""
    out, progress = tmp_path / "out", tmp_path / "progress"
    out.mkdir()
    words = ["calibrate", "--device", "cpu:numpy", "--out", out, "--progress-file", progress, "--fraction", "0.02"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dsa_ledger", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not progress.exists():  # its first words: it measures
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (shown, said) == ("", "interrupted: nothing was written\n")
    assert list(out.iterdir()) == []


def test_a_dumped_table_is_replayed(command, tmp_path):
    np.save(tmp_path / "table.npy", np.array([[5, 6, 7, 8, 1, 2], [20, 22, 24, 0, 0, 0]]))
    code, shown, _ = command(
        "calibrate", "--device", "cpu:numpy", "--block-table", tmp_path / "table.npy", "--format", "json"
    )
    assert code == 0
    replayed = [case for case in json.loads(shown)["cases"] if case["key"].startswith("replay/")]
    assert replayed[0]["fragmentation"]["mean_run_pages"] == pytest.approx(9 / 5)


def test_profiles_lists_and_shows(command, boxes):
    code, shown, _ = command("profiles", "list", boxes, "--format", "json")
    assert code == 0
    assert [row["name"] for row in json.loads(shown)["profiles"]] == ["one", "other", "two"]
    code, shown, _ = command("profiles", "show", boxes / "one.json")
    assert code == 0
    assert "r_half" in shown
    assert "NVIDIA H200" in shown


def test_without_profiles_the_list_says_how_to_make_one(command, tmp_path):
    assert "dsa-ledger calibrate --out DIR" in command("profiles", "list", tmp_path)[1]
    assert "dsa-ledger calibrate --out DIR" in command("profiles", "list")[1], "none is built in yet: not yet measured"


def test_profiles_compares(command, boxes):
    code, shown, _ = command("profiles", "compare", boxes / "one.json", boxes / "other.json", "--format", "json")
    answer = json.loads(shown)
    assert code == 0
    assert answer["differences"] == ["hardware.identity: 'GPU-1' and 'GPU-2'"]
    assert all(row["ratio"] == pytest.approx(1, rel=0.01) for row in answer["cases"])
    assert "within noise" in command("profiles", "compare", boxes / "one.json", boxes / "two.json")[1]


def test_every_fault_of_a_merge_comes_at_once(command, boxes):
    """Two files that are the same run, and no --out: both are said."""
    one = boxes / "one.json"
    code, shown, said = command("profiles", "merge", one, one)
    assert (code, shown) == (2, "")
    assert said.splitlines() == [
        "bad input: out: absent: expected a file or folder for the merged profile",
        "bad input: profiles: 2: expected different runs; one is given twice",
    ]


def test_a_merge_says_what_it_wrote_in_one_line(command, boxes, tmp_path):
    _, shown, _ = command("profiles", "merge", boxes / "one.json", boxes / "two.json", "--out", tmp_path / "m.json")
    assert len(shown.splitlines()) == 1
    assert ": 2 runs as one: " in shown


def test_a_comparison_names_the_two_files(command, boxes):
    """Two runs of one box have one label: the files tell them apart."""
    assert command("profiles", "compare", boxes / "one.json", boxes / "two.json")[1].startswith("one and two: ")


def test_a_damaged_file_does_not_hide_the_others(command, boxes):
    (boxes / "bad.json").write_text("{}")
    code, shown, said = command("profiles", "list", boxes)
    assert code == 0
    assert "one" in shown
    assert "left out: bad.json: profile: absent: expected its created, hardware," in said
    (boxes / "bad.json").unlink()


def test_profiles_merges_one_box_and_refuses_two(command, boxes, tmp_path):
    out = tmp_path / "both.json"
    code, _, said = command("profiles", "merge", boxes / "one.json", boxes / "two.json", "--out", out)
    assert code == 0
    assert str(out) in said
    assert len(load(out).cases[0].samples_s) == 2 * len(load(boxes / "one.json").cases[0].samples_s)
    code, shown, said = command(
        "profiles", "merge", boxes / "one.json", boxes / "other.json", "--out", tmp_path / "no.json"
    )
    assert (code, shown) == (2, "")
    assert "hardware.identity" in said
    assert not (tmp_path / "no.json").exists()


def test_profiles_exports_every_sample(command, boxes, tmp_path):
    code, shown, _ = command("profiles", "export", boxes / "one.json")
    rows = list(csv.DictReader(io.StringIO(shown)))
    profile = load(boxes / "one.json")
    assert code == 0
    assert [float(row["seconds"]) for row in rows] == [s for case in profile.cases for s in case.samples_s]
    command("profiles", "export", boxes / "one.json", "--out", tmp_path / "samples.csv")
    assert list(csv.DictReader((tmp_path / "samples.csv").open())) == rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lst"], "did you mean 'list'"),
        (["show"], "1 profile"),
        (["compare", "a"], "2 profiles"),
        (["merge", "a"], "out: absent: expected"),
        (["merge", "a"], "files: a: expected 2 profiles or more"),
        (["show", "absent.json"], "No such file"),
    ],
)
def test_bad_profile_questions_are_one_line(command, arguments, said):
    code, shown, complaint = command("profiles", *arguments)
    assert (code, shown) == (2, "")
    assert said in complaint


@pytest.mark.parametrize(
    ("driver_name", "peak"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA GB300", 8.0e12),
        ("NVIDIA Something", None),
    ],
)
def test_the_peak_is_the_catalogs(driver_name, peak):
    assert cli_calibrate._peak_bytes_per_s(driver_name) == peak  # noqa: SLF001 - what the command hands to the backend


STAND_IN = """
import pathlib, shutil, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
number = words["--device"].partition(":")[2]
if number == "{fails}":
    print("bad input: device: busy", file=sys.stderr); sys.exit(2)
if "{sleeps}": time.sleep(60)
pathlib.Path(words["--progress-file"]).write_text("5 20 grid\\n"); time.sleep(0.5)
source = pathlib.Path("{folder}") / ("one.json" if number == "0" else "other.json")
shutil.copy(source, words["--out"])
"""


def stand_in(monkeypatch, folder, *, fails="", sleeps=""):
    code = STAND_IN.format(folder=folder, fails=fails, sleeps=sleeps)
    monkeypatch.setattr(all_gpus, "_program", lambda: [sys.executable, "-c", code])


def test_every_gpu_gets_its_profile_and_one_bar_hears_of_all(monkeypatch, boxes, tmp_path):
    stand_in(monkeypatch, boxes)
    heard = []
    written, failed = all_gpus.calibrate_all(2, ["--fraction", "0.5"], tmp_path, lambda *said: heard.append(said))
    assert failed == []
    assert {(10, 40, "2 GPUs"), (0, 2, "2 GPUs")} >= set(heard[-1:])  # 5 of 20 each, where both have said so
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{platform.node().lower()}-gpu-{number}.json" for number in (1, 2)
    ]
    assert [load(path).hardware.identity for path in written] == ["GPU-1", "GPU-2"]


def test_if_one_gpu_fails_the_others_profiles_are_kept(monkeypatch, boxes, tmp_path):
    """Rule: one broken GPU does not cost its host the profiles of the others; it is named."""
    stand_in(monkeypatch, boxes, fails="1")
    written, failed = all_gpus.calibrate_all(2, [], tmp_path)
    assert [str(fault) for fault in failed] == ["device.gpu:1: exit code 2: bad input: device: busy"]
    assert list(tmp_path.iterdir()) == written
    assert [load(path).hardware.identity for path in written] == ["GPU-1"]


def test_an_interrupt_ends_every_process(monkeypatch, boxes, tmp_path):
    stand_in(monkeypatch, boxes, sleeps="yes")
    started = []
    popen = subprocess.Popen

    def noting(*words: object, **rest: object) -> subprocess.Popen:
        started.append(popen(*words, **rest))
        return started[-1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", noting)
    monkeypatch.setattr(all_gpus, "_far", interrupted)
    with pytest.raises(KeyboardInterrupt):
        all_gpus.calibrate_all(2, [], tmp_path)
    assert [process.poll() is not None for process in started] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_calibrating_all_needs_a_folder_that_can_be_written(monkeypatch, tmp_path):
    def refuses(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(BadInput, match="a folder that exists"):
        all_gpus.calibrate_all(1, [], tmp_path / "absent")
    monkeypatch.setattr("tempfile.TemporaryDirectory", refuses)
    with pytest.raises(BadInput, match="can be written: Permission denied"):
        all_gpus.calibrate_all(1, [], tmp_path)


LOADED = """
import sys
sys.argv = ["dsa-ledger", "--help"]
from dsa_ledger.__main__ import main
try:
    main()
except SystemExit:
    print([name for name in sys.modules if name.split(".")[0] in ("calib", "numpy")])
"""


def test_help_names_the_commands_and_loads_no_calibration():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert "calibrate" in done.stdout
    assert "profiles" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_second_run_of_a_box_loses_nothing(command, tmp_path):
    """Rule: what was measured is never written over; a folder that is not there is made, a file must be new."""
    words = ("calibrate", "--device", "cpu:numpy", "--quick", "--out")
    folder = tmp_path / "made"
    for _ in range(3):
        assert command(*words, folder)[0] == 0
    stem = f"{platform.node()}-cpu".lower()
    assert sorted(path.stem for path in folder.iterdir()) == [stem, f"{stem}-run2", f"{stem}-run3"]
    (folder / f"{stem}-run2.json").write_text("{", encoding="utf-8")
    command(*words, folder)
    assert len(list(folder.iterdir())) == 3, "a file that is no profile is no loss"
    code, _, said = command(*words, folder / f"{stem}.json")
    assert code == 2
    assert "a new file, or a folder: no profile is written over" in said


@pytest.mark.parametrize("words", [["list"], ["export", "nowhere.json"]])
def test_profiles_are_listed_and_exported_without_numpy(monkeypatch, capsys, words):
    """What fits nothing needs no extra; a profile that is not there is the only thing in the way."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(SystemExit):
        main(["profiles", *words])
    assert "numpy" not in capsys.readouterr().err
