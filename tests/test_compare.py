"""Comparing two scenarios: each difference with its cause.

Figures come from outside: GLM-5.2 has 78 layers of which 21 are full (config.json `indexer_types`), a record holds 576
(one byte an element), 656 (packed) or 1,152 B (bf16), an index-K record 132 B. github.com/sgl-project/sglang/pull/30531
reports 55,225 and 47,702 B a token before and after it: 78 x (576 + 132) = 55,224, 78 x 576 + 21 x 132 = 47,700.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsa_ledger.account import estimate
from dsa_ledger.compare import compare
from dsa_ledger.errors import ExpectedError
from dsa_ledger.ledger import LEAST, MOST, Ledger, Source
from dsa_ledger.schema import Scenario
from dsa_ledger.units import Unit

MODEL = "zai-org/GLM-5.2-FP8"
SHARED = ["--model", MODEL, "--tp", "8", "--context", "100k"]
FORMATS = ("table", "json", "csv", "md")
WIDTH = 80


def scenario(engine: str = "sglang@0.5.18", gpu: str = "B200", **fields: object) -> Scenario:
    tables = {"model": MODEL, "gpu": gpu, "engine": engine, "sharding": {"tp": 8}, "load": {"context": 100_000}}
    return Scenario.model_validate(tables | fields)


def row_of(found, key):
    return next(row for row in found.rows if row.key == key)


def causes_of(found, key):
    return [found.causes[place] for place in row_of(found, key).causes]


class TestCauses:
    def test_the_same_question_under_two_titles_has_no_difference(self):
        found = compare(scenario(title="one"), scenario(title="two"))
        assert (found.rows, found.causes, found.stated) == ((), (), ())
        assert found.equal == len(estimate(scenario()).entries)

    def test_the_pull_request_is_the_cause_of_the_smaller_cell(self):
        found = compare(scenario("sglang@0.5.17"), scenario("sglang@0.5.18"))
        row = row_of(found, "cell.index_k_bytes")
        assert (row.a.value, row.b.value, row.difference) == (10_296, 2_772, -7_524)  # 78 x 132, 21 x 132
        assert row.ratio == pytest.approx(21 / 78)
        (cause,) = causes_of(found, "cell.index_k_bytes")
        assert cause.kind == "engine"
        assert (cause.a.value, cause.b.value) == (78, 21)
        assert cause.b.source.ref.startswith("sglang 0.5.18")
        assert "PR #30531" in cause.b.source.ref
        assert "PR #30531" not in cause.a.source.ref
        assert [(field.path, field.a, field.b) for field in found.stated] == [("engine.version", "0.5.17", "0.5.18")]

    def test_the_same_rule_is_the_cause_of_lighter_weights_and_of_more_tokens(self):
        found = compare(scenario("sglang@0.5.17"), scenario("sglang@0.5.18"))
        for key in ("weights.indexer_rank_bytes", "pool.budget_bytes", "pool.tokens"):
            assert all("PR #30531" in cause.b.source.ref for cause in causes_of(found, key)), key

    def test_another_kv_dtype_is_the_scenarios_own_difference(self):
        found = compare(scenario(gpu="H200", kv_dtype="bf16"), scenario(gpu="H200", kv_dtype="fp8_e4m3"))
        row = row_of(found, "record.main_kv_bytes")
        assert (row.a.value, row.b.value) == (1_152, 656)
        (cause,) = causes_of(found, "cell.main_kv_bytes")
        assert (cause.kind, cause.differs, cause.keys) == ("scenario", "formula", ("record.main_kv_bytes",))
        assert cause.a.source.ref == "kv_dtype"
        assert "flashmla_kv" in cause.b.source.ref

    def test_the_default_kv_dtype_follows_the_gpu(self):
        found = compare(scenario(gpu="H200"), scenario(gpu="B200"))
        row = row_of(found, "cell.bytes")
        assert (row.a.value, row.b.value) == (92_628, 47_700)  # 78 x 1152 + 21 x 132; 78 x 576 + 21 x 132
        (cause,) = causes_of(found, "record.main_kv_bytes")
        assert cause.kind == "engine"
        assert "auto on SM90 is bfloat16" in cause.a.source.ref
        kinds = {cause.kind for cause in causes_of(found, "pool.budget_bytes")}
        assert "driver" in kinds  # the capacity of the two GPUs

    def test_an_entry_of_one_side_comes_from_what_only_that_side_states(self):
        found = compare(scenario(load={}), scenario())
        row = row_of(found, "step.index_k_read_bytes")
        assert (row.a, row.difference, row.ratio) == (None, None, None)
        causes = causes_of(found, "step.index_k_read_bytes")
        assert {cause.differs for cause in causes} == {"presence"}
        assert "load.context_tokens" in [key for cause in causes for key in cause.keys]
        assert all(cause.kind == "scenario" for cause in causes)

    def test_a_stage_more_is_named_beside_what_it_holds(self):
        found = compare(scenario(gpu="H200"), scenario(gpu="H200", sharding={"tp": 8, "pp": 2}))
        row = row_of(found, "cell.main_kv_bytes")
        assert (row.a.value, row.b.value) == (89_856, 44_928)  # 78 and 39 layers of 1152 B
        first, *others = causes_of(found, "cell.main_kv_bytes")
        assert (first.keys, first.kind) == (("sharding.pp",), "scenario")
        assert [(cause.a.value, cause.b.value) for cause in others] == [(78, 39)]


def test_a_difference_too_wide_for_its_column_keeps_its_unit(run):
    """PR #30531 frees 57 x 18,744,320 B of indexer weights on a rank: 1,018.93 MiB."""
    _, out, _ = run("compare", "pr30531-main", "pr30531-pr")
    (line,) = [line for line in out.splitlines() if line.startswith("  weights.indexer_rank_bytes")]
    assert line.split()[-5:] == ["MiB", "-1,019", "MiB", "0.269", "1"]


