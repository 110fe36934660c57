"""Options and scenario files: what they set, which wins, and every fault at once with the option's name."""

from __future__ import annotations

import contextlib
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger.errors import BadInput
from dsa_ledger.options import OPTIONS, Asked, named, scenario_of, scenario_options
from dsa_ledger.scenario_file import find, put, read
from dsa_ledger.schema import Scenario
from dsa_ledger.validation import field_paths

BY_NAME = {option.name: option for option in OPTIONS}
LEAST = {"--model": "zai-org/GLM-5.2-FP8", "--gpu": "H200", "--engine": "sglang@0.5.23"}


def asked(*sets: str, file: str | None = None, form: str = "json", **options: object) -> Asked:
    given_options = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    together = (LEAST if file is None else {}) | given_options
    values = {BY_NAME[name]: value for name, value in together.items() if value}
    return Asked(file, values, list(sets), form)


def faults(*sets: str, **options: object) -> list[str]:
    with pytest.raises(BadInput) as caught:
        scenario_of(asked(*sets, **options))
    return caught.value.lines()


def test_every_option_names_a_field_of_the_scenario() -> None:
    assert {option.path for option in OPTIONS} <= set(field_paths(Scenario))
    assert len({option.path for option in OPTIONS}) == len({option.parameter for option in OPTIONS}) == len(OPTIONS)


def test_one_gpu_is_named_and_counted_apart() -> None:
    """What `--machines` takes, 8xH200, says in `--gpu` how it is written there."""
    said = "gpu (--gpu): '8xh200': expected one GPU's name, and how many in --gpus: --gpu H200 --gpus 8"
    assert said in faults(gpu="8xh200", batch="0")


def test_free_memory_is_gib_by_whatever_form() -> None:
    """GiB is read with its unit as without; GB may be either, so it is refused."""
    for text in ("48", "48 GiB"):
        assert scenario_of(asked(free_after=text)).observed.free_after == 48
    (said,) = faults(free_after="48GB")
    assert said.startswith("observed.free_after (--free-after): '48GB': expected GiB: 48 as SGLang's log means its GB")
    assert said.endswith("or 44.70 for 48 x 10^9 bytes")


def test_numbers_come_as_text_with_their_units() -> None:
    scenario = scenario_of(
        asked(tp="8", context="1M", new_tokens="128Ki", kv_bytes="40 GiB", mem_fraction="0.9", layer_split=True)
    )
    assert scenario.sharding.tp == 8
    assert scenario.load.context == 1_000_000
    assert scenario.load.new_tokens == 131_072
    assert scenario.observed.kv_bytes == 42_949_672_960
    assert scenario.limits.mem_fraction == 0.9
    assert scenario.sharding.layer_split is True


def test_set_reads_json_where_it_parses_and_text_where_not() -> None:
    scenario = scenario_of(
        asked(
            "draft.topk=2",
            "sharding.pp_partition=[40, 38]",
            "kv_dtype=fp8_e4m3",
            "model.index_topk_freq=4",
            "model.index_topk_pattern=FSSS",
            "model_overrides.cli_factor=2",
            "limits.mem_fraction=null",
            "title=a = b",
        )
    )
    assert scenario.draft.topk == 2
    assert scenario.sharding.pp_partition == (40, 38)
    assert scenario.kv_dtype == "fp8_e4m3"
    assert scenario.model_overrides == {"index_topk_freq": 4, "index_topk_pattern": "FSSS", "cli_factor": 2}
    assert scenario.limits.mem_fraction is None
    assert scenario.title == "a = b"


def test_all_faults_come_at_once_each_with_its_option() -> None:
    said = faults(
        "draft.topk=two",
        "tp=4",
        "sharding.tpp=4",
        "nothing",
        "load.batch=2",
        form="xml",
        tp="0",
        batch="-3",
        gpu="H20O",
        engine="sglangg@0.5.23",
        feature=["hicach"],
        context="1Z",
        kv_bytes="40G",
        mem_fraction="many",
    )
    found = {line.partition(":")[0]: line for line in said}
    assert len(found) == len(said) == 14
    assert found["sharding.tp (--tp)"] == "sharding.tp (--tp): 0: expected at least 1"
    assert found["load.batch (--batch)"] == "load.batch (--batch): -3: expected at least 1"
    assert "did you mean 'H20" in found["gpu (--gpu)"]
    assert "did you mean 'sglang'" in found["engine.name (--engine)"]
    assert "did you mean 'hicache'" in found["features[0] (--feature)"]
    assert "'128Ki'" in found["load.context (--context)"]
    assert "40 GB = 40,000,000,000 B or 40 GiB = 42,949,672,960 B" in found["observed.kv_bytes (--kv-bytes)"]
    assert "expected a number" in found["limits.mem_fraction (--mem-fraction)"]
    assert "expected a whole number" in found["draft.topk (--set)"]
    assert "did you mean 'sharding.tp'" in found["tp (--set)"]
    assert "did you mean 'tp'" in found["sharding.tpp (--set)"]
    assert "expected PATH=VALUE" in found["--set"]
    assert found["load.batch (--set)"] == "load.batch (--set): '2': also given by --batch; give it once"
    assert "expected one of " in found["--format"]


def test_what_is_missing_is_named_all_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        scenario_of(Asked(None, {}, [], "json"))
    assert caught.value.lines() == [
        "model (--model): absent: expected a name that `dsa-ledger models` lists, or a config.json",
        "gpu (--gpu): absent: expected a name that `dsa-ledger gpus` lists, or a TOML file",
        "engine (--engine): absent: expected sglang, vllm or tensorrt-llm, as in sglang@0.5.23",
    ]


