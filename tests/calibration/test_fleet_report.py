"""`profiles fleet` on made-up fleets: what was planted is found with its reason, nothing else; bad files are named."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import made_up
import pytest

from calib import fleet_report
from calib.profile import Case, Profile, Protocol, State, load, save
from calib.profile import Fits as ProfileFits
from dsa_ledger.cli import main

USUAL = {"sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 50, "throttle": "0x0000000000000000"}
PLANTED = {  # number of the GPU: how fast it is, what is found on it, and the word that must be in the reason
    17: (0.90, {"state": {"memory_mhz": 2619}}, "clock: memory at 2619 MHz, usual 3201"),
    101: (0.93, {"state": {"throttle": "0x0000000000000004"}}, "clock: held back, event reasons 0x4"),
    256: (0.91, {"state": {"temperature_c": 88}}, "temperature: 88 °C, usual 50"),
    333: (0.92, {"hardware": {"ecc": False}}, "ECC: off, usual on"),
    512: (0.50, {"hardware": {"mig": True}}, "MIG: a slice of the GPU"),
    777: (0.85, {"state": {"others": ("python (pid 7)",)}}, "other process: python (pid 7)"),
    999: (0.94, {}, "unexplained"),
}


def profile(number: int, speed: float = 1.0, *, cases: int = 60, samples: int = 20, **found: object) -> Profile:
    """Return a made-up profile as large as a quick run's."""
    state = State.model_validate(USUAL | found.get("state", {}))
    rate = made_up.RATE * speed
    shapes = [
        {"rows": rows, "tokens": 65_536, "order": order, "rate_bytes_per_s": rate * share, "eta": rate * share / 4.8e12}
        for rows, share in ((1, 0.6), (16, 0.9), (64, 1.0))
        for order in ("contiguous", "runs-1")
    ]
    draw = random.Random(number)  # noqa: S311 - noise, no secret
    return Profile(
        created="2026-01-02T03:04:05+00:00",
        host=found.get("host", f"node{number // 8:03}"),
        hardware=made_up.hardware(**{"identity": f"GPU-{number:08}"} | found.get("hardware", {})),
        software=made_up.software(),
        protocol=Protocol(
            quick=True,
            pool_bytes=10**9,
            tensors=21,
            span_bytes=10**7,
            replays=samples,
            free_fraction=0.85,
            seed=1,
            block_table_sha256="",
        ),
        before=state,
        after=state,
        drift=0.0,
        cases=tuple(
            Case(
                key=f"grid/read_pages/contiguous/b1/L{one}",
                group="grid",
                kernel="read_pages",
                order="contiguous",
                rows=1,
                tokens=4096,
                read_bytes=540_672,
                write_bytes=0,
                reuse_bytes=2**30,
                fragmentation={"mean_run_pages": 64.0},
                verified=True,
                samples_s=tuple(draw.uniform(1e-6, 2e-6) for _ in range(samples)),
            )
            for one in range(cases)
        ),
        fits=ProfileFits.model_validate(
            {"ceiling_bytes_per_s": rate, "run_length": None, "shapes": shapes, "scans": (), "gathers": ()}
        ),
        warnings=(),
    )


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """Return a thousand GPUs whose rates differ by half a percent, and seven slow ones among them."""
    folder = tmp_path_factory.mktemp("thousand")
    draw = random.Random(8)  # noqa: S311 - noise, no secret
    for number in range(1000):
        speed, found, _ = PLANTED.get(number, (draw.gauss(1, 0.005), {}, ""))
        save(profile(number, speed, **found), folder)
    return folder


