"""The GPU backend, by CuPy: the one module that imports it. Launches are captured in a CUDA graph, timed by events.

No setting of the device is touched, and nothing is cached on disk: the kernels are built in memory each time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from calib import build, engine_kernels, plan, reference, smi
from calib.profile import Hardware, Software
from dsa_ledger.errors import BadInput, Fault, Said, Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calib.cases import Pool, Work
    from calib.profile import State

OLDEST_CAPABILITY = 90  # bulk copies and clusters: Hopper
CHECKED_SCORES = 64 * plan.PAGE_TOKENS  # of a case's first row
SPOT_CHECKS = 64  # pages whose sum the CPU works out too


def device_count() -> int:
    """Return how many GPUs there are (BadInput: no driver, or one too old for this CuPy)."""
    driver = cupy.cuda.runtime.driverGetVersion()
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    if driver == 0:
        raise BadInput([Fault("device", "gpu", "an NVIDIA driver; `--device cpu` measures the CPU's memory instead")])
    if driver // 1000 < runtime // 1000:
        expected = f"a driver for CUDA {runtime // 1000}, which this CuPy needs, or the extra gpu{driver // 1000}"
        raise BadInput([Fault("driver", _version(driver), expected)])
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except RuntimeError as failure:
        raise BadInput([Fault("device", "gpu", f"a GPU that answers: {failure}")]) from None


class DeviceBackend:
    """One GPU, whole and idle (BadInput says what is in the way)."""

    ceiling_kernels: Sequence[str] = ("read_straight",)
    read_kernels: Sequence[str] = ("read_pages", "read_pages_bulk")
    scan_kernels: Sequence[str] = ("scan_rows", "scan_rows_cluster")

    def __init__(self, number: int, peak_of: Callable[[str], float | None], *, busy: bool = False) -> None:
        """Look at the GPU and build its kernels; `peak_of` gives a GPU's peak by the driver's name [B/s].

        `busy`: measure it although other processes use it.
        """
        count = device_count()
        if not 0 <= number < count:
            raise BadInput([Fault("device", f"gpu:{number}", f"one of the {count} GPUs, counted from 0")])
        self.number = number
        # Asked before this process has a context: in a container it could not tell its own from another's.
        self.bus = cupy.cuda.Device(number).pci_bus_id
        self.gpu = smi.query(self.bus)
        _refuse_shared(self.gpu, busy=busy)
        properties = cupy.cuda.runtime.getDeviceProperties(number)
        with cupy.cuda.Device(number):
            capability = int(properties["major"]) * 10 + int(properties["minor"])
            if capability < OLDEST_CAPABILITY:
                raise BadInput(
                    [Fault("device.compute_capability", capability / 10, "9.0 or newer (Hopper, Blackwell)")]
                )
            driver = cupy.cuda.runtime.driverGetVersion()
            self.built = build.build(f"sm_{capability}", newest_cuda=driver // 1000)
            self.kernels = self._load_kernels()
        name = properties["name"].decode()
        self.hardware = Hardware(
            kind="gpu",
            name=name,
            identity=self.gpu.uuid or self.bus,
            memory_bytes=self.gpu.memory_bytes or int(properties["totalGlobalMem"]),
            units=int(properties["multiProcessorCount"]),
            cache_bytes=int(properties["l2CacheSize"]),
            peak_bytes_per_s=peak_of(name),
            compute_capability=f"{capability // 10}.{capability % 10}",
            ecc=self.gpu.ecc,
            mig=self.gpu.mig,
        )
        self.software = Software(
            dsa_ledger=_package_version("dsa-ledger"),
            backend=f"cupy {cupy.__version__}",
            driver=self.gpu.driver or _version(cupy.cuda.runtime.driverGetVersion()),
            runtime=_version(cupy.cuda.runtime.runtimeGetVersion()),
            compiler="nvrtc " + ".".join(map(str, self.built.nvrtc)),
            python=platform.python_version(),
            kernels_sha256=hashlib.sha256(build.kernel_source().encode()).hexdigest(),
        )
        self.memory: Any = None
        self.pool: Any = None
        self.page_sums = np.empty(0, dtype=np.uint64)
        self.engines: dict[str, engine_kernels.Ready] = {}
        self.seed = 0

    def _load_kernels(self) -> dict[str, Any]:
        complaints = {
            name: found
            for name, kernel in build.KERNELS.items()
            if (found := kernel.complaints(self.built.registers[name], self.built.spilled_bytes[name]))
        }
        if complaints:
            built = Words("built")
            raise BadInput(Fault(f"kernel.{name}", built, Said("; ".join(found))) for name, found in complaints.items())
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kernels.cubin"
                path.write_bytes(self.built.cubin)
                module = cupy.RawModule(path=str(path))
                kernels = {name: module.get_function(name) for name in build.KERNELS}
        except OSError as failure:
            said = failure.strerror or str(failure)
            raise BadInput(
                [Fault("TMPDIR", os.environ.get("TMPDIR"), f"a folder that can be written: {said}")]
            ) from None
        for name, kernel in build.KERNELS.items():
            if kernel.shared_bytes:
                kernels[name].max_dynamic_shared_size_bytes = kernel.shared_bytes
        return kernels

    def free_bytes(self) -> int:
        """Return the device's free memory."""
        with cupy.cuda.Device(self.number):
            return int(cupy.cuda.runtime.memGetInfo()[0])

    def open(self, pool: Pool, seed: int) -> None:
        """Take one allocation of the driver, fill it, and sum its pages (MemoryError; RuntimeError: wrong sums)."""
        cupy.cuda.Device(self.number).use()
        words = pool.pages * plan.PAGE_BYTES // 4
        try:
            self.memory = cupy.cuda.Memory(words * 4)
        except RuntimeError as failure:
            if "cudaErrorMemoryAllocation" in str(failure):
                raise MemoryError from None
            raise
        self.pool = cupy.ndarray((words,), dtype=np.uint32, memptr=cupy.cuda.MemoryPointer(self.memory, 0))
        self.seed = seed
        self.launch("fill", 8 * self.hardware.units, self.pool, np.int64(words), np.uint32(seed))
        sums = cupy.empty(pool.pages, dtype=np.uint64)
        self.launch("sum_pages", 8 * self.hardware.units, self.pool, np.int64(pool.pages), sums)
        self.page_sums = cupy.asnumpy(sums)
        page_words = plan.PAGE_BYTES // 4
        for page in np.random.default_rng(seed).integers(0, pool.pages, SPOT_CHECKS):
            wanted = reference.words_sum(reference.hashed_words(int(page) * page_words, page_words, seed))
            if int(self.page_sums[page]) != wanted:
                raise RuntimeError(f"page {page} does not hold what was written to it")

    def close(self) -> None:
        """Free the pool."""
        self.engines = {}  # they hold views of the pool
        self.pool = self.memory = None
        cupy.get_default_memory_pool().free_all_blocks()

    def state(self) -> State:
        """Return clocks, power, temperature and other processes, as nvidia-smi says."""
        return smi.state(self.bus)

    def launch(self, name: str, grid: int, *arguments: Any) -> None:
        """Launch a kernel on the current stream. Scalars are numpy's, of the width that the kernel declares."""
        kernel = build.KERNELS[name]
        self.kernels[name]((grid,), (kernel.threads,), arguments, shared_mem=kernel.shared_bytes)

    def load(self, work: Work) -> _Loaded | engine_kernels.Ready:
        """Return the case on the device, its launches captured; an engine's kernel is launched as the engine does."""
        return self.engines.pop(work.key, None) or _Loaded(self, work)

    def engine_kernels(self, pool: Pool, tokens: int, most: int) -> engine_kernels.Found:
        """Return the engines' own kernels that are installed here, over the pool that is open."""
        memory = self.pool.view(np.uint8)
        found = engine_kernels.find(pool, memory, tokens=tokens, most=most, units=self.hardware.units)
        self.engines = dict(found.ready)
        return found


