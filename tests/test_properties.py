"""Rules that hold for every scenario, tried on random ones."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from golden_cases import merged
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scenarios_at_random import SGLANG, mostly, must, outcome, plain_sglang, tables

from dsa_ledger import Scenario
from dsa_ledger.units import IN_BYTES, Unit

# A ledger that no cache knows takes 20 ms; where each example needs two or three, fewer examples have to do.
FEWER = settings(max_examples=40)
STAGE = re.compile(r"stage\[(\d+)\]\.(.+)")
# What a budget has left may be less than nothing: then nothing fits, and the ledger says so.
MAY_BE_NEGATIVE = re.compile(r"(stage\[\d+\]\.)?(pool\.budget_bytes|memory\.\w+_bytes)")


def stages_of(ledger: Any) -> dict[str, list[Any]]:
    """Return the stages' values by plain key."""
    found: dict[str, list[Any]] = {}
    for key in ledger.entries:
        named = STAGE.fullmatch(key)
        if named:
            found.setdefault(named[2], []).append(ledger[key])
    return found


@given(tables())
def test_a_scenario_ends_in_a_ledger_or_is_refused(scenario):
    """Any scenario ends in a ledger, in bad input or in not modelled: never in another error."""
    outcome(scenario)


@settings(max_examples=100)
@given(tables())
def test_every_figure_rests_on_sourced_givens_alone(scenario):
    """Every figure reaches only givens, each given has a source, and each derived value is its formula's own."""
    ledger = outcome(scenario)
    assume(ledger is not None)
    grounded: set[str] = set()  # in the order posted, so that nothing can rest on a later entry or on itself
    for entry in ledger:
        assert entry.source.ref.strip(), entry.key
        if entry.inputs:
            assert entry.formula is not None, entry.key
            assert all(used in grounded for _, used in entry.inputs), entry.key
            assert entry.formula(**{name: ledger[used] for name, used in entry.inputs}) == entry.value, entry.key
        else:
            assert entry.formula is None, entry.key
        grounded.add(entry.key)
    key = next(key for key in reversed(ledger.entries) if key.endswith("weights.rank_bytes"))
    assert ledger.givens_under(key)
    assert all(given.formula is None for given in ledger.givens_under(key))


@settings(max_examples=100)
@given(tables())
def test_bytes_are_whole_and_not_negative(scenario):
    """No byte is negative or fractional, no figure infinite; a budget below nothing is a shortfall."""
    ledger = outcome(scenario)
    assume(ledger is not None)
    for entry in ledger:
        if isinstance(entry.value, float):
            assert math.isfinite(entry.value), entry.key
        if entry.unit in IN_BYTES or entry.unit in (Unit.TOKENS, Unit.LAYERS, Unit.REQUESTS):
            # Tokens in flight are a prior's weighted count, the only tokens that are no whole number.
            assert isinstance(entry.value, int) or entry.key.endswith("step.tokens_in_flight"), entry.key
            if entry.value < 0:
                assert MAY_BE_NEGATIVE.fullmatch(entry.key), entry.key
                # Negative headroom says that tables outside the pool eat the slack; it is no refusal to start.
                assert ledger.shortfalls or entry.key.endswith("headroom_bytes"), entry.key


@settings(max_examples=100)
@given(tables())
def test_cells_add_up(scenario):
    """A cell's parts add up: main KV + index-K = target, target + draft = cell, on every stage."""
    ledger = outcome(scenario)
    assume(ledger is not None)
    prefixes = {key.partition("cell.")[0] for key in ledger.entries if key.endswith("cell.bytes")}
    if len(prefixes) > 1:
        prefixes -= {""}  # the plain keys are each the worst stage's own
    for prefix in prefixes:
        assert (
            ledger[f"{prefix}cell.main_kv_bytes"] + ledger[f"{prefix}cell.index_k_bytes"]
            == (ledger[f"{prefix}cell.target_bytes"])
        )
        assert (
            ledger[f"{prefix}cell.target_bytes"] + ledger[f"{prefix}cell.draft_bytes"] == ledger[f"{prefix}cell.bytes"]
        )


