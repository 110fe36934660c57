"""Two runs side by side, and several as one: only what is of one machine and one protocol is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calib.fits import fits_of
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from calib.profile import Case, Profile


def differing(first: Profile, second: Profile) -> list[str]:
    """Return each field of hardware, software and protocol in which two profiles differ, with both values."""
    found = []
    for part in ("hardware", "software", "protocol"):
        ours, theirs = getattr(first, part).model_dump(), getattr(second, part).model_dump()
        found += [f"{part}.{name}: {ours[name]!r} and {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]
    return found


def merge(profiles: list[Profile]) -> Profile:
    """Return one profile with the samples of several runs of one machine and protocol, as new as the newest.

    `merged_from` names every run in it, also those of profiles that were merged before. BadInput names what differs.
    """
    first = profiles[0]
    faults = [
        Fault(f"profiles[{number}].{line.partition(':')[0]}", line.partition(": ")[2], "the same in all: not merged")
        for number, other in enumerate(profiles[1:], 1)
        for line in differing(first, other)
    ]
    own = [profile.seal for profile in profiles]
    seals = [*own, *(seal for profile in profiles for seal in profile.merged_from)]
    if len(set(own)) < len(own):
        faults.append(Fault("profiles", len(own), "different runs; one is given twice"))
    elif len(set(seals)) < len(seals):
        faults.append(Fault("profiles", len(own), "different runs; one is in a merged profile already"))
    if faults:
        raise BadInput(faults)
    by_key: dict[str, Case] = {}
    for case in (case for profile in profiles for case in profile.cases):
        known = by_key.get(case.key)
        together = (known.samples_s if known else ()) + case.samples_s
        by_key[case.key] = case.model_copy(
            update={"samples_s": together, "verified": case.verified and (known is None or known.verified)}
        )
    cases = tuple(by_key.values())
    drifts = [profile.drift for profile in profiles if profile.drift is not None]
    return first.model_copy(
        update={
            "created": max(profile.created for profile in profiles),
            "cases": cases,
            "fits": fits_of(cases, first.hardware.peak_bytes_per_s),
            "after": profiles[-1].after,
            "drift": max(drifts, key=abs, default=None),
            "warnings": tuple(dict.fromkeys(line for profile in profiles for line in profile.warnings)),
            "merged_from": tuple(seals),
        }
    )


def compared(first: Profile, second: Profile) -> list[dict[str, Any]]:
    """Return each case that both measured: medians, their ratio, and whether the p10 to p90 ranges meet."""
    theirs = {case.key: case for case in second.cases}
    rows = []
    for case in first.cases:
        other = theirs.get(case.key)
        if other is None:
            continue
        a, b = case.summary, other.summary
        rows.append(
            {
                "case": case.key,
                "first_s": a.median_s,
                "second_s": b.median_s,
                "ratio": b.median_s / a.median_s,
                "within_noise": a.p10_s <= b.p90_s and b.p10_s <= a.p90_s,
            }
        )
    return rows
