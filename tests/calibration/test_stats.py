"""Medians, the verdict on noise, drift, and fits that find the coefficients that made the data."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib import stats

SAMPLES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40)
TIMES = st.floats(1e-6, 1e-2)


@given(samples=SAMPLES, share=st.floats(0, 1))
def test_quantiles_equal_numpy(samples, share):
    """Linear interpolation between order statistics, as numpy's default."""
    assert stats.quantile(samples, share) == pytest.approx(float(np.quantile(samples, share)), rel=1e-12)


@given(samples=SAMPLES)
def test_a_summary_is_ordered(samples):
    """In order: least <= p10 <= median <= p90, and the median is that of the statistics module."""
    found = stats.summary(samples)
    assert found.least_s <= found.p10_s <= found.median_s <= found.p90_s
    assert found.median_s == pytest.approx(statistics.median(samples))
    assert found.count == len(samples)


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [([1.0] * 10, "steady"), ([1.0] * 19 + [9.0], "steady"), ([1.0, 1.02], "steady"), ([1.0, 1.05] * 5, "noisy")],
)
def test_noise_is_told_from_one_slow_sample(samples, verdict):
    assert stats.summary(samples).verdict == verdict


def test_drift_is_the_change_of_the_median():
    assert stats.drift([1, 2, 3], [2, 3, 4]) == pytest.approx(0.5)
    assert stats.drift([2.0], [1.0]) == pytest.approx(-0.5)


@given(at_zero=TIMES, slope=TIMES, x=st.lists(st.integers(0, 1000), min_size=2, max_size=12, unique=True))
def test_a_line_without_noise_is_found(at_zero, slope, x):
    """Data made by a line give that line back, with residuals and covariance of nothing."""
    found = stats.line([float(value) for value in x], [at_zero + slope * value for value in x])
    assert found.at_zero == pytest.approx(at_zero, rel=1e-4, abs=slope * 1e-6)
    assert found.slope == pytest.approx(slope, rel=1e-4, abs=at_zero * 1e-6)
    assert max(map(abs, found.residuals)) < 1e-6


def test_a_line_and_its_covariance_equal_numpys():
    """numpy.polyfit with weights 1/y minimises the same sum and scales the covariance the same way."""
    random = np.random.default_rng(1)
    x = np.linspace(1, 50, 20)
    y = (3 + 0.5 * x) * (1 + 0.05 * random.standard_normal(20))
    found = stats.line(x.tolist(), y.tolist())
    (slope, at_zero), covariance = np.polyfit(x, y, 1, w=1 / y, cov=True)
    assert (found.slope, found.at_zero) == pytest.approx((slope, at_zero))
    assert np.array(found.covariance) == pytest.approx(covariance[::-1, ::-1])


def test_a_coefficient_that_physics_forbids_is_held_at_zero_and_said():
    falling = stats.line([1.0, 2.0, 3.0], [3.0, 2.0, 1.5])
    assert (falling.slope, falling.held_at_zero) == (0.0, "slope")
    below = stats.line([1.0, 2.0, 3.0], [0.5, 2.0, 3.6])
    assert (below.at_zero, below.held_at_zero) == (0.0, "at_zero")
    free = stats.line([1.0, 2.0, 3.0], [3.0, 2.0, 1.5], at_least_zero=False)
    assert free.slope < 0
    with pytest.raises(ValueError, match="two different x"):
        stats.line([1.0, 1.0], [1.0, 2.0])


@given(rate=st.floats(1e9, 8e12), half=st.floats(0.001, 100))
def test_the_law_of_run_length_is_found(rate, half):
    """Rates made by rate_inf * r / (r + r_half) give both coefficients back."""
    runs = [1.0, 2.0, 4.0, 16.0, 64.0, 1024.0]
    law = stats.run_law(runs, [rate * run / (run + half) for run in runs])
    assert law.rate_inf_bytes_per_s == pytest.approx(rate, rel=1e-6)
    assert law.r_half_pages == pytest.approx(half, rel=1e-5)
    assert law.rate(half) == pytest.approx(rate / 2, rel=1e-5)  # which is what r_half means


def test_the_laws_covariance_is_what_repeated_noise_shows():
    random = np.random.default_rng(7)
    runs = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0])
    true = 4e12 * runs / (runs + 0.5)
    laws = [stats.run_law(runs.tolist(), (true * (1 + 0.01 * random.standard_normal(8))).tolist()) for _ in range(400)]
    seen = np.cov([[law.rate_inf_bytes_per_s, law.r_half_pages] for law in laws], rowvar=False)
    said = np.mean([law.covariance for law in laws], axis=0)
    assert math.sqrt(said[0][0]) == pytest.approx(math.sqrt(seen[0][0]), rel=0.15)
    assert math.sqrt(said[1][1]) == pytest.approx(math.sqrt(seen[1][1]), rel=0.15)
    assert said[0][1] == pytest.approx(seen[0][1], rel=0.3)


def test_where_fragmentation_costs_nothing_r_half_is_zero_and_said():
    law = stats.run_law([1.0, 4.0, 64.0, 1024.0], [4.02e12, 4.01e12, 4.0e12, 4.0e12])
    assert (law.r_half_pages, law.held_at_zero) == (0.0, "r_half_pages")


def test_a_rate_without_a_ceiling_is_no_law():
    with pytest.raises(ValueError, match="no ceiling"):
        stats.run_law([1.0, 2.0, 4.0], [1.0, 3.0, 9.0])
