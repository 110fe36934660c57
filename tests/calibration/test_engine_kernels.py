"""The engines' kernels by stand-ins: what they are called with, what is absent, what goes wrong. No GPU, no time."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from calib import engine_kernels, plan
from calib.cases import Pool
from calib.engine_kernels import find
from calib.run import Extent, Plan, calibrate

torch = pytest.importorskip("torch")
POOL = Pool(tensors=2, tensor_pages=64)
TOKENS = 512


@pytest.fixture
def memory():
    words = np.random.default_rng(1).integers(0, 2**32, POOL.pages * plan.PAGE_BYTES // 4, dtype=np.uint32)
    return words.view(np.uint8)


@pytest.fixture
def called(monkeypatch):
    """Put stand-ins where the engines' modules would be; return what each function was called with."""
    calls: dict[str, list[tuple]] = {}

    def stand_in(module: str, **functions: object) -> None:
        found = types.ModuleType(module)
        for name, answer in functions.items():

            def function(*given: object, name: str = name, answer: object = answer, **_: object) -> object:
                calls.setdefault(name, []).append(given)
                return answer(*given) if callable(answer) else answer

            setattr(found, name, function)
        monkeypatch.setitem(sys.modules, module, found)

    stand_in("deep_gemm", get_paged_mqa_logits_metadata="schedule", fp8_paged_mqa_logits=None)
    stand_in("sgl_kernel", fast_topk_v2=lambda scores, _, count: torch.topk(scores, min(count, TOKENS)))
    stand_in("vllm")
    stand_in("vllm._custom_ops", top_k_per_row_decode=None)
    stand_in("flash_mla", flash_mla_sparse_fwd=None)
    return calls


def test_where_nothing_is_installed_each_is_named_as_absent(memory):
    found = find(POOL, memory, tokens=TOKENS, most=2, units=132)
    assert (found.works, found.ready) == ((), {})
    assert found.absent == (
        "deep_gemm.fp8_paged_mqa_logits: absent",
        "sgl_kernel.fast_topk_v2: absent",
        "vllm._custom_ops.top_k_per_row_decode: absent",
        "flash_mla.flash_mla_sparse_fwd: absent",
    )


def test_each_kernel_sees_our_pages_and_tables_without_a_copy(memory, called):
    find(POOL, memory, tokens=TOKENS, most=2, units=132)
    query, pages, weights, lengths, table, schedule, longest = called["fp8_paged_mqa_logits"][0]
    assert tuple(pages.shape) == (POOL.pages, 64, 1, 132)
    assert pages.data_ptr() == memory.ctypes.data
    assert (tuple(query.shape), query.dtype, tuple(weights.shape)) == ((4, 1, 32, 128), torch.float8_e4m3fn, (4, 32))
    assert (lengths.tolist(), schedule, longest) == ([[TOKENS]] * 4, "schedule", TOKENS)
    assert table.tolist() == np.arange(4 * 8).reshape(4, 8).tolist()  # contiguous, 8 pages a row
    assert called["get_paged_mqa_logits_metadata"][0][1:] == (64, 132)
    tied, separated = (scores for scores, _, count in called["fast_topk_v2"][:2] if count == 2048)
    assert len(tied.unique()) == 1
    assert len(separated.unique()) > TOKENS
    scores, following, *_, rows, stride, step, count = called["top_k_per_row_decode"][0]
    assert (tuple(scores.shape), following, rows, stride, step, count) == ((4, TOKENS), 1, 4, TOKENS, 1, 2048)
    _, records, picks, _ = called["flash_mla_sparse_fwd"][0]
    assert (records.dtype, tuple(records.shape)[1:], tuple(picks.shape)) == (torch.bfloat16, (1, 576), (4, 1, 2048))
    assert records.data_ptr() == memory.ctypes.data
    assert 0 <= int(picks.min()) <= int(picks.max()) < len(records)


def test_cases_are_labelled_by_package_and_version_and_replayed(memory, called, monkeypatch):
    versions = {"sgl-deep-gemm": "0.1.2", "vllm": "0.24.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise engine_kernels.metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(engine_kernels.metadata, "version", version)
    monkeypatch.setattr(engine_kernels, "queued_s", lambda _, launches: sum(2.0 for launch in launches if not launch()))
    found = find(POOL, memory, tokens=TOKENS, most=2, units=132)
    assert [(work.kernel, work.order) for work in found.works] == [
        ("sgl-deep-gemm-0.1.2:fp8_paged_mqa_logits", "contiguous"),
        ("sgl_kernel-of-unknown-version:fast_topk_v2", "tied"),
        ("sgl_kernel-of-unknown-version:fast_topk_v2", "separated"),
        ("vllm-0.24.0:top_k_per_row_decode", "tied"),
        ("vllm-0.24.0:top_k_per_row_decode", "separated"),
        ("flash_mla-of-unknown-version:flash_mla_sparse_fwd", "random"),
    ]
    assert [work.read_bytes for work in found.works] == [4 * 8 * 8448, *[4 * 4 * TOKENS] * 4, 4 * 2048 * 1152]
    one = found.ready[found.works[0].key]
    before = len(called["fp8_paged_mqa_logits"])
    assert one.replay() == 2.0
    assert len(called["fp8_paged_mqa_logits"]) == before + 2  # two launches, each with a table of its own
    one.release()
    assert one.launches == []


@pytest.mark.usefixtures("called")
def test_one_that_fails_says_so_and_the_rest_is_measured(memory, monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("expected next_n\nand a stack")

    monkeypatch.setattr(sys.modules["deep_gemm"], "fp8_paged_mqa_logits", refuses)
    monkeypatch.delattr(sys.modules["flash_mla"], "flash_mla_sparse_fwd")
    found = find(POOL, memory, tokens=TOKENS, most=1, units=132)
    assert len(found.works) == 4
    assert found.absent[0] == "deep_gemm.fp8_paged_mqa_logits: not timed: RuntimeError: expected next_n"
    assert found.absent[1].startswith("flash_mla.flash_mla_sparse_fwd: not timed: AttributeError")


def test_a_full_run_names_what_is_absent_and_a_quick_one_does_not_look():
    made_up = __import__("made_up")
    extent = Extent(70 << 20, 4096, ((1, 4096),), (8192, 16_384, 32_768), 3, 4 << 20, 3)
    assert calibrate(made_up.Box(), Plan(quick=False, extent=extent)).absent == (
        "deep_gemm.fp8_paged_mqa_logits: absent",
    )
    assert "not looked for" in calibrate(made_up.Box(), Plan(quick=True, extent=extent)).absent[0]
