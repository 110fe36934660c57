"""`profiles fleet` on made-up fleets: what was planted is found with its reason, nothing else; bad files are named."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import made_up
import pytest
from made_up_fleet import few, profile

from calib import fleet_report
from calib.profile import load, save

PLANTED = {  # number of the GPU: how fast it is, what is found on it, and the word that must be in the reason
    17: (0.90, {"state": {"memory_mhz": 2619}}, "clock: memory at 2619 MHz, usual 3201"),
    101: (0.93, {"state": {"throttle": "0x0000000000000004"}}, "clock: held back, event reasons 0x4"),
    256: (0.91, {"state": {"temperature_c": 88}}, "temperature: 88 °C, usual 50"),
    333: (0.92, {"hardware": {"ecc": False}}, "ECC: off, usual on"),
    512: (0.50, {"hardware": {"mig": True}}, "MIG: a slice of the GPU"),
    777: (0.85, {"state": {"others": ("python (pid 7)",)}}, "other process: python (pid 7)"),
    999: (0.94, {}, "unexplained"),
}


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """Return a thousand GPUs whose rates differ by half a percent, and seven slow ones among them."""
    folder = tmp_path_factory.mktemp("thousand")
    draw = random.Random(8)  # noqa: S311 - noise, no secret
    for number in range(1000):
        speed, found, _ = PLANTED.get(number, (draw.gauss(1, 0.005), {}, ""))
        save(profile(number, speed, cases=60, samples=20, **found), folder)
    return folder


def test_files_are_named_by_host_and_uuid(tmp_path):
    assert save(profile(12), tmp_path).name == "node001-gpu-00000012.json"


def test_seven_slow_gpus_among_a_thousand_in_under_two_seconds(thousand):
    """As a user runs it, its start included."""
    words = [sys.executable, "-m", "dsa_ledger", "profiles", "fleet", thousand, "--format", "json"]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    took = time.monotonic() - began
    found = json.loads(done.stdout)
    assert {row["box"]: row["reason"] for row in found["slow"]} == {
        f"GPU-{number:08}": reason for number, (_, _, reason) in PLANTED.items()
    }
    model, slices = found["models"]
    assert (model["model"], model["boxes"], model["slow"]) == ("NVIDIA H200", 999, 6)
    assert (slices["model"], slices["boxes"], slices["slow"]) == ("NVIDIA H200 (MIG, 140 GiB)", 1, 1)
    assert model["eta_median"] == pytest.approx(0.9 * made_up.RATE / 4.8e12, rel=0.001)  # of shares 0.6, 0.9 and 1
    assert found["left_out"] == []
    assert took < 2, f"{took:.1f} s"


def test_bad_files_are_named_and_the_rest_used(answer, tmp_path):
    few(tmp_path)
    whole = (tmp_path / "node000-gpu-00000003.json").read_text(encoding="utf-8")
    (tmp_path / "short.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    (tmp_path / "twin.json").write_text(whole, encoding="utf-8")
    (tmp_path / "edited.json").write_text(whole.replace('"quick": true', '"quick": false'), encoding="utf-8")
    save(profile(50, 0.6, hardware={"name": "NVIDIA B200"}), tmp_path)
    found = json.loads(answer("profiles", "fleet", tmp_path, "--format", "json")[0])
    assert {line.partition(":")[0] for line in found["left_out"]} == {"short.json", "twin.json", "edited.json"}
    assert any("damaged" in line for line in found["left_out"])
    assert any("a UUID of its own: node000-gpu-00000003.json has it" in line for line in found["left_out"])
    assert {row["model"]: row["boxes"] for row in found["models"]} == {"NVIDIA H200": 6, "NVIDIA B200": 1}
    assert "mixed models, each compared with its like alone: 1 NVIDIA B200, 6 NVIDIA H200" in found["warnings"]
    assert found["slow"] == [], "another model is not a slow box, and one alone is not judged"


def test_of_two_runs_of_a_box_the_newer_is_used(tmp_path):
    for number, second in enumerate((3, 5, 4)):
        run = profile(1, 1 - second / 100)
        save(run.model_copy(update={"created": f"2026-01-02T03:04:0{second}+00:00"}), tmp_path)
        assert len(list(tmp_path.iterdir())) == number + 1, "no run is written over"
    fleet = fleet_report.read_fleet(tmp_path)
    [box] = fleet.boxes
    assert box.file == "node000-gpu-00000001-run2.json"
    assert {fault.path for fault in fleet.faults} == {
        "node000-gpu-00000001.json",
        "node000-gpu-00000001-run3.json",
    }


def test_a_host_with_fewer_profiles_than_most_is_named(tmp_path):
    for host, count in {"a": 3, "b": 3, "c": 2, "d": 3}.items():
        for number in range(count):
            save(profile(number, host=host, hardware={"identity": f"{host}-{number}"}), tmp_path)
    assert "c has 2 profiles, most hosts 3" in fleet_report.read_fleet(tmp_path).warnings


def test_equal_boxes_have_no_outlier_and_one_among_equals_is_one(tmp_path):
    for number in range(5):
        save(profile(number), tmp_path)
    assert fleet_report.slow_rows(fleet_report.read_fleet(tmp_path)) == []
    save(profile(5, 0.96), tmp_path)
    assert [row["box"] for row in fleet_report.slow_rows(fleet_report.read_fleet(tmp_path))] == ["GPU-00000005"]
    (tmp_path / "node000-gpu-00000005.json").unlink()
    save(profile(5, 0.98), tmp_path)  # within what counts as noise
    assert fleet_report.slow_rows(fleet_report.read_fleet(tmp_path)) == []


@pytest.mark.parametrize("form", ["table", "md", "csv", "html"])
def test_every_format_names_the_slow_box(answer, tmp_path, form):
    few(tmp_path)
    save(profile(90, 0.7, state={"memory_mhz": 2619}), tmp_path)
    shown, _ = answer("profiles", "fleet", tmp_path, "--format", form)
    assert "2619" in shown
    assert shown.startswith({"md": "# Fleet of 7", "html": "<!DOCTYPE", "csv": "host,", "table": "Fleet of 7"}[form])


def test_a_page_shows_the_distribution_and_a_table_fits_a_terminal(answer, tmp_path):
    """Rule: 80 columns hold real UUIDs, of which a table shows what people abbreviate them to."""
    long = [f"GPU-{number:08x}-58f0-1c0b-8f4e-{number:012x}" for number in range(5)]
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    for number, uuid in enumerate(long):
        speed = 0.5 if number == 3 else 1 + number / 1000
        save(profile(number, speed, host="gpu-node-07", hardware={"identity": uuid}), boxes)
    ranks.write_text("group,rank,host,uuid\n" + "".join(f"tp0,{n},,{one}\n" for n, one in enumerate(long)), "utf-8")
    table = answer("profiles", "fleet", boxes, "--ranks", ranks)[0]
    assert max(map(len, table.splitlines())) <= 80
    [slow] = [line for line in table.splitlines() if "unexplained" in line]
    assert slow.split()[:2] == ["gpu-node-07", "GPU-00000003"]
    page = answer("profiles", "fleet", boxes, "--ranks", ranks, "--format", "html")[0]
    assert page.count("<polyline") == 1
    assert long[3] in page


def test_merge_of_a_folder_is_one_profile_a_box(answer, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    out.mkdir()
    save(profile(1, samples=2), runs)
    save(profile(1, cases=2, samples=2), runs / "second.json")
    save(profile(2, samples=2), runs)
    (runs / "short.json").write_text("{", encoding="utf-8")
    _, said = answer("profiles", "merge", runs, "--out", out)
    assert "left out: short.json" in said
    merged = {load(path).hardware.identity: load(path) for path in out.iterdir()}
    assert set(merged) == {"GPU-00000001", "GPU-00000002"}
    assert len(merged["GPU-00000001"].merged_from) == 2
    assert merged["GPU-00000002"].merged_from == ()


def runs(folder, *days: int):
    """Fill a folder with runs of one box, of two samples each, on the days given."""
    for day in days:
        run = profile(1, 1 - day / 1000, samples=2)
        save(run.model_copy(update={"created": f"2026-01-{day:02}T00:00:00+00:00"}), folder)


def samples(path) -> int:
    return sum(len(case.samples_s) for case in load(path).cases)


def test_a_merged_profile_is_as_new_as_its_newest_run_and_used_in_its_place(answer, tmp_path):
    runs(tmp_path, 1, 2)
    answer("profiles", "merge", *sorted(tmp_path.iterdir()), "--out", tmp_path / "node000-merged.json")
    assert load(tmp_path / "node000-merged.json").created.startswith("2026-01-02")
    assert [box.file for box in fleet_report.read_fleet(tmp_path).boxes] == ["node000-merged.json"]


def test_a_run_that_is_in_a_merged_profile_is_not_counted_again(answer, tmp_path):
    """Rule: two runs of two samples are four, however often and into whatever they are merged."""
    here, out = tmp_path / "here", tmp_path / "out"
    here.mkdir()
    out.mkdir()
    runs(here, 1, 2)
    assert "not that of the runs" in answer("profiles", "merge", here, "--out", here, code=2)[1]
    for _ in range(2):
        answer("profiles", "merge", here, "--out", out)
        assert [samples(path) for path in out.iterdir()] == [4]
    [merged] = out.iterdir()
    merged.rename(here / "merged.json")
    runs(here, 3)
    _, said = answer("profiles", "merge", here, "--out", out)
    assert said.count("its samples are in merged.json") == 2
    [twice] = out.iterdir()
    assert (samples(twice), len(load(twice).merged_from)) == (6, 4)
    [first, *_] = sorted(path for path in here.iterdir() if path.name != "merged.json")
    assert (
        "is in a merged profile already"
        in answer("profiles", "merge", first, twice, "--out", tmp_path / "x", code=2)[1]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("profiles", "fleet"), "one folder of profiles"),
        (("profiles", "fleet", "/nowhere"), "fleet: '/nowhere': expected a folder of profiles"),
        (("profiles", "list", "--ranks", "x.csv"), "`profiles fleet DIR`"),
    ],
)
def test_bad_input(answer, words, said):
    assert said in answer(*words, code=2)[1]


@pytest.mark.parametrize(
    "words", [("calibrate", "--device", "tpu"), ("profiles", "list"), ("profiles", "fleet", "/nowhere")]
)
def test_nothing_of_ray_is_loaded_unless_asked_for(words):
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('RAY', 'ray' in sys.modules, 'calib' in sys.modules))\n"
        f"from dsa_ledger.cli import main\nmain({list(words)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    assert "RAY False True" in done.stdout


def test_ray_is_imported_by_one_module(root):
    import ast

    importing = {
        path.name
        for folder in ("calib", "dsa_ledger")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(name.name.partition(".")[0] == "ray" for name in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ray")
    }
    assert importing == {"fleet.py"}


def test_the_kubernetes_job_asks_for_what_the_command_takes(root):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    job = yaml.safe_load((root / "scenarios" / "calibrate-job.yaml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    program, command, *options = container["command"]
    assert (program, command) == ("dsa-ledger", "calibrate")
    shown = subprocess.run(
        [sys.executable, "-m", "dsa_ledger", "calibrate", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(option in shown for option in options if option.startswith("--"))
    assert container["volumeMounts"][0]["mountPath"] == options[-1]
    assert container["env"][0]["name"] == "DSA_LEDGER_HOST"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    [lost, refused] = job["spec"]["podFailurePolicy"]["rules"]
    assert (lost["action"], lost["onPodConditions"]) == ("Ignore", [{"type": "DisruptionTarget"}])
    codes = {"containerName": container["name"], "operator": "In", "values": [2]}  # bad input, by the README's table
    assert (refused["action"], refused["onExitCodes"]) == ("FailIndex", codes)
    assert job["spec"]["backoffLimitPerIndex"] > 0, "without it no index fails for itself"


def test_a_pod_may_be_given_its_nodes_name(monkeypatch):
    from calib.run import Extent, Plan, calibrate

    small = Extent(70 * 2**20, 4096, ((1, 4096),), (1024, 2048, 4096), 3, 4 * 2**20, 0)
    monkeypatch.setenv("DSA_LEDGER_HOST", "node-7.example")
    assert calibrate(made_up.Box(), Plan(quick=True, extent=small)).file_stem == "node-7-example-gpu-0001"
