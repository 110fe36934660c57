"""The command line as a user meets it: exit codes, what goes where, and every fault in one run."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest
from sample_ledger import sample_ledger
from typer.models import OptionInfo

import dsa_ledger
from dsa_ledger import account
from dsa_ledger.cli import ABOUT_A_SCENARIO, EXAMPLES, application, main
from dsa_ledger.errors import BadInput, Fault, NotModelled

if TYPE_CHECKING:
    from dsa_ledger.ledger import Ledger

LEAST = ["--model", "zai-org/GLM-5.2-FP8", "--gpu", "H200", "--tp", "8", "--engine", "sglang@0.5.23"]


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsa_ledger", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80"} | environment,
    )


@pytest.fixture
def fitting(monkeypatch) -> Ledger:
    """Let the estimate be the sample ledger, without its shortfall."""
    ledger = sample_ledger()
    ledger.shortfalls.clear()
    monkeypatch.setattr(account, "estimate", lambda _: ledger)
    return ledger


def test_version_is_the_packages(run) -> None:
    said = f"dsa-ledger {dsa_ledger.__version__}\n"
    assert program("--version").stdout == said
    assert run("--version") == (0, said, "")


def test_help_names_every_command_and_the_exit_codes(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for word in ("estimate", "explain", "layers", "models", "gpus", "schema", "--install-completion", "3 does not fit"):
        assert word in out


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_ends_with_an_example_whose_options_exist(run, name: str) -> None:
    """Each command's help ends with one line to try, made of options that the same help explains."""
    code, out, _ = run(name, "--help")
    example = " ".join(out.partition("Example: ")[2].split())
    assert (code, example) == (0, f"dsa-ledger {EXAMPLES[name]}")
    words = [word for word in EXAMPLES[name].split() if word.startswith("--")]
    assert [word for word in words if f"  {word}" not in out] == []


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"calibrate", "claims"}))
def test_an_example_runs(run, name: str) -> None:
    assert run(*EXAMPLES[name].split())[0] == 0


def test_a_commands_own_options_come_before_the_scenarios(run) -> None:
    _, out, _ = run("plan", "--help")
    assert 0 < out.index("  --largest-context") < out.index("  --model ID")


def test_help_says_what_each_command_answers_in_a_whole_sentence(run) -> None:
    _, out, _ = run("--help")
    listed = [line for line in out.split("Commands:")[1].split("Exit codes")[0].splitlines() if line.strip()]
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_profiles_list_where_the_package_holds_none(run, monkeypatch, tmp_path) -> None:
    """An installed package has no folder of profiles until one has been measured."""
    monkeypatch.setattr("dsa_ledger.cli_profiles._built_in", lambda: tmp_path / "absent")
    code, out, _ = run("profiles", "list")
    assert (code, out.partition(":")[0]) == (0, "no profile")


def test_estimate_prints_the_ledger(run, fitting) -> None:
    code, out, err = run("estimate", *LEAST, "--format", "json")
    assert (code, err) == (0, "")
    assert {entry["key"] for entry in json.loads(out)["entries"]} == set(fitting.entries)


@pytest.mark.usefixtures("fitting")
def test_the_default_format_is_the_table_and_all_shows_every_entry(run) -> None:
    code, out, _ = run("estimate", *LEAST)
    assert code == 0
    assert out.startswith("zai-org/GLM-5.2-FP8 on 8 x H200, sglang@0.5.23: tp 8")
    assert "memory.correction_bytes" not in out
    assert "memory.correction_bytes" in run("estimate", *LEAST, "--all")[1]


@pytest.mark.usefixtures("fitting")
def test_csv_has_no_place_for_warnings_so_they_go_to_standard_error(run) -> None:
    code, out, err = run("estimate", *LEAST, "--format", "csv")
    assert code == 0
    assert out.startswith("key,value,unit")
    assert err.startswith("warning: no version given")


def test_what_does_not_fit_is_printed_all_the_same_with_exit_3(run, monkeypatch) -> None:
    monkeypatch.setattr(account, "estimate", lambda _: sample_ledger())
    code, out, err = run("estimate", *LEAST, "--format", "json")
    assert code == 3
    assert json.loads(out)["shortfalls"] == sample_ledger().shortfalls
    assert err == f"does not fit: {sample_ledger().shortfalls[0]}\n"
    code, out, err = run("explain", "pool.budget_bytes", *LEAST)
    assert (code, "does not fit" in out, err.startswith("does not fit: ")) == (3, False, True)


@pytest.mark.parametrize("form", ["table", "md", "html"])
def test_a_reader_is_told_once_why_it_does_not_fit(run, monkeypatch, form) -> None:
    monkeypatch.setattr(account, "estimate", lambda _: sample_ledger())
    code, out, err = run("estimate", *LEAST, "--format", form)
    assert (code, out.lower().count("does not fit"), err) == (3, 1, "")


