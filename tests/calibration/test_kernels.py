"""The kernels: built by NVRTC for each GPU, and the same text run on the CPU against numpy and torch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import kernel_host
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib import build, plan
from dsa_ledger.errors import BadInput

ARCHITECTURES = ["sm_90", "sm_100", "sm_103"]
PAGED = ("read_pages", "read_pages_bulk", "score_pages")
CASES = 8  # of random tables, for a kernel that is wrong on purpose


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> kernel_host.Host:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    library = tmp_path_factory.mktemp("kernels") / "kernels.so"
    kernel_host.compile_for_host(build.SOURCE, library, level=1)
    return kernel_host.Host(library)


@pytest.fixture
def nvrtc() -> None:
    if build.find_nvrtc() is None:
        pytest.skip("needs the wheel nvidia-cuda-nvrtc")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_paged_reads_equal_numpy(host, seed):
    """Whatever the rows, the page order and the number of CTAs, a row's checksum is the sum of its pages' words."""
    kernel_host.check_reads(host, seed, PAGED[:2])


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_equal_numpy_bit_by_bit(host, seed):
    """A score-like value is exact in fp32, is written for every token of a whole page, and nowhere else."""
    kernel_host.check_reads(host, seed, ("score_pages",))


def test_scores_and_sums_equal_torch(host):
    torch = pytest.importorskip("torch", reason="needs torch")
    table = plan.deal(plan.scattered(host.pool_pages, 3), [700, 64, 1])
    pages = torch.from_numpy(host.pool).view(torch.int32).reshape(-1, plan.PAGE_BYTES // 4)
    unsigned = pages.to(torch.int64) & 0xFFFFFFFF
    for row, wanted, scores in zip(table.rows(), host.expected(table), host.scores(table), strict=True):
        mine = unsigned[torch.from_numpy(row.astype(np.int64))]
        assert int(mine.sum()) == int(wanted)
        keys = (mine[:, :2048].reshape(-1, 64, 32) & 0xFFFF).sum(dim=2)
        np.testing.assert_array_equal((keys * ((mine[:, 2048:] & 7) + 1)).to(torch.float32).reshape(-1).numpy(), scores)


@given(rows=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), shares=st.integers(1, 9))
@settings(max_examples=20)
def test_a_read_without_a_table_sums_neighbouring_pages(host, rows, shares):
    """C reads page after page from where it is told, and its rows are those pages in order."""
    first = 7
    got = host_straight(host, rows, shares, first)
    sums, start = host.page_sums(), first
    for count, found in zip(rows, got, strict=True):
        assert found == sums[start : start + count].sum(dtype=np.uint64)
        start += count


def host_straight(host: kernel_host.Host, rows: list[int], shares: int, first: int) -> np.ndarray:
    slots = np.zeros((shares + len(rows), build.WARPS), dtype=np.uint64)
    begin = host.pool[first * plan.PAGE_BYTES :]
    host.call("read_straight", shares, begin, plan.first_units(rows), plan.first_rows(rows, shares), len(rows), slots)
    of = plan.slot_rows(rows, shares)
    return np.array([slots[of == row].sum(dtype=np.uint64) for row in range(len(rows))])


@pytest.mark.parametrize(("kernel", "ctas"), [("scan_rows", 1), ("scan_rows_cluster", build.CLUSTER)])
@pytest.mark.parametrize("tokens", [4, 64, 4096, 65_536 + 64, 200_000])
def test_a_scan_reads_its_row_twice(host, kernel, ctas, tokens):
    rows, stride = 2, tokens + 64
    keys = kernel_host.aligned(rows * stride * 4).view(np.uint32).reshape(rows, stride)
    keys[:] = kernel_host.hashed(rows * stride, 5).reshape(rows, stride)
    slots = np.zeros((rows * ctas, build.SCAN_WARPS), dtype=np.uint64)
    host.call(kernel, rows * ctas, keys, stride, tokens, slots)
    threads = ctas * build.SCAN_WARPS * 32
    for row in range(rows):
        wanted = int(keys[row, :tokens].sum(dtype=np.uint64))
        vectors = keys[row, :tokens].reshape(-1, 4) >> 24
        for thread in range(min(threads, len(vectors))):
            mine = vectors[thread::threads]
            wanted += int((mine == mine.max()).sum())
        assert int(slots[row * ctas : (row + 1) * ctas].sum(dtype=np.uint64)) == wanted


@pytest.mark.parametrize("record_bytes", [576, 656, 1152])
@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 40)), shares=st.integers(1, 7), seed=st.integers(0, 99))
@settings(max_examples=12)
def test_a_gather_sums_the_records_picked(host, record_bytes, shape, shares, seed):
    """G adds up exactly the records at the given positions, in units of GROUP."""
    rows, groups = shape
    records = host.pool[: len(host.pool) // record_bytes * record_bytes].view(np.uint32).reshape(-1, record_bytes // 4)
    picks = np.random.default_rng(seed).integers(0, len(records), (rows, groups * build.GROUP), dtype=np.int32)
    got = host.sums(f"gather_{record_bytes}", [groups] * rows, shares, host.pool, picks, picks.shape[1])
    np.testing.assert_array_equal(got, [records[row].sum(dtype=np.uint64) for row in picks])


@pytest.mark.parametrize("words", [1, 1000, 40_000])
def test_fill_writes_a_hash_and_no_more(host, words):
    pool = kernel_host.aligned(4 * (words + 8)).view(np.uint32)
    host.call("fill", 3, pool, words, 77)
    np.testing.assert_array_equal(pool[:words], kernel_host.hashed(words, 77))
    assert not pool[words:].any()
    assert len(set(pool[:words].tolist())) == words  # a bijection of 32 bits: no two alike, at most one zero


WRONG = {
    "one page too far": ("read_pages", "(u64)next * PAGE_BYTES", "(u64)(next + 1) * PAGE_BYTES"),
    "the row's stride forgotten": ("read_pages", "table + row * table_stride", "table + row"),
    "a page read short": ("read_pages", "batch * 8 + i) * 512", "batch * 7 + i) * 512"),
    "the scales left out": ("read_pages", "return sum + words(tail)", "return sum"),
    "shares that overlap": ("read_pages", "all * (blockIdx.x + 1) / gridDim.x", "all"),
    "slots that two rows share": ("read_pages", "(blockIdx.x + (u64)row) * WARPS", "((u64)blockIdx.x) * WARPS"),
    "32-bit words added in 32 bits": ("read_pages", "(u64)v.x + v.y", "v.x + v.y"),
    "a stage refilled while it is read": ("read_pages_bulk", "__syncthreads();  // all", "// all"),
    "a wait for the wrong phase": ("read_pages_bulk", "(at - begin) / STAGES) & 1u", "(at - begin) / STAGES) & 0u"),
    "a ring shorter by one": ("read_pages_bulk", "end) copy(at + STAGES)", "end) copy(at + STAGES - 1)"),
    "copies that miss a row's end": ("read_pages_bulk", "while (at >= first_unit[ahead_row + 1]) ahead_row++;", ""),
    "keys of two lanes exchanged": ("score_pages", "(lane % 8) * 4 + lane / 8", "(lane % 4) * 8 + lane / 4"),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(host, tmp_path_factory) -> dict[str, str]:
    """Build every wrong kernel, run each, and the right ones by their names; a wrong address may end a process."""
    folder = tmp_path_factory.mktemp("wrong")
    kernel_host.precompile(folder)
    libraries = {kernel: (kernel, Path(host.library._name)) for kernel in PAGED}  # noqa: SLF001 - its path
    for number, (what, (kernel, right, wrong)) in enumerate(WRONG.items()):
        text = build.kernel_source()
        assert text.count(right) >= 1, f"the mutation no longer fits the source: {what}"
        source, libraries[what] = folder / f"{number}.cu", (kernel, folder / f"{number}.so")
        source.write_text(text.replace(right, wrong), encoding="utf-8")
        kernel_host.compile_for_host(source, libraries[what][1], strict=False)
    words = [f"{kernel}={library}" for kernel, library in libraries.values()]
    script, root = Path(kernel_host.__file__), Path(build.__file__).parents[1]
    command = [sys.executable, str(script), str(CASES), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=240, cwd=root, env={"PYTHONPATH": str(root)}
    )
    return dict(zip(libraries, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kernel_fails(what, outcomes):
    assert outcomes[what] != f"failed 0 of {CASES}"


def test_the_right_kernels_pass_where_the_wrong_ones_fail(outcomes):
    assert {outcomes[kernel] for kernel in PAGED} == {f"failed 0 of {CASES}"}


def test_the_numbers_python_launches_with_are_those_of_the_source():
    text = build.kernel_source()
    defined = {name: value.strip() for name, value in re.findall(r"#define (\w+) +([^/\n]+)", text)}
    assert int(defined["WARPS"]) == build.WARPS
    assert int(defined["SCAN_WARPS"]) == build.SCAN_WARPS
    assert int(defined["CLUSTER"]) == build.CLUSTER
    assert int(defined["GROUP"]) == build.GROUP
    assert int(defined["PAGE_BYTES"].removesuffix("ULL")) == plan.PAGE_BYTES
    assert int(defined["STAGES"]) * (plan.PAGE_BYTES + 8) == build.RING_BYTES
    assert build.RING_BYTES * build.KERNELS["read_pages_bulk"].blocks_per_sm <= 227 * 2**10  # of one SM, 9.0 to 10.3


def test_the_source_includes_nothing():
    assert "#include" not in build.kernel_source()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.usefixtures("nvrtc")
def test_every_kernel_builds_with_its_loads_in_flight(architecture):
    built = build.build(architecture)
    assert built.cubin[:4] == b"\x7fELF"
    assert set(built.registers) == set(build.KERNELS)
    complaints = {
        name: kernel.complaints(built.registers[name], built.spilled_bytes[name])
        for name, kernel in build.KERNELS.items()
    }
    assert {name: found for name, found in complaints.items() if found} == {}


@pytest.mark.usefixtures("nvrtc")
def test_a_build_that_spills_or_serialises_its_loads_is_found():
    """More blocks on an SM than the registers allow: the compiler gives up the batch, or spills it."""
    tight = build.build(
        "sm_90", build.kernel_source().replace("__launch_bounds__(WARPS * 32, 3)", "__launch_bounds__(WARPS * 32, 8)")
    )
    for name in ("read_pages", "read_straight"):
        assert build.KERNELS[name].complaints(tight.registers[name], tight.spilled_bytes[name])


@pytest.mark.usefixtures("nvrtc")
def test_what_the_compiler_says_reaches_the_user():
    with pytest.raises(BadInput, match="nonsense"):
        build.build("sm_90", "nonsense")


def test_nvrtc_is_the_newest_that_the_driver_understands(monkeypatch):
    twelve, thirteen = Path("cuda_nvrtc/lib/libnvrtc.so.12"), Path("cu13/lib/libnvrtc.so.13")
    monkeypatch.setattr(build, "_libraries", lambda: iter([twelve, thirteen]))
    assert build.find_nvrtc() == thirteen
    assert build.find_nvrtc(13) == thirteen
    assert build.find_nvrtc(12) == twelve
    assert build.find_nvrtc(11) is None


def test_without_nvrtc_there_is_one_line(monkeypatch):
    monkeypatch.setattr(build, "find_nvrtc", lambda _: None)
    with pytest.raises(BadInput, match=r"nvrtc: absent: .*pip install"):
        build.build("sm_90")


@pytest.mark.parametrize(
    ("registers", "local_bytes", "complaint"),
    [(32, 0, "at least 36"), (90, 0, "at most 85"), (80, 8, "spilled")],
)
def test_complaints_name_what_is_wrong(registers, local_bytes, complaint):
    assert any(complaint in line for line in build.READ.complaints(registers, local_bytes))
    assert build.READ.complaints(80, 0) == []