@FEWER
@given(tables(), st.integers(2, 4))
def test_plain_keys_are_the_worst_stage(scenario, pp):
    """A plain key is its worst stage's value: the smallest of pool budget, tokens and requests, else the largest."""
    ledger = outcome(merged(scenario, {"sharding": {"pp": pp, "layer_split": False}, "draft": {"steps": 0}}))
    assume(ledger is not None)
    found = stages_of(ledger)
    assert {"cell.bytes", "pool.tokens", "pool.budget_bytes", "weights.rank_bytes"} <= set(found)
    for key, values in found.items():
        if key.startswith("model.") or key not in ledger:
            continue  # of the whole model; or a component that only some stages hold
        assert len(values) == pp, key
        # Of what is left of a memory, free or headroom, the smallest is the worst.
        smallest = key in ("pool.budget_bytes", "pool.tokens", "pool.requests_at_context") or key.startswith("memory.")
        smallest = smallest or (key.startswith("pool.") and key.endswith("_tokens"))
        assert ledger[key] == (min(values) if smallest else max(values)), key


@FEWER
@given(plain_sglang(), st.integers(2, 6))
def test_stages_sum_to_the_model(scenario, pp):
    """Stages sum to the model: layers, full layers, index-K layers, indexers and the bytes of every tensor."""
    whole = must(merged(scenario, {"draft": {"steps": 0}}))
    cut = must(merged(scenario, {"draft": {"steps": 0}, "sharding": {"pp": pp}}))
    found = stages_of(cut)
    for name in ("layers", "full_layers", "shared_layers", "index_k_layers", "indexer_layers"):
        assert sum(found[f"model.{name}"]) == whole[f"model.{name}"] == cut[f"model.{name}"]
    for key in ("weights.indexer_rank_bytes", "cell.main_kv_bytes", "cell.index_k_bytes", "cell.target_bytes"):
        assert sum(found[key]) == whole[key], key
    tensors = sum(found["weights.rank_bytes"]) - sum(found["weights.overhead_bytes"]) - sum(found["weights.rope_bytes"])
    expected = whole["weights.rank_bytes"] - whole["weights.overhead_bytes"] - whole["weights.rope_bytes"]
    # A rank's slice of dense, shared and routed MLPs is cut to whole bytes, once a stage.
    assert 0 <= expected - tensors <= 3 * pp


@FEWER
@given(plain_sglang(), st.integers(1, 200_000), st.sampled_from([4, 8, 16]))
def test_tp_changes_no_cache_byte_of_a_rank(scenario, context, other):
    """TP never changes a rank's index-K or main-KV bytes: records, cells, reads and writes."""
    load = {"load": {"context": min(context, 131_072), "batch": 3}}
    first, second = must(merged(scenario, load)), must(merged(scenario, load | {"sharding": {"tp": other}}))
    keys = [
        key
        for key in first.entries
        if key.startswith(("record.", "cell.", "step.index_k", "step.main_kv", "step.logits"))
    ]
    assert len(keys) > 12
    assert {key: first[key] for key in keys} == {key: second[key] for key in keys}
    assert first["weights.indexer_rank_bytes"] == second["weights.indexer_rank_bytes"]


@FEWER
@given(plain_sglang())
def test_tp_never_makes_a_rank_heavier(scenario):
    """More TP never makes a rank hold more weights."""
    ranks = [must(merged(scenario, {"sharding": {"tp": tp}}))["weights.rank_bytes"] for tp in (4, 8, 16)]
    assert ranks == sorted(ranks, reverse=True)


@FEWER
@given(plain_sglang(), st.floats(60, 79), st.floats(0, 20))  # the smallest GPU has 79.65 GiB
def test_pool_never_grows_with_held_memory(scenario, free, held):
    """Pool tokens never grow with memory that something else holds, before or after the weights."""
    base = {"limits": {"mem_fraction": 0.8}}
    roomy = must(merged(scenario, base | {"observed": {"free_before": free, "free_after": free / 2}}))
    held_before = {"free_before": free - held, "free_after": max(free / 2 - held, 0.001)}
    assert must(merged(scenario, base | {"observed": held_before}))["pool.tokens"] <= roomy["pool.tokens"]
    held_after = {"free_before": free, "free_after": max(free / 2 - held, 0.001)}
    assert must(merged(scenario, base | {"observed": held_after}))["pool.tokens"] <= roomy["pool.tokens"]


