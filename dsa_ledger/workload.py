"""Requests of different lengths: a trace or a histogram as CSV, read line by line, and what of it a pool holds."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dsa_ledger.account import estimate
from dsa_ledger.catalog.files import read_text
from dsa_ledger.errors import BadInput, Fault, Faults
from dsa_ledger.formulas import demand, prefill
from dsa_ledger.formulas.helpers import ceiled, quotient
from dsa_ledger.units import UnitError, parse_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario

LONGEST_TEXT = 1 << 26
MOST_FAULTS = 20
MOST_TOKENS = 1 << 32
NAMES = {
    "prompt": ("prompt", "prompt_tokens", "input", "input_tokens", "isl", "contexttokens", "num_prefill_tokens"),
    "output": ("output", "output_tokens", "completion_tokens", "osl", "generatedtokens", "num_decode_tokens"),
    "cached": ("cached", "cached_tokens", "prefix", "prefix_tokens"),
    "weight": ("weight", "count", "share", "requests"),
}


class Request(NamedTuple):
    """One line: tokens of prompt and output, of the prompt those found in the cache, and how often it comes."""

    prompt: int
    output: int
    cached: int
    weight: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests, and the line numbers that were skipped."""

    requests: tuple[Request, ...]
    skipped: tuple[int, ...] = ()

    @property
    def weight(self) -> float:
        """Return the sum of the weights."""
        return sum(one.weight for one in self.requests)

    def mean(self, values: Iterable[float]) -> float:
        """Return the weighted mean of one value a request."""
        return sum(one.weight * value for one, value in zip(self.requests, values, strict=True)) / self.weight

    def quantile(self, share: float) -> int:
        """Return the length (prompt and output) that so large a share of the requests does not exceed."""
        lengths = sorted((one.prompt + one.output, one.weight) for one in self.requests)
        passed, limit = 0.0, share * self.weight
        for length, weight in lengths:
            passed += weight
            if passed >= limit:
                return length
        return lengths[-1][0]


def read_workload(path: Path, *, skip_bad: bool = False) -> Workload:
    """Return the requests of a CSV file (BadInput with every bad line, unless they are to be skipped)."""
    return parse_workload(read_text(path, "--workload", LONGEST_TEXT), skip_bad=skip_bad)


def parse_workload(text: str, *, skip_bad: bool = False) -> Workload:
    """Return the requests of CSV text with a header that names at least prompt and output."""
    rows = csv.reader(io.StringIO(text))
    header = [name.strip().lower().replace(" ", "_") for name in next(rows, [])]
    places = {
        field: next((header.index(name) for name in known if name in header), None) for field, known in NAMES.items()
    }
    faults = Faults()
    for field in ("prompt", "output"):
        expected = f"a header line with {field}: one of {', '.join(NAMES[field])}"
        faults.require(places[field] is not None, "--workload: line 1", ",".join(header)[:60], expected)
    faults.stop_if_any()
    found: list[Request] = []
    bad: list[tuple[int, Fault]] = []
    for row in _lines(rows, bad):
        line, cells = row
        if not any(cell.strip() for cell in cells):
            continue
        request = _request(line, cells, places)
        if isinstance(request, Fault):
            bad.append((line, request))
        else:
            found.append(request)
    if bad and not skip_bad:
        more = [Fault("--workload", f"{len(bad):,} bad lines", "none, or --skip-bad")] if len(bad) > MOST_FAULTS else []
        raise BadInput([*(fault for _, fault in bad[:MOST_FAULTS]), *more])
    if not found:
        raise BadInput([Fault("--workload", f"{len(bad):,} bad lines", "at least one request")])
    return Workload(tuple(found), tuple(line for line, _ in bad))


def _lines(rows: Any, bad: list[tuple[int, Fault]]) -> Iterable[tuple[int, list[str]]]:
    """Yield line number and cells; what the CSV reader itself cannot read is a bad line."""
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad.append((rows.line_num, Fault(f"--workload: line {rows.line_num}", str(error), "a CSV line")))
            continue
        yield rows.line_num, cells


def _request(line: int, cells: Sequence[str], places: dict[str, int | None]) -> Request | Fault:
    values: dict[str, float] = {"cached": 0, "weight": 1.0}
    for field, place in places.items():
        if place is None:
            continue
        text = cells[place].strip() if place < len(cells) else ""
        if not text and field in values:
            continue
        try:
            value = float(text) if field == "weight" else int(text) if text.isdecimal() else parse_count(text)
        except UnitError as wrong:
            return Fault(f"--workload: line {line}: {field}", text, str(wrong))
        except ValueError:
            return Fault(f"--workload: line {line}: {field}", text, "a number")
        least = 1 if field == "prompt" else 0
        if not least <= value < MOST_TOKENS or (field == "weight" and value == 0):
            return Fault(f"--workload: line {line}: {field}", text, f"at least {least} and below 2^32")
        values[field] = value
    if values["cached"] > values["prompt"]:
        return Fault(f"--workload: line {line}: cached", int(values["cached"]), "at most the prompt's tokens")
    return Request(int(values["prompt"]), int(values["output"]), int(values["cached"]), values["weight"])