@pytest.mark.parametrize("command", sorted(ABOUT_A_SCENARIO))
def test_a_command_started_with_some_options_has_those_and_started_with_an_unknown_one_has_all(command) -> None:
    """What is left out for a fast start can not have been asked for."""

    def options(*arguments: str) -> dict[str, object]:
        (found,) = application([command, *arguments]).registered_commands
        places = inspect.signature(found.callback).parameters.values()
        said = {place.name: place.annotation.__metadata__[0] for place in places}
        return {name: option.default for name, option in said.items() if isinstance(option, OptionInfo)}

    whole = options("--help")
    assert {"tp", "set", "from_command", "format"} <= set(whole)
    assert options("--unknown") == options("--tp", "8", "--unknown") == whole
    assert options() == {}
    for name, word in whole.items():
        assert options(f"{word}=1") == {name: word}


def test_validate_without_a_choice_is_the_published_times_and_says_so(run) -> None:
    code, out, err = run("validate")
    assert (code, out) == run("validate", "--published")[:2]
    assert code == 0
    assert err.startswith("--published, the default; --golden and --measured")
    assert run("validate", "--published", "--golden", "absent.toml")[0] == 2


def test_what_is_not_modelled_exits_4_with_nothing_on_standard_output(run, monkeypatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise NotModelled("hisparse", "sglang@0.5.9", "its rules were not read")

    monkeypatch.setattr(account, "estimate", refuse)
    code, out, err = run("estimate", *LEAST)
    assert (code, out) == (4, "")
    assert err == "not modelled: hisparse (sglang@0.5.9): its rules were not read\n"


def test_bad_input_exits_2_with_every_fault_and_nothing_on_standard_output() -> None:
    done = program("estimate", *LEAST[:4], "--engine", "sglang@0.5.23", "--tp", "0", "--batch", "-3", "--context", "G")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0] == "bad input: sharding.tp (--tp): 0: expected at least 1"
    assert lines[1] == "bad input: load.batch (--batch): -3: expected at least 1"
    assert lines[2].startswith("bad input: load.context (--context): 'G'")