class _Loaded:
    """One case: arrays that live as long as the graph, which keeps no reference to them."""

    def __init__(self, backend: DeviceBackend, work: Work) -> None:
        self.backend, self.work = backend, work
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.start, self.stop = cupy.cuda.Event(), cupy.cuda.Event()
        self.kernel = build.KERNELS[work.kernel]
        self.slot_rows = np.empty(0, dtype=np.int32)
        self.slots: Any = None
        self.scores: Any = None
        with self.stream:
            self.calls = self._scans() if work.row_starts else self._walks()
            self._run(self.calls[:1])  # before the capture: a first launch may load code
            self.stream.synchronize()
            self.first_slots = cupy.asnumpy(self.slots)
            self.first_scores = cupy.asnumpy(self.scores[0, :CHECKED_SCORES]) if self.scores is not None else None
            self.graph = self._captured()

    def replay(self) -> float:
        """Run the graph once; return seconds per launch, by the device's own clock."""
        self.start.record(self.stream)
        self.graph.launch(self.stream)
        self.stop.record(self.stream)
        self.stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(self.start, self.stop)) * 1e-3 / len(self.calls)

    def verified(self) -> bool:
        """Return whether the first launch's slots hold the sums of what it should have read, row by row."""
        work, seed = self.work, self.backend.seed
        if work.row_starts:
            keys = reference.hashed_words(work.row_starts[0] // 4, work.tokens, seed)
            ctas = len(self.first_slots) // work.rows
            return reference.words_sum(self.first_slots) == reference.scan_sum(keys, ctas * self.kernel.threads)
        if work.picks:
            words = int(work.kernel.rpartition("_")[2]) // 4
            wanted = [
                sum(reference.words_sum(reference.hashed_words(int(pick) * words, words, seed)) for pick in row)
                for row in work.picks[0]
            ]
        else:
            wanted = [int(self.backend.page_sums[row].sum(dtype=np.uint64)) for row in work.tables[0].rows()]
        found = [reference.words_sum(self.first_slots[self.slot_rows == row]) for row in range(work.rows)]
        return found == [one % 2**64 for one in wanted] and self._scores_are_right()

    def _scores_are_right(self) -> bool:
        if self.first_scores is None:
            return True
        words = plan.PAGE_BYTES // 4
        pages = self.work.tables[0].rows()[0][: -(-len(self.first_scores) // plan.PAGE_TOKENS)]
        content = [reference.hashed_words(int(page) * words, words, self.backend.seed) for page in pages]
        wanted = reference.page_scores(np.stack(content)).reshape(-1)
        return bool(np.array_equal(self.first_scores[: len(wanted)], wanted))

    def release(self) -> None:
        """Let the arrays and the graph go."""
        self.graph = self.slots = self.scores = None
        self.calls = []

    def _walks(self) -> list[tuple[Any, ...]]:
        """Return each launch's arguments for the kernels that walk rows of units: pages, or groups of picks."""
        work = self.work
        if work.picks:
            units = [work.picks[0].shape[1] // build.GROUP] * work.rows
            entries = [cupy.asarray(picks) for picks in work.picks]
        else:
            units = list(work.tables[0].row_pages)
            entries = [cupy.asarray(table.pages) for table in work.tables]
        most = self.kernel.blocks_per_sm * self.backend.hardware.units
        self.grid = max(1, min(most, -(-sum(units) // build.WARPS)))
        self.slot_rows = plan.slot_rows(units, self.grid)
        self.slots = cupy.zeros((len(self.slot_rows), build.WARPS), dtype=np.uint64)
        rows = (
            cupy.asarray(plan.first_units(units)),
            cupy.asarray(plan.first_rows(units, self.grid)),
            np.int32(work.rows),
            self.slots,
        )
        pool = self.backend.pool
        if work.kernel == "read_straight":
            words = plan.PAGE_BYTES // 4
            return [(pool[int(table.pages[0, 0]) * words :], *rows) for table in work.tables]
        if work.kernel == "score_pages":
            width = entries[0].shape[1] * plan.PAGE_TOKENS
            self.scores = cupy.empty((work.rows, width), dtype=np.float32)
            rows = (*rows, self.scores, np.int64(width))  # type: ignore[assignment]
        return [(pool, table, np.int64(table.shape[1]), *rows) for table in entries]

    def _scans(self) -> list[tuple[Any, ...]]:
        work = self.work
        ctas = build.CLUSTER if work.kernel == "scan_rows_cluster" else 1
        self.grid = work.rows * ctas
        self.slots = cupy.zeros((self.grid, build.SCAN_WARPS), dtype=np.uint64)
        tokens = np.int64(work.tokens)
        return [(self.backend.pool[start // 4 :], tokens, tokens, self.slots) for start in work.row_starts]

    def _run(self, calls: list[tuple[Any, ...]]) -> None:
        for arguments in calls:
            self.backend.launch(self.work.kernel, self.grid, *arguments)

    def _captured(self) -> Any:
        self.stream.begin_capture()
        try:
            self._run(self.calls)
        except BaseException:
            self.stream.end_capture()  # or every later call on this stream fails too
            raise
        return self.stream.end_capture()


def _refuse_shared(gpu: smi.Gpu, *, busy: bool) -> None:
    faults = []
    if gpu.mig:
        faults.append(Fault("device.mig", "on", "a whole GPU: a slice has a share of the memory's channels"))
    if gpu.others and not busy:
        faults.append(
            Fault("device.processes", list(gpu.others), "an idle GPU; end them, or name another: --device gpu:N")
        )
    if faults:
        raise BadInput(faults)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _package_version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""