def product(*, record_bytes: int, layers: int) -> int:
    """Return a product [B]."""
    return record_bytes * layers


def padded(*, record_bytes: int, layers: int) -> int:
    """Return a product with a pad [B]."""
    return record_bytes * layers + 64


RULE = Source("engine", "engine 1: rule", "")
LATER = Source("engine", "engine 2: rule", "")


def small(record: int = 10, layers: int = 3, formula=product, source: Source = RULE, taken: str = "layers") -> Ledger:
    ledger = Ledger()
    ledger.given("record", record, Unit.BYTES, RULE)
    ledger.given("layers", layers, Unit.LAYERS, source)
    ledger.given("owners", 2, Unit.LAYERS, RULE)
    ledger.derive("cell", Unit.BYTES, formula, source, record_bytes="record", layers=taken)
    return ledger


class TestWalk:
    """The lowest entries that disagree, in ledgers made by hand."""

    def compared(self, a: Ledger, b: Ledger):
        return compare(scenario(), scenario(), (a, b))

    def test_a_given_with_another_value(self):
        found = self.compared(small(layers=3), small(layers=4, source=LATER))
        (cause,) = causes_of(found, "cell")
        assert (cause.differs, cause.keys) == ("value", ("layers",))
        assert (cause.a.source, cause.b.source) == (RULE, LATER)
        assert found.equal == 2
        assert found.stated == ()

    def test_another_formula_with_the_same_inputs(self):
        (cause,) = causes_of(self.compared(small(), small(formula=padded, source=LATER)), "cell")
        assert (cause.differs, cause.keys) == ("formula", ("cell",))

    def test_another_formula_and_another_given_are_both_causes(self):
        found = self.compared(small(), small(record=11, formula=padded))
        assert [cause.differs for cause in causes_of(found, "cell")] == ["formula", "value"]

    def test_the_same_formula_with_another_input(self):
        (cause,) = causes_of(self.compared(small(), small(source=LATER, taken="owners")), "cell")
        assert (cause.differs, cause.keys) == ("input", ("cell",))

    def test_equal_values_by_another_rule_are_equal(self):
        assert self.compared(small(), small(source=LATER)).rows == ()

    def test_alike_givens_are_one_cause_with_both_keys(self):
        first, second = small(layers=3), small(layers=4)
        for ledger, count in ((first, 3), (second, 4)):
            ledger.given("layers.again", count, Unit.LAYERS, RULE)
            ledger.total("both", RULE, ["layers", "layers.again"])
        (cause,) = causes_of(self.compared(first, second), "both")
        assert cause.keys == ("layers", "layers.again")

    def test_a_part_of_a_sum_that_one_side_lacks(self):
        first, second = small(), small()
        first.total("sum", RULE, ["record"])
        second.given("more", 5, Unit.BYTES, LATER)
        second.total("sum", RULE, ["record", "more"])
        (cause,) = causes_of(self.compared(first, second), "sum")
        assert (cause.differs, cause.keys, cause.a, cause.b.value) == ("presence", ("more",), None, 5)

    @pytest.mark.parametrize("how", [LEAST, MOST])
    def test_of_stages_the_one_that_decides_is_followed(self, how):
        first, second = small(), small()
        first.total("worst", RULE, ["record"], how)
        for stage, value in enumerate((7, 12)):
            second.given(f"stage[{stage}].record", value, Unit.BYTES, LATER)
        second.total("worst", RULE, ["stage[0].record", "stage[1].record"], how)
        (cause,) = causes_of(self.compared(first, second), "worst")
        assert (cause.a.value, cause.b.value) == (10, 7 if how is LEAST else 12)


