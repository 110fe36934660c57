"""What counts as slow and why: normal fleets have no slow box, a fleet that forms no single group is said to."""

from __future__ import annotations

import random

import numpy as np
import pytest
from made_up_fleet import profile

from calib.fleet_report import distribution, read_fleet, slow_rows
from calib.judge import Like, limit
from calib.profile import Profile, save


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 12, 16, 20, 64, 256, 1000])
def test_of_100_normal_fleets_at_most_about_one_has_a_box_beyond_the_limit(count):
    """Rule: Davies and Gather's, a sample of the size in question simulated; limits are rounded up."""
    rates = np.random.default_rng(count).normal(size=(4000 if count < 100 else 1500, count))
    middle = np.median(rates, axis=1, keepdims=True)
    spread = np.median(abs(rates - middle), axis=1, keepdims=True)
    share = (0.6745 * (middle - rates) / spread > limit(count)).any(axis=1).mean()
    assert 0.002 < share < 0.016


def test_three_boxes_are_too_few_to_judge():
    assert limit(3) == float("inf")


def like(rates: list[float]) -> Like:
    return Like([(str(number), profile(number, rate)) for number, rate in enumerate(rates)])


def normal(count: int, middle: float, share: float = 0.005) -> list[float]:
    draw = random.Random(count)  # noqa: S311 - noise, no secret
    return [draw.gauss(middle, share) for _ in range(count)]


@pytest.mark.parametrize(
    ("rates", "slow", "said"),
    [
        (normal(90, 1) + normal(10, 0.9), 10, []),
        (normal(60, 1) + normal(40, 0.9), 40, []),
        (normal(51, 1) + normal(49, 0.9), 0, ["rates form two groups: 49 boxes at "]),
        (normal(32, 1) + normal(32, 0.9), 0, ["rates form two groups: 32 boxes at "]),
        (normal(4, 1) + normal(6, 0.9), 0, ["rates form two groups: 6 boxes at "]),
        (normal(60, 1) + normal(40, 0.95), 0, ["rates form two groups: 40 boxes at "]),
        ([1, 1, 0.5, 0.5], 0, ["rates form two groups: 2 boxes at 50.0% of the other 2"]),
        (normal(64, 1, 0.04), 0, ["rates form no single group, half of the boxes lie more than"]),
        (normal(64, 1, 0.01), 0, []),
        ([1, 1, 0.5], 0, ["3 of 4 boxes that a judgement of outliers needs"]),
        ([1, 1.001, 1.002, 1.001, 2], 0, []),  # a fast one is no slow one
    ],
)
def test_up_to_two_in_five_slow_boxes_are_found_and_nearer_to_half_it_is_said(rates, slow, said):
    """Rule: near half the slow ones move median and MAD; who they are cannot be told, that there are two groups can."""
    found = like(rates)
    assert sum(box.is_slow for box in found.boxes()) == slow
    lines = list(found.warnings())
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


USUAL = [1 - number / 2000 for number in range(8)]


@pytest.mark.parametrize(
    ("usual", "slow", "reason"),
    [
        ({}, {"hardware": {"ecc": None}}, "unexplained"),  # not said is not off
        ({"hardware": {"ecc": None}}, {"hardware": {"ecc": False}}, "unexplained"),
        ({}, {"state": {"throttle": "-0x4"}}, "unexplained"),  # no number of NVML's
        ({}, {"state": {"throttle": "0x1"}}, "unexplained"),  # idle
        ({}, {"state": {"throttle": "0x20"}}, "temperature: slowdown"),
        ({"state": {"throttle": "0x4"}}, {"state": {"throttle": "0x4"}}, "unexplained"),  # as all have it
        ({"state": {"throttle": "0x4"}}, {"state": {"throttle": "0xc"}}, "clock: held back, event reasons 0x8"),
        ({}, {"state": {"sm_mhz": 345}}, "clock: SM at 345 MHz, usual 1980"),
    ],
)
def test_a_reason_is_in_what_a_slow_box_differs_from_the_others(usual, slow, reason):
    boxes = [(str(n), profile(n, rate, **usual)) for n, rate in enumerate(USUAL)]
    found = Like([*boxes, ("slow", profile(50, 0.5, **slow))])
    assert [(box.file, box.reasons) for box in found.boxes() if box.is_slow] == [("slow", (reason,))]
    shared = usual.get("state", {}).get("throttle")
    lines = [f"most boxes have clocks held back, event reasons {shared}: no reason why one is slower than others"]
    assert list(found.warnings()) == (lines if shared else [])