@pytest.fixture
def answer(capsys):
    def ask(*words: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        shown, said = capsys.readouterr()
        assert left.value.code == code, said
        return shown, said

    return ask


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
    [model] = found["models"]
    assert (model["boxes"], model["slow"]) == (1000, 7)
    assert model["eta_median"] == pytest.approx(0.9 * made_up.RATE / 4.8e12, rel=0.001)  # of shares 0.6, 0.9 and 1
    assert found["left_out"] == []
    assert took < 2, f"{took:.1f} s"


def few(folder, count=6, **changes: object):
    for number in range(count):
        save(profile(number, 1 - number / 1000, cases=1, samples=1, **changes), folder)


def test_bad_files_are_named_and_the_rest_used(answer, tmp_path):
    few(tmp_path)
    whole = (tmp_path / "node000-gpu-00000003.json").read_text(encoding="utf-8")
    (tmp_path / "short.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    (tmp_path / "twin.json").write_text(whole, encoding="utf-8")
    (tmp_path / "edited.json").write_text(whole.replace('"quick": true', '"quick": false'), encoding="utf-8")
    save(profile(50, 0.6, cases=1, samples=1, hardware={"name": "NVIDIA B200"}), tmp_path)
    found = json.loads(answer("profiles", "fleet", tmp_path, "--format", "json")[0])
    assert {line.partition(":")[0] for line in found["left_out"]} == {"short.json", "twin.json", "edited.json"}
    assert any("damaged" in line for line in found["left_out"])
    assert any("a UUID of its own: node000-gpu-00000003.json has it" in line for line in found["left_out"])
    assert {row["model"]: row["boxes"] for row in found["models"]} == {"NVIDIA H200": 6, "NVIDIA B200": 1}
    assert "mixed models, each compared with its like alone: 1 NVIDIA B200, 6 NVIDIA H200" in found["warnings"]
    assert found["slow"] == [], "another model is not a slow box, and one alone is not judged"


def test_equal_boxes_have_no_outlier_and_one_among_equals_is_one(tmp_path):
    for number in range(5):
        save(profile(number, cases=1, samples=1), tmp_path)
    assert fleet_report.slow_rows(fleet_report.read_fleet(tmp_path)) == []
    save(profile(5, 0.96, cases=1, samples=1), tmp_path)
    assert [row["box"] for row in fleet_report.slow_rows(fleet_report.read_fleet(tmp_path))] == ["GPU-00000005"]
    save(profile(5, 0.98, cases=1, samples=1), tmp_path)  # within what counts as noise
    assert fleet_report.slow_rows(fleet_report.read_fleet(tmp_path)) == []


def test_the_worst_rank_of_each_group(answer, tmp_path):
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    few(boxes)
    save(profile(90, 0.7, cases=1, samples=1), boxes)
    ranks = tmp_path / "ranks.csv"
    lines = [f"tp{number // 3},{number},node000,GPU-{number:08}" for number in range(6)]
    ranks.write_text("\n".join(["group,rank,host,uuid", *lines, "tp1,6,node011,", "tp1,7,,GPU-none"]), encoding="utf-8")
    found = json.loads(answer("profiles", "fleet", boxes, "--ranks", ranks, "--format", "json")[0])
    assert [(row["group"], row["worst_rank"], row["ranks"], row["slow"]) for row in found["groups"]] == [
        ("tp0", "2", 3, False),
        ("tp1", "6", 4, True),
    ]
    [left] = found["left_out"]
    assert "ranks line 9: 'GPU-none'" in left
    assert "rank 7 is left out" in left
    ranks.write_text("rank,host\n", encoding="utf-8")
    assert "missing ['group', 'uuid']" in answer("profiles", "fleet", boxes, "--ranks", ranks, code=2)[1]


@pytest.mark.parametrize("form", ["table", "md", "csv", "html"])
def test_every_format_names_the_slow_box(answer, tmp_path, form):
    few(tmp_path)
    save(profile(90, 0.7, cases=1, samples=1, state={"memory_mhz": 2619}), tmp_path)
    shown, _ = answer("profiles", "fleet", tmp_path, "--format", form)
    assert "2619" in shown
    assert shown.startswith({"md": "# Fleet of 7", "html": "<!DOCTYPE", "csv": "host,", "table": "Fleet of 7"}[form])


def test_merge_of_a_folder_is_one_profile_a_box(answer, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    out.mkdir()
    save(profile(1, cases=1, samples=2), runs)
    save(profile(1, cases=2, samples=2), runs / "second.json")
    save(profile(2, cases=1, samples=2), runs)
    (runs / "short.json").write_text("{", encoding="utf-8")
    _, said = answer("profiles", "merge", runs, "--out", out)
    assert "left out: short.json" in said
    merged = {load(path).hardware.identity: load(path) for path in out.iterdir()}
    assert set(merged) == {"GPU-00000001", "GPU-00000002"}
    assert len(merged["GPU-00000001"].merged_from) == 2
    assert merged["GPU-00000002"].merged_from == ()


ESTIMATE = (
    "estimate",
    "--model",
    "zai-org/GLM-5.2-FP8",
    "--tp",
    "8",
    "--engine",
    "sglang@0.5.23",
    "--context",
    "128Ki",
)


def test_an_estimate_plans_with_the_slowest_profile_of_its_gpu(answer, tmp_path):
    few(tmp_path)
    save(profile(90, 0.7, cases=1, samples=1), tmp_path)
    save(profile(91, 0.1, cases=1, samples=1, hardware={"name": "NVIDIA B200"}), tmp_path)
    asked = (*ESTIMATE, "--gpu", "H200", "--format", "json")
    found = json.loads(answer(*asked, "--fleet", tmp_path)[0])
    same = json.loads(answer(*asked, "--profile", tmp_path / "node011-gpu-00000090.json")[0])
    assert found["entries"] == same["entries"]
    [said] = [line for line in found["warnings"] if "slowest" in line]
    assert said.startswith("every rank is taken to be the slowest of 7 profiles, node011-gpu-00000090.json: 70.2% of")
    assert said.endswith("1 files are of another GPU or cannot be used")
    assert "profiles of H100" in answer(*ESTIMATE, "--gpu", "H100", "--fleet", tmp_path, code=2)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("profiles", "fleet"), "one folder of profiles"),
        (("profiles", "fleet", "/nowhere"), "fleet: '/nowhere': a folder of profiles"),
        (("profiles", "list", "--ranks", "x.csv"), "with `profiles fleet DIR` alone"),
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


def test_a_pod_may_be_given_its_nodes_name(monkeypatch):
    from calib.run import Extent, Plan, calibrate

    small = Extent(70 * 2**20, 4096, ((1, 4096),), (1024, 2048, 4096), 3, 4 * 2**20, 0)
    monkeypatch.setenv("DSA_LEDGER_HOST", "node-7.example")
    assert calibrate(made_up.Box(), Plan(quick=True, extent=small)).file_stem == "node-7-example-gpu-0001"
