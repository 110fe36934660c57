"""Every formula gives for int64 arrays, element by element, what it gives for ints; found by walking the package."""

from __future__ import annotations

import inspect
import itertools
import pkgutil
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dsa_ledger.formulas
from dsa_ledger.formulas import helpers, prefill
from dsa_ledger.formulas.helpers import series

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = st.floats(0.01, 1)
BYTES = st.integers(0, 1 << 45)
TOKENS = st.integers(1, 1 << 20)
# Sane ranges by the parameter's name, the first pattern that matches; what none matches is a small count.
RANGES: tuple[tuple[str, st.SearchStrategy[Any]], ...] = (
    (r"mem_fraction|fraction|share|correlation", SHARE),
    (r"ratio", st.floats(0.5, 4)),
    (r"straggler", st.floats(1, 4)),
    (r"distinct", st.floats(0, 256)),
    (r"budget_bytes", st.integers(-(1 << 40), 1 << 45)),
    (r"record_bytes|main_kv_record_bytes|index_k_record_bytes|cell_bytes|one_block_bytes", st.integers(1, 100_000)),
    (r"element_bytes|scale_bytes", st.integers(1, 8)),
    (r"request_bytes|one_bytes", st.integers(0, 1 << 26)),
    (r".*_bytes", BYTES),
    (r"gpu_mib", st.integers(20_000, 400_000)),
    (r".*_mib", st.integers(0, 10_240)),
    (r"chunk_tokens", st.integers(512, 16_384)),
    (r"page_tokens", st.sampled_from([1, 32, 64, 128])),
    (r"new_tokens", st.integers(1, 40_000)),
    (r"context_tokens|context_length|.*columns|columns", st.integers(40_000, 1 << 20)),
    (r".*tokens", TOKENS),
    (r"vocabulary|hidden|.*intermediate|max_position", st.integers(64, 1 << 20)),
    (r"rows", st.integers(1, 16_384)),
    (r"batch|.*requests|asked|running", st.integers(1, 1 << 20)),
    (r"block_rows|block_columns|scale_block", st.sampled_from([1, 16, 128])),
    (r"bits", st.sampled_from([4, 8, 16, 32])),
    (r"scores|verify_flattens|extend_flattens", st.integers(0, 1)),
    (r"index", st.integers(0, 20)),
    (r"experts", st.integers(16, 512)),
    (r"experts_per_token", st.integers(1, 16)),
)
COUNT = st.integers(1, 64)


def formulas() -> list[Any]:
    """Return every formula of every module but the helpers."""
    found = []
    for module in pkgutil.iter_modules(dsa_ledger.formulas.__path__):
        if module.name == "helpers":
            continue
        loaded = import_module(f"dsa_ledger.formulas.{module.name}")
        found += [
            pytest.param(function, id=f"{module.name}.{name}")
            for name, function in inspect.getmembers(loaded, inspect.isfunction)
            if function.__module__ == loaded.__name__
        ]
    return found


FORMULAS = formulas()


def range_of(name: str) -> st.SearchStrategy[Any]:
    """Return the values that a parameter may take."""
    return next((values for pattern, values in RANGES if re.fullmatch(pattern, name)), COUNT)


def array(values: list[Any]) -> np.ndarray:
    """Return int64 for ints and float64 for floats."""
    return np.array(values, dtype="float64" if isinstance(values[0], float) else "int64")


def agree(got: Any, wanted: list[Any]) -> bool:
    """Tell whether an array holds the scalars: ints exactly, floats to the last digits of a power."""
    flat = np.asarray(got).reshape(-1).tolist()
    if isinstance(wanted[0], float):
        return flat == pytest.approx(wanted, rel=1e-12, abs=0)
    return flat == wanted and np.asarray(got).dtype == np.int64


def test_the_walk_finds_the_formulas():
    assert len(FORMULAS) > 80
    assert {"pool.pool_bytes", "step.index_k_read_bytes", "prefill.keys_read_by_chunk"} <= {p.id for p in FORMULAS}


@settings(max_examples=15)
@pytest.mark.parametrize("formula", FORMULAS)
@given(data=st.data())
def test_arrays_give_what_ints_give(formula, data):
    """An array result equals the results of its elements, side by side and where shapes are broadcast."""
    names = list(inspect.signature(formula).parameters)
    drawn = {name: data.draw(st.lists(range_of(name), min_size=3, max_size=3), label=name) for name in names}
    wanted = [formula(**{name: drawn[name][place] for name in names}) for place in range(3)]
    # Beyond an int64 no array can follow; that real loads stay far below is what the next test shows.
    assume(all(abs(value) < 1 << 62 for value in wanted))
    got = formula(**{name: array(drawn[name]) for name in names})
    assert agree(got, wanted)
    # Half of the parameters along the rows, the others along the columns, one a plain number.
    down, plain = set(names[::2]), names[-1]
    shapes = {
        name: drawn[name][0] if name == plain else array(drawn[name]).reshape((3, 1) if name in down else (1, 3))
        for name in names
    }
    wanted = [
        formula(**{name: drawn[name][0 if name == plain else row if name in down else column] for name in names})
        for row, column in itertools.product(range(3), range(3))
    ]
    assume(all(abs(value) < 1 << 62 for value in wanted))
    got = np.broadcast_to(np.asarray(formula(**shapes)), (3, 3))
    assert agree(got, wanted)