ENGINES = st.sampled_from(
    ["sglang@0.5.9", "sglang@0.5.14", "sglang@0.5.17", "sglang@0.5.23", "vllm@0.19.0", "vllm@0.33.0"]
)
SCENARIOS = st.builds(
    lambda engine, gpu, kv, tp, pp, context, steps: scenario(
        engine, gpu, kv_dtype=kv, sharding={"tp": tp, "pp": pp}, load={"context": context}, draft={"steps": steps}
    ),
    ENGINES,
    st.sampled_from(["H200", "B200"]),
    st.sampled_from(["auto", "bf16"]),
    st.sampled_from([4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 4096, 100_000]),
    st.sampled_from([0, 3]),
)


@settings(max_examples=60)
@given(SCENARIOS, SCENARIOS)
def test_every_difference_has_causes_that_disagree_themselves(a, b):
    """A row is there if and only if the values differ; what is named as its cause differs or is on one side only."""
    try:
        ledgers = estimate(a), estimate(b)
    except ExpectedError:
        assume(False)  # noqa: FBT003 - hypothesis says so when too few are left
    found = compare(a, b, ledgers)
    differing = {
        key
        for key in {*ledgers[0].entries, *ledgers[1].entries}
        if not (key in ledgers[0] and key in ledgers[1] and ledgers[0][key] == ledgers[1][key])
    }
    assert {row.key for row in found.rows} == differing
    assert found.equal + len(found.rows) == len({*ledgers[0].entries, *ledgers[1].entries})
    for row in found.rows:
        assert row.causes, row.key
        for place in row.causes:
            cause = found.causes[place]
            assert cause.a is None or cause.b is None or cause.a.value != cause.b.value
    mirrored = compare(b, a, ledgers[::-1])
    assert {row.key: row.difference for row in mirrored.rows} == {
        row.key: None if row.difference is None else -row.difference for row in found.rows
    }