@FEWER
@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_pool_never_grows_with_scratch(first, second):
    """Pool rows never grow with scratch: KV sharding's buffers follow the context length."""
    scenario = {
        "model": "zai-org/GLM-5.2-FP8",
        "gpu": "B200",
        "engine": "sglang@0.5.23",
        "sharding": {"tp": 8, "cp": 8},
        "features": ["pd-prefill", "kv-sharding"],
    }
    short, long = sorted((first, second))
    few, many = (must(scenario | {"limits": {"context_length": length}}) for length in (long, short))
    assert few["pool.scratch_bytes"] >= many["pool.scratch_bytes"]
    assert few["pool.tokens"] <= many["pool.tokens"]


def gpu_of(mib: int, major: int = 9) -> dict[str, Any]:
    """Return a GPU of so many MiB."""
    return {
        "name": "some GPU",
        "hbm": {"capacity_bytes": f"{mib} MiB", "peak_bytes_per_s": "4.8 TB/s"},
        "sms": 132,
        "l2_bytes": "50 MiB",
        "compute_capability": [major, 0],
        "provenance": {"hbm.capacity_bytes": {"kind": "driver", "ref": "a test"}},
    }


@FEWER
@given(plain_sglang(), st.integers(80_000, 300_000), st.integers(80_000, 300_000), st.sampled_from([9, 10]))
def test_pool_never_shrinks_with_hbm(scenario, first, second, major):
    """Pool tokens never shrink with HBM, at one memory fraction."""
    small, large = (
        must(merged(scenario, {"gpu": gpu_of(mib, major), "limits": {"mem_fraction": 0.88}}))
        for mib in sorted((first, second))
    )
    assert small["pool.tokens"] <= large["pool.tokens"]


@FEWER
@given(plain_sglang(), st.floats(0.05, 1), st.floats(0.05, 1))
def test_pool_never_shrinks_with_the_memory_fraction(scenario, first, second):
    """Pool tokens never shrink, and the static logits budget never grows, with the memory fraction."""
    low, high = (must(merged(scenario, {"limits": {"mem_fraction": share}})) for share in sorted((first, second)))
    assert low["pool.tokens"] <= high["pool.tokens"]
    budget = "workspace.prefill_logits_budget_bytes"
    assert low[budget] >= high[budget]