# The largest that a sweep is made for: 2^20 tokens a request and a million requests, the largest known models.
LARGEST: tuple[tuple[str, int], ...] = (
    (r"requests|batch", 10**6),
    (r"context_tokens|context_length|new_tokens|max_position|keys", 1 << 20),
    (r"tokens|rows|block_count", 1 << 24),
    (r"passes|layers|.*_layers", 80),
    (r"vocabulary", 160_000),
    (r"hidden|.*intermediate|columns", 1 << 14),
    (r".*record_bytes", 1152),
    (r"experts", 256),
    (r"scores", 1),
)
LARGE = [
    "step.index_k_read_bytes",
    "step.index_k_page_read_bytes",
    "step.index_k_write_bytes",
    "step.logits_traffic_bytes",
    "step.main_kv_read_bytes",
    "step.page_table_read_bytes",
    "pool.pool_bytes",
    "pool.needed_tokens",
    "prefill.index_k_read_bytes",
    "prefill.index_k_write_bytes",
    "prefill.score_flops",
    "prefill.transfer_bytes",
    "workspace.prefill_logits_bytes",
    "weights.vocabulary_bytes",
]


@pytest.mark.parametrize("formula", [p.values[0] for p in FORMULAS if p.id in LARGE], ids=lambda f: f.__name__)
def test_a_million_requests_of_a_million_tokens_do_not_overflow(formula):
    """An int64 holds 2^20 tokens x 10^6 requests in every product of a step, a pool and a prefill."""
    rows = 8 if "step" in formula.__module__ else None
    inputs = {}
    for name in inspect.signature(formula).parameters:
        value = next((most for pattern, most in LARGEST if re.fullmatch(pattern, name)), 64)
        inputs[name] = rows if rows and name == "rows" else value
    exact = formula(**inputs)
    assert exact < 2**63
    assert formula(**{name: np.array([value, value]) for name, value in inputs.items()}).tolist() == [exact, exact]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_series_sums_each_element(counts):
    """A series of an array of counts runs to the largest; with terms that are 0 past the end it sums each element."""
    lengths = np.array(counts)
    got = series(lengths, lambda index: helpers.most(lengths - index, 0))
    assert np.broadcast_to(got, lengths.shape).tolist() == [count * (count + 1) // 2 for count in counts]
    assert [series(count, lambda index: index) for count in counts] == [sum(range(count)) for count in counts]


@given(st.integers(1, 200_000), st.integers(1, 8192), st.data())
def test_prefill_forwards_cover_the_prompt(context, chunk, data):
    """The forwards of a prefill take every new token once, and the last one sees the whole context."""
    new = data.draw(st.integers(max(1, context - 40 * chunk), context))
    forwards = -(-new // chunk)
    rows = [prefill.forward_rows(new_tokens=new, chunk_tokens=chunk, index=index) for index in range(forwards + 2)]
    assert sum(rows) == new
    assert rows[forwards:] == [0, 0]
    assert all(1 <= count <= chunk for count in rows[:forwards])
    last = prefill.forward_keys(context_tokens=context, new_tokens=new, chunk_tokens=chunk, index=forwards - 1)
    assert last == context


UNARY: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (helpers.truncated, (-2.5, -0.5, 0.0, 2.9999, 1e15)),
    (helpers.ceiled, (-2.5, -0.5, 0.0, 2.0001, 3.0)),
)


@pytest.mark.parametrize(("helper", "values"), UNARY, ids=lambda part: getattr(part, "__name__", ""))
def test_cuts_of_floats(helper, values):
    assert helper(np.array(values)).tolist() == [helper(value) for value in values]


@given(st.integers(-(1 << 40), 1 << 40), st.integers(1, 1 << 20))
def test_rounding_up_is_the_smallest_multiple(value, unit):
    """Rounding up gives the smallest multiple that is at least the value."""
    up = helpers.round_up(value, unit)
    assert up % unit == 0
    assert 0 <= up - value < unit
    assert helpers.ceil_div(value, unit) * unit == up


@given(st.floats(0.5, 1), st.integers(1000, 400_000), st.integers(0, 30_000))
def test_rounding_is_the_same_for_arrays(share, mib, kept):
    """Rounding to three digits gives for arrays what Python's round gives for a number."""
    for value in (share, (mib - kept) / mib):
        assert helpers.rounded(np.array([value]), 3).tolist() == [round(value, 3)]


@pytest.mark.parametrize("value", [0.8865, 0.0005, 0.0025, 0.7565, 0.0145, 0.9995])
def test_ties_round_as_the_engine_does(value):
    """The engines call Python's round, which looks at the double itself and not at its product with 1,000."""
    assert helpers.rounded(np.array([value]), 3).tolist() == [round(value, 3)]
