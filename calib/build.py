"""The kernels as built code: NVRTC from its wheel, no toolkit, no driver; and what each kernel must use.

A kernel that lost its loads in flight would measure itself and not the memory. Registers tell: a batch of loads that is
whole in flight keeps four of them for every 16 bytes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_ledger.errors import BadInput, Fault, Said

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_name("paged_read.cu")
OPTIONS = ("-std=c++17",)
OLDEST_NVRTC = (12, 9)  # 12.8 does not know sm_103
WARPS, SCAN_WARPS, CLUSTER, GROUP = 8, 32, 8, 4  # as in paged_read.cu; a test compares them
RING_BYTES = 8 * 8448 + 8 * 8
REGISTER_FILE = (
    65_536  # 32-bit registers of one SM, compute capability 9.0 to 10.3 (CUDA C++ Programming Guide, table of
)
# technical specifications per compute capability)


@dataclass(frozen=True)
class Kernel:
    """How a kernel is launched, and what it must keep in flight."""

    threads: int
    blocks_per_sm: int
    loads_in_flight: int  # 16-byte loads of one thread; 0 where a copy engine does the reading
    shared_bytes: int = 0

    def complaints(self, registers: int, local_bytes: int) -> list[str]:
        """Return what is wrong with a build of this kernel."""
        least = 4 * self.loads_in_flight + 4  # the loads' own, an address and a sum
        most = REGISTER_FILE // (self.threads * self.blocks_per_sm)
        found = []
        if registers < least:
            found.append(f"{registers} registers, at least {least} for {self.loads_in_flight} loads in flight")
        if registers > most:
            found.append(f"{registers} registers, at most {most} for {self.blocks_per_sm} blocks on an SM")
        if local_bytes:
            found.append(f"{local_bytes} bytes of local memory: registers were spilled")
        return found


READ = Kernel(threads=WARPS * 32, blocks_per_sm=3, loads_in_flight=8)
KERNELS = {
    "read_pages": READ,
    "read_pages_bulk": Kernel(threads=WARPS * 32, blocks_per_sm=3, loads_in_flight=0, shared_bytes=RING_BYTES),
    "read_straight": READ,
    "score_pages": Kernel(threads=WARPS * 32, blocks_per_sm=2, loads_in_flight=8),
    "scan_rows": Kernel(threads=SCAN_WARPS * 32, blocks_per_sm=1, loads_in_flight=4),
    "scan_rows_cluster": Kernel(threads=SCAN_WARPS * 32, blocks_per_sm=1, loads_in_flight=4),
    "gather_576": READ,
    "gather_656": READ,
    "gather_1152": Kernel(threads=WARPS * 32, blocks_per_sm=3, loads_in_flight=12),
    "fill": Kernel(threads=WARPS * 32, blocks_per_sm=1, loads_in_flight=0),
    "sum_pages": Kernel(threads=WARPS * 32, blocks_per_sm=1, loads_in_flight=0),
}


@dataclass(frozen=True)
class Built:
    """One architecture's code: the cubin, registers and spilled bytes by kernel, and the compiler's version."""

    cubin: bytes
    registers: dict[str, int]
    spilled_bytes: dict[str, int]
    nvrtc: tuple[int, int]


def kernel_source() -> str:
    """Return the text of every kernel."""
    return SOURCE.read_text(encoding="utf-8")


def find_nvrtc(newest_cuda: int = 99) -> Path | None:
    """Return NVRTC's library out of the newest CUDA wheel that a driver for `newest_cuda` understands, or None."""
    found = {int(path.name.rpartition(".")[2]): path for path in _libraries()}
    return max((item for item in found.items() if item[0] <= newest_cuda), default=(0, None))[1]


def _libraries() -> Iterator[Path]:
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        # cu13/lib in the wheels for CUDA 13, cuda_nvrtc/lib in those for 12
        yield from Path(folder).glob("*/lib/libnvrtc.so.[0-9][0-9]")


def build(architecture: str, source: str | None = None, *, newest_cuda: int = 99) -> Built:
    """Return the kernels compiled for an architecture such as "sm_90" (BadInput: no NVRTC, or the compiler's words)."""
    path = find_nvrtc(newest_cuda)
    if path is None:
        raise BadInput(
            [Fault("nvrtc", None, "its wheel: pip install 'dsa-ledger[gpu13]', or [gpu12] for a driver of CUDA 12")]
        )
    library = ctypes.CDLL(str(path))
    version = (ctypes.c_int(), ctypes.c_int())
    library.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    nvrtc = (version[0].value, version[1].value)
    if nvrtc < OLDEST_NVRTC:
        raise BadInput(
            [Fault("nvrtc", ".".join(map(str, nvrtc)), "12.9 or newer, which knows every GPU of the catalog")]
        )
    program = ctypes.c_void_p()
    text = (source or kernel_source()).encode()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"paged_read.cu", 0, None, None)
    options = [option.encode() for option in (f"-arch={architecture}", "--ptxas-options=-v", *OPTIONS)]
    try:
        failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _take(library, "ProgramLog", program).decode().rstrip("\0")
        if failed:
            raise BadInput([Fault("kernel", architecture, Said(log or f"NVRTC failed with code {failed}"))])
        return Built(_take(library, "CUBIN", program), *_resources(log), nvrtc)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _take(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(max(1, length.value))
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: length.value]


def _resources(log: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return registers and spilled bytes by kernel, from what ptxas says with -v."""
    registers, spilled = {}, {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        name = part.partition("'")[0]
        used = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        if used and spills:
            registers[name] = int(used[1])
            spilled[name] = int(spills[1]) + int(spills[2])
    return registers, spilled
