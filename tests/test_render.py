"""Rendering: the formats read back, the table fits 80 columns, the snapshots of our own text.

A snapshot that no longer holds is written anew with UPDATE_SNAPSHOTS=1; the difference is then read in git.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
from sample_ledger import sample_ledger, sample_scenario

from dsa_ledger.errors import BadInput
from dsa_ledger.ledger import Ledger, Source
from dsa_ledger.render import explanation_text, ledger_text, rows_text
from dsa_ledger.render.budget import budgets
from dsa_ledger.render.words import GROUPS, rows_of
from dsa_ledger.schema import Scenario
from dsa_ledger.units import Unit

SNAPSHOTS = Path(__file__).parent / "snapshots"
GIVEN = Source("driver", "x", "")


def held_against_snapshot(name: str, text: str) -> None:
    file = SNAPSHOTS / name
    # The scenario has a test of its own; here each new field of it would change the text.
    text = re.sub(r'"scenario": .*', '"scenario": ...,', text)
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.fixture
def utf8(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


@pytest.mark.usefixtures("utf8")
@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_snapshots(form: str) -> None:
    scenario, ledger = sample_scenario(), sample_ledger()
    held_against_snapshot(f"ledger.{form}", ledger_text(scenario, ledger, form, every=True))
    held_against_snapshot(f"explain.{form}", explanation_text(scenario, ledger, "step.kv_read_bytes", form))


def test_json_has_the_keys_of_the_contract() -> None:
    answer = json.loads(ledger_text(sample_scenario(), sample_ledger(), "json"))
    assert list(answer) == ["schema", "scenario", "entries", "warnings", "shortfalls"]
    assert answer["schema"] == 1
    assert list(answer["entries"][0]) == ["key", "value", "unit", "formula", "inputs", "source", "note"]
    entries = {entry["key"]: entry for entry in answer["entries"]}
    assert entries["model.full_layers"]["source"] == {
        "kind": "config",
        "ref": "config.json indexer_types",
        "date": "2026-06-16",
    }
    assert entries["model.full_layers"]["formula"] is None
    assert entries["step.index_k_read_bytes"]["value"] == 277_200_000
    assert entries["step.index_k_read_bytes"]["formula"] == "record_bytes * layers * tokens"
    assert entries["step.index_k_read_bytes"]["inputs"] == {
        "record_bytes": "record.index_k_bytes",
        "layers": "model.full_layers",
        "tokens": "load.context_tokens",
    }


def test_the_scenario_of_the_json_is_the_scenario() -> None:
    scenario = sample_scenario()
    answer = json.loads(ledger_text(scenario, sample_ledger(), "json"))
    assert Scenario.model_validate(answer["scenario"]) == scenario


def test_csv_reads_back_to_the_same_entries_as_json() -> None:
    ledger = sample_ledger()
    rows = list(csv.DictReader(io.StringIO(ledger_text(sample_scenario(), ledger, "csv"))))
    entries = json.loads(ledger_text(sample_scenario(), ledger, "json"))["entries"]
    assert len(rows) == len(entries)
    for row, entry in zip(rows, entries, strict=True):
        text = isinstance(entry["value"], str)
        assert (row["value"] if text else json.loads(row["value"])) == entry["value"]
        assert json.loads(row["inputs"]) == entry["inputs"]
        assert (row["formula"] or None) == entry["formula"]
        source = {"kind": row["source_kind"], "ref": row["source_ref"], "date": row["source_date"]}
        assert source == entry["source"]
        assert (row["key"], row["unit"], row["note"]) == (entry["key"], entry["unit"], entry["note"])


def test_md_has_one_row_per_entry_and_no_broken_cell() -> None:
    ledger = sample_ledger()
    ledger.given("model.odd", 1, Unit.COUNT, Source("config", "a | b\nc", ""))
    text = ledger_text(sample_scenario(), ledger, "md")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(ledger.entries)
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}


def long_ledger(stages: int) -> Ledger:
    """Return every headline key, with long stage keys, large values and long sentences."""
    ledger = Ledger()
    prefixes = ["", *(f"stage[{index}]." for index in range(stages))]
    ledger.given("gpu.capacity_bytes", 143_771 * 2**20, Unit.BYTES, GIVEN)
    for prefix in prefixes:
        for group in GROUPS:
            for key in group.keys:
                if key.endswith("_bytes"):
                    ledger.given(prefix + key, (1 << 33) + 12345, Unit.BYTES_PER_STEP, GIVEN)
                else:
                    ledger.given(prefix + key, 999_999_999_999, Unit.ELEMENTS, Source("datasheet", "x", ""))
    ledger.warn("a warning " * 30 + "x" * 200)
    ledger.shortfalls.append("a shortfall " * 30)
    return ledger


@pytest.mark.usefixtures("utf8")
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("stages", [0, 2])
def test_the_table_fits_80_columns(*, every: bool, stages: int) -> None:
    scenario = Scenario.model_validate(
        {"title": "t" * 200, "model": "m" * 100, "gpu": "H200", "engine": "vllm@0.33.0", "kv_dtype": "k" * 40}
    )
    text = ledger_text(scenario, long_ledger(stages), "table", every=every)
    assert max(map(len, text.splitlines())) <= 80
    assert "pool.requests_at_context" in text


@pytest.mark.usefixtures("utf8")
def test_the_table_shows_each_headline_key_once_and_marks_its_weakest_fact() -> None:
    ledger = sample_ledger()
    text = ledger_text(sample_scenario(), ledger, "table")
    (line,) = [line for line in text.splitlines() if "pool.budget_bytes" in line]
    assert line.split() == ["pool.budget_bytes", "139.00", "GiB", "prior"]
    (line,) = [line for line in text.splitlines() if "step.index_k_read_bytes" in line]
    assert line.split() == ["step.index_k_read_bytes", "264.36", "MiB/step", "config"]
    assert "engine.backend" not in text
    assert "engine.backend" in ledger_text(sample_scenario(), ledger, "table", every=True)


@pytest.mark.usefixtures("utf8")
def test_shortfalls_come_first_and_warnings_last() -> None:
    text = ledger_text(sample_scenario(), sample_ledger(), "table")
    assert text.index("does not fit") < text.index("storage") < text.index("warnings")
    assert text.rstrip().endswith("of your server")


def test_every_entry_stands_in_exactly_one_group() -> None:
    ledger = long_ledger(2)
    ledger.given("odd.key", 1, Unit.COUNT, GIVEN)
    shown = [key for _, keys in rows_of(ledger, every=True) for key in keys]
    assert sorted(shown) == sorted(ledger.entries)


def test_colour_only_where_asked() -> None:
    assert "\x1b[" not in ledger_text(sample_scenario(), sample_ledger(), "table")


def test_a_terminal_without_block_characters_gets_signs(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    text = ledger_text(sample_scenario(), sample_ledger(), "table")
    assert text.isascii()
    assert "####" in text


def budget_ledger(*, weights_bytes: int, prefix: str = "") -> Ledger:
    ledger = Ledger()
    ledger.given("gpu.capacity_bytes", 1000, Unit.BYTES, GIVEN)
    ledger.given(prefix + "weights.rank_bytes", weights_bytes, Unit.BYTES, GIVEN)
    ledger.given(prefix + "pool.target_bytes", 300, Unit.BYTES, GIVEN)
    return ledger


def test_the_parts_of_the_budget_add_up_to_the_capacity() -> None:
    ((title, parts),) = budgets(budget_ledger(weights_bytes=600))
    assert title == "of one rank"
    shown = [(part.title, part.value_bytes) for part in parts]
    assert shown == [("weights", 600), ("pool, target", 300), ("free", 100)]
    assert parts[0].begin_bytes == 0
    assert all(before.end_bytes == after.begin_bytes for before, after in itertools.pairwise(parts))
    assert parts[-1].end_bytes == 1000


def test_what_is_missing_is_shown_where_the_parts_exceed_the_capacity() -> None:
    ((_, parts),) = budgets(budget_ledger(weights_bytes=900))
    assert (parts[-1].title, parts[-1].value_bytes) == ("missing", 200)


def test_each_stage_has_its_own_budget() -> None:
    ledger = budget_ledger(weights_bytes=600, prefix="stage[0].")
    ledger.given("stage[1].weights.rank_bytes", 500, Unit.BYTES, GIVEN)
    assert [title for title, _ in budgets(ledger)] == ["of one rank of stage 0", "of one rank of stage 1"]


ROWS = [{"name": "A", "capacity_bytes": 2**30, "layers": 1234}, {"name": "B | b", "capacity_bytes": 5, "layers": 1}]


def test_rows_in_every_format() -> None:
    assert json.loads(rows_text("gpus", ROWS, "json")) == {"schema": 1, "gpus": ROWS}
    assert rows_text("gpus", ROWS, "csv") == "name,capacity_bytes,layers\nA,1073741824,1234\nB | b,5,1\n"
    assert "| B \\| b | 5 | 1 |" in rows_text("gpus", ROWS, "md")
    assert rows_text("gpus", ROWS, "table").splitlines()[1].split() == ["A", "1.00", "GiB", "1,234"]
    assert rows_text("gpus", [], "csv") == "\n"


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_an_unknown_key_is_bad_input_in_every_format(form: str) -> None:
    with pytest.raises(BadInput, match="did you mean"):
        explanation_text(sample_scenario(), sample_ledger(), "pool.budget", form)