def fleet(folder, profiles: list[Profile]):
    for one in profiles:
        save(one, folder)
    return read_fleet(folder)


def usual(count: int, first: int = 0, **changes: object) -> list[Profile]:
    return [profile(first + n, 1 - n / 2000, **changes) for n in range(count)]


def refit(one: Profile, **changes: object) -> Profile:
    return one.model_copy(update={"fits": one.fits.model_copy(update=changes)})


def test_mig_slices_are_judged_by_size_among_themselves(tmp_path):
    """Rule: a slice has a share of the memory's channels; 14 slices are no reason to call whole GPUs fast."""
    slices = {"mig": True, "memory_bytes": 18 * 2**30}
    boxes = [profile(100 + n, 1 / 7 - n / 9000, hardware=slices) for n in range(13)]
    found = fleet(tmp_path, [*usual(7), *boxes, profile(200, 0.1, hardware=slices)])
    assert [(row["model"], row["boxes"], row["slow"]) for row in distribution(found)] == [
        ("NVIDIA H200", 7, 0),
        ("NVIDIA H200 (MIG, 18 GiB)", 14, 1),
    ]
    assert distribution(found)[0]["eta_median"] == pytest.approx(0.75, rel=0.01)
    assert [row["box"] for row in slow_rows(found)] == ["GPU-00000200"]


def test_a_stray_slice_is_held_against_the_whole_gpus(tmp_path):
    stray = profile(100, 0.5, hardware={"mig": True, "memory_bytes": 71 * 2**30})
    found = fleet(tmp_path, [*usual(7), stray])
    assert [(row["model"], row["reason"]) for row in slow_rows(found)] == [
        ("NVIDIA H200 (MIG, 71 GiB)", "MIG: a slice of the GPU")
    ]
    assert "NVIDIA H200 (MIG, 71 GiB): 1 of 4 that a judgement needs: held against whole GPUs" in found.warnings


def test_boxes_are_compared_by_what_most_of_them_measured(tmp_path):
    """Rule: a rate of other shapes, or none of pages, says nothing about a box beside the others: it is left out."""
    bare = refit(profile(50), shapes=())
    other = profile(51)
    other = refit(other, shapes=tuple(one.model_copy(update={"tokens": 4096}) for one in other.fits.shapes))
    wide = [one.model_copy(update={"tokens": 2**20, "rate_bytes_per_s": 1.0}) for one in other.fits.shapes]
    full = refit(profile(52), shapes=(*profile(52).fits.shapes, *wide))
    found = fleet(tmp_path, [*usual(6), bare, other, full])
    assert [str(fault) for fault in found.faults] == [
        f"node006-gpu-000000{number}.json: no paged reads of 3 shapes: expected what 7 boxes are compared by"
        for number in (50, 51)
    ]
    assert slow_rows(found) == []
    assert {box.rate_bytes_per_s for box in found.boxes} <= {0.9 * 4e12 * (1 - n / 2000) for n in range(6)}


def test_without_shapes_the_plain_read_is_compared(tmp_path):
    boxes = [refit(one, shapes=()) for one in usual(6)]
    blank = refit(profile(50), shapes=(), ceiling_bytes_per_s=None)
    slow = refit(profile(51, 0.9), shapes=())
    found = fleet(tmp_path, [*boxes, blank, slow])
    assert [str(fault) for fault in found.faults] == [
        "node006-gpu-00000050.json: no plain read: expected what 7 boxes are compared by"
    ]
    assert [row["box"] for row in slow_rows(found)] == ["GPU-00000051"]


def test_eta_is_of_the_boxes_that_have_a_peak(tmp_path):
    found = fleet(tmp_path, [*usual(3), profile(9, hardware={"peak_bytes_per_s": None})])
    assert distribution(found)[0]["eta_most"] == pytest.approx(0.9 * 4e12 / 4.8e12)
    assert "NVIDIA H200: η is of 3 of 4 boxes: the others' profiles have no data sheet's peak" in found.warnings
