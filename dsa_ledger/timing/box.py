"""A measured box: the rates that a profile gives an estimate, and the public rates it is held against.

A profile enters in three places: the rate of the bytes term by batch, length and run of pages; top-k by the rate of
one processor's row scan; the gather of sparse attention by its rate. Prefill and weights keep the tables and the prior.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_ledger.errors import BadInput, Fault
from dsa_ledger.ledger import Source
from dsa_ledger.timing import evaluate
from dsa_ledger.timing.layer_times import REFERENCE
from dsa_ledger.timing.tables import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calib.profile import Profile
    from dsa_ledger.timing.siblings import Machine

SCAN_KERNEL = "scan_rows"  # one thread block a row, two passes, as the top-k of the reference reads its scores
SCAN_BYTES_PER_TOKEN = 8
REFERENCE_TOKENS = (65_536, 131_072)  # beyond what a first-level cache holds, and measured on every GPU
SPAN_FACTOR = 2  # a pool's span that differs by more than this is said


@dataclass(frozen=True)
class Box:
    """What one profile says."""

    profile: Profile
    name: str

    @property
    def source(self) -> Source:
        """Return the source that marks each row the profile touches."""
        driver = self.profile.software.driver
        return Source(
            "measured", f"profile {self.name}: {self.profile.hardware.name}, driver {driver}", self.profile.created[:10]
        )

    @property
    def gpu(self) -> str | None:
        """Return the catalog's name of the GPU measured, None where it has none."""
        return catalog_name(self.profile.hardware.name)

    @property
    def half_run_pages(self) -> float | None:
        """Return the run of pages at which half the rate is left, None where no law was measured."""
        law = self.profile.fits.run_length
        return law.r_half_pages if law else None

    @property
    def scan_bytes_per_s(self) -> float | None:
        """Return the rate at which one processor scans a row twice, None where it was not measured."""
        return next((scan.bytes_per_s for scan in self.profile.fits.scans if scan.kernel == SCAN_KERNEL), None)

    def straight_bytes_per_s(self, requests: float, tokens: float) -> float | None:
        """Return the rate of pages in a row, on lines in the logarithms of batch and length, constant beyond them."""
        rates: dict[int, dict[int, float]] = {}
        for shape in self.profile.fits.shapes:
            if shape.order == "contiguous":
                rates.setdefault(shape.rows, {})[shape.tokens] = shape.rate_bytes_per_s
        if not rates:
            law = self.profile.fits.run_length
            return law.rate_inf_bytes_per_s if law else None
        batches = sorted(rates)
        of_batch = [
            _on_line(sorted(rates[rows]), [rates[rows][key] for key in sorted(rates[rows])], tokens) for rows in batches
        ]
        return _on_line(batches, of_batch, requests)

    def covers(self, requests: float, tokens: float) -> bool:
        """Tell whether batch and length lie within the measured grid."""
        found = [(shape.rows, shape.tokens) for shape in self.profile.fits.shapes if shape.order == "contiguous"]
        rows, lengths = [pair[0] for pair in found], [pair[1] for pair in found]
        return bool(found) and min(rows) <= requests <= max(rows) and min(lengths) <= tokens <= max(lengths)

    def gather(self, record_bytes: int) -> tuple[int, float] | None:
        """Return the measured record nearest in bytes and the rate at which such records are gathered."""
        known = self.profile.fits.gathers
        if not known:
            return None
        near = min(known, key=lambda one: abs(one.record_bytes - record_bytes))
        return near.record_bytes, near.rate_bytes_per_s

    def warnings(self, gpu: str, driver: str | None, span_bytes: float) -> list[str]:
        """Return what differs between the box and what is estimated: GPU, driver, span of a layer's index keys."""
        measured, said = self.profile, []
        if self.gpu != gpu:
            said.append(
                f"profile {self.name} is of {measured.hardware.name}, not of {gpu}: it says nothing sure of that; "
                "calibrate the GPU in question"
            )
        if driver is not None and driver != measured.software.driver:
            said.append(
                f"profile {self.name} was measured with driver {measured.software.driver}, the server has {driver}: "
                "calibrate again"
            )
        span = measured.protocol.span_bytes
        if span_bytes and max(span, span_bytes) > SPAN_FACTOR * min(span, span_bytes):
            said.append(
                f"profile {self.name} spread its pages over {span / 2**30:.2f} GiB, a layer's index keys take "
                f"{span_bytes / 2**30:.2f} GiB of this pool: scattered pages may cost "
                f"{'more' if span_bytes > span else 'less'} than measured"
            )
        said += [f"profile {self.name}: {line}" for line in measured.warnings]
        return said


