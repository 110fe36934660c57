"""The engines' own kernels, where they are installed: timed over the pool's pages, labelled by package and version.

torch reaches the pool through DLPack, without a copy. What is missing, or does not take these arguments, is named and
left out: these are other projects' functions, and no release of them has been run here yet. A case counts as verified
when its call ends without an error; their results are not compared with anything.

Sources of the calls: deepseek-ai/DeepGEMM 54e22612 `csrc/apis/attention.hpp`; sgl-project/sglang
`sgl-kernel/python/sgl_kernel/top_k.py`; vllm-project/vllm `vllm/_custom_ops.py`; deepseek-ai/FlashMLA
`flash_mla/flash_mla_interface.py`.
"""

from __future__ import annotations

import importlib
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from calib import plan
from calib.cases import PICKED_RECORDS, Pool, Work
from calib.fragments import fragmentation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INDEX_HEADS, HEAD_DIM, QUERY_HEADS, RECORD = 32, 128, 64, 576
QUEUED_BEHIND_CYCLES = 20_000_000  # about 10 ms of waiting on the device, while the host queues every launch
ROWS = 4


class Bench(NamedTuple):
    """What a kernel is called with: torch, the pool's bytes as its tensor, one table a launch, the device's SMs."""

    torch: Any
    pool: Any
    tables: Sequence[plan.Table]
    units: int

    @property
    def tokens(self) -> int:
        """Return the tokens of each row."""
        return self.tables[0].tokens[0]

    def filled(self, shape: tuple[int, ...], dtype: str, value: int) -> Any:
        """Return a tensor of one value on the pool's device."""
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=self.pool.device)

    def normal(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return normal numbers on the pool's device."""
        return self.torch.randn(shape, device=self.pool.device).to(getattr(self.torch, dtype))


class Offer(NamedTuple):
    """A kernel of another project: where it is imported from, and what makes its launches."""

    module: str
    function: str
    distributions: tuple[str, ...]
    order: str
    launches: Callable[[Any, Bench], list[Callable[[], Any]]]
    read_bytes: Callable[[plan.Table], int]

    @property
    def name(self) -> str:
        """Return what it is called where it is absent."""
        return f"{self.module}.{self.function}"


def _paged_logits(module: Any, bench: Bench) -> list[Callable[[], Any]]:
    torch, rows = bench.torch, len(bench.tables[0].tokens)
    pages = bench.pool.view(-1, plan.PAGE_TOKENS, 1, plan.PAGE_BYTES // plan.PAGE_TOKENS)
    query = bench.normal((rows, 1, INDEX_HEADS, HEAD_DIM), "float8_e4m3fn")
    weights = bench.normal((rows, INDEX_HEADS))
    lengths = bench.filled((rows, 1), "int32", bench.tokens)
    schedule = module.get_paged_mqa_logits_metadata(lengths, plan.PAGE_TOKENS, bench.units)
    tables = [torch.from_numpy(table.pages).to(bench.pool.device) for table in bench.tables]
    score = module.fp8_paged_mqa_logits
    return [
        partial(score, query, pages, weights, lengths, table, schedule, bench.tokens, clean_logits=False)
        for table in tables
    ]


def _scores(bench: Bench, *, tied: bool) -> list[Any]:
    shape = len(bench.tables[0].tokens), bench.tokens
    return [bench.filled(shape, "float32", 1) if tied else bench.normal(shape) for _ in bench.tables]


def _sglang_topk(*, tied: bool) -> Callable[[Any, Bench], list[Callable[[], Any]]]:
    def launches(module: Any, bench: Bench) -> list[Callable[[], Any]]:
        lengths = bench.filled((len(bench.tables[0].tokens),), "int32", bench.tokens)
        topk = module.fast_topk_v2
        return [partial(topk, scores, lengths, PICKED_RECORDS) for scores in _scores(bench, tied=tied)]

    return launches


def _vllm_topk(*, tied: bool) -> Callable[[Any, Bench], list[Callable[[], Any]]]:
    def launches(module: Any, bench: Bench) -> list[Callable[[], Any]]:
        rows = len(bench.tables[0].tokens)
        lengths = bench.filled((rows,), "int32", bench.tokens)
        picked = bench.filled((rows, PICKED_RECORDS), "int32", 0)
        topk = module.top_k_per_row_decode
        return [
            partial(topk, scores, 1, lengths, picked, rows, scores.stride(0), scores.stride(1), PICKED_RECORDS)
            for scores in _scores(bench, tied=tied)
        ]

    return launches


def _sparse_mla(module: Any, bench: Bench) -> list[Callable[[], Any]]:
    rows = len(bench.tables[0].tokens)
    count = len(bench.pool) // (2 * RECORD)
    records = bench.pool[: count * 2 * RECORD].view(bench.torch.bfloat16).view(count, 1, RECORD)
    query = bench.normal((rows, QUERY_HEADS, RECORD), "bfloat16")
    picks = [
        bench.torch.randint(0, count, (rows, 1, PICKED_RECORDS), dtype=bench.torch.int32, device=bench.pool.device)
        for _ in bench.tables
    ]
    return [partial(module.flash_mla_sparse_fwd, query, records, pick, RECORD**-0.5) for pick in picks]


def _row_bytes(table: plan.Table) -> int:
    return 4 * sum(table.tokens)


def _picked_bytes(table: plan.Table) -> int:
    return len(table.tokens) * PICKED_RECORDS * 2 * RECORD


OFFERS = (
    Offer(
        "deep_gemm",
        "fp8_paged_mqa_logits",
        ("deep_gemm", "deep-gemm", "sgl-deep-gemm"),
        "contiguous",
        _paged_logits,
        lambda table: table.read_bytes,
    ),
    *(
        Offer(module, function, (package,), "tied" if tied else "separated", launches(tied=tied), _row_bytes)
        for module, function, package, launches in (
            ("sgl_kernel", "fast_topk_v2", "sgl-kernel", _sglang_topk),
            ("vllm._custom_ops", "top_k_per_row_decode", "vllm", _vllm_topk),
        )
        for tied in (True, False)
    ),
    Offer("flash_mla", "flash_mla_sparse_fwd", ("flash_mla", "flash-mla"), "random", _sparse_mla, _picked_bytes),
)


class Ready:
    """One engine kernel with its launches made; the same face as a backend's own loaded case."""

    def __init__(self, torch: Any, launches: list[Callable[[], Any]]) -> None:
        """Take the launches."""
        self.torch, self.launches = torch, launches

    def replay(self) -> float:
        """Run every launch once; return seconds per launch by the device's clock, all queued before the first runs."""
        return queued_s(self.torch, self.launches) / len(self.launches)

    def verified(self) -> bool:
        """Return True once the first launch has ended without an error: its result is compared with nothing."""
        self.launches[0]()
        return True

    def release(self) -> None:
        """Let the tensors go."""
        self.launches = []


def queued_s(torch: Any, launches: Sequence[Callable[[], Any]]) -> float:
    """Return the device's seconds for launches in a row; a wait in front keeps the host's pace out of it."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(QUEUED_BEHIND_CYCLES)  # noqa: SLF001 - torch has no public name for it
    start.record()
    for launch in launches:
        launch()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e-3


class Found(NamedTuple):
    """Engine kernels that can be timed, by the key of their case, and a sentence for each that cannot."""

    works: tuple[Work, ...]
    ready: dict[str, Ready]
    absent: tuple[str, ...]


def find(pool: Pool, memory: Any, *, tokens: int, most: int, units: int) -> Found:
    """Return the kernels installed here, each tried once; `memory` is anything with DLPack over the pool's bytes."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return Found((), {}, tuple(f"{name}: absent (needs torch)" for name in dict.fromkeys(o.name for o in OFFERS)))
    tokens = min(tokens, pool.tensor_pages // ROWS * plan.PAGE_TOKENS)
    order = plan.contiguous(pool.tensor_pages)
    tables = plan.rotation(order, [tokens] * ROWS, tensors=pool.tensors, most=most)
    works, ready, absent = [], {}, []
    for offer in OFFERS:
        try:
            module = importlib.import_module(offer.module)
            getattr(module, offer.function)
            bench = Bench(torch, torch.from_dlpack(memory), tables, units)
            if bench.pool.device.type == "cuda":
                torch.cuda.set_device(bench.pool.device)
            one = Ready(torch, offer.launches(module, bench))
            one.verified()
        except ImportError:
            absent.append(f"{offer.name}: absent")
        except Exception as failure:  # noqa: BLE001 - another project's code: whatever it raises, the rest is measured
            absent.append(
                f"{offer.name}: not timed: {type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
            )
        else:
            work = _work(offer, tables)
            works.append(work)
            ready[work.key] = one
    return Found(tuple(works), ready, tuple(dict.fromkeys(absent)))


def _work(offer: Offer, tables: Sequence[plan.Table]) -> Work:
    return Work(
        group="engine",
        kernel=f"{_label(offer)}:{offer.function}",
        order=offer.order,
        rows=ROWS,
        tokens=tables[0].tokens[0],
        read_bytes=offer.read_bytes(tables[0]),
        write_bytes=0,
        tables=tuple(tables),
        fragmentation=fragmentation(tables[0]).as_dict(),
    )


def _label(offer: Offer) -> str:
    for name in offer.distributions:
        try:
            return f"{name}-{metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return f"{offer.module}-of-unknown-version"
