"""The fitting code: it finds a law that made-up measurements follow, and refuses what it cannot fit."""

from __future__ import annotations

import numpy as np
import pytest

from calib import leave_out
from calib.decode_fit import DecodeFit, monotone, split
from calib.fit_tables import dumped, main, tables
from calib.points import points_of
from calib.prefill_fit import CHUNKS, PrefillFit
from calib.smooth import Part, Smoother, medians, nonnegative
from dsa_ledger.errors import BadInput
from dsa_ledger.timing.measured import Cell, Group, Row, Series

GROUP = Group("H200", "sglang", "0.5.14", "decode", "full_layer")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (1, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def law_us(batch, tokens, heads):
    """Return made-up microseconds: a floor by batch and heads, a launch, 0.4 ns a token, bytes at 3.9 TB/s."""
    launched = 8.0 if tokens > 2048 else 0.0
    return 60 + batch + heads / 2 + launched + 0.4e-3 * max(tokens - 2048, 0) + 136 * batch * tokens / 3.9e6


def rows(lengths=LENGTHS, batches=BATCHES, group=GROUP):
    return [
        Row(
            group,
            Series("zai-org/GLM-5", "fp8", "fp8_block", heads, ""),
            Cell(batch, 1, at),
            law_us(batch, at, heads) * 1e-6,
        )
        for heads in (8, 16, 64)
        for batch in batches
        for at in lengths
    ]


def test_left_out_cells_of_a_known_law_are_found_to_a_percent():
    points = split(points_of(GROUP, rows()))[0]
    off = np.abs(leave_out.cells(points))
    assert np.median(off) < 0.005
    assert np.quantile(off, 0.95) < 0.04


def test_an_octave_beyond_the_last_length_goes_on_with_the_slope():
    fit = DecodeFit(points_of(GROUP, rows()))
    nodes = np.array([1.0, 65536.0, 131072.0, 262144.0])
    grown = fit.growth_table(nodes)["fp8"][0]
    assert grown[3] - grown[2] == pytest.approx(law_us(1, 262144, 8) - law_us(1, 131072, 8), rel=0.1)


def test_too_few_cells_are_refused_with_the_number_needed():
    with pytest.raises(BadInput) as caught:
        DecodeFit(points_of(GROUP, rows(lengths=(1, 64), batches=(1, 2))))
    assert "at least 40 measured cells" in caught.value.lines()[0]


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    place = tmp_path / "rows.csv"
    place.write_text("gpu,engine\nH200,sglang\n")
    assert main([str(place), "--out", str(tmp_path)]) == 2
    assert "bad input" in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == []


def test_the_same_rows_give_the_same_file():
    many = rows(lengths=(*LENGTHS, 4, 512, 12288, 24576))
    first, second = (dumped(tables({GROUP: many})["sglang", "0.5.14"]) for _ in range(2))
    assert first == second


def test_few_rows_without_a_sibling_are_refused_with_the_number_needed():
    with pytest.raises(BadInput) as caught:
        tables({GROUP: rows()})
    assert "at least 300 rows" in caught.value.lines()[0]


def test_least_squares_keep_the_sign():
    rng = np.random.default_rng(1)
    design = rng.random((40, 4))
    truth = np.array([2.0, 0.0, 0.5, 0.0])
    assert nonnegative(design, design @ truth) == pytest.approx(truth, abs=1e-6)
    assert (nonnegative(design, -design.sum(axis=1)) == 0).all()


def test_medians_of_groups():
    found = medians(np.array([3.0, 1.0, np.nan, 2.0, 9.0]), np.array([0, 0, 0, 0, 2]), 3)
    assert found[0] == 2
    assert np.isnan(found[1])
    assert found[2] == 9


def test_monotone_values_are_the_means_of_what_falls():
    assert monotone(np.array([1.0, 3.0, 2.0, 5.0]), np.ones(4)).tolist() == [1, 2.5, 2.5, 5]


def test_a_correction_fades_with_distance():
    smooth = Smoother(np.array([[0.0, 0.0]]), np.array([0.1]), (Part(0.1, (1.0, 1.0)),), noise=0.001)
    near, far = smooth.at(np.array([[0.0, 0.1], [0.0, 30.0]]))
    assert near == pytest.approx(0.1, rel=0.05)
    assert abs(far) < 1e-6


def prefill_us(batch, new, prefix):
    """Return made-up microseconds: a host of 500, 70 less without a prefix, 450 more beyond 131,072 keys; a kernel."""
    host = 500 - (70 if prefix == 0 else 0) + (450 if prefix + new > 131072 else 0)
    return max(host, 10 + 0.03 * batch * new)


def test_the_hosts_constants_of_a_prefill_are_found():
    group = GROUP._replace(phase="prefill", module="shared_layer")
    made = [
        Row(group, Series("zai-org/GLM-5", "fp8", "fp8_block", heads, ""), cell, prefill_us(*cell) * 1e-6)
        for heads in (8, 64)
        for cell in (
            Cell(batch, new, prefix)
            for batch in (1, 2, 4, 8, 16, 32)
            for new in (512, 1024, 2048, 3072, 4096)
            for prefix in (0, 1024, 4096, 16384, 65536, 163840, 262144)
            if prefix + new > 2048
        )
    ]
    points = points_of(group, made)
    fit = PrefillFit(points, dense=False)
    assert fit.host == pytest.approx([500, 500], rel=0.01)
    assert fit.far == pytest.approx(450, rel=0.02)
    assert fit.fresh == pytest.approx(70, rel=0.05)
    assert np.quantile(np.abs(fit.predict(points) / points.us - 1), 0.95) < 0.02


def test_contexts_that_were_not_measured_get_no_term_of_their_own():
    """Rule: what grows with the square of the keys is fitted only where long contexts were measured."""
    group = GROUP._replace(engine="vllm", phase="prefill", module="full_layer")
    made = [
        Row(group, Series("zai-org/GLM-5", "fp8", "fp8_block", heads, ""), Cell(batch, new, 0), us * 1e-6)
        for heads in (8, 64)
        for batch in (1, 2, 4, 8)
        for new in (1024, 2048, 4096, 8192, 16384, 32768)
        for us in [500 + 0.2 * batch * new + 5e-6 * batch * new * new * (1 + batch * new / 1e5)]
    ]
    fit = PrefillFit(points_of(group, made), dense=False)
    assert fit.law[CHUNKS] == 0