def test_a_name_cannot_be_reached_into() -> None:
    assert faults("gpu.sms=3") == ["gpu.sms (--set): 3: expected a table at gpu, which is 'H200'"]


def test_an_empty_option_is_a_fault_not_an_absence() -> None:
    assert any(line.startswith("sharding.tp (--tp): ' '") for line in faults(tp=" "))


def test_unhashable_values_are_told_in_words() -> None:
    assert "sharding.tp (--set): a list of 2: expected a whole number" in faults("sharding.tp=[1, 2]")
    assert "load (--set): 3: expected a table" in faults("load=3")
    assert any(line.startswith("engine (--set): a list of 1") for line in faults("engine=[1]", engine=None))


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, "NaN", "-Infinity", '{"a": ', "\x00"])
def test_hostile_values_of_set_are_faults(value: str) -> None:
    assert all(len(line) < 300 for line in faults(f"draft.topk={value}"))


@given(st.text(max_size=60))
def test_any_text_after_set_is_read_or_refused(text: str) -> None:
    """Rule: whatever follows --set, the answer is a scenario or faults, never another exception."""
    with contextlib.suppress(BadInput):
        assert isinstance(scenario_of(asked(text)), Scenario)


FILE = """
schema = 1
title = "from a file"
model = "zai-org/GLM-5.2-FP8"
gpu = "H200"
engine = "sglang@0.5.23"
features = ["hicache"]

[sharding]
tp = 8

[load]
context = "1M"

[model_overrides]
index_topk_freq = 4
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "asked.toml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_a_file_is_read(file) -> None:
    scenario = scenario_of(asked(file=file))
    assert (scenario.title, scenario.sharding.tp, scenario.load.context) == ("from a file", 8, 1_000_000)
    assert scenario.model_overrides == {"index_topk_freq": 4}


def test_an_option_overrides_the_file(file) -> None:
    scenario = scenario_of(asked("load.batch=4", file=file, tp="4", feature=["deepep"]))
    assert (scenario.sharding.tp, scenario.load.batch, scenario.load.context) == (4, 4, 1_000_000)
    assert scenario.features == ("deepep",)


def test_a_fault_of_the_file_names_the_file(tmp_path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(FILE.replace("tp = 8", "tp = 0\ntq = 1").replace('gpu = "H200"', ""), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        scenario_of(asked(file=str(path), batch="0"))
    assert caught.value.lines() == [
        f"gpu (in {path}): absent: expected a name that `dsa-ledger gpus` lists, or a TOML file",
        f"sharding.tp (in {path}): 0: expected at least 1",
        (
            f"sharding.tq (in {path}): 1: unknown field; expected one of tp, cp, dcp, dp_attention, ep, layer_split, "
            "pp, pp_partition; did you mean 'tp'?"
        ),
        "load.batch (--batch): 0: expected at least 1",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"model = 'a'\ntp == 8\n", "line 2"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a = " + b"[" * 60_000, "TOML"),
        (b"x = '" + b"a" * (1 << 20), "longer"),
        (b"x = " + b"9" * 5000, "TOML"),
        (FILE[: len(FILE) // 2].encode(), "line"),
    ],
    ids=["syntax", "binary", "deep", "huge", "digits", "truncated"],
)
def test_a_broken_file_is_one_line(tmp_path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read(path)
    (line,) = caught.value.lines()
    assert says in line
    assert "\n" not in line
    assert "broken.toml" in line


def test_a_missing_file_and_an_unknown_stem_are_one_line(tmp_path) -> None:
    for name in (str(tmp_path / "none.toml"), str(tmp_path), "no-such-scenario", "\x00.toml"):
        with pytest.raises(BadInput) as caught:
            read(find(name))
        assert len(caught.value.lines()) == 1


def test_files_beside_a_scenario_are_found(tmp_path) -> None:
    (tmp_path / "my.json").write_text("{}", encoding="utf-8")
    (tmp_path / "asked.toml").write_text('model = "my.json"\ngpu = "other.toml"\n', encoding="utf-8")
    assert read(tmp_path / "asked.toml") == {"model": str(tmp_path / "my.json"), "gpu": "other.toml"}


def test_put_makes_the_tables_on_the_way() -> None:
    tables: dict[str, object] = {}
    assert put(tables, "limits.mem_fraction", 0.9) is None
    assert put(tables, "model_overrides.a.b", 1) is None
    assert tables == {"limits": {"mem_fraction": 0.9}, "model_overrides": {"a.b": 1}}


def test_faults_of_the_ledger_get_the_option_too() -> None:
    from dsa_ledger.errors import Fault

    bad = BadInput([Fault("gpus", 7, "tp x pp"), Fault("model.index_topk_freq", 0, "x"), Fault("odd", 1, "y")])
    assert [fault.path for fault in named(bad, asked("model.index_topk_freq=0", gpus="7")).faults] == [
        "gpus (--gpus)",
        "model.index_topk_freq (--set)",
        "odd",
    ]


def test_the_decorator_shows_every_option_and_hides_asked() -> None:
    @scenario_options
    def command(*, key: str, asked: Asked, flag: bool = False) -> None:
        """Do nothing."""

    parameters = inspect.signature(command).parameters
    assert list(parameters)[:4] == ["key", "scenario", "flag", "model"]  # its own first
    assert {option.parameter for option in OPTIONS} | {"flag", "set", "format"} < set(parameters)
    assert "asked" not in parameters
