"""A fleet from its profiles: how η lies by GPU model, which boxes are slow and why, and the worst rank of each group.

Slow is judged by the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (ASQC, 1993):
0.6745 (x - median) / MAD beyond 3.5. Up to half of the boxes may be slow without moving either.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calib.profile import load
from calib.stats import STEADY_SPREAD, quantile
from dsa_ledger.errors import BadInput, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from calib.profile import Profile, State

MOST_Z = 3.5
NORMAL_MAD = 0.6745  # the MAD of a normal distribution with deviation 1
FEWEST = 4  # boxes of one model: of three, one that differs cannot be told from two that agree by chance
CLOCK_SHARE = 0.97  # of the model's median clock: below it the clock is a reason
HOTTER_C = 10  # above the model's median
THERMAL_BITS = 0x20 | 0x40  # NVML's clocks event reasons: software and hardware thermal slowdown
SLOWDOWN_BITS = 0x4 | 0x8 | 0x80  # software power cap, hardware slowdown, power brake
MAP_COLUMNS = ("group", "rank", "host", "uuid")


@dataclass(frozen=True)
class Box:
    """One profile of a fleet: its file and the rate it is judged by."""

    file: str
    profile: Profile
    rate_bytes_per_s: float
    z: float = 0.0
    share: float = 1.0  # of the model's median rate
    reasons: tuple[str, ...] = ()  # of a slow one

    @property
    def eta(self) -> float | None:
        """Return the share of the data sheet's peak, None where there is none."""
        peak = self.profile.hardware.peak_bytes_per_s
        return self.rate_bytes_per_s / peak if peak else None

    @property
    def is_slow(self) -> bool:
        """Tell whether the box is an outlier on the slow side, by more than what counts as noise."""
        return self.z < -MOST_Z and self.share < 1 - STEADY_SPREAD


@dataclass(frozen=True)
class Fleet:
    """Boxes by model, slowest first, and what could not be used."""

    models: dict[str, tuple[Box, ...]]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Return all boxes."""
        return tuple(box for boxes in self.models.values() for box in boxes)


def read_fleet(folder: Path) -> Fleet:
    """Return the fleet of a folder's profiles (BadInput: no folder, or no profile that can be used)."""
    if not folder.is_dir():
        raise BadInput(
            [Fault("fleet", str(folder), "a folder of profiles, as `dsa-ledger calibrate --out DIR` fills it")]
        )
    found: dict[str, tuple[str, Profile]] = {}
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.json")):
        try:
            profile = load(path, briefly=True)
        except BadInput as bad:
            faults.append(bad.faults[0]._replace(path=path.name) if len(bad.faults) == 1 else _several(path, bad))
            continue
        box = f"{profile.hardware.identity} {profile.node}".strip()
        if box in found:
            faults.append(Fault(path.name, box, f"a UUID of its own: {found[box][0]} has it and is used"))
        else:
            found[box] = (path.name, profile)
    if not found:
        raise BadInput(faults or [Fault("fleet", str(folder), "at least one profile in it")])
    by_model: dict[str, list[tuple[str, Profile]]] = {}
    for name, profile in found.values():
        by_model.setdefault(profile.hardware.name, []).append((name, profile))
    models = {model: _judged(boxes) for model, boxes in sorted(by_model.items())}
    return Fleet(models, tuple(faults), tuple(_warnings(models)))


def _several(path: Path, bad: BadInput) -> Fault:
    return Fault(path.name, f"{len(bad.faults)} faults", f"a whole profile; the first: {bad.lines()[0]}")


def _warnings(models: dict[str, tuple[Box, ...]]) -> Iterable[str]:
    if len(models) > 1:
        counts = ", ".join(f"{len(boxes)} {model}" for model, boxes in models.items())
        yield f"mixed models, each compared with its like alone: {counts}"
    for model, boxes in models.items():
        if len(boxes) < FEWEST:
            yield f"{model}: {len(boxes)} of {FEWEST} boxes that a judgement of outliers needs"
        quick = sum(box.profile.protocol.quick for box in boxes)
        if 0 < quick < len(boxes):
            yield f"{model}: {quick} of {len(boxes)} profiles are quick; only shapes that all measured are compared"
        for field in ("driver", "kernels_sha256"):
            values = {getattr(box.profile.software, field) for box in boxes}
            if len(values) > 1:
                yield f"{model}: {field} differs: {', '.join(sorted(values))}"


def _judged(found: list[tuple[str, Profile]]) -> tuple[Box, ...]:
    shared = set.intersection(*({_key(shape) for shape in profile.fits.shapes} for _, profile in found))
    rates = [_rate(profile, shared) for _, profile in found]
    middle = quantile(rates, 0.5)
    spread = quantile([abs(rate - middle) for rate in rates], 0.5)
    boxes = []
    usual = _Usual([profile for _, profile in found])
    for (name, profile), rate in zip(found, rates, strict=True):
        away = rate - middle
        z = NORMAL_MAD * away / spread if spread else math.copysign(math.inf, away) if away else 0.0
        box = Box(name, profile, rate, z if len(found) >= FEWEST else 0.0, rate / middle)
        reasons = usual.reasons(profile) if box.is_slow else ()
        boxes.append(Box(name, profile, rate, box.z, box.share, reasons))
    return tuple(sorted(boxes, key=lambda box: box.rate_bytes_per_s))


