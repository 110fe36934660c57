"""What an estimate takes from the cases of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calib import stats
from calib.cases import SCAN_BYTES_PER_TOKEN
from calib.profile import Case, Fits, Gather, RunLength, ScanLine, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

SCANS = ("scan_rows", "scan_rows_cluster")
READS = ("read_pages", "read_pages_bulk")


def fits_of(cases: Sequence[Case], peak_bytes_per_s: float | None) -> Fits:
    """Return the fits that the measured cases allow; what was not measured is None or missing, never a guess."""
    reads = [case for case in cases if case.kernel == _better_read(cases)]
    return Fits(
        ceiling_bytes_per_s=max(
            (case.rate_bytes_per_s for case in cases if case.kernel == "read_straight"), default=None
        ),
        run_length=_run_length([case for case in reads if case.group == "fragmentation"]),
        shapes=tuple(
            Shape(
                rows=case.rows,
                tokens=case.tokens,
                order=case.order,
                rate_bytes_per_s=case.rate_bytes_per_s,
                eta=case.rate_bytes_per_s / peak_bytes_per_s if peak_bytes_per_s else None,
            )
            for case in reads
            if case.group == "grid"
        ),
        scans=tuple(line for kernel in SCANS if (line := _scan([case for case in cases if case.kernel == kernel]))),
        gathers=tuple(
            Gather(record_bytes=int(case.kernel.rpartition("_")[2]), rate_bytes_per_s=case.rate_bytes_per_s)
            for case in cases
            if case.kernel.startswith("gather_")
        ),
    )


def _better_read(cases: Sequence[Case]) -> str:
    """Return the read kernel that is faster where pages lie in a row: the other one measures itself."""
    straight = [case for case in cases if case.kernel in READS and case.order == "contiguous"]
    return max(straight, key=lambda case: case.rate_bytes_per_s).kernel if straight else READS[0]


def _run_length(cases: Sequence[Case]) -> RunLength | None:
    """Fit the law to the orders made of runs; a stride or a reversal is another kind of disorder."""
    made_of_runs = [case for case in cases if case.order == "contiguous" or case.order.startswith("runs-")]
    lengths = [case.fragmentation["mean_run_pages"] for case in made_of_runs]
    if len(set(lengths)) < 3:  # noqa: PLR2004 - two coefficients, and one point that can disagree
        return None
    try:
        law = stats.run_law(lengths, [case.rate_bytes_per_s for case in made_of_runs])
    except ValueError:
        return None
    return RunLength(
        rate_inf_bytes_per_s=law.rate_inf_bytes_per_s,
        r_half_pages=law.r_half_pages,
        covariance=law.covariance,
        residuals=law.residuals,
        held_at_zero=law.held_at_zero,
    )


def _scan(cases: Sequence[Case]) -> ScanLine | None:
    one_row = [case for case in cases if case.rows == 1]
    if len({case.tokens for case in one_row}) < 3:  # noqa: PLR2004 - as above
        return None
    found = stats.line([float(case.tokens) for case in one_row], [case.summary.median_s for case in one_row])
    if found.slope <= 0:
        return None
    return ScanLine(
        kernel=one_row[0].kernel,
        t0_s=found.at_zero,
        s_per_token=found.slope,
        bytes_per_s=SCAN_BYTES_PER_TOKEN / found.slope,
        covariance=found.covariance,
        residuals=found.residuals,
    )
