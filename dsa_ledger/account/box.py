"""Entries that a measured box changes: each stands under its usual key, the prior's beside it as `..._prior_s`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.account.records import scenario_source
from dsa_ledger.formulas import timing as formulas
from dsa_ledger.ledger import Source
from dsa_ledger.timing.by_load import each_load
from dsa_ledger.units import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsa_ledger.engines.base import Deployment
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario
    from dsa_ledger.timing.box import Box
    from dsa_ledger.timing.siblings import Machine

FRAGMENTED = Source("prior", "no public measurement of paged index-K reads over scattered pages: 0-10%", "2026-11")
FRAGMENTED_SHARE = 0.10
PRIOR_RATE = "time.sustained_bytes_per_s"
BOX_RATE = "box.read_bytes_per_s"
PICKED = "config.index_topk"
GATHERED = Source("engine", "sparse attention reads the picked records of each query row once", "2026-08")


def box_of(scenario: Scenario) -> Box | None:
    """Return the box whose profile the scenario names (BadInput: no profile of a GPU)."""
    if scenario.profile is None:
        return None
    from dsa_ledger.timing.box import load_box

    return load_box(scenario.profile)


def post_pages(ledger: Ledger, scenario: Scenario) -> None:
    """Post the mean run of pages that the scenario states or its dumped table has, and what it may cost."""
    pages, table = scenario.load.mean_run_pages, scenario.load.block_table
    if table is not None:
        from dsa_ledger.timing.box import mean_run_of

        run, digest = mean_run_of(table)
        source = Source("scenario", f"block table {table}, SHA-256 {digest[:12]}", "")
        ledger.given("load.mean_run_pages", run, Unit.PAGES, source, "pages over runs of neighbours, all rows")
    elif pages is not None:
        ledger.given("load.mean_run_pages", pages, Unit.PAGES, scenario_source("load.mean_run_pages"))


class Rates:
    """What the layers' parts are posted with: the box's rates where a profile has them, else the tables as they are."""

    def __init__(self, ledger: Ledger, plan: Deployment, scenario: Scenario, machine: Machine, box: Box | None) -> None:
        """Post the rates and the warnings."""
        self.ledger = ledger
        self.box = box
        self.read = self.scan = self.gathers = False
        if self.box is None:
            self._post_fragmented()
            return
        # The widest of the stages' pools: what a profile may have spread its pages too little for.
        tokens = max(ledger[f"{stage.prefix}pool.tokens"] for stage in plan.stages)
        span = tokens * ledger["record.index_k_bytes"]
        for sentence in self.box.warnings(plan.gpu.name, scenario.observed.driver, float(span)):
            ledger.warn(sentence)
        self._post_read(self.box)
        self._post_scan(self.box, machine)
        self._post_gather(self.box)
        if scenario.load.new_tokens is not None:
            ledger.warn("a profile changes decode steps alone: prefill.* keep the kernel tables")

    @property
    def bytes_per_s(self) -> str:
        """Return the key of the rate at which index keys are read."""
        return BOX_RATE if self.read else PRIOR_RATE

    def bytes_source(self, prior: Source) -> Source:
        """Return the source of a time made of index-K bytes."""
        return self.box.source if self.box and self.read else prior

    def part(self, key: str, value: Any, source: Source, note: str = "", *, place: str) -> None:
        """Post a layer's part as the table has it, or scaled by the box in its `place`: topk, gather or bytes."""
        if not (self.box and {"topk": self.scan, "gather": self.gathers}[place]):
            self.ledger.given(key, value, Unit.SECONDS, source, note)
            return
        prior = prior_key(key)
        self.ledger.given(prior, value, Unit.SECONDS, source, note)
        formula: Callable[..., Any]
        if place == "topk":
            formula, inputs = formulas.scanned_s, {"reference_bytes_per_s": "box.reference_scan_bytes_per_s"}
            inputs["scan_bytes_per_s"] = "box.scan_bytes_per_s"
        else:
            formula, inputs = formulas.gathered_s, {"prior_bytes_s": "box.gather_bytes_prior_s"}
            inputs["bytes_s"] = "box.gather_bytes_s"
        self.ledger.derive(key, Unit.SECONDS, formula, self.box.source, note, time_s=prior, **inputs)

    def bytes_time(self, key: str, moved: str, prior: Source) -> None:
        """Post the time of index-K bytes, and with a box what it would be at the prior rate."""
        for name, rate, source in (
            (key, self.bytes_per_s, self.bytes_source(prior)),
            *([(prior_key(key), PRIOR_RATE, prior)] if self.read else []),
        ):
            self.ledger.derive(name, Unit.SECONDS, formulas.bytes_time_s, source, moved_bytes=moved, bytes_per_s=rate)

    def total(self, key: str, source: Source, parts: Sequence[str], note: str = "") -> None:
        """Post a sum of parts, and with a box the same sum of the prior's."""
        self.ledger.total(key, source, parts, note=note)
        if any(prior_key(part) in self.ledger for part in parts):
            before = [prior_key(part) if prior_key(part) in self.ledger else part for part in parts]
            self.ledger.total(prior_key(key), source, before, note="without the profile")

    def full_and_shared_s(self, times: Any, requests: Any, tokens: Any) -> tuple[Any, Any]:
        """Return a full and a shared layer at another load than the ledger's, by the same rates [s]."""
        ledger = self.ledger
        rows = ledger["draft.rows"]
        seen = (ledger["record.index_k_bytes"] + 4 * rows) * requests * tokens * times.bytes_seen_share
        topk, gathers, rate = times.topk_s, [times.gather_s, times.shared_gather_s], ledger[PRIOR_RATE]
        if self.box and self.read:
            rate = self._straight(self.box, requests, tokens) * ledger["box.run_share"]
        if self.scan:
            topk = formulas.scanned_s(
                time_s=topk,
                reference_bytes_per_s=ledger["box.reference_scan_bytes_per_s"],
                scan_bytes_per_s=ledger["box.scan_bytes_per_s"],
            )
        if self.gathers:
            moved = formulas.gather_bytes(
                record_bytes=ledger["record.main_kv_bytes"],
                requests=requests,
                rows=rows,
                tokens=tokens,
                picked=ledger[PICKED],
            )
            before, after = moved / ledger[PRIOR_RATE], moved / ledger["box.gather_bytes_per_s"]
            gathers = [formulas.gathered_s(time_s=one, prior_bytes_s=before, bytes_s=after) for one in gathers]
        return times.floor_s + gathers[0] + topk + seen / rate, times.shared_floor_s + gathers[1]

    def _straight(self, box: Box, requests: Any, tokens: Any) -> Any:
        return each_load(box.straight_bytes_per_s, requests, tokens)

    def _post_read(self, box: Box) -> None:
        ledger, requests, tokens = self.ledger, self.ledger["step.requests"], self.ledger["step.tokens"]
        rate = self._straight(box, requests, tokens)
        if rate is None:
            ledger.warn(f"profile {box.name} has no paged reads: the bytes term keeps the prior 0.82")
            self._post_fragmented()
            return
        self.read = True
        if not hasattr(requests, "dtype") and not hasattr(tokens, "dtype") and not box.covers(requests, tokens):
            shape = f"{requests} x {tokens:,} tokens"
            ledger.warn(f"profile {box.name} measured no reads of {shape}: the nearest shape's rate is used")
        ledger.given(
            "box.straight_bytes_per_s", rate, Unit.BYTES_PER_S, box.source, "pages in a row, this batch and length"
        )
        half = box.half_run_pages
        if "load.mean_run_pages" in ledger and half is not None:
            ledger.given("box.r_half_pages", half, Unit.PAGES, box.source, "the run at which half the rate is left")
            ledger.derive(
                "box.run_share",
                Unit.SHARE,
                formulas.run_share,
                box.source,
                mean_run_pages="load.mean_run_pages",
                r_half_pages="box.r_half_pages",
            )
        else:
            ledger.given("box.run_share", 1.0, Unit.SHARE, scenario_source("load.mean_run_pages"), "pages in a row")
            self._post_fragmented()
        ledger.derive(
            BOX_RATE,
            Unit.BYTES_PER_S,
            formulas.scattered_bytes_per_s,
            box.source,
            straight_bytes_per_s="box.straight_bytes_per_s",
            run_share="box.run_share",
        )
        ledger.derive(
            "box.sustained_share",
            Unit.SHARE,
            formulas.share_of_peak,
            box.source,
            "of the data sheet's peak; the prior is time.sustained_share",
            bytes_per_s=BOX_RATE,
            peak_bytes_per_s="gpu.peak_bytes_per_s",
        )

    def _post_fragmented(self) -> None:
        if "load.mean_run_pages" in self.ledger:
            self.ledger.given(
                "time.fragmented_share", FRAGMENTED_SHARE, Unit.SHARE, FRAGMENTED, "not measured: 0 to this"
            )

    def _post_scan(self, box: Box, machine: Machine) -> None:
        from dsa_ledger.timing.box import reference_scan_bytes_per_s

        reference, rate = reference_scan_bytes_per_s(machine), box.scan_bytes_per_s
        if rate is None or reference is None:
            self.ledger.warn(f"profile {box.name} has no row scan: top-k keeps the kernel table")
            return
        self.scan = True
        public = Source(
            "prior",
            f"{' and '.join(reference[1])}: slope of SGLang 0.5.14's top-k of one row, separated scores, 8 B a token; "
            "it stands for the scan, which was not run on it: github.com/ai-dynamo/aiconfigurator@095f58a5",
            "2026-08-21",
        )
        self.ledger.given("box.reference_scan_bytes_per_s", reference[0], Unit.BYTES_PER_S, public)
        self.ledger.given("box.scan_bytes_per_s", rate, Unit.BYTES_PER_S, box.source, "one processor, two passes")

    def _post_gather(self, box: Box) -> None:
        ledger = self.ledger
        found = box.gather(int(ledger["record.main_kv_bytes"]))
        if found is None:
            ledger.warn(f"profile {box.name} has no gather: sparse attention keeps the kernel table")
            return
        self.gathers = True
        ledger.derive(
            "box.gather_bytes",
            Unit.BYTES_PER_STEP,
            formulas.gather_bytes,
            GATHERED,
            "picked records of one layer",
            record_bytes="record.main_kv_bytes",
            requests="step.requests",
            rows="draft.rows",
            tokens="step.tokens",
            picked=PICKED,
        )
        ledger.given(
            "box.gather_bytes_per_s", found[1], Unit.BYTES_PER_S, box.source, f"records of {found[0]} B at random"
        )
        for key, rate in (("box.gather_bytes_s", "box.gather_bytes_per_s"), ("box.gather_bytes_prior_s", PRIOR_RATE)):
            ledger.derive(
                key,
                Unit.SECONDS,
                formulas.bytes_time_s,
                box.source if rate != PRIOR_RATE else GATHERED,
                moved_bytes="box.gather_bytes",
                bytes_per_s=rate,
            )


def prior_key(key: str) -> str:
    """Return the key under which a figure stands as it would be without the profile."""
    return f"{key.removesuffix('_s')}_prior_s"
