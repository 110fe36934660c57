"""Page tables: every page is dealt once, in the order asked for; fragmentation in numbers; a dumped table replayed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib import cases, plan
from calib.fragments import fragmentation, load_block_table
from dsa_ledger.errors import BadInput

PAGES = st.integers(1, 300)
SEEDS = st.integers(0, 1000)


def test_a_page_is_what_the_kernels_of_deepgemm_read():
    """deepseek-ai/DeepGEMM@54e22612 tests/test_attention.py: 64 tokens, 128 B of fp8 keys each, then 64 fp32 scales."""
    assert (plan.PAGE_TOKENS, plan.PAGE_BYTES) == (64, 8448)
    assert plan.POISON * plan.PAGE_BYTES > 18e12


@given(pages=PAGES, run=st.integers(1, 50), stride=st.integers(1, 50), seed=SEEDS)
def test_every_order_hands_out_every_page_once(pages, run, stride, seed):
    """An order is a permutation of the pool, whatever its kind."""
    orders = [plan.contiguous(pages), plan.backwards(pages), plan.runs(pages, run, seed), plan.scattered(pages, seed)]
    for order in [*orders, plan.strided(pages, stride)]:
        assert sorted(order) == list(range(pages))


@given(pages=PAGES, run=st.integers(1, 50), seed=SEEDS)
def test_runs_stay_together(pages, run, seed):
    """Within a run, the next page follows the one before; runs begin on multiples of their length."""
    order = plan.runs(pages, run, seed).tolist()
    for before, after in pairwise(order):
        assert after == before + 1 or after % run == 0


@given(
    tokens=st.lists(st.integers(1, 500), min_size=1, max_size=6),
    interleaved=st.booleans(),
    shared=st.integers(0, 8),
    seed=SEEDS,
)
def test_a_deal_gives_each_row_its_own_pages_and_poisons_the_rest(tokens, interleaved, shared, seed):
    """No page has two owners but those of the shared prefix; unused entries are POISON; rows hold their tokens."""
    shared = min(shared, *map(plan.pages_of, tokens))
    order = plan.scattered(80, seed)
    table = plan.deal(order, tokens, interleaved=interleaved, shared_pages=shared)
    own = [page for row in table.rows() for page in row[shared:]]
    assert len(set(own)) == len(own)
    assert set(own).isdisjoint(order[:shared])
    for row, entries, count in zip(table.pages, table.rows(), tokens, strict=True):
        assert len(entries) == -(-count // 64)
        assert (row[len(entries) :] == plan.POISON).all()
        assert list(entries[:shared]) == list(order[:shared])
        assert plan.POISON not in entries
    assert table.read_bytes == 8448 * sum(-(-count // 64) for count in tokens)


def test_dealing_by_hand():
    order = np.array([5, 3, 8, 1, 0, 2])
    X = plan.POISON  # noqa: N806 - short, so that the tables stay readable
    assert plan.deal(order, [128, 65, 64]).pages.tolist() == [[5, 3], [8, 1], [0, X]]
    assert plan.deal(order, [128, 65, 64], interleaved=True).pages.tolist() == [[5, 1], [3, 0], [8, X]]
    assert plan.deal(order, [192, 65], shared_pages=1).pages.tolist() == [[5, 3, 8], [5, 1, X]]
    assert plan.moved(plan.deal(order, [64, 65]), 100).pages.tolist() == [[105, X], [103, 108]]


@pytest.mark.parametrize(("tokens", "shared"), [([6 * 64 + 1], 0), ([0], 0), ([64], 2), ([128, 384], 1)])
def test_a_deal_that_cannot_be_is_refused(tokens, shared):
    with pytest.raises(BadInput):
        plan.deal(plan.contiguous(6), tokens, shared_pages=shared)


@given(
    tokens=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    tensors=st.integers(1, 5),
    most=st.integers(1, 12),
    seed=SEEDS,
)
def test_a_rotation_reads_no_page_twice(tokens, tensors, most, seed):
    """Tables of one rotation are disjoint, at most `most`, and tensor after tensor has the same table."""
    tables = plan.rotation(plan.scattered(60, seed), tokens, tensors=tensors, most=most)
    pages = [page for table in tables for row in table.rows() for page in row]
    assert len(set(pages)) == len(pages)
    assert max(pages) < 60 * tensors
    assert len(tables) == min(most, tensors * (60 // sum(map(plan.pages_of, tokens))))
    for number, table in enumerate(tables[:tensors]):
        assert [row.tolist() for row in table.rows()] == [(row + 60 * number).tolist() for row in tables[0].rows()]


@given(units=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), shares=st.integers(1, 12))
def test_shares_and_slots_agree_with_counting(units, shares):
    """Each unit is in one share; a share starts in its first unit's row; no two pairs have one slot."""
    row_of = [row for row, count in enumerate(units) for _ in range(count)]
    first, slots = plan.first_rows(units, shares), plan.slot_rows(units, shares)
    pairs = set()
    for share in range(shares):
        mine = row_of[len(row_of) * share // shares : len(row_of) * (share + 1) // shares]
        if mine:
            assert first[share] == mine[0]
        pairs |= {(share, row) for row in mine}
    assert {share + row: row for share, row in pairs} == {slot: row for slot, row in enumerate(slots) if row >= 0}
    assert len({share + row for share, row in pairs}) == len(pairs)
    assert plan.first_units(units).tolist() == [sum(units[:row]) for row in range(len(units) + 1)]


@given(pages=st.integers(2, 400), seed=SEEDS)
def test_fragmentation_by_counting(pages, seed):
    """The numbers are those of a walk through the table, entry by entry."""
    run = 1 + seed % 7
    table = plan.deal(plan.runs(500, run, seed), [pages * 64])
    entries = table.rows()[0].tolist()
    breaks = sum(after != before + 1 for before, after in pairwise(entries))
    touched = {byte // 2**21 for page in entries for byte in (page * 8448, page * 8448 + 8447)}
    found = fragmentation(table)
    assert found.mean_run_pages == pytest.approx(pages / (breaks + 1))
    assert found.adjacent_share == pytest.approx(1 - breaks / (pages - 1))
    assert found.large_pages_ratio == pytest.approx(len(touched) / -(-pages * 8448 // 2**21))
    assert found.span_ratio == pytest.approx((max(entries) - min(entries) + 1) / pages)


def test_fragmentation_of_the_plain_cases():
    straight = fragmentation(plan.deal(plan.contiguous(1000), [64_000]))
    assert (straight.mean_run_pages, straight.adjacent_share, straight.span_ratio) == (1000, 1, 1)
    assert straight.large_pages_ratio == pytest.approx(5 / 5)  # 8,448,000 B: five pages of 2 MiB
    back = fragmentation(plan.deal(plan.backwards(1000), [64_000]))
    assert (back.mean_run_pages, back.adjacent_share, back.span_ratio) == (1, 0, 1)
    every_248th = fragmentation(plan.deal(plan.strided(248 * 20, 248), [64 * 20]))
    assert every_248th.large_pages_ratio == 19  # 2,095,104 B apart, nearly one 2-MiB page each; all would fit one
    shared = fragmentation(plan.deal(plan.contiguous(30), [640, 640], shared_pages=10))
    assert shared.distinct_pages == 10


@given(rows=st.integers(1, 40), mean=st.integers(4, 5000), seed=SEEDS)
def test_ragged_rows_stay_within_their_bounds(rows, mean, seed):
    """From a quarter to seven quarters of the mean."""
    lengths = plan.ragged(rows, mean, seed)
    assert len(lengths) == rows
    assert mean // 4 <= min(lengths)
    assert max(lengths) <= mean * 7 // 4


def test_a_dumped_table_is_replayed(tmp_path):
    numpy_file = tmp_path / "table.npy"
    np.save(numpy_file, np.array([[7, 8, 9, 0], [3, -1, -1, -1], [0, 0, 0, 0]], dtype=np.int32))
    table = load_block_table(numpy_file, 10)
    assert [row.tolist() for row in table.rows()] == [[7, 8, 9], [3]]
    assert table.tokens == (192, 64)
    np.save(numpy_file, np.array([4, 5], dtype=np.int64))
    assert load_block_table(numpy_file).pages.tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (np.array([[1.5, 2.0]]), "whole numbers"),
        (np.zeros((2, 2), dtype=np.int32), "at least one row"),
        (np.array([[1, 0, 2]]), "above 0 up to its end"),
        (np.array([[1, -3, 2]]), "above 0 up to its end"),
        (np.array([[1, 10]]), "below 10"),
        (np.array([[2**31]]), "below 2,147,483,647"),
        (np.zeros((1, 1, 1), dtype=np.int32), "one row a request"),
        (np.array([{}]), "a .npy file"),
    ],
)
def test_a_bad_table_is_refused_with_its_reason(tmp_path, entries, expected):
    path = tmp_path / "table.npy"
    np.save(path, entries, allow_pickle=True)
    with pytest.raises(BadInput, match=expected):
        load_block_table(path, 10)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"text", b"PK\x03\x04zip"])
