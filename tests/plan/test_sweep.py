"""A sweep: every point is what `estimate` says, whichever way it was worked out, in the order of the axes."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scenarios_at_random import outcome, tables

from dsa_ledger import BadInput, Scenario, estimate
from dsa_ledger import sweep as grids
from dsa_ledger.account.many import estimate_many
from dsa_ledger.cli import main
from dsa_ledger.render.sweep import sweep_text
from dsa_ledger.sweep import Axis, Row, Sweep, axis, pareto, points, sweep

BASE = {"model": "zai-org/GLM-5.3", "gpu": "H200", "engine": "sglang@0.5.23", "sharding": {"tp": 8}}
NAMES = {"context": "load.context", "batch": "load.batch", "tp": "sharding.tp", "kv-dtype": "kv_dtype"}


def scenario(**tables: Any) -> Scenario:
    return Scenario.model_validate(BASE | {"load": {"context": 1000}} | tables)


@settings(max_examples=60)
@given(table=tables(), batches=st.lists(st.integers(1, 300), min_size=1, max_size=5), data=st.data())
def test_an_array_of_loads_is_each_load_by_itself(table, batches, data):
    """Every entry of a ledger under many loads is, place by place, the entry of the ledger under that load alone."""
    contexts = data.draw(st.lists(st.integers(1, 160_000), min_size=len(batches), max_size=len(batches)))
    news = [data.draw(st.integers(1, context)) for context in contexts] if data.draw(st.booleans()) else None
    loads = [{"batch": batch, "context": context} for batch, context in zip(batches, contexts, strict=True)]
    if news:
        loads = [load | {"new_tokens": new} for load, new in zip(loads, news, strict=True)]
    with patch("dsa_ledger.account.post_timing"):  # times are worked out for one load after the other
        alone = [outcome(table | {"load": load}) for load in loads]
    assume(all(ledger is not None for ledger in alone))
    values = {name: np.array([load[name] for load in loads], dtype=np.int64) for name in loads[0]}
    together = estimate_many(Scenario.model_validate(table | {"load": loads[0]}), values)
    for place, ledger in enumerate(alone):
        assert ledger is not None
        for key in ledger.entries:
            value = together[key]
            assert (value.tolist()[place] if getattr(value, "shape", ()) else value) == ledger[key], key
        assert set(together.entries) == set(ledger.entries)


@settings(max_examples=40)
@given(
    contexts=st.lists(st.integers(1, 2_000_000), min_size=1, max_size=6, unique=True),
    batches=st.lists(st.integers(1, 4000), min_size=1, max_size=4, unique=True),
    fractions=st.lists(st.sampled_from([0.7, 0.8, 0.85, 0.9]), min_size=1, max_size=2, unique=True),
    order=st.permutations([0, 1, 2]),
)
def test_a_sweep_is_estimate_point_by_point(contexts, batches, fractions, order):
    """Each row has the figures and the verdict of `estimate`, refused points too, in the order of the axes."""
    whole = [
        Axis("load.context", tuple(contexts)),
        Axis("limits.mem_fraction", tuple(fractions)),
        Axis("load.batch", tuple(batches)),
    ]
    axes = [whole[place] for place in order]
    keys = ("pool.tokens", "step.index_k_read_bytes", "step.weights_read_bytes")
    found = sweep(scenario(), axes, keys)
    assert [row.point for row in found.rows] == list(itertools.product(*(one.values for one in axes)))
    for row in found.rows:
        put = {one.path: value for one, value in zip(axes, row.point, strict=True)}
        one = scenario(
            limits={"mem_fraction": put["limits.mem_fraction"]},
            load={"context": put["load.context"], "batch": put["load.batch"]},
        )
        if put["load.context"] > 1_048_576:
            with pytest.raises(BadInput) as bad:
                estimate(one)
            assert (row.verdict, row.reason) == ("refused", "; ".join(bad.value.lines()))
            continue
        ledger = estimate(one)
        assert row.figures == tuple(ledger[key] for key in keys)
        assert row.verdict == ("does not fit" if ledger.shortfalls else "fits")


def test_without_numpy_the_rows_are_the_same(monkeypatch):
    axes = [Axis("load.context", (1000, 5_000_000)), Axis("load.batch", (1, 9))]
    fast = sweep(scenario(), axes)
    monkeypatch.setattr(grids, "_has_numpy", lambda: False)
    assert sweep(scenario(), axes).rows == fast.rows


def test_processes_give_the_same_rows():
    axes = [Axis("sharding.tp", (8, 16)), Axis("kv_dtype", ("bf16", "fp8_e4m3", "int3")), Axis("load.context", (9000,))]
    assert sweep(scenario(), axes, jobs=2).rows == sweep(scenario(), axes).rows


def test_ranges_include_the_stop_and_know_prefixes():
    assert axis("context=8Ki:24Ki:8Ki", NAMES) == Axis("load.context", (8192, 16_384, 24_576))
    assert axis("limits.mem_fraction=0.8:0.9:0.05", NAMES).values == (0.8, 0.85, 0.9)
    assert axis("kv-dtype=bf16,fp8_e4m3", NAMES) == Axis("kv_dtype", ("bf16", "fp8_e4m3"))
    assert axis("load.context=1M,128Ki", NAMES).values == (1_000_000, 131_072)
    assert axis("model.index_topk_freq=1,4", NAMES).path == "model_overrides.index_topk_freq"


@pytest.mark.parametrize(
    "text",
    ["context", "context=", "contxt=1", "context=1:2", "context=2:1:1", "context=1:2:0", "context=a:b:c",
     "context=1:1000000000:1"],
)  # fmt: skip
def test_a_bad_axis_is_refused(text):
    with pytest.raises(BadInput, match="--over"):
        axis(text, NAMES)


def test_a_billion_points_are_refused_with_their_count_and_a_way_out():
    thousand = tuple(range(1, 1001))
    axes = [Axis("load.context", thousand), Axis("load.batch", thousand), Axis("sharding.tp", thousand)]
    with pytest.raises(BadInput, match=r"1,000,000,000 points.*500 times as wide") as bad:
        points(axes)
    assert len(bad.value.faults) == 1
    with pytest.raises(BadInput, match="each field once"):
        points([axes[0], axes[0]])


def test_a_key_that_no_point_has_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"did you mean 'pool\.tokens'"):
        sweep(scenario(), [Axis("load.context", (1000,))], ["pool.token"])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_the_front_holds_all_that_nothing_beats(figures):
    """A row is in the front if and only if no other is at least as good in every goal and better in one."""
    rows = tuple(Row((place,), figure, "fits", "") for place, figure in enumerate(figures))
    whole = Sweep((Axis("load.batch", tuple(range(len(rows)))),), ("a", "b", "c"), rows)
    front = {row.point for row in pareto(whole, [("a", True), ("b", False), ("c", True)]).rows}

    def beats(one: Row, other: Row) -> bool:
        signed = [[row.figures[0], -row.figures[1], row.figures[2]] for row in (one, other)]
        return signed[0] != signed[1] and all(a >= b for a, b in zip(*signed, strict=True))

    assert front == {row.point for row in rows if not any(beats(other, row) for other in rows)}


def test_what_does_not_fit_is_in_no_front():
    rows = (Row((1,), (5,), "does not fit", ""), Row((2,), (3,), "fits", ""))
    found = pareto(Sweep((Axis("load.batch", (1, 2)),), ("a",), rows), [("a", True)])
    assert found.rows == rows[1:]
    with pytest.raises(BadInput, match="--pareto"):
        pareto(found, [("no", True)])


@pytest.fixture
def run(run):
    return partial(run, "sweep", "glm52-8xh200-fp8")


def test_a_sweep_never_exits_3(run):
    code, out, err = run(
        "--over", "context=100k,1M", "--over", "batch=4,400", "--set", "load.new_tokens=1", "--format", "csv"
    )
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["verdict"] for row in rows] == ["fits", "does not fit", "does not fit", "does not fit"]
    assert list(rows[0]) == ["load.context", "load.batch", *grids.KEYS, "verdict", "reason"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".md"])
def test_files_by_suffix(run, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    code, out, _ = run("--over", "tp=8,16", "--keys", "pool.tokens", "--out", str(path))
    assert (code, out) == (0, f"2 points in {path}\n")
    if suffix == ".json":
        found = json.loads(path.read_text())
        assert found["schema"] == 1
        assert found["over"] == {"sharding.tp": [8, 16]}
        assert [row["sharding.tp"] for row in found["rows"]] == [8, 16]
        assert found["rows"][0]["pool.tokens"] < found["rows"][1]["pool.tokens"]


def test_a_swept_field_need_not_be_given_as_well(capsys):
    base = ["--model", "zai-org/GLM-5.3", "--gpu", "H200", "--tp", "8", "--context-length", "100k", "--format", "csv"]
    over = ["--over", "engine=sglang@0.5.17,sglang@0.5.23,vllm@0.33.0", "--over", "context=1000"]
    with pytest.raises(SystemExit) as left:
        main(["sweep", *base, *over])
    assert left.value.code == 0
    assert [row["verdict"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["fits"] * 3


def test_a_bad_value_is_a_row_and_not_the_end_of_a_sweep(run):
    code, out, _ = run(
        "--over", "batch=0,4", "--over", "kv-dtype=int3,bf16", "--set", "load.context=9000", "--format", "csv"
    )
    assert code == 0
    assert [row["verdict"] for row in csv.DictReader(io.StringIO(out))] == ["refused", "refused", "refused", "fits"]
    code, out, err = run("--over", "batch=0")
    assert (code, out) == (2, "")
    assert err == "bad input: load.batch (--over): 0: expected at least 1\n"


def test_features_are_swept_by_name(run):
    code, out, _ = run(
        "--over", "features=none,hicache,hicache+two-batch-overlap", "--keys", "pool.tokens", "--format", "json"
    )
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["features"] for row in rows] == [[], ["hicache"], ["hicache", "two-batch-overlap"]]
    assert rows[0]["verdict"] == "fits"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--over", "tp=8", "--jobs", "0"],
        ["--over", "tp=8", "--out", "x.xls"],
        ["--over", "tp=8", "--pareto", "a:up"],
    ],
)
def test_bad_arguments_exit_2(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("bad input: --")


def test_a_parquet_file_needs_its_extra_or_holds_the_rows(run, tmp_path):
    path = tmp_path / "out.parquet"
    code, _, err = run("--over", "tp=8,16", "--keys", "pool.tokens", "--out", str(path))
    try:
        import pyarrow.parquet as reader
    except ImportError:
        assert code == 2
        assert "dsa-ledger[parquet]" in err
    else:
        assert reader.read_table(path).column("sharding.tp").to_pylist() == [8, 16]


def table(over: dict[str, tuple[Any, ...]], keys: tuple[str, ...]) -> list[str]:
    found = sweep(scenario(), [Axis(path, values) for path, values in over.items()], keys)
    return sweep_text(scenario(), found, "table").splitlines()


def test_each_row_that_does_not_fit_has_the_number_of_its_reason():
    """Ten reasons of four kinds: none is hidden, those that differ in their figures only share a number."""
    over = {"sharding.tp": (2, 4, 8), "kv_dtype": ("auto", "int3"), "load.batch": (1, 400)}
    lines = table(over, ("pool.tokens",))
    rows = lines[: lines.index("")]
    marks = {row.split("  ")[-1].strip() for row in rows[2:]}
    reasons = [line for line in lines if line.startswith("  (")]
    assert marks == {"yes", "no (1)", "refused (2)", "no (3)"}
    assert [line[:5].strip() for line in reasons] == ["(1)", "(2)", "(3)"]
    assert "the weights take" in reasons[0]
    assert "kv_dtype: 'int3'" in reasons[1]
    assert "400 requests" in reasons[2]


def test_a_load_on_no_pool_is_told_once():
    """Weights that leave no pool are the reason; that no request fits follows."""
    (row,) = sweep(scenario(sharding={"tp": 2}), [Axis("load.batch", (9,))]).rows
    assert row.reason.startswith("the weights take")
    assert "pool tokens" not in row.reason


def test_of_very_many_points_the_rest_are_counted():
    lines = table({"load.batch": tuple(range(1, 101))}, ("pool.tokens",))
    (more,) = [line for line in lines if line.startswith("and 60 more points")]
    assert "do not fit" in more or "60 fit" in more


@pytest.mark.parametrize("keys", [grids.KEYS, (*grids.KEYS, "time.step_high_s", "step.weights_read_bytes", "cell.bytes",
                                               "weights.rank_bytes", "time.step_low_s")])  # fmt: skip
def test_a_table_has_units_and_eighty_columns(keys):
    lines = table({"sharding.tp": (4, 8), "load.context": (1000, 1_000_000), "kv_dtype": ("bf16", "int3")}, keys)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "GiB" in text
    assert "tokens" in text
    assert not re.search(r"\d,\d{3},\d{3},\d{3}", text), "bytes have a prefix"
    assert ("time.step_high_s" not in keys) or re.search(r"\d ms", text)


def test_a_sweep_over_stages_says_that_its_times_are_of_one_of_them(run):
    """Two stages of 39 layers each take half of 78 layers' time: without a word they would look twice as fast."""
    timed = ["--set", "draft.steps=0", "--keys", "time.step_low_s", "--over"]
    assert "times are those of the slowest stage" in run(*timed, "pp=1,2")[2]
    assert run(*timed, "pp=1")[2] == ""
    assert run("--over", "pp=1,2", "--keys", "pool.tokens")[2] == ""
