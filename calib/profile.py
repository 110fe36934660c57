"""A profile: what one box measured, by which protocol, with every sample. Written whole or not at all, and sealed.

The seal is a SHA-256 over the content: a file that was cut short or edited by hand is found when it is loaded.
Beside it stands one over the text that follows, which is quicker to check where a thousand files are read.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import secrets
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import from_json

from calib.stats import Summary, summary
from dsa_ledger.errors import ABSENT, BadInput, Fault, Said, Words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES = 64 * 2**20  # a full run's profile has about half a MB
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # of file systems without hard links
PLAIN_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Hardware(_Part):
    """The box: what must be the same for two profiles to be of one machine."""

    kind: Literal["gpu", "cpu"]
    name: str = Field(min_length=1)
    identity: str  # the GPU's UUID; of a CPU, its host's name
    memory_bytes: int = Field(gt=0)  # as the driver reports it
    units: int = Field(gt=0)  # SMs, or CPU cores
    cache_bytes: int = Field(ge=0)  # last level, 0 unknown
    peak_bytes_per_s: float | None = Field(gt=0)  # of the data sheet; none is known of a CPU
    compute_capability: str
    ecc: bool | None
    mig: bool | None


class Software(_Part):
    """What ran the measurement."""

    dsa_ledger: str
    backend: str  # such as "cupy 14.2.0"
    driver: str
    runtime: str
    compiler: str
    python: str
    kernels_sha256: str


class Protocol(_Part):
    """How it was measured."""

    quick: bool
    pool_bytes: int = Field(gt=0)
    tensors: int = Field(gt=0)
    span_bytes: int = Field(gt=0)  # what one launch's pages may be spread over
    replays: int = Field(gt=0)
    free_fraction: float = Field(gt=0, le=1)
    seed: int
    block_table_sha256: str  # "" where none was replayed


class State(_Part):
    """Clocks and company before or after the run; None where the machine does not say."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: str = ""
    others: tuple[str, ...] = ()  # other processes on the device


class Case(_Part):
    """One kernel on one shape and page order; a sample is the mean time of a launch within one replay."""

    key: str = Field(min_length=1)
    group: str
    kernel: str
    order: str
    rows: int = Field(gt=0)
    tokens: int = Field(gt=0)  # of one row, the mean where rows differ
    read_bytes: int = Field(gt=0)  # by one launch
    write_bytes: int = Field(ge=0)
    reuse_bytes: int = Field(ge=0)  # what is read between two reads of the same page: cold where it exceeds the cache
    fragmentation: dict[str, float]
    verified: bool
    samples_s: tuple[float, ...] = Field(min_length=1)

    @field_validator("samples_s")
    @classmethod
    def _positive(cls, samples: tuple[float, ...]) -> tuple[float, ...]:
        if min(samples) <= 0:
            raise ValueError("a time is above 0 s")
        return samples

    @property
    def summary(self) -> Summary:
        """Return median and spread of the samples."""
        return summary(self.samples_s)

    @property
    def rate_bytes_per_s(self) -> float:
        """Return bytes read and written per second, at the median."""
        return (self.read_bytes + self.write_bytes) / self.summary.median_s


class RunLength(_Part):
    """rate(r) = rate_inf * r / (r + r_half), r the mean run in pages; covariance of the two, relative residuals."""

    rate_inf_bytes_per_s: float = Field(gt=0)
    r_half_pages: float = Field(ge=0)
    covariance: tuple[tuple[float, float], tuple[float, float]]
    residuals: tuple[float, ...]
    held_at_zero: str


class Shape(_Part):
    """The read rate of one batch and length. `eta` is its share of the data sheet's peak, where there is one."""

    rows: int
    tokens: int
    order: str
    rate_bytes_per_s: float
    eta: float | None


class ScanLine(_Part):
    """Time of a two-pass row scan: t0_s + s_per_token * tokens; bytes_per_s counts 8 B a token, two fp32 reads."""

    kernel: str
    t0_s: float
    s_per_token: float = Field(gt=0)
    bytes_per_s: float = Field(gt=0)
    covariance: tuple[tuple[float, float], tuple[float, float]]
    residuals: tuple[float, ...]


class Gather(_Part):
    """The rate at which records at random positions are read."""

    record_bytes: int
    rate_bytes_per_s: float


class Fits(_Part):
    """What an estimate takes from a profile."""

    ceiling_bytes_per_s: float | None
    run_length: RunLength | None
    shapes: tuple[Shape, ...]
    scans: tuple[ScanLine, ...]
    gathers: tuple[Gather, ...]


class Profile(_Part):
    """A whole calibration."""

    schema_version: Literal[1] = 1
    created: str  # UTC, ISO 8601
    hardware: Hardware
    software: Software
    protocol: Protocol
    before: State
    after: State
    drift: float | None  # of the first case, measured again at the end
    cases: tuple[Case, ...] = Field(min_length=1)
    fits: Fits
    warnings: tuple[str, ...]
    merged_from: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # engine kernels that were not timed, and why
    host: str = ""  # where it ran; "" in profiles of releases that did not say
    node: str = ""  # Ray's name of the node, which tells nodes of one host apart

    @property
    def label(self) -> str:
        """Return what the profile is of, in words."""
        only = "" if self.hardware.kind == "gpu" else " (CPU memory: never used for a GPU estimate)"
        return f"{self.hardware.name}, {self.created[:10]}{only}"

    @property
    def seal(self) -> str:
        """Return the SHA-256 of the content."""
        return _seal_of(self.model_dump(mode="json"))

    @property
    def file_stem(self) -> str:
        """Return a file name that tells boxes apart: host and GPU UUID, or host and Ray node of a CPU."""
        hardware = self.hardware
        if not self.host:
            name = f"{hardware.name}-{hardware.identity[-8:]}".lower()
        elif hardware.kind == "cpu":
            name = f"{self.host}-{self.node or 'cpu'}".lower()
        else:
            name = f"{self.host}-{hardware.identity}".lower()
        return "-".join(filter(None, "".join(c if c in PLAIN_LETTERS else " " for c in name).split()))


