"""A profile in rows for people: what was measured, what was fitted, and how the samples lie."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from calib.stats import quantile
from dsa_ledger.units import Unit, brief

if TYPE_CHECKING:
    from calib.profile import Case, Profile

BARS = "▁▂▃▄▅▆▇█"
BINS = 8


def case_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return each case: rate at the median, (p90 - p10) / median, verdict, and how its samples lie.

    "warm": what is read between two reads of a page would fit the last-level cache.
    """
    return [_case_row(case, profile) for case in profile.cases]


def fit_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return each fitted coefficient with one standard deviation; what was not measured says so."""
    fits = profile.fits
    rows = [_fit("ceiling", _rate(fits.ceiling_bytes_per_s), "", "read without a block table")]
    law = fits.run_length
    if law is None:
        rows.append(_fit("rate(run length)", "not yet measured", "", ""))
    else:
        worst = max(map(abs, law.residuals))
        (rate, _), (_, half) = law.covariance
        noisy = any(case.group == "fragmentation" and case.summary.verdict == "noisy" for case in profile.cases)
        note = ("from noisy samples; " if noisy else "") + f"worst residual {worst:.1%}"
        note += f"; {law.held_at_zero} held at 0" if law.held_at_zero else ""
        rows.append(_fit("rate_inf", _rate(law.rate_inf_bytes_per_s), _rate(math.sqrt(rate)), note))
        rows.append(_fit("r_half", f"{law.r_half_pages:.3g} pages", f"{math.sqrt(half):.2g} pages", note))
    for scan in fits.scans:
        note = f"{scan.s_per_token * 1e9:.3g} ns a token and {brief(scan.t0_s, Unit.SECONDS)}, two passes over fp32"
        rows.append(_fit(scan.kernel, _rate(scan.bytes_per_s), "", note))
    rows += [_fit(f"gather {one.record_bytes} B", _rate(one.rate_bytes_per_s), "", "") for one in fits.gathers]
    rows += [
        _fit(f"{name} / copy", f"{ratio:.2f}", "", "against a plain numpy copy, in this run")
        for name, ratio in over_copy(profile).items()
    ]
    return rows


def over_copy(profile: Profile) -> dict[str, float]:
    """Return the CPU backend's rates over that of a plain numpy copy in the same run: without a table, and paged."""
    rates = {case.kernel: case.rate_bytes_per_s for case in profile.cases if case.group == "ceiling"}
    rates |= {
        case.kernel: case.rate_bytes_per_s
        for case in profile.cases
        if case.group == "fragmentation" and case.order == "contiguous"
    }
    if "copy" not in rates:
        return {}
    names = (("read", "read_straight"), ("paged read", "read_pages"))
    return {name: rates[kernel] / rates["copy"] for name, kernel in names if kernel in rates}


def grid_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return the read rate by batch and length; η is the share of the data sheet's peak."""
    return [
        {
            "rows": shape.rows,
            "tokens": shape.tokens,
            "order": shape.order,
            "rate": _rate(shape.rate_bytes_per_s),
            "eta": "" if shape.eta is None else f"{shape.eta:.3f}",
        }
        for shape in profile.fits.shapes
    ]


def run_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return the cases by page order: mean run in pages, adjacent share, 2-MiB pages touched over the fewest, rate.

    `ratio` is the rate over that of pages that lie in a row.
    """
    cases = [case for case in profile.cases if case.group in ("fragmentation", "shapes", "span", "replay")]
    straight = {case.kernel: case.rate_bytes_per_s for case in cases if case.order == "contiguous"}
    return [
        {
            "name": case.order if case.kernel == cases[0].kernel else f"{case.order} {case.kernel.rpartition('_')[2]}",
            "run": f"{case.fragmentation['mean_run_pages']:.1f}",
            "adjacent": f"{case.fragmentation['adjacent_share']:.3f}",
            "2-MiB": f"{case.fragmentation['large_pages_ratio']:.2f}",
            "rate": _rate(case.rate_bytes_per_s),
            "ratio": f"{case.rate_bytes_per_s / straight[case.kernel]:.3f}" if case.kernel in straight else "",
            "verdict": case.summary.verdict,
        }
        for case in cases
    ]


def compared_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `profile.compared` with its figures as text."""
    return [
        {
            "name": row["case"].partition("/")[2],
            "first": brief(row["first_s"], Unit.SECONDS),
            "second": brief(row["second_s"], Unit.SECONDS),
            "ratio": f"{row['ratio']:.3f}",
            "within noise": "yes" if row["within_noise"] else "no",
        }
        for row in rows
    ]


def data(profile: Profile) -> dict[str, Any]:
    """Return the figures without the samples, for JSON."""
    return {
        "label": profile.label,
        "hardware": profile.hardware.model_dump(mode="json"),
        "software": profile.software.model_dump(mode="json"),
        "protocol": profile.protocol.model_dump(mode="json"),
        "drift": profile.drift,
        "fits": profile.fits.model_dump(mode="json"),
        "cases": [
            {
                "key": case.key,
                "rate_bytes_per_s": case.rate_bytes_per_s,
                **case.summary.as_dict(),
                "spread": case.summary.spread,
                "verdict": case.summary.verdict,
                "reuse_bytes": case.reuse_bytes,
                "fragmentation": case.fragmentation,
            }
            for case in profile.cases
        ],
        "over_copy": over_copy(profile),
        "absent": list(profile.absent),
        "warnings": list(profile.warnings),
    }


def sections(profile: Profile) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the page of results: titles and rows."""
    found = [
        ("Fits", fit_rows(profile)),
        ("Page order", run_rows(profile)),
        ("Batch and length", grid_rows(profile)),
        ("Cases", case_rows(profile)),
        ("Not timed", [{"kernel": text.partition(": ")[0], "why": text.partition(": ")[2]} for text in profile.absent]),
    ]
    return [(title, rows) for title, rows in found if rows]


def histogram(samples: tuple[float, ...]) -> str:
    """Return how samples lie between the least and the p95, as one bar a bin; slower ones fall into the last."""
    low, high = min(samples), quantile(samples, 0.95)
    if high <= low:
        return BARS[-1]
    counts = [0] * BINS
    for sample in samples:
        counts[min(BINS - 1, int((sample - low) / (high - low) * BINS))] += 1
    return "".join(" " if not count else BARS[(count * len(BARS) - 1) // max(counts)] for count in counts)


def _case_row(case: Case, profile: Profile) -> dict[str, Any]:
    found = case.summary
    warm = case.reuse_bytes <= profile.hardware.cache_bytes
    return {
        "name": case.key.partition("/")[2],
        "rate": _rate(case.rate_bytes_per_s),
        "spread": f"{found.spread:.1%}",
        "verdict": "warm" if warm and found.verdict == "steady" else found.verdict,
        "samples": histogram(case.samples_s),
    }


def _rate(bytes_per_s: float | None) -> str:
    return "not yet measured" if bytes_per_s is None else brief(bytes_per_s, Unit.BYTES_PER_S)


def _fit(name: str, value: str, deviation: str, note: str) -> dict[str, Any]:
    return {"fit": name, "value": value, "+-": deviation, "note": note}
