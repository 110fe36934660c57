"""Which boxes of one model are slow, and why.

A box is held against its like by the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers"
(ASQC, 1993), 0.6745 (x - median) / MAD. The limit is the one that about 1 of 100 normal fleets of that size exceeds:
Davies and Gather, "The Identification of Multiple Outliers", J. Am. Stat. Assoc. 88 (1993), for the slow side alone.
Boxes slow by a tenth are found up to about 40% of a model, by a twentieth up to a quarter: more of them move median and
MAD. Where the rates form no single group that is said.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from calib.stats import STEADY_SPREAD, quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from calib.profile import Hardware, Profile, State

NORMAL_MAD = 0.6745  # the MAD of a normal distribution with deviation 1
FEWEST = 4  # boxes of one model: of three, one that differs cannot be told from two that agree by chance
# From how many boxes on: the z that 1 of 100 fleets of normal rates exceeds, rounded up. No closed form is known of
# small fleets, whose MAD is a matter of luck; simulated, up to 400,000 fleets a size, which a test repeats.
LIMITS = (
    (4, 11.2),
    (5, 13.6),
    (6, 8.7),
    (8, 7.0),
    (10, 6.1),
    (12, 5.7),
    (14, 5.3),
    (16, 5.1),
    (20, 4.8),
    (24, 4.6),
    (32, 4.4),
    (48, 4.2),
    (512, 4.4),
    (1024, 4.5),
    (2048, 4.6),
    (4096, 4.9),
    (16384, 5.2),
)
# Means of two groups, in deviations within them: the halves of a normal distribution lie 2.7 apart, of an even one 3.5.
APART = 5
WIDE = STEADY_SPREAD / 2  # a MAD of more, as a share of the median: half of the boxes lie outside what counts as noise
PART = 0.25  # of a model's boxes: a smaller group is a matter of outliers
CLOCK_SHARE = 0.97  # of the model's median clock: below it the clock is a reason
HOTTER_C = 10  # above the model's median
THERMAL_BITS = 0x20 | 0x40  # NVML's clocks event reasons: software and hardware thermal slowdown
SLOWDOWN_BITS = 0x4 | 0x8 | 0x80  # software power cap, hardware slowdown, power brake


@dataclass(frozen=True)
class Box:
    """One profile of a fleet: its file, the rate it is judged by and how that lies among its like."""

    file: str
    profile: Profile
    rate_bytes_per_s: float
    z: float
    share: float  # of the median rate
    is_slow: bool = False  # an outlier on the slow side, by more than what counts as noise
    reasons: tuple[str, ...] = ()  # of a slow one

    @property
    def model(self) -> str:
        """Return the model under which the box is counted."""
        return model_of(self.profile.hardware)

    @property
    def eta(self) -> float | None:
        """Return the share of the data sheet's peak, None where there is none."""
        peak = self.profile.hardware.peak_bytes_per_s
        return self.rate_bytes_per_s / peak if peak else None


def model_of(hardware: Hardware) -> str:
    """Return the name of a whole GPU or a CPU; a slice of a GPU is a model of its own by its memory."""
    return f"{hardware.name} (MIG, {hardware.memory_bytes / 2**30:.0f} GiB)" if hardware.mig else hardware.name


def limit(count: int) -> float:
    """Return the z beyond which one of `count` boxes is an outlier; infinite where they are too few to tell."""
    return next((z for least, z in reversed(LIMITS) if count >= least), math.inf)


class Measure(NamedTuple):
    """What boxes are compared by: the median rate of these shapes, pages in a row; without shapes the plain read."""

    shapes: frozenset[tuple[int, int]]

    def rate(self, profile: Profile) -> float | None:
        """Return the rate [B/s], None where the profile did not measure it."""
        if not self.shapes:
            return profile.fits.ceiling_bytes_per_s
        rates = _straight(profile)
        return quantile([rates[shape] for shape in self.shapes], 0.5) if self.shapes <= rates.keys() else None

    def __str__(self) -> str:
        """Return it in words."""
        return f"paged reads of {len(self.shapes)} shapes" if self.shapes else "plain read"


def measure_of(profiles: Sequence[Profile]) -> Measure:
    """Return the shapes that most boxes have in common, or the plain read where only a minority has shapes."""
    counts = Counter(shape for profile in profiles for shape in _straight(profile))
    plain = sum(profile.fits.ceiling_bytes_per_s is not None for profile in profiles)
    if not counts or 2 * max(counts.values()) < plain:
        return Measure(frozenset())
    usual = max(counts, key=lambda shape: (counts[shape], shape))
    having = [frozenset(rates) for rates in map(_straight, profiles) if usual in rates]
    return Measure(frozenset.intersection(*having))


def _straight(profile: Profile) -> dict[tuple[int, int], float]:
    shapes = profile.fits.shapes
    return {(shape.rows, shape.tokens): shape.rate_bytes_per_s for shape in shapes if shape.order == "contiguous"}