def save(profile: Profile, path: Path) -> Path:
    """Write the profile to a file, in place of one that is there, or as `save_in` does where `path` is a folder.

    It appears whole or not at all. Returns the file; raises BadInput where nothing can be written.
    """
    if path.is_dir():
        return save_in(profile, path)
    with _written(profile, path) as temporary:
        temporary.replace(path)
    return path


def save_in(profile: Profile, folder: Path) -> Path:
    """Write the profile into a folder under its own name, with a number behind it where another run has that name.

    Runs that end at the same moment do not meet: a name is taken by a link, which one of them gets. Returns and raises
    as `save` does.
    """
    stem = profile.file_stem
    with _written(profile, folder / f"{stem}.json") as temporary:
        names = itertools.chain([stem], (f"{stem}-run{number}" for number in itertools.count(2)))
        return next(target for name in names if _took(target := folder / f"{name}.json", temporary))


def _took(target: Path, temporary: Path) -> bool:
    """Give the file a name unless another run's profile has it; what is cut short or no profile is no loss."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        pass
    except OSError as failure:
        if failure.errno not in NO_LINKS:
            raise
    else:
        return True
    try:
        load(target, briefly=True)
    except BadInput:
        temporary.replace(target)
        return True
    return False


@contextmanager
def _written(profile: Profile, target: Path) -> Iterator[Path]:
    """Yield a file beside the target with the whole profile; what is left of it goes (BadInput: it cannot be)."""
    rest = json.dumps(profile.model_dump(mode="json"), indent=1)[1:] + "\n"
    text = f'{{\n "seal": "{profile.seal}:{_sha256(rest)}",{rest}'
    temporary = target.with_name(f".profile-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:  # readable by whom the umask lets, unlike a tempfile
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as failure:
        raise BadInput([Fault("out", str(target), f"a place that can be written: {failure.strerror}")]) from None


def load(path: Path, *, briefly: bool = False) -> Profile:
    """Return the profile of a file (BadInput: unreadable, damaged, edited, or each field that is wrong).

    `briefly`: with its first case alone, the seal standing for the others: several times as fast, for a whole fleet.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:  # a pipe or a device would not end
            raise BadInput([Fault("profile", str(path), f"a file of at most {MOST_BYTES:,} B")])
        text = path.read_text(encoding="utf-8")
        content = from_json(text)
    except OSError as failure:
        raise BadInput([Fault("profile", str(path), f"a file that can be read: {failure.strerror}")]) from None
    except ValueError:
        raise BadInput([Fault("profile", str(path), "a whole JSON file; this one is damaged")]) from None
    if not isinstance(content, dict):
        raise BadInput([Fault("profile", str(path), "a profile as `dsa-ledger calibrate` writes it")])
    seal, _, of_text = str(content.pop("seal", "")).partition(":")
    # As it was written, not as it is read: a field that is new since then has its default, and is not sealed.
    is_whole = (briefly and of_text == _sha256(text.partition(",")[2])) or _seal_of(content) == seal
    if briefly and is_whole and isinstance(content.get("cases"), list):
        content["cases"] = content["cases"][:1]
    try:
        profile = Profile.model_validate(content)
    except ValidationError as wrong:
        raise BadInput(_faults(wrong)) from None
    if not is_whole:
        expected = "what `dsa-ledger calibrate` wrote: this file was edited or damaged since"
        raise BadInput([Fault("profile", str(path), expected)])
    return profile


def load_for_estimate(path: Path) -> Profile:
    """Return the profile of a GPU, its first case alone (BadInput, also for a CPU's: it tells nothing of a GPU)."""
    profile = load(path, briefly=True)  # what an estimate takes are the fits
    if profile.hardware.kind != "gpu":
        expected = "gpu: no other memory stands for a GPU's"
        raise BadInput([Fault("profile.hardware.kind", profile.hardware.kind, expected)])
    return profile


def _seal_of(content: dict[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _faults(wrong: ValidationError) -> list[Fault]:
    found = wrong.errors(include_url=False)
    # A list whose items are wrong is called too short as well: only the items are.
    within = {error["loc"][:depth] for error in found for depth in range(len(error["loc"]))}
    absent: dict[str, list[str]] = {}
    for error in found:
        if error["type"] == "missing":
            absent.setdefault(_dotted(error["loc"][:-1]), []).append(str(error["loc"][-1]))
    # What one table lacks is one fault: a file that is no profile at all would have ten.
    lacking = [Fault(place, ABSENT, f"its {', '.join(names)}") for place, names in absent.items()]
    return lacking + [
        Fault(_dotted(error["loc"]), _shown(error["input"]), _expected(error["msg"]))
        for error in found
        if error["loc"] not in within and error["type"] != "missing"
    ]


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(["profile", *map(str, place)])


def _expected(said: str) -> str:
    start, _, wanted = said.partition("Input should be ")
    return Said(said) if start or not wanted else wanted


def _shown(given: Any) -> Any:
    return Words(f"a table of {len(given)}") if isinstance(given, dict) else given
