"""`explain`: the formula of the function itself, the numbers put in, every source."""

from __future__ import annotations

from typing import Any

import pytest
from sample_ledger import sample_ledger

from dsa_ledger.errors import BadInput
from dsa_ledger.explain import explained, formula_text, numbers_text, reached
from dsa_ledger.ledger import Ledger, Source
from dsa_ledger.render.data import explanation_plain
from dsa_ledger.units import Unit


def text_of(key: str) -> str:
    return "\n".join("  " * depth + line for depth, line in explained(sample_ledger(), key))


def test_formula_is_the_functions_own_expression() -> None:
    ledger = sample_ledger()
    assert formula_text(ledger.entries["step.index_k_read_bytes"]) == "record_bytes * layers * tokens"
    assert formula_text(ledger.entries["model.full_layers"]) is None


def test_numbers_are_put_in() -> None:
    ledger = sample_ledger()
    assert numbers_text(ledger.entries["step.index_k_read_bytes"], ledger) == "132 * 21 * 100,000"


def test_an_expression_over_several_lines_becomes_one_and_a_call_keeps_its_commas_apart() -> None:
    ledger = sample_ledger()
    entry = ledger.entries["step.main_kv_read_bytes"]
    assert formula_text(entry) == "least(tokens, most_tokens) * record_bytes"
    assert numbers_text(entry, ledger) == "least(100_000, 2_048) * 132"


def test_a_negative_number_stands_in_brackets() -> None:
    ledger = sample_ledger()
    entry = ledger.entries["pool.budget_bytes"]
    assert numbers_text(entry, ledger) == "150,754,820,096 - 1,503,238,553 - (-5)"


def test_totals_are_written_out() -> None:
    ledger = sample_ledger()
    entry = ledger.entries["step.kv_read_bytes"]
    assert formula_text(entry) == "step.index_k_read_bytes + step.main_kv_read_bytes"
    assert numbers_text(entry, ledger) == "277,200,000 + 270,336"
    widest = ledger.entries["step.widest_read_bytes"]
    assert formula_text(widest) == "most(step.index_k_read_bytes, step.main_kv_read_bytes)"
    assert numbers_text(widest, ledger) == "most(277_200_000, 270_336)"


def test_the_walk_ends_at_givens_with_kind_reference_and_date() -> None:
    assert text_of("step.index_k_read_bytes").splitlines() == [
        "step.index_k_read_bytes = 277,200,000 B/step (264.36 MiB/step)  weakest: config",
        "  = record_bytes * layers * tokens",
        "  = 132 * 21 * 100,000",
        "  [engine] engine 1.0 pool.py (2026-01-02)",
        "  record_bytes: record.index_k_bytes = 132 B/token/layer  [engine] engine 1.0 pool.py (2026-01-02)",
        "    note: 128 + 4 | padded",
        "  layers: model.full_layers = 21 layers  [config] config.json indexer_types (2026-06-16)",
        "  tokens: load.context_tokens = 100,000 tokens  [scenario] load",
    ]


def test_an_entry_shown_above_is_referred_to_not_repeated() -> None:
    ledger = sample_ledger()
    ledger.total("step.twice", Source("engine", "x", ""), ["step.kv_read_bytes", "step.index_k_read_bytes"])
    lines = [line for _, line in explained(ledger, "step.twice")]
    assert sum(line == "= record_bytes * layers * tokens" for line in lines) == 1
    assert lines[-1] == "step.index_k_read_bytes = 277,200,000 B/step (264.36 MiB/step)  (as above)"


def test_each_fact_is_shown_once() -> None:
    """A given that two formulas use has its source at its first place alone, "as above" at the others."""
    lines = text_of("step.kv_read_bytes").splitlines()
    tokens = [line.partition("load.context_tokens = 100,000 tokens")[2] for line in lines if "load.context" in line]
    assert tokens == ["  [scenario] load", "  (as above)"]


def test_no_line_is_wider_than_a_terminal() -> None:
    """Lines go on below themselves from column 80; only a word longer than that stays whole."""
    ledger = sample_ledger()
    ledger.given("a", 1, Unit.COUNT, Source("engine", "word " * 40, ""), "note " * 40)
    lines = explanation_plain(ledger, "a").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("    word")


def test_an_unknown_key_says_where_all_keys_are_listed() -> None:
    with pytest.raises(BadInput, match="`estimate --all` lists every key"):
        reached(sample_ledger(), "pool")


def test_reached_lists_each_entry_once() -> None:
    keys = [entry.key for entry in reached(sample_ledger(), "step.kv_read_bytes")]
    assert keys == [
        "step.kv_read_bytes",
        "step.index_k_read_bytes",
        "record.index_k_bytes",
        "model.full_layers",
        "load.context_tokens",
        "step.main_kv_read_bytes",
        "model.index_topk",
    ]


def test_an_unknown_key_gets_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'step.index_k_read_bytes'"):
        reached(sample_ledger(), "step.index_read_bytes")
    with pytest.raises(BadInput):
        list(explained(sample_ledger(), "nothing"))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("prefill.score_flops", "without --context and --new-tokens;"),
        ("stage[0].cell.bytes", "without --pp above 1;"),
        ("time.step_s", "without --context;"),
        (
            "step.nothing",
            "no such entry in this ledger; ",
        ),  # the group is there: what asks for it is not what is missing
    ],
)
def test_an_entry_that_nobody_asked_for_says_what_asks_for_it(key: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        reached(sample_ledger(), key)
    assert said in str(caught.value)


def two_returns(*, value: Any) -> Any:
    if value:
        return 1
    return 2


@pytest.mark.parametrize("formula", [lambda *, value: value, two_returns])
def test_a_formula_without_a_readable_expression_is_a_bug_not_a_guess(formula: Any) -> None:
    ledger = Ledger()
    ledger.given("a", 1, Unit.COUNT, Source("prior", "x", ""))
    ledger.derive("b", Unit.COUNT, formula, Source("prior", "x", ""), value="a")
    with pytest.raises(LookupError):
        formula_text(ledger.entries["b"])


def test_names_in_columns_after_wide_characters_are_found() -> None:
    ledger = Ledger()
    ledger.given("a", 3, Unit.COUNT, Source("prior", "x", ""))
    ledger.derive("b", Unit.COUNT, after_wide_characters, Source("prior", "x", ""), value="a")
    assert formula_text(ledger.entries["b"]) == 'len("ééé") + value'
    assert numbers_text(ledger.entries["b"], ledger) == "len('ééé') + 3"


def after_wide_characters(*, value: Any) -> Any:
    return len("ééé") + value


def test_a_depth_cuts_the_walk_and_counts_what_lies_deeper() -> None:
    ledger = sample_ledger()
    whole = list(explained(ledger, "step.kv_read_bytes"))
    cut = list(explained(ledger, "step.kv_read_bytes", 1))
    assert len(cut) < len(whole)
    assert max(depth for depth, _ in cut) == 1
    assert not any("more)" in line for _, line in whole)
