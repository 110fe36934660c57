"""What nvidia-smi says of a GPU: clocks, power, ECC, MIG, other processes. It only asks; where it is missing, None."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from calib.profile import State
from dsa_ledger.units import MIB

FIELDS = ("uuid", "driver_version", "memory.total", "ecc.mode.current", "mig.mode.current")
STATE_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")


@dataclass(frozen=True)
class Gpu:
    """What stays as it is during a run; `others` are the processes that use the GPU beside this one."""

    uuid: str = ""
    driver: str = ""
    memory_bytes: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    others: tuple[str, ...] = ()


def query(name: str) -> Gpu:
    """Return the driver's view of one GPU, named by its PCI bus or UUID."""
    uuid, driver, memory, ecc, mig = _ask(FIELDS, name)
    return Gpu(
        uuid=uuid,
        driver=driver,
        memory_bytes=int(memory) * MIB if memory.isdigit() else None,
        ecc=_enabled(ecc),
        mig=_enabled(mig),
        others=_others(name),
    )


def state(name: str) -> State:
    """Return clocks [MHz], power [W], temperature [C] and throttle reasons at this moment."""
    sm, memory, power, temperature, throttle = _ask(STATE_FIELDS, name)
    return State(
        sm_mhz=_number(sm),
        memory_mhz=_number(memory),
        power_w=float(power) if power.replace(".", "", 1).isdigit() else None,
        temperature_c=_number(temperature),
        throttle=throttle,
        others=_others(name),
    )


def _others(gpu: str) -> tuple[str, ...]:
    lines = _lines("compute-apps", ("pid", "process_name"), gpu)
    found = [line.partition(", ") for line in lines if "," in line]
    return tuple(f"{name} (pid {pid})" for pid, _, name in found if pid.strip() != str(os.getpid()))


def _ask(fields: tuple[str, ...], gpu: str) -> list[str]:
    lines = _lines("gpu", fields, gpu)
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return values if len(values) == len(fields) else [""] * len(fields)


def _lines(what: str, fields: tuple[str, ...], gpu: str) -> list[str]:
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)  # noqa: S603 - our own words
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _enabled(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
