"""The protocol, on memory that is a formula, and on the CPU's own."""

from __future__ import annotations

import re

import made_up
import numpy as np
import pytest
from made_up import Box

from calib import plan, report
from calib.run import EXTENTS, Extent, Plan, calibrate
from dsa_ledger.errors import BadInput

MIB = 2**20
SMALL = Extent(
    pool_bytes=300 * MIB,
    tokens=65_536,
    grid=((1, 4096), (4, 8192), (64, 2**20)),
    scan_tokens=(32_768, 65_536, 131_072),
    replays=6,
    replay_bytes=40 * MIB,
    seconds=60,
)


@pytest.fixture(scope="module")
def profile():
    return calibrate(Box(), Plan(quick=True, extent=SMALL))


def test_the_fits_find_what_the_memory_was_made_of(profile):
    law = profile.fits.run_length
    assert law.rate_inf_bytes_per_s == pytest.approx(made_up.RATE, rel=0.01)
    assert law.r_half_pages == pytest.approx(made_up.R_HALF, rel=0.05)
    assert profile.fits.ceiling_bytes_per_s == pytest.approx(made_up.RATE, rel=0.01)
    by_kernel = {scan.kernel: scan for scan in profile.fits.scans}
    assert by_kernel["scan_rows"].s_per_token == pytest.approx(made_up.SCAN_S_PER_TOKEN, rel=0.01)
    assert by_kernel["scan_rows"].t0_s == pytest.approx(made_up.SCAN_T0, rel=0.1)
    assert by_kernel["scan_rows"].bytes_per_s == pytest.approx(8 / made_up.SCAN_S_PER_TOKEN, rel=0.01)
    assert [gather.record_bytes for gather in profile.fits.gathers] == [576, 656, 1152]


def test_eta_is_the_share_of_the_peak_and_comes_from_the_faster_read(profile):
    shapes = {(shape.rows, shape.tokens, shape.order): shape for shape in profile.fits.shapes}
    assert shapes[1, 4096, "contiguous"].eta == pytest.approx(made_up.RATE / made_up.PEAK, rel=0.01)
    assert shapes[4, 8192, "runs-1"].eta < 0.85 * made_up.RATE / made_up.PEAK
    assert (64, 2**20, "contiguous") not in shapes, "a shape that the pool cannot hold"
    assert len(shapes) == 4


def test_the_profile_says_what_was_done(profile):
    assert profile.protocol.tensors == 21
    assert profile.protocol.pool_bytes <= 300 * MIB
    assert profile.protocol.span_bytes * 21 == profile.protocol.pool_bytes
    assert profile.before.sm_mhz == 1980
    assert abs(profile.drift) < 0.01
    assert profile.warnings == ()
    assert all(case.verified and len(case.samples_s) == 6 for case in profile.cases)


def test_a_warm_case_reads_the_same_pages_each_time(profile):
    warm = [case for case in profile.cases if case.group == "warm"]
    assert warm
    assert all(case.reuse_bytes == case.read_bytes for case in warm)
    cold = [case for case in profile.cases if case.group == "fragmentation"]
    assert all(case.reuse_bytes > case.read_bytes for case in cold)
    verdicts = {row["name"]: row["verdict"] for row in report.case_rows(profile)}
    assert verdicts["read_pages/contiguous/b1/L16384"] == "warm"


def test_cases_of_a_group_take_turns():
    box = Box()
    calibrate(box, Plan(quick=True, extent=SMALL))
    names = [key for key in box.replays if key.startswith(("ceiling/", "fragmentation/", "shapes/", "span/"))]
    group = len(set(names))
    assert len(set(names[group : 2 * group])) == group  # one round: each case once (the first round warms up)
    assert names[group : 2 * group] == names[2 * group : 3 * group]


def test_the_backend_is_closed_and_every_case_released():
    box = Box()
    calibrate(box, Plan(quick=True, extent=SMALL))
    assert (box.opened, box.closed) == (1, 1)
    assert box.loaded == box.released > 20


@pytest.mark.parametrize("after", [1, 40, 200])
def test_an_interrupt_closes_the_backend(after):
    box = Box()
    box.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        calibrate(box, Plan(quick=True, extent=SMALL))
    assert box.closed == 1
    assert box.loaded == box.released


def test_noise_is_tried_three_times_and_said():
    box = Box(noise=0.2)
    profile = calibrate(box, Plan(quick=True, extent=SMALL))
    first = box.replays[0]
    # warm-up, three tries, and for the drift warm-up and three tries once more
    assert box.replays.count(first) == (1 + 3 * 6) * 2
    assert any("are noisy" in line for line in profile.warnings)
    assert {case.summary.verdict for case in profile.cases} >= {"noisy"}