def _on_line(nodes: Sequence[float], values: Sequence[float], place: float) -> float:
    """Return the value at `place` between the nodes around it, in the logarithm; beyond the ends, the end's."""
    inside = log2(min(max(place, nodes[0]), nodes[-1]))
    return evaluate.between(inside, [log2(node) for node in nodes], values.__getitem__)


def load_box(path: str) -> Box:
    """Return the box of a profile file (BadInput: no such file, damaged, edited, or of a CPU)."""
    file = Path(path)
    try:
        changed = file.stat().st_mtime_ns
    except OSError as failure:
        raise BadInput([Fault("profile", path, f"a file that can be read: {failure.strerror}")]) from None
    return _loaded(file, changed)


@lru_cache(maxsize=8)
def _loaded(file: Path, changed: int) -> Box:
    del changed  # a part of the key: a file written anew is read anew
    from calib.profile import load_for_estimate

    return Box(load_for_estimate(file), file.stem)


def reference_scan_bytes_per_s(machine: Machine) -> tuple[float, tuple[str, ...]] | None:
    """Return the row scan rate that the kernel tables stand for, and the GPUs it was measured on.

    It is the slope of the reference's top-k of one row with separated scores: one thread block, two passes of fp32.
    """
    chosen = choose(*REFERENCE, "decode", "topk_kernel", machine)
    if chosen is None:
        return None
    wanted = evaluate.Wanted("glm", "top_last", "bfloat16", 1, machine.peak)
    first, last = (evaluate.decode(chosen.table, wanted, 1, tokens, indexer=False).total for tokens in REFERENCE_TOKENS)
    seconds = (last - first) * 1e-6
    tokens = REFERENCE_TOKENS[1] - REFERENCE_TOKENS[0]
    return (SCAN_BYTES_PER_TOKEN * tokens / seconds, chosen.gpus) if seconds > 0 else None


def catalog_name(driver_name: str) -> str | None:
    """Return the catalog's name for a driver's, "NVIDIA H100 80GB HBM3"; None where it has none."""
    from dsa_ledger.catalog import gpu_names

    words = driver_name.removeprefix("NVIDIA ").split()
    known = {name.lower(): name for name in gpu_names()}
    candidates = ("-".join(words[:2]).lower(), *(word.lower() for word in words[:1]))
    return next((known[name] for name in candidates if name in known), None)


@lru_cache(maxsize=8)
def mean_run_of(path: str) -> tuple[float, str]:
    """Return the mean run of pages in a dumped block table and the SHA-256 of its file (BadInput)."""
    try:
        from calib.fragments import fragmentation, load_block_table
    except ModuleNotFoundError:
        raise BadInput(
            [Fault("load.block_table", path, "numpy to read it: pip install 'dsa-ledger[calibrate]'")]
        ) from None
    try:
        table = load_block_table(Path(path))
    except BadInput as bad:
        raise BadInput(
            fault._replace(path=fault.path.replace("block-table", "load.block_table")) for fault in bad.faults
        ) from None
    return fragmentation(table).mean_run_pages, hashlib.sha256(Path(path).read_bytes()).hexdigest()