def test_faults_of_the_account_carry_the_option(run, monkeypatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise BadInput([Fault("gpus", 7, "tp x pp = 8")])

    monkeypatch.setattr(account, "estimate", refuse)
    assert run("estimate", *LEAST, "--gpus", "7") == (2, "", "bad input: gpus (--gpus): 7: expected tp x pp = 8\n")


def test_an_empty_option_is_a_fault(run) -> None:
    code, _, err = run("estimate", *LEAST, "--gpus", "")
    assert code == 2
    assert err.startswith("bad input: gpus (--gpus): ''")


def test_an_unknown_option_or_command_exits_2(run) -> None:
    for arguments in (["estimate", "--tpp", "8"], ["estimat"], ["explain"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err


def test_a_bug_keeps_its_traceback(monkeypatch) -> None:
    def fail(_: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(account, "estimate", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["estimate", *LEAST])


def test_the_table_says_that_prefill_logits_are_counted_before_any_cut(run) -> None:
    """4 GiB of logits beside a budget of 3.2 GiB: two forwards, since the engine cuts what exceeds the budget."""
    _, out, _ = run("estimate", "glm52-8xh200-fp8")
    group = out[out.index("workspace  ") :]
    assert group.splitlines()[0].endswith("prefill logits before any cut")
    assert "workspace.prefill_chunks                             2" in group


@pytest.mark.parametrize(
    "asked",
    [
        "estimate glm52-8xh200-fp8 --all",
        "explain time.step_low_s glm52-8xh200-fp8",
        "claims",
        "claims C18",
        "diagnose slow-at-1m --checklist",
    ],
)
def test_a_terminal_of_80_columns_shows_whole_lines(run, asked: str) -> None:
    """No line for people is wider than 80 columns but what is to be copied: a key, an address, a command."""
    _, out, _ = run(*asked.split())
    wide = [line.split("dsa-ledger ")[0] for line in out.splitlines() if len(line) > 80]
    assert [line for line in wide if len(line) > 80 and max(map(len, line.split())) < 50] == []


def test_a_scenario_in_the_place_of_a_key_is_told_where_it_stands(run) -> None:
    said = "bad input: KEY: 'pr30531-pr': expected a key before the scenario, as in: explain pool.tokens pr30531-pr\n"
    assert run("explain", "pr30531-pr") == (2, "", said)


@pytest.mark.usefixtures("fitting")
def test_explain_walks_to_the_sources(run) -> None:
    code, out, err = run("explain", "step.index_k_read_bytes", *LEAST)
    assert (code, err) == (0, "")
    assert "  = record_bytes * layers * tokens\n  = 132 * 21 * 100,000\n" in out
    assert "[config] config.json indexer_types (2026-06-16)" in " ".join(out.split())
    code, out, _ = run("explain", "step.index_k_read_bytes", *LEAST, "--format", "json")
    assert json.loads(out)["key"] == "step.index_k_read_bytes"


@pytest.mark.usefixtures("fitting")
def test_explain_of_an_unknown_key_names_the_nearest(run) -> None:
    code, out, err = run("explain", "step.index_read_bytes", *LEAST)
    assert (code, out) == (2, "")
    assert err.startswith("bad input: KEY: 'step.index_read_bytes': no such entry")
    assert "did you mean 'step.index_k_read_bytes'" in err


@pytest.mark.parametrize(("command", "name"), [("models", "zai-org/GLM-5.2-FP8"), ("gpus", "H200")])
def test_the_catalog_is_listed_in_every_format(run, command: str, name: str) -> None:
    code, out, _ = run(command, "--format", "json")
    assert code == 0
    rows = json.loads(out)[command]
    assert name in [row["name"] for row in rows]
    for form in ("table", "csv", "md"):
        code, out, _ = run(command, "--format", form)
        assert code == 0
        assert all(row["name"] in out for row in rows)
        assert form != "table" or max(map(len, out.splitlines())) <= 80
    assert run(command, "--format", "xml")[0] == 2


def test_layers_show_every_release_with_its_rule(run) -> None:
    code, out, err = run("layers", "zai-org/GLM-5.2-FP8", "--format", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    rows = {(row["engine"], row["from"]): row for row in answer["layers"]}
    newest = rows["sglang", "0.5.20"]
    assert (newest["to"], newest["decided_by"]) == ("0.5.23", "indexer_types")
    # config.json of GLM-5.2: layers 0 to 2, then every fourth.
    assert newest["full"] == newest["index_k"] == [0, 1, *range(2, 78, 4)]
    assert rows["sglang", "0.5.9"]["full"] == list(range(78))


def test_layers_as_a_table_fit_80_columns_and_show_the_stages(run) -> None:
    code, out, _ = run("layers", "zai-org/GLM-5.2-FP8", "--engine", "sglang@0.5.23", "--pp", "2")
    assert code == 0
    assert "     0  FFFsssFsss FsssFsssFs" in out
    assert "  stage 0: layers 0 to 38, 12 full, 12 with index-K\n" in out
    assert "  stage 1: layers 39 to 77, 9 full, 9 with index-K\n" in out
    for command in (["zai-org/GLM-5.2"], ["deepseek-ai/DeepSeek-V3.2", "--pp", "4"]):
        assert max(map(len, run("layers", *command)[1].splitlines())) <= 80


def test_layers_take_keys_of_the_config(run) -> None:
    code, out, _ = run(
        "layers", "zai-org/GLM-5.1", "--set", "model.index_topk_freq=2", "--engine", "sglang@0.5.14", "--format", "json"
    )
    assert code == 0
    # max(layer - 2 + 1, 0) % 2 == 0, by hand
    assert json.loads(out)["layers"][0]["full"] == [0, *range(1, 78, 2)]


def test_faults_of_layers_come_at_once(run) -> None:
    code, out, err = run("layers", "GLM-9", "--engine", "sg", "--pp", "0", "--format", "x")
    assert (code, out) == (2, "")
    assert [line.partition(": '")[0] for line in err.splitlines() if "--pp" not in line] == [
        "bad input: --format",
        "bad input: engine.name (--engine)",
        "bad input: model (MODEL)",
    ]
    assert "sharding.pp (--pp): 0: expected at least 1" in err
    assert run("layers", "zai-org/GLM-5.2", "--set", "sharding.tp=3")[0] == 2
    assert "at most 78" in run("layers", "zai-org/GLM-5.2", "--pp", "79")[2]


def test_schema_is_the_json_schema_of_a_scenario(run) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    code, out, _ = run("schema")
    assert code == 0
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    whole = {
        "schema": 1,
        "model": "zai-org/GLM-5.2",
        "gpu": "H200",
        "engine": {"name": "sglang"},
        "sharding": {"tp": 8},
    }
    jsonschema.validate(whole, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole | {"sharding": {"tp": 0}}, schema)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dsa_ledger", "schema"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("dsa-ledger est", "estimate"),
        ("dsa-ledger estimate --kv", "--kv-dtype"),
        ("dsa-ledger estimate --model zai-org/GLM-5.2-", "zai-org/GLM-5.2-FP8"),
        ("dsa-ledger estimate --gpu H2", "H200"),
        ("dsa-ledger estimate --feature hi", "hicache"),
        ("dsa-ledger estimate --engine sglang", "sglang@0.5.23"),
        ("dsa-ledger estimate --format j", "json"),
        ("dsa-ledger explain pool.t", "pool.tokens"),
    ],
)
def test_completion_offers(words: str, among: str) -> None:
    done = program(_DSA_LEDGER_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    assert among in done.stdout.split("\n"), done.stderr