def test_after_the_time_is_up_only_the_fewest_samples_are_taken():
    late = Extent(**{**vars(SMALL), "seconds": -1.0})
    box = Box(noise=0.2)
    profile = calibrate(box, Plan(quick=True, extent=late))
    assert {len(case.samples_s) for case in profile.cases} == {5}


def test_drift_is_found_and_said():
    box = Box()
    box.slowdown = lambda count: 1 + count / 5000
    profile = calibrate(box, Plan(quick=True, extent=SMALL))
    assert profile.drift > 0.03
    assert any("drifted" in line for line in profile.warnings)


def test_wrong_words_end_the_run():
    box = Box()
    box.wrong = "score/score_pages/contiguous/b1/L29184"
    clean = calibrate(Box(), Plan(quick=True, extent=SMALL))
    box.wrong = next(case.key for case in clean.cases if case.group == "score")
    with pytest.raises(RuntimeError, match=re.escape(f"wrong words were read, the figures mean nothing: {box.wrong}")):
        calibrate(box, Plan(quick=True, extent=SMALL))
    assert box.closed == 1


def test_memory_that_cannot_be_had_is_halved():
    box = Box(largest=100 * MIB)
    profile = calibrate(box, Plan(quick=True, extent=SMALL))
    assert len(box.tried) == 3
    assert box.tried[1] == pytest.approx(box.tried[0] / 2, rel=0.01)
    assert profile.protocol.pool_bytes == box.tried[-1] <= 100 * MIB


@pytest.mark.parametrize("box", [Box(free=2**31), Box(free=0), Box(largest=0)])
def test_too_little_memory_is_one_line(box):
    with pytest.raises(BadInput, match=r"memory\.free: .*to measure with"):
        calibrate(box, Plan(quick=True, extent=SMALL))
    assert box.closed == 1


def test_at_most_the_fraction_of_free_memory_is_taken():
    box = Box(free=3 * 2**30)
    profile = calibrate(box, Plan(quick=True, free_fraction=0.05, extent=SMALL))
    assert profile.protocol.pool_bytes <= 0.05 * 3 * 2**30


def test_one_span_makes_one_tensor():
    profile = calibrate(Box(), Plan(quick=True, one_span=True, extent=SMALL))
    assert profile.protocol.tensors == 1
    assert profile.protocol.span_bytes == profile.protocol.pool_bytes


def test_a_dumped_table_becomes_a_case_and_its_digest_is_kept(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, plan.deal(plan.runs(500, 4, 3)[1:], [64 * 100, 64 * 50]).pages.astype(np.int64) % plan.POISON)
    profile = calibrate(Box(), Plan(quick=True, block_table=path.read_bytes(), extent=SMALL))
    found = [case for case in profile.cases if case.group == "replay"]
    assert [case.kernel for case in found] == ["read_pages", "read_pages_bulk"]
    assert found[0].fragmentation["mean_run_pages"] == pytest.approx(4, rel=0.2)
    assert len(profile.protocol.block_table_sha256) == 64


def test_a_table_larger_than_the_pool_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, np.array([[10**7]]))
    box = Box()
    with pytest.raises(BadInput, match="the pool needs"):
        calibrate(box, Plan(quick=True, block_table=path.read_bytes(), extent=SMALL))
    assert box.replays == []
    assert box.closed == 1


def test_progress_reaches_its_end():
    told = []
    calibrate(Box(), Plan(quick=True, extent=SMALL), lambda done, total, what: told.append((done, total, what)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_the_extents_that_ship_run_on_a_made_up_box():
    """The real grids, with fewer samples: every shape deals, every key is its own."""
    for (kind, _), extent in EXTENTS.items():
        box = Box(free=20 * 2**30)
        box.hardware = made_up.hardware(kind=kind)
        few = Extent(**{**vars(extent), "replays": 1, "pool_bytes": min(extent.pool_bytes, 2 * 2**30)})
        profile = calibrate(box, Plan(quick=True, extent=few))
        keys = [case.key for case in profile.cases]
        assert len(set(keys)) == len(keys)


def test_the_page_of_results_shows_run_length_grid_and_samples(profile):
    sections = dict(report.sections(profile))
    assert list(sections) == ["Fits", "Page order", "Batch and length", "Cases", "Not timed"]
    by_name = {row["name"]: row for row in sections["Page order"]}
    assert by_name["contiguous"]["ratio"] == "1.000"
    assert float(by_name["runs-1"]["ratio"]) == pytest.approx(1 / 1.25, rel=0.01)
    assert "runs-1 bulk" in by_name
    assert any(row["fit"] == "r_half" and row["value"].startswith("0.2") for row in sections["Fits"])
    assert report.data(profile)["cases"][0]["verdict"] == "steady"


def test_a_histogram_counts_its_samples():
    assert report.histogram((1.0, 1.0)) == "█"
    assert report.histogram((1.0,) * 50 + (2.0,) * 50) == "█      █"
    assert report.histogram((1.0,) * 90 + (2.0,) * 10)[0] == "█"
