"""Pools and weights of real servers against the ledger; the figures are public and typed by hand."""

from __future__ import annotations

import copy

import pytest
from golden_records import README, misses, observations, records, rows_of, table

CHECKABLE = [record for record in records() if "missing" not in record]
FIGURES = [
    pytest.param(record, place, id=f"{record['id']} {key} {place}")
    for record in CHECKABLE
    for place, (key, want) in enumerate(observations(record))
    if "outside" not in want
]


@pytest.mark.parametrize("record", CHECKABLE, ids=lambda record: record["id"])
def test_record(record):
    assert misses(record) == []


@pytest.mark.parametrize(("record", "place"), FIGURES)
def test_a_doubled_figure_fails(record, place):
    """A check that twice the figure also passes would prove nothing."""
    wrong = copy.deepcopy(record)
    key, want = observations(wrong)[place]
    (form,) = {"value", "tokens", "printed", "gib", "gb"} & set(want)
    text = str(want[form])
    digits = len(text.partition(".")[2])
    want[form] = f"{2 * float(text):.{digits}f}" if isinstance(want[form], str) else 2 * want[form]
    assert [f"{record['id']} {key}" in said for said in misses(wrong)] == [True]


def test_a_server_that_would_start_is_told_from_one_that_does_not():
    (record,) = [record for record in records() if record["id"] == "recipes-893"]
    wrong = copy.deepcopy(record)
    wrong["scenario"]["limits"] = {"context_length": 262144}
    (said,) = misses(wrong)
    assert "did not start" in said


def test_a_known_miss_that_comes_right_is_noticed():
    (record,) = [record for record in records() if record["id"] == "sgl-30609"]
    wrong = copy.deepcopy(record)
    (row,) = rows_of(record)
    wrong["observed"]["weights.draft_rank_bytes"]["gib"] = f"{float(row.predicted.low) / 2**30:.2f}"
    (said,) = misses(wrong)
    assert "says why not" in said


def test_each_engine_release_record_with_size_and_tokens_is_inside():
    """The nine sizes that SGLang printed and vLLM's H200 log: the pool reproduces to the last digit, the tokens too."""
    wanted = {
        ("sgl-30531-main", "pool.target_bytes"),
        ("sgl-30531-main", "pool.draft_bytes"),
        ("sgl-30531-pr", "pool.target_bytes"),
        ("sgl-30531-pr", "pool.draft_bytes"),
        ("sgl-11309-pr", "pool.target_bytes"),
        ("sgl-11309-main", "pool.target_bytes"),
        ("sgl-11309-main", "record.main_kv_bytes"),
        ("ix-2335", "pool.target_bytes"),
        ("ix-2268-b300", "pool.tokens"),
        ("vllm-44545", "pool.reported_tokens"),
        ("rtx6k-glm5-bf16", "cell.bytes"),
    }
    inside = {(row.record, row.key) for record in CHECKABLE for row in rows_of(record) if row.inside}
    assert wanted <= inside


def test_the_table_is_what_the_generator_makes():
    assert README.read_text(encoding="utf-8") == table(), "run: python tests/golden_records.py --write"
