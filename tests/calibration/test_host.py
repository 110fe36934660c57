"""The CPU backend, with numpy and with torch: the same protocol on memory that is really there."""

from __future__ import annotations

import numpy as np
import pytest

from calib import cases, plan
from calib.host import HostBackend
from calib.reference import page_scores
from calib.run import Extent, Plan, calibrate
from dsa_ledger.errors import BadInput

TINY = Extent(
    pool_bytes=70 * 2**20,
    tokens=4096,
    grid=((1, 4096), (2, 4096)),
    scan_tokens=(1024, 2048, 4096),
    replays=3,
    replay_bytes=4 * 2**20,
    seconds=0,  # one try: noise is judged elsewhere
)
POOL = cases.Pool(tensors=2, tensor_pages=200)


@pytest.fixture(params=["numpy", "torch"])
def backend(request):
    if request.param == "numpy":
        yield HostBackend("numpy")
        return
    torch = pytest.importorskip("torch", reason="needs torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a machine that others use, two threads wait for each other
    yield HostBackend("torch")
    torch.set_num_threads(threads)


def test_a_whole_run_on_this_machine(backend):
    profile = calibrate(backend, Plan(quick=True, extent=TINY))
    assert profile.hardware.kind == "cpu"
    assert "never used for a GPU estimate" in profile.label
    assert profile.hardware.peak_bytes_per_s is None
    assert {shape.eta for shape in profile.fits.shapes} == {None}
    kernels = {case.kernel for case in profile.cases}
    assert {"read_pages", "read_straight", "copy", "score_pages", "scan_rows", "gather_576"} <= kernels
    assert all(case.verified for case in profile.cases)
    assert backend.pool.size == 0


@pytest.mark.parametrize("kind", ["paged", "straight", "scan", "gather", "score"])
def test_what_is_read_is_checked(backend, kind):
    """A pool that changes between the reading and the checking is found, whatever the kernel."""
    backend.open(POOL, 1)
    tables = plan.rotation(plan.scattered(200, 1), [3000, 200], tensors=2, most=3)
    straight = plan.rotation(plan.contiguous(200), [3000], tensors=2, most=3)
    work = {
        "paged": lambda: cases.paged("grid", "read_pages", "runs-1", tables),
        "score": lambda: cases.paged("score", "score_pages", "runs-1", tables),
        "straight": lambda: cases.paged("ceiling", "read_straight", "contiguous", straight),
        "scan": lambda: cases.scan_works(POOL, ["scan_rows"], 4096, 3)[0],
        "gather": lambda: cases.gather_works(POOL, 2, 3, 1)[1],
    }[kind]()
    loaded = backend.load(work)
    assert loaded.verified()
    assert loaded.replay() > 0
    expected = loaded._expected  # noqa: SLF001 - what the check compares with
    loaded._expected = lambda: expected() + 1  # noqa: SLF001 - as above
    assert not loaded.verified()


def test_a_buffer_holds_the_pages_asked_for(backend):
    backend.open(POOL, 1)
    numbers = np.array([17, 3, 399], dtype=np.int64)
    out = np.empty((3, plan.PAGE_BYTES // 4), dtype=np.uint32)
    backend.chunk_reader(backend.pool, numbers, out)()
    np.testing.assert_array_equal(out, backend.pool[[17, 3, 399]])


def test_the_pool_is_never_zero(backend):
    backend.open(POOL, 1)
    assert backend.pool.any(axis=1).all()
    assert len(np.unique(backend.pool[0])) > 2000


def test_scores_by_hand():
    page = np.zeros((1, 2112), dtype=np.uint32)
    page[0, 32] = 0x12340005  # the second key's first word: its low half counts
    page[0, 63] = 0xFFFF0002
    page[0, 2048 + 1] = 0xFFFFFFFA  # its scale: low bits 2, so times 3
    assert page_scores(page)[0, :3].tolist() == [0.0, 21.0, 0.0]


@pytest.mark.parametrize("library", ["jax", "gpu"])
def test_an_unknown_library_is_refused(library):
    with pytest.raises(BadInput, match="cpu:torch or cpu:numpy"):
        HostBackend(library)


def test_without_torch_numpy_serves(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert HostBackend().software.backend.startswith("numpy ")
    with pytest.raises(BadInput, match="pip install"):
        HostBackend("torch")