class TestCommand:
    def test_two_sides_by_changes(self, run):
        code, out, err = run(
            "compare", *SHARED, "--gpu", "B200", "--engine", "sglang@0.5.17", "--b", "engine=sglang@0.5.18"
        )
        assert (code, err) == (0, "")
        assert "  cell.index_k_bytes               10,296       2,772      -7,524  0.269  1\n" in out
        assert "B 21 layers  [engine] sglang 0.5.18: PR #30531: shared layers own no index-K\n" in out
        assert "cell.target_bytes" not in out
        assert "more differ, shown with --all" in out

    def test_two_files_with_shared_options(self, run, tmp_path):
        for name, version in (("one", "0.5.17"), ("two", "0.5.18")):
            text = f'model = "{MODEL}"\ngpu = "B200"\nengine = "sglang@{version}"\n[sharding]\ntp = 8\n'
            (tmp_path / f"{name}.toml").write_text(text)
        files = [str(tmp_path / f"{name}.toml") for name in ("one", "two")]
        code, out, _ = run("compare", *files, "--context", "100k", "--format", "json")
        answer = json.loads(out)
        assert code == 0
        assert [answer["scenarios"][side]["load"]["context"] for side in "ab"] == [100_000, 100_000]
        assert answer["stated"] == [{"path": "engine.version", "a": "0.5.17", "b": "0.5.18"}]
        (entry,) = [entry for entry in answer["entries"] if entry["key"] == "cell.bytes"]
        assert (entry["a"], entry["b"], entry["unit"], entry["difference"]) == (55_224, 47_700, "B/token", -7_524)
        (cause,) = [cause for cause in answer["causes"] if cause["number"] in entry["causes"]]
        assert cause["b"]["source"]["ref"] == "sglang 0.5.18: PR #30531: shared layers own no index-K"
        assert answer["differing"] > len(answer["entries"])

    def test_a_change_overrides_the_shared_option(self, run):
        code, out, _ = run(
            "compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.18", "--set", "draft.steps=1",
            "--b", "sharding.tp=16", "--b", "draft.steps=3", "--format", "json",
        )  # fmt: skip
        assert code == 0
        assert [(field["path"], field["a"], field["b"]) for field in json.loads(out)["stated"]] == [
            ("sharding.tp", 8, 16),
            ("draft.steps", 1, 3),
        ]

    @pytest.mark.parametrize("form", FORMATS)
    def test_every_format_shows_all_entries_when_asked(self, run, form):
        asked = [
            "compare",
            *SHARED,
            "--gpu",
            "B200",
            "--engine",
            "sglang@0.5.17",
            "--b",
            "gpu=H200",
            "--b",
            "sharding.pp=2",
        ]
        short, long = (run(*asked, "--format", form, *more)[1] for more in ([], ["--all"]))
        assert "cell.bytes" in short
        assert "cell.target_bytes" in long
        assert len(short) < len(long)
        if form == "table":
            assert max(map(len, long.splitlines())) <= WIDTH
        if form == "csv":
            rows = {row["key"]: row for row in csv.DictReader(io.StringIO(long))}
            assert (rows["gpu.capacity_bytes"]["b"], rows["gpu.capacity_bytes"]["unit"]) == (str(143_771 * 2**20), "B")

    def test_what_is_said_of_both_sides_or_twice_is_said_once(self, run):
        """Causes that share a source name the first one's place; a warning of both sides stands under both."""
        code, out, _ = run(
            "compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.23", "--context", "256k", "--b", "gpu=B200"
        )
        assert code == 0
        causes = " ".join(out[out.index("\ncauses") : out.index("entries are equal")].split())
        assert "source as in" in causes
        sources = [part for part in causes.split("[prior] ")[1:] if part.startswith("github.com")]
        assert len({part.split(" (20")[0] for part in sources}) == len(sources)
        both = out[out.index("warnings of A and B") :]
        assert both.count("kernel table") == 1

    def test_no_word_is_cut(self, run):
        """A path too long for a line is broken behind a slash, so that what stands in a line can be searched for."""
        _, out, _ = run(
            "compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.23", "--context", "256k", "--b", "gpu=B200"
        )
        assert max(map(len, out.splitlines())) <= WIDTH
        assert "aiconfigurator_core/" in out

    def test_one_side_that_does_not_fit_is_said_and_compared(self, run):
        code, out, err = run("compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.18", "--b", "sharding.tp=4")
        assert (code, err) == (0, "")
        assert "\nB does not fit\n" in out
        assert "A does not fit" not in out
        code, _, err = run(
            "compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.18", "--b", "sharding.tp=4", "--format", "csv"
        )
        assert code == 0
        assert "\nb does not fit: " in "\n" + err

    def test_faults_name_the_side(self, run):
        base = ["compare", "--model", MODEL, "--gpu", "H200", "--engine", "sglang@0.5.18"]
        code, out, err = run(*base, "--tp", "0", "--batch", "-1", "--b", "sharding.tp=8")
        assert (code, out) == (2, "")
        assert err.splitlines() == [
            "bad input: a: sharding.tp (--tp): 0: expected at least 1",
            "bad input: a, b: load.batch (--batch): -1: expected at least 1",
        ]
        code, out, err = run(*base, "--tp", "8", "--b", "kv_dtype=int4", "--b", "nonsense")
        assert (code, out) == (2, "")
        assert err.startswith("bad input: b: --b: 'nonsense': expected PATH=VALUE")
        code, out, err = run(*base, "--tp", "8", "--b", "kv_dtype=int4")
        assert (code, out) == (2, "")
        assert err.startswith("bad input: b: kv_dtype (--b): 'int4': SGLang takes only")

    def test_a_gap_names_the_side(self, run):
        code, out, err = run(
            "compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.18", "--b", "engine=sglang@0.4.0"
        )
        assert (code, out) == (4, "")
        assert err.startswith("not modelled: b: sglang (0.4.0)")

    def test_one_side_alone_is_bad_input(self, run):
        code, out, err = run("compare", *SHARED, "--gpu", "H200", "--engine", "sglang@0.5.18")
        assert (code, out) == (2, "")
        assert "--b PATH=VALUE" in err

    def test_nothing_heavy_is_loaded(self):
        asked = ["compare", *SHARED, "--gpu", "B200", "--engine", "sglang@0.5.17", "--b", "engine=sglang@0.5.18"]
        code = (
            "import atexit, sys; sys.argv = ['dsa-ledger', *sys.argv[1:]]; from dsa_ledger.__main__ import main; "
            "atexit.register(lambda: print(sorted({'rich', 'numpy'} & set(sys.modules)), file=sys.stderr)); main()"
        )
        done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "[]\n")