def _key(shape: Any) -> tuple[int, int, str]:
    return shape.rows, shape.tokens, shape.order


def _rate(profile: Profile, shared: set[tuple[int, int, str]]) -> float:
    """Return the median rate of the shapes that all measured, in a row; without shapes that of the first case."""
    rates = [
        shape.rate_bytes_per_s for shape in profile.fits.shapes if _key(shape) in shared and shape.order == "contiguous"
    ]
    return quantile(rates, 0.5) if rates else profile.fits.ceiling_bytes_per_s or profile.cases[0].rate_bytes_per_s


class _Usual:
    """What is usual of a model's boxes, and in what one of them differs."""

    def __init__(self, profiles: list[Profile]) -> None:
        self.sm = _median([one.after.sm_mhz for one in profiles])
        self.memory = _median([one.after.memory_mhz for one in profiles])
        self.heat = _median([one.after.temperature_c for one in profiles])
        self.ecc = _most([one.hardware.ecc for one in profiles])
        self.mig = _most([one.hardware.mig for one in profiles])

    def reasons(self, profile: Profile) -> tuple[str, ...]:
        after, hardware = profile.after, profile.hardware
        bits = _bits(profile.before) | _bits(after)
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
        if hardware.ecc != self.ecc:
            found.append(f"ECC: {_on(hardware.ecc)}, usual {_on(self.ecc)}")
        if hardware.mig and not self.mig:
            found.append("MIG: a slice of the GPU")
        if hardware.kind == "gpu" and (others := (*profile.before.others, *profile.after.others)):
            found.append(f"other process: {', '.join(dict.fromkeys(others))}")
        return tuple(found) or ("unexplained",)


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return quantile(known, 0.5) if known else None


def _most(values: Sequence[bool | None]) -> bool | None:
    return max(set(values), key=values.count)


def _on(value: bool | None) -> str:  # noqa: FBT001 - the value itself
    return {True: "on", False: "off", None: "not said"}[value]


def _bits(state: State) -> int:
    try:
        return int(state.throttle, 16)
    except ValueError:
        return 0


def distribution(fleet: Fleet) -> list[dict[str, Any]]:
    """Return for each model how the rates and η of its boxes lie."""
    rows = []
    for model, boxes in fleet.models.items():
        rates = [box.rate_bytes_per_s for box in boxes]
        etas = [box.eta for box in boxes if box.eta is not None]
        rows.append(
            {
                "model": model,
                "boxes": len(boxes),
                "slow": sum(box.is_slow for box in boxes),
                "rate_bytes_per_s": quantile(rates, 0.5),
                **{
                    f"eta_{name}": quantile(etas, share) if len(etas) == len(boxes) else None
                    for name, share in (("least", 0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("most", 1))
                },
            }
        )
    return rows


def slow_rows(fleet: Fleet) -> list[dict[str, Any]]:
    """Return each slow box with the share of its model's median that it reaches, and the reasons."""
    return [box_row(box) | {"z": box.z, "reason": "; ".join(box.reasons)} for box in fleet.boxes if box.is_slow]


def box_row(box: Box) -> dict[str, Any]:
    """Return a box in one row."""
    profile = box.profile
    return {
        "host": profile.host,
        "box": profile.hardware.identity,
        "model": profile.hardware.name,
        "eta": box.eta,
        "share_of_median": box.share,
        "file": box.file,
    }


def group_rows(fleet: Fleet, rank_map: Path) -> tuple[list[dict[str, Any]], list[Fault]]:
    """Return the slowest rank of each group of a CSV with columns group, rank, host, uuid, and the rows at fault.

    A row without a UUID means its host's one profile. BadInput: no such file, or a column is missing.
    """
    try:
        with rank_map.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise BadInput([Fault("ranks", str(rank_map), f"a CSV file: {failure}")]) from None
    if missing := [name for name in MAP_COLUMNS if name not in columns]:
        raise BadInput([Fault("ranks", ",".join(columns), f"columns {','.join(MAP_COLUMNS)}; missing {missing}")])
    by_uuid = {box.profile.hardware.identity: box for box in fleet.boxes}
    by_host: dict[str, list[Box]] = {}
    for box in fleet.boxes:
        by_host.setdefault(box.profile.host, []).append(box)
    groups: dict[str, list[tuple[str, Box]]] = {}
    faults = []
    for number, row in enumerate(rows, 2):
        uuid, host = row["uuid"] or "", row["host"] or ""
        here = by_host.get(host, [])
        found = by_uuid.get(uuid) if uuid else here[0] if len(here) == 1 else None
        if found is None:
            expected = "the UUID of a profile, or a host with one profile"
            faults.append(Fault(f"ranks line {number}", uuid or host, f"{expected}; rank {row['rank']} is left out"))
        else:
            groups.setdefault(row["group"] or "", []).append((row["rank"] or "", found))
    worst = {group: min(ranks, key=lambda pair: pair[1].rate_bytes_per_s) for group, ranks in groups.items()}
    return [
        {"group": group, "ranks": len(groups[group]), "worst_rank": rank, "slow": box.is_slow, **box_row(box)}
        for group, (rank, box) in worst.items()
    ], faults
