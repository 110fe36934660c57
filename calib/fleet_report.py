"""A fleet from its profiles: how η lies by GPU model, which boxes are slow and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calib.folder import files_in, profiles_of
from calib.judge import FEWEST, Box, Like, model_of
from calib.stats import quantile
from dsa_ledger.errors import BadInput, Fault, Words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from calib.profile import Profile

    Found = list[tuple[str, Profile]]


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
    found, faults = _read(folder)
    by_model: dict[str, Found] = {}
    for name, profile in found:
        by_model.setdefault(model_of(profile.hardware), []).append((name, profile))
    likes = {model: Like(boxes) for model, boxes in sorted(by_model.items())}
    models: dict[str, tuple[Box, ...]] = {}
    warnings: list[str] = []
    for model, boxes in sorted(by_model.items()):
        hardware = boxes[0][1].hardware
        like, whole = likes[model], likes.get(hardware.name)
        if hardware.mig and len(boxes) < FEWEST and whole and len(whole.rates) >= FEWEST:
            like = whole  # a stray slice: too few to be judged by each other
            warnings.append(f"{model}: {len(boxes)} of {FEWEST} that a judgement needs: held against whole GPUs")
        else:
            warnings += [f"{model}: {line}" for line in like.warnings()]
        models[model] = like.boxes(boxes)
        used, wanted = {box.file for box in models[model]}, "paged reads or a plain one, to compare boxes by"
        if like.rates:
            wanted = f"what {len(like.rates)} boxes are compared by"
        faults += [Fault(name, Words(f"no {like.measure}"), wanted) for name, _ in boxes if name not in used]
    models = {model: boxes for model, boxes in models.items() if boxes}
    if not models:
        raise BadInput(faults)
    every = [box for boxes in models.values() for box in boxes]
    return Fleet(models, tuple(faults), (*_mixed(models), *warnings, *_differences(models), *_incomplete(every)))


def _read(folder: Path) -> tuple[Found, list[Fault]]:
    """Return the newest profile of each box with its file's name, and what is left out."""
    if not folder.is_dir():
        raise BadInput(
            [Fault("fleet", str(folder), "a folder of profiles, as `dsa-ledger calibrate --out DIR` fills it")]
        )
    found: dict[str, tuple[str, Profile]] = {}
    profiles, faults = profiles_of(files_in(folder), briefly=True)
    for path, profile in profiles:
        box = f"{profile.hardware.identity} {profile.node}".strip()
        used, other = (path.name, profile), found.get(box)
        if other is not None:
            used, other = (used, other) if _age(profile) > _age(other[1]) else (other, used)
            faults.append(Fault(other[0], box, f"a UUID of its own: {used[0]} has it, as new or newer, and is used"))
        found[box] = used
    if not found:
        raise BadInput(faults or [Fault("fleet", str(folder), "at least one profile in it")])
    return list(found.values()), faults


def _age(profile: Profile) -> tuple[str, int]:
    """Return what is larger of the newer one; of a merged profile and the newest of its runs, the merged one."""
    return profile.created, len(profile.merged_from)


def _mixed(models: dict[str, tuple[Box, ...]]) -> Iterable[str]:
    if len(models) > 1:
        counts = ", ".join(f"{len(boxes)} {model}" for model, boxes in models.items())
        yield f"mixed models, each compared with its like alone: {counts}"


def _incomplete(boxes: Sequence[Box]) -> Iterable[str]:
    """Yield the hosts that have fewer boxes than most have."""
    counts = Counter(box.profile.host for box in boxes if box.profile.hardware.kind == "gpu")
    if not counts:
        return
    usual, hosts = Counter(counts.values()).most_common(1)[0]
    if hosts > len(counts) // 2:
        for host, count in sorted(counts.items()):
            if count < usual:
                yield f"{host} has {count} profile{'s' if count > 1 else ''}, most hosts {usual}"


def _differences(models: dict[str, tuple[Box, ...]]) -> Iterable[str]:
    for model, boxes in models.items():
        quick = sum(box.profile.protocol.quick for box in boxes)
        if 0 < quick < len(boxes):
            yield f"{model}: {quick} of {len(boxes)} profiles are quick; only shapes that all measured are compared"
        known = sum(box.eta is not None for box in boxes)
        if 0 < known < len(boxes):
            yield f"{model}: η is of {known} of {len(boxes)} boxes: the others' profiles have no data sheet's peak"
        for field in ("driver", "kernels_sha256"):
            values = {getattr(box.profile.software, field) for box in boxes}
            if len(values) > 1:
                yield f"{model}: {field} differs: {', '.join(sorted(values))}"


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
                    f"eta_{name}": quantile(etas, share) if etas else None
                    for name, share in (("least", 0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("most", 1))
                },
            }
        )
    return rows


def curves(fleet: Fleet) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return for each model the share of its boxes up to each one, slowest first, and the share of the median rate."""
    return [
        (model, [((place + 0.5) / len(boxes), box.share) for place, box in enumerate(boxes)])
        for model, boxes in fleet.models.items()
    ]


def slow_rows(fleet: Fleet) -> list[dict[str, Any]]:
    """Return each slow box with the share of its model's median that it reaches, and the reasons."""
    return [box_row(box) | {"z": box.z, "reason": "; ".join(box.reasons)} for box in fleet.boxes if box.is_slow]


def box_row(box: Box) -> dict[str, Any]:
    """Return a box in one row."""
    profile = box.profile
    return {
        "host": profile.host,
        "box": profile.hardware.identity,
        "model": box.model,
        "eta": box.eta,
        "share_of_median": box.share,
        "file": box.file,
    }