class Mix(NamedTuple):
    """What a server holds and moves of a workload; requests are counted at their full length, on average."""

    requests: int
    all_longest: int
    mean_tokens: int
    shared_tokens: int
    median_tokens: int
    p95_tokens: int
    longest_tokens: int
    longest_allowed: int
    mean_step_read_bytes: float
    mean_prefill_write_bytes: float
    mean_transfer_bytes: float
    cached_share: float


def mix(scenario: Scenario, workload: Workload, shared_prefix: int = 0) -> Mix:
    """Return what the scenario's server holds of a workload (BadInput, NotModelled).

    A prefix that all requests share lies in the pool once and is read by each; a cached prefix is read in every full
    layer and written in none.
    """
    shortest = min(one.prompt for one in workload.requests)
    if not 0 <= shared_prefix <= shortest:
        raise BadInput([Fault("--shared-prefix", shared_prefix, f"0 to the shortest prompt, {shortest:,} tokens")])
    longest = max(one.prompt + one.output for one in workload.requests)
    ledger = estimate(_at(scenario, 1))
    page, steps = int(ledger["load.page_tokens"]), int(ledger["draft.steps"])
    shared = demand.shared_tokens(shared_prefix=shared_prefix, page_tokens=page)
    own = [
        demand.own_tokens(prompt=one.prompt, output=one.output, draft_steps=steps, shared=shared, page_tokens=page)
        for one in workload.requests
    ]
    mean = max(int(ceiled(workload.mean(own))), 1)
    replicas, pool = int(ledger["sharding.replicas"]), int(ledger["pool.tokens"])

    def held(tokens: int) -> int:
        one = demand.requests_of_mix(pool_tokens=pool, shared=shared, mean_tokens=max(tokens, 1))
        return int(one) * replicas

    return Mix(
        requests=held(mean),
        all_longest=held(max(own)),
        mean_tokens=mean,
        shared_tokens=int(shared),
        median_tokens=workload.quantile(0.5),
        p95_tokens=workload.quantile(0.95),
        longest_tokens=longest,
        longest_allowed=int(ledger["pool.longest_request_tokens"]),
        mean_step_read_bytes=workload.mean(_step_reads(ledger, workload)),
        mean_prefill_write_bytes=workload.mean(_writes(ledger, workload, shared_prefix)),
        mean_transfer_bytes=workload.mean(_transfers(ledger, workload)),
        cached_share=quotient(workload.mean([one.cached for one in workload.requests]), _mean_prompt(workload)),
    )


def _at(scenario: Scenario, context: int) -> Scenario:
    load = scenario.load.model_copy(update={"context": context, "new_tokens": None, "batch": 1})
    return scenario.model_copy(update={"load": load})


def _mean_prompt(workload: Workload) -> float:
    return workload.mean([one.prompt for one in workload.requests])


def _step_reads(ledger: Ledger, workload: Workload) -> list[float]:
    """Return index-K that a request's step reads half-way through its output: each pass reads the shared prefix too."""
    per_token = ledger["record.index_k_bytes"] * ledger["step.index_k_passes"] // ledger["step.dcp_shards"]
    return [per_token * (one.prompt + one.output / 2) for one in workload.requests]


def _writes(ledger: Ledger, workload: Workload, shared_prefix: int) -> list[float]:
    """Return index-K that a request's prefill writes: what is cached is not written again."""
    return [
        prefill.index_k_write_bytes(
            record_bytes=ledger["record.index_k_bytes"],
            full_layers=ledger["model.full_layers"],
            new_tokens=one.prompt - max(one.cached, min(shared_prefix, one.prompt)),
        )
        for one in workload.requests
    ]


def _transfers(ledger: Ledger, workload: Workload) -> list[float]:
    """Return what a prefill worker sends for a request: the whole prompt's cache, cached or not."""
    main = {"record_bytes": ledger["record.main_kv_bytes"], "layers": ledger["model.layers"]}
    index = {"record_bytes": ledger["record.index_k_bytes"], "layers": ledger["model.index_k_layers"]}
    return [
        prefill.transfer_bytes(context_tokens=one.prompt, **main)
        + prefill.transfer_bytes(context_tokens=one.prompt, **index)
        for one in workload.requests
    ]