@FEWER
@given(plain_sglang(), st.integers(1, 10_000_000))
def test_a_cap_only_lowers_and_keeps_whole_pages(scenario, cap):
    """A cap never raises a pool, and a pool is whole pages that its cap and its budget hold."""
    free = must(scenario)
    capped = must(merged(scenario, {"limits": {"max_total_tokens": cap}}))
    assert capped["pool.tokens"] == min(free["pool.tokens"], cap // 64 * 64)
    assert free["pool.tokens"] % 64 == 0
    assert free["pool.tokens"] * free["cell.bytes"] <= max(free["pool.budget_bytes"], 0)
    assert (free["pool.tokens"] + 64) * free["cell.bytes"] > free["pool.budget_bytes"]


@settings(max_examples=100)
@given(plain_sglang(), st.sampled_from(SGLANG[SGLANG.index("0.5.18") :]))
def test_a_pool_charged_as_stored_stays_in_its_budget(scenario, release):
    """Where the cell is what is stored (from 0.5.18), target and draft pool exceed the budget by a pad page at most."""
    ledger = must(scenario | {"engine": f"sglang@{release}"})
    stored = ledger["pool.target_bytes"] + ledger["pool.draft_bytes"]
    assert stored == (ledger["pool.tokens"] + 64) * ledger["cell.bytes"]


@settings(max_examples=100)
@given(plain_sglang(), st.integers(1, 131_072), st.integers(1, 40))
def test_requests_and_reads_round_up_to_pages(scenario, context, batch):
    """Pages round up: requests are counted, and page reads charged, in whole pages of 64 tokens."""
    ledger = must(scenario | {"load": {"context": context, "batch": batch}})
    pages = math.ceil(context / 64)
    requests = ledger["pool.requests_at_context"]
    assert requests * pages * 64 <= ledger["pool.tokens"] < (requests + 1) * pages * 64
    assert ledger["load.needed_tokens"] == batch * pages * 64
    assert ledger["step.index_k_page_read_bytes"] * context == ledger["step.index_k_read_bytes"] * pages * 64
    assert bool(ledger.shortfalls) == (batch * pages * 64 > ledger["pool.tokens"] or ledger["pool.budget_bytes"] <= 0)


@FEWER
@given(plain_sglang(), st.integers(1, 60_000), st.integers(1, 50))
def test_reads_are_linear_in_requests(scenario, context, batch):
    """Reads of the caches are linear in requests, and index-K reads in tokens."""
    one, many = (must(scenario | {"load": {"context": context, "batch": count}}) for count in (1, batch))
    twice = must(scenario | {"load": {"context": 2 * context, "batch": batch}})
    for key in ("step.index_k_read_bytes", "step.main_kv_read_bytes", "step.logits_write_bytes", "step.index_q_bytes"):
        assert many[key] == batch * one[key], key
    assert twice["step.index_k_read_bytes"] == 2 * many["step.index_k_read_bytes"]
    assert many["step.index_k_read_bytes"] <= many["step.index_k_read_bytes_high"]


@settings(max_examples=100)
@given(plain_sglang(), st.integers(1, 131_072), st.data())
def test_prefill_reads_lie_between_their_bounds(scenario, context, data):
    """A prefill reads each key at least once per full layer that scores, and at most once per query tile."""
    new = data.draw(st.integers(1, context))
    ledger = must(scenario | {"load": {"context": context, "new_tokens": new}})
    least = ledger["prefill.index_k_read_bytes"]
    if context <= ledger["config.index_topk"]:
        assert least == ledger["prefill.score_flops"] == 0
        return
    once = ledger["record.index_k_bytes"] * ledger["model.full_layers"] * context
    assert once <= least
    assert once <= ledger["prefill.index_k_read_bytes_high"]
    scored = new * (context - new) + new * new / 2
    heads = ledger["config.index_heads"] * ledger["config.index_head_dim"] * ledger["model.full_layers"]
    assert ledger["prefill.score_flops"] == 2 * heads * scored


@given(tables())
def test_scenarios_survive_a_dump(scenario):
    """Scenario.model_validate of a dump is the same scenario, as tables and as JSON."""
    read = Scenario.model_validate(scenario)
    assert Scenario.model_validate(read.model_dump(by_alias=True)) == read
    assert Scenario.model_validate_json(read.model_dump_json(by_alias=True, exclude_defaults=True)) == read


@FEWER
@given(plain_sglang(), st.integers(1, 131_072), st.integers(1, 100), mostly(None, 4096))
def test_the_load_changes_no_storage(scenario, context, batch, limit):
    """What is stored does not depend on the load; and a caller's changes reach no later ledger."""
    scenario = scenario | {"limits": {"chunked_prefill": limit}} if limit else scenario
    still = must(scenario)
    before = {key: entry.value for key, entry in still.entries.items()}
    warnings = [*still.warnings]
    still.entries.clear()
    still.warn("a caller's own")
    loaded = must(scenario | {"load": {"context": context, "batch": batch}})
    assert {key: loaded[key] for key in before} == before
    assert loaded.warnings[: len(warnings)] == warnings
    assert "a caller's own" not in loaded.warnings


@pytest.mark.parametrize("release", SGLANG)
def test_each_release_names_itself(release):
    """Every engine rule's source names its engine, and no rule comes from a later release than the one asked for."""
    scenario = {"model": "zai-org/GLM-5.2-FP8", "gpu": "B200", "engine": f"sglang@{release}", "sharding": {"tp": 8}}
    ledger = must(scenario | {"load": {"context": 5000, "new_tokens": 4000}, "draft": {"steps": 3}})
    named = [
        match[1]
        for entry in ledger
        if entry.source.kind == "engine"
        for match in [re.match(r"sglang (0\.5\.\d+)", entry.source.ref)]
        if match
    ]
    assert len(named) > 50
    assert {name for name in named if SGLANG.index(name) > SGLANG.index(release)} == set()
