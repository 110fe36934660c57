"""The part of CuPy that calib/device.py uses, on the CPU: arrays are numpy's, kernels run in the fibres of kernel_host.

It is as strict as the driver is not: a launch with an argument of the wrong width, on the wrong grid, or inside a
capture that may not be there, fails at once. Real CuPy would read stray bytes.
"""

from __future__ import annotations

import ctypes
import re
import time
import types
from pathlib import Path
from typing import Any, Self

import numpy as np

from calib import build

TYPES = {
    "i64": np.int64,
    "int": np.int32,
    "u32": np.uint32,
    "u64": np.uint64,
    "float": np.float32,
}


def signatures() -> dict[str, list[tuple[str, bool]]]:
    """Return each kernel's parameters as (type, is a pointer), read from the source."""
    text = build.kernel_source()
    text += "".join(
        re.search(r"#define GATHER.*?\n\n|#define GATHER.*?(?=GATHER\(576)", text, re.DOTALL)[0]
        .replace("gather_##bytes", f"gather_{size}")
        .replace("\\\n", "\n")
        for size in (576, 656, 1152)
    )
    found = {}
    for name in build.KERNELS:
        given = re.search(rf"\b{name}\(((?:const )?\w+\*? [^)]*)\)", text)[1]
        parts = [part.replace("const", "").split() for part in given.split(",")]
        found[name] = [(kind.rstrip("*"), kind.endswith("*")) for kind, _ in parts]
    return found


class Kernel:
    def __init__(self, fake: FakeCupy, name: str) -> None:
        self.fake, self.name, self.max_dynamic_shared_size_bytes = fake, name, 0

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], *, shared_mem: int) -> None:
        wanted = build.KERNELS[self.name]
        assert block == (wanted.threads,)
        assert shared_mem == wanted.shared_bytes
        assert shared_mem <= max(48 << 10, self.max_dynamic_shared_size_bytes)
        if self.name == "scan_rows_cluster":
            assert grid[0] % build.CLUSTER == 0
        kinds = self.fake.signatures[self.name]
        assert len(arguments) == len(kinds), self.name
        given = []
        for value, (kind, pointer) in zip(arguments, kinds, strict=True):
            if pointer:
                assert isinstance(value, np.ndarray), (self.name, kind)
                assert kind == "char" or value.dtype == TYPES[kind], (self.name, kind, value.dtype)
                given.append(value.ctypes.data_as(ctypes.c_void_p))
            else:
                assert isinstance(value, TYPES[kind]), (self.name, kind, type(value))
                given.append(np.ctypeslib.as_ctypes_type(type(value))(value))
        self.fake.submit(lambda: self._run(grid[0], given, arguments))

    def _run(self, grid: int, given: list[Any], arguments: tuple[Any, ...]) -> None:
        self.fake.launched.append(self.name)
        fault = getattr(self.fake.library, f"run_{self.name}")(ctypes.c_uint(grid), *given)
        assert fault == 0, (self.name, fault)
        del arguments  # alive until here, as a graph needs them to be


class Stream:
    def __init__(self, fake: FakeCupy) -> None:
        self.fake, self.captured = fake, None

    def __enter__(self) -> Self:
        self.fake.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        self.fake.stream = None

    def synchronize(self) -> None:
        assert self.captured is None, "a capture forbids synchronising"

    def begin_capture(self) -> None:
        assert self.captured is None
        self.captured = []

    def end_capture(self) -> types.SimpleNamespace:
        work, self.captured = self.captured, None
        assert work is not None

        def launch(stream: Stream) -> None:
            assert stream is self
            for step in work:
                step()

        return types.SimpleNamespace(launch=launch)


class Event:
    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.at


class Device:
    pci_bus_id = "0000:0A:00.0"

    def __init__(self, number: int) -> None:
        self.number = number

    def use(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeCupy(types.ModuleType):
    """The module; `largest` is what one allocation can have, `free` what memGetInfo says."""

    def __init__(self, library: Path, *, driver: int = 13_000, count: int = 1, largest: int = 2**62) -> None:
        super().__init__("cupy")
        self.library, self.signatures = ctypes.CDLL(str(library)), signatures()
        self.launched: list[str] = []
        self.stream: Stream | None = None
        self.largest = largest
        self.properties = {
            "name": b"NVIDIA H200",
            "major": 9,
            "minor": 0,
            "totalGlobalMem": 150 * 10**9,
            "multiProcessorCount": 2,
            "l2CacheSize": 1000,
        }
        self.ndarray = lambda shape, dtype, memptr: memptr.memory.view(dtype)[: shape[0]]
        self.asarray, self.asnumpy = np.ascontiguousarray, np.array
        self.zeros, self.empty = np.zeros, np.empty
        self.get_default_memory_pool = lambda: types.SimpleNamespace(free_all_blocks=lambda: None)
        self.__version__ = "14.0.0"
        self.cuda = types.SimpleNamespace(
            Device=Device,
            Stream=lambda **_: Stream(self),
            Event=Event,
            Memory=self.memory,
            MemoryPointer=lambda memory, offset: types.SimpleNamespace(memory=memory[offset:]),
            get_elapsed_time=lambda start, stop: (stop.at - start.at) * 1e3,
            runtime=types.SimpleNamespace(
                driverGetVersion=lambda: driver,
                runtimeGetVersion=lambda: 13_020,
                getDeviceCount=lambda: count,
                getDeviceProperties=lambda _: self.properties,
                memGetInfo=lambda: (4 * 2**30, 150 * 10**9),
            ),
        )

    def RawModule(self, *, path: str) -> types.SimpleNamespace:  # noqa: N802 - CuPy's name
        assert Path(path).read_bytes()[:4] == b"\x7fELF"
        return types.SimpleNamespace(get_function=lambda name: Kernel(self, name))

    def memory(self, size: int) -> np.ndarray:
        if size > self.largest:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        raw = np.zeros(size + 128, dtype=np.uint8)
        start = -raw.ctypes.data % 128
        return raw[start : start + size]

    def submit(self, step: Any) -> None:
        if self.stream is not None and self.stream.captured is not None:
            self.stream.captured.append(step)
        else:
            step()