def test_a_file_that_is_no_array_is_refused(tmp_path, content):
    (tmp_path / "table.npy").write_bytes(content)
    with pytest.raises(BadInput, match="block-table"):
        load_block_table(tmp_path / "table.npy")
    with pytest.raises(BadInput, match="No such file"):
        load_block_table(tmp_path / "absent.npy")


def test_every_case_has_a_key_of_its_own_and_stays_in_the_pool():
    pool = cases.Pool(tensors=3, tensor_pages=2000)
    works = cases.fragmentation_works(pool, ("read_pages", "read_pages_bulk"), 30_000, 6, 1)
    works += cases.grid_works(pool, "read_pages", [(1, 4096), (4, 16_384), (64, 1_000_000)], 6, 1)
    works += cases.ceiling_works(pool, 30_000, 6, ["read_straight"]) + cases.score_works(pool, 30_000, 6)
    works += cases.scan_works(pool, ["scan_rows"], 1024, 4) + cases.scan_works(pool, ["scan_rows"], 2**20, 4)
    works += cases.gather_works(pool, 2, 3, 1)
    assert cases.scan_works(pool, ["scan_rows"], 2**24, 4) == []
    assert len({work.key for work in works}) == len(works)
    for work in works:
        for table in work.tables:
            assert max(int(row.max()) for row in table.rows()) < pool.pages
        for start in work.row_starts:
            assert start % 16 == 0
            assert start + 4 * work.tokens <= pool.pages * plan.PAGE_BYTES
        for picks in work.picks:
            assert (int(picks.max()) + 1) * int(work.kernel.rpartition("_")[2]) <= pool.pages * plan.PAGE_BYTES
        assert work.launches > 0
    assert not any(work.tokens == 1_000_000 for work in works), "a shape that the pool cannot hold"
    by_order = {work.order: work for work in works if work.group == "fragmentation" and work.kernel == "read_pages"}
    assert by_order["runs-16"].fragmentation["mean_run_pages"] == pytest.approx(16, rel=0.1)
    score = next(work for work in works if work.group == "score")
    assert score.write_bytes == 4 * 64 * (score.read_bytes // 8448)