class Like:
    """The boxes of one model that have a measure in common, and how another one lies among them."""

    def __init__(self, found: Sequence[tuple[str, Profile]]) -> None:
        """Take files and profiles; `found` keeps those that have the measure."""
        self.measure = measure_of([profile for _, profile in found])
        rates = [(file, profile, self.measure.rate(profile)) for file, profile in found]
        self.found = [(file, profile) for file, profile, rate in rates if rate is not None]
        self.rates = sorted(rate for *_, rate in rates if rate is not None)
        self.middle = quantile(self.rates, 0.5) if self.rates else math.nan
        self.spread = quantile([abs(rate - self.middle) for rate in self.rates], 0.5) if self.rates else math.nan
        self.limit = limit(len(self.rates))
        self.usual = _Usual([profile for _, profile in self.found])

    def boxes(self, found: Iterable[tuple[str, Profile]] | None = None) -> tuple[Box, ...]:
        """Return these as boxes, or others held against these, slowest first; one without the measure is left out."""
        boxes = []
        for file, profile in self.found if found is None else found:
            rate = self.measure.rate(profile)
            if rate is None:
                continue
            away, share = rate - self.middle, rate / self.middle
            z = NORMAL_MAD * away / self.spread if self.spread else math.copysign(math.inf, away) if away else 0.0
            is_slow = z < -self.limit and share < 1 - STEADY_SPREAD
            reasons = self.usual.reasons(profile) if is_slow else ()
            boxes.append(Box(file, profile, rate, z if self.limit < math.inf else 0.0, share, is_slow, reasons))
        return tuple(sorted(boxes, key=lambda box: box.rate_bytes_per_s))

    def warnings(self) -> Iterable[str]:
        """Return what keeps a judgement from being one."""
        count = len(self.rates)
        if count < FEWEST:
            yield f"{count} of {FEWEST} boxes that a judgement of outliers needs"
        elif said := self._parts() or self._wide():
            yield said
        if bits := self.usual.bits & (THERMAL_BITS | SLOWDOWN_BITS):
            yield f"most boxes have clocks held back, event reasons 0x{bits:x}: no reason why one is slower than others"

    def _parts(self) -> str:
        """Return a sentence where the rates part in two and the slower ones are not all outliers."""
        count = len(self.rates)
        least = max(2, math.ceil(PART * count))
        away = [rate / self.middle - 1 for rate in self.rates]
        sums = list(accumulate(away, initial=0.0))
        squares = list(accumulate((one * one for one in away), initial=0.0))

        def within(start: int, end: int) -> float:
            return squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)

        place = min(range(least, count - least + 1), key=lambda place: within(0, place) + within(place, count))
        slower, others = self.rates[:place], self.rates[place:]
        apart = (sums[count] - sums[place]) / len(others) - sums[place] / len(slower)
        deviation = math.sqrt(max(0.0, within(0, place) + within(place, count)) / count)
        all_found = (self.middle - slower[-1]) * NORMAL_MAD > self.limit * self.spread
        if all_found or apart <= max(STEADY_SPREAD, APART * deviation):
            return ""
        share = quantile(slower, 0.5) / quantile(others, 0.5)
        return (
            f"rates form two groups: {len(slower)} boxes at {share:.1%} of the other {len(others)}; all of the slower "
            "may be slow"
        )

    def _wide(self) -> str:
        share = self.spread / self.middle
        if share <= WIDE:
            return ""
        return (
            f"rates form no single group, half of the boxes lie more than {share:.1%} from the median: the slower may "
            "all be slow"
        )


class _Usual:
    """What is usual of a model's boxes, and in what one of them differs."""

    def __init__(self, profiles: list[Profile]) -> None:
        self.sm = _median([one.after.sm_mhz for one in profiles])
        self.memory = _median([one.after.memory_mhz for one in profiles])
        self.heat = _median([one.after.temperature_c for one in profiles])
        self.ecc = _most([one.hardware.ecc for one in profiles])
        counts = Counter(bit for one in profiles for bit in range(_bits(one).bit_length()) if _bits(one) >> bit & 1)
        self.bits = sum(1 << bit for bit, count in counts.items() if 2 * count > len(profiles))

    def reasons(self, profile: Profile) -> tuple[str, ...]:
        after, hardware = profile.after, profile.hardware
        bits = _bits(profile) & ~self.bits
        found = []
        for name, clock, usual in (("memory", after.memory_mhz, self.memory), ("SM", after.sm_mhz, self.sm)):
            if clock is not None and usual is not None and clock < CLOCK_SHARE * usual:
                found.append(f"clock: {name} at {clock} MHz, usual {usual:g}")
        if bits & SLOWDOWN_BITS:
            found.append(f"clock: held back, event reasons 0x{bits:x}")
        hot = after.temperature_c is not None and self.heat is not None and after.temperature_c >= self.heat + HOTTER_C
        if hot or bits & THERMAL_BITS:
            found.append(
                f"temperature: {after.temperature_c} °C, usual {self.heat:g}" if hot else "temperature: slowdown"
            )
        if None not in (hardware.ecc, self.ecc) and hardware.ecc != self.ecc:
            found.append(f"ECC: {_on(hardware.ecc)}, usual {_on(self.ecc)}")
        if hardware.mig:
            found.append("MIG: a slice of the GPU")
        if hardware.kind == "gpu" and (others := (*profile.before.others, *profile.after.others)):
            found.append(f"other process: {', '.join(dict.fromkeys(others))}")
        return tuple(found) or ("unexplained",)


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return quantile(known, 0.5) if known else None


def _most(values: Sequence[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return max(set(known), key=known.count) if known else None


def _on(value: Any) -> str:
    return "on" if value else "off"


def _bits(profile: Profile) -> int:
    """Return the clocks event reasons of before and after, as NVML numbers them."""
    return _reasons(profile.before) | _reasons(profile.after)


def _reasons(state: State) -> int:
    return int(state.throttle, 16) if re.fullmatch("0[xX][0-9a-fA-F]+", state.throttle) else 0
