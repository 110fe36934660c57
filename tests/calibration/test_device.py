"""The GPU backend without a GPU: a stand-in for CuPy runs the kernels' own source on the CPU. Times mean nothing."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import types
from dataclasses import replace

import fake_cupy
import kernel_host
import pytest

from calib import build, cases, run, smi
from calib.run import Extent, Plan, calibrate
from dsa_ledger.errors import BadInput

TINY = Extent(
    pool_bytes=6 * 2**20,
    tokens=1024,
    grid=((2, 700),),
    scan_tokens=(1024, 2048, 4096),
    replays=1,
    replay_bytes=2**14,
    seconds=-1,
)

READS = replace(TINY, grid=(), scan_tokens=())  # the slow ones left out


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("device") / "kernels.so"
    kernel_host.compile_for_host(build.SOURCE, path, strict=False, level=2)
    return path


@pytest.fixture(scope="module")
def built():
    if build.find_nvrtc() is None:
        pytest.skip("needs the wheel nvidia-cuda-nvrtc")
    return build.build("sm_90")


@pytest.fixture
def device(library, built, monkeypatch):
    """Return a function that imports calib.device with a stand-in of CuPy."""
    monkeypatch.setattr(build, "build", lambda architecture, **_: {"sm_90": built}[architecture])
    monkeypatch.setattr(smi, "query", lambda _: smi.Gpu(uuid="GPU-1", driver="580.1", ecc=True, mig=False))
    monkeypatch.setattr(smi, "state", lambda _: smi.State(sm_mhz=1980))
    monkeypatch.setattr(run, "LEAST_POOL_BYTES", 2**20)
    monkeypatch.setattr(cases, "PICKED_RECORDS", 64)
    monkeypatch.setattr(run, "GATHER_ROWS", 3)
    monkeypatch.setattr(run, "WARM_TOKENS", (640,))

    def imported(**knobs: object) -> tuple[types.ModuleType, fake_cupy.FakeCupy]:
        fake = fake_cupy.FakeCupy(library, **knobs)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.delitem(sys.modules, "calib.device", raising=False)
        return importlib.import_module("calib.device"), fake

    yield imported
    sys.modules.pop("calib.device", None)


def test_a_whole_run_reads_the_right_words_in_every_kernel(device):
    module, fake = device()
    backend = module.DeviceBackend(0, lambda name: 4.8e12 if name == "NVIDIA H200" else None)
    profile = calibrate(backend, Plan(quick=True, extent=TINY))
    assert set(fake.launched) == set(build.KERNELS)
    assert all(case.verified for case in profile.cases)
    assert profile.hardware.peak_bytes_per_s == 4.8e12
    assert profile.hardware.identity == "GPU-1"
    assert profile.hardware.kind == "gpu"
    assert profile.software.driver == "580.1"
    assert profile.software.runtime == "13.2"
    assert backend.memory is None


def test_wrong_words_are_found(device, monkeypatch):
    module, _ = device()
    backend = module.DeviceBackend(0, lambda _: None)
    opened = backend.open

    def spoiled(pool: object, seed: int) -> None:
        opened(pool, seed)
        backend.pool[:] += 1

    monkeypatch.setattr(backend, "open", spoiled)
    with pytest.raises(RuntimeError, match="wrong words were read"):
        calibrate(backend, Plan(quick=True, extent=READS))
    assert backend.pool is None


def test_wrong_scores_are_found(device, monkeypatch):
    module, _ = device()
    right = module.reference.page_scores
    monkeypatch.setattr(module.reference, "page_scores", lambda pages: right(pages) + 1)
    with pytest.raises(RuntimeError, match=r"wrong words were read.*score_pages"):
        calibrate(module.DeviceBackend(0, lambda _: None), Plan(quick=True, extent=READS))


def test_memory_that_does_not_hold_what_was_written_is_found(device, monkeypatch):
    module, _ = device()
    backend = module.DeviceBackend(0, lambda _: None)
    launch = backend.launch

    def forgets(name: str, grid: int, *arguments: object) -> None:
        if name != "fill":
            launch(name, grid, *arguments)

    monkeypatch.setattr(backend, "launch", forgets)
    with pytest.raises(RuntimeError, match="does not hold what was written"):
        calibrate(backend, Plan(quick=True, extent=TINY))


def test_memory_that_cannot_be_had_is_halved(device):
    module, _ = device(largest=2 * 2**20)
    backend = module.DeviceBackend(0, lambda _: None)
    pool = run._take_pool(backend, Plan(quick=True, extent=TINY), TINY)  # noqa: SLF001 - a whole run takes longer
    assert 2**20 <= pool.pages * 8448 <= 2 * 2**20
    backend.close()


def test_a_launch_that_fails_ends_the_capture(device, monkeypatch):
    module, fake = device()
    backend = module.DeviceBackend(0, lambda _: None)
    launch, streams = backend.launch, []

    def failing(name: str, grid: int, *arguments: object) -> None:
        if fake.stream is not None and fake.stream.captured is not None:
            streams.append(fake.stream)
            raise RuntimeError("launch failed")
        launch(name, grid, *arguments)

    monkeypatch.setattr(backend, "launch", failing)
    with pytest.raises(RuntimeError, match="launch failed"):
        calibrate(backend, Plan(quick=True, extent=TINY))
    assert streams[0].captured is None


@pytest.mark.parametrize(
    ("knobs", "number", "said"),
    [
        ({"driver": 0}, 0, "an NVIDIA driver; `--device cpu`"),
        ({"driver": 12_080}, 0, "driver: '12.8': expected a driver for CUDA 13.*or the extra gpu12"),
        ({"count": 2}, 2, "gpu:2.*one of the 2 GPUs"),
    ],
)
def test_what_is_in_the_way_is_one_line(device, knobs, number, said):
    module, _ = device(**knobs)
    with pytest.raises(BadInput, match=said):
        module.DeviceBackend(number, lambda _: None)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (smi.Gpu(mig=True), "a whole GPU"),
        (smi.Gpu(others=("python (pid 7)",)), r"python \(pid 7\).*an idle GPU"),
    ],
)
def test_a_shared_gpu_is_refused(device, monkeypatch, gpu, said):
    module, _ = device()
    monkeypatch.setattr(smi, "query", lambda _: gpu)
    with pytest.raises(BadInput, match=said):
        module.DeviceBackend(0, lambda _: None)


def test_a_temporary_folder_that_cannot_be_written_is_one_line(device, monkeypatch):
    def refuses() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    module, _ = device()
    monkeypatch.setattr("tempfile.TemporaryDirectory", refuses)
    with pytest.raises(
        BadInput, match=r"TMPDIR: .*: expected a folder that can be written: No usable temporary directory"
    ):
        module.DeviceBackend(0, lambda _: None)


def test_an_older_gpu_is_refused(device):
    module, fake = device()
    fake.properties["major"] = 8
    with pytest.raises(BadInput, match=r"compute_capability: 8\.0: expected 9\.0 or newer"):
        module.DeviceBackend(0, lambda _: None)


def test_kernels_that_lost_their_loads_are_refused(device, built, monkeypatch):
    module, _ = device()
    registers, spilled = built.registers | {"read_pages": 24}, built.spilled_bytes | {"fill": 8}
    poor = build.Built(built.cubin, registers, spilled, built.nvrtc)
    monkeypatch.setattr(build, "build", lambda _, **__: poor)
    with pytest.raises(BadInput, match="loads in flight") as bad:
        module.DeviceBackend(0, lambda _: None)
    assert {fault.path for fault in bad.value.faults} == {"kernel.read_pages", "kernel.fill"}


def test_real_cupy_says_that_there_is_no_driver():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("needs cupy")
    code = "from calib.device import device_count; device_count()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=build.SOURCE.parents[1]
    )
    if done.returncode == 0:
        pytest.skip("no GPU is missing here: this test is for machines without one")
    assert "an NVIDIA driver; `--device cpu` measures the CPU's memory instead" in done.stderr


SMI = {
    "gpu": "GPU-abc, 580.65, 143771, Enabled, Disabled\n",
    "compute-apps": "11, python\n22, /usr/bin/server, with comma\n",
}


def test_what_nvidia_smi_says_is_read(monkeypatch):
    def answer(words: list[str], **_: object) -> types.SimpleNamespace:
        what = words[1].removeprefix("--query-").partition("=")[0]
        return types.SimpleNamespace(stdout=SMI[what])

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setattr("os.getpid", lambda: 11)
    found = smi.query("0000:0A:00.0")
    assert found == smi.Gpu(
        "GPU-abc", "580.65", 143_771 * 2**20, ecc=True, mig=False, others=("/usr/bin/server, with comma (pid 22)",)
    )
    monkeypatch.setitem(SMI, "gpu", "1980, 3201, 123.45, 41, 0x0000000000000000\n")
    state = smi.state("x")
    assert (state.sm_mhz, state.memory_mhz, state.power_w, state.temperature_c) == (1980, 3201, 123.45, 41)


@pytest.mark.parametrize("failure", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_without_nvidia_smi_nothing_is_known(monkeypatch, failure):
    def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", fails)
    assert smi.query("x") == smi.Gpu()
    assert smi.state("x") == smi.State()
