"""The README: what it prints is what the program prints, and every command and example in it runs."""

from __future__ import annotations

import re
import shlex

import pytest
from readme_blocks import LEFT_OUT, commands_of, printed

from dsa_ledger.catalog import unmodelled_names
from dsa_ledger.cli import OTHERS, application, main

LONGEST = 170  # lines


@pytest.fixture(scope="module")
def readme(root) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _in_the_clone(root, monkeypatch) -> None:
    """Its commands name files of the clone."""
    monkeypatch.chdir(root)


@pytest.fixture(scope="module")
def texts(root, readme) -> str:
    return readme + (root / "scenarios" / "README.md").read_text(encoding="utf-8")


def test_it_is_short(readme):
    assert len(readme.splitlines()) <= LONGEST


def test_it_opens_with_the_command_that_runs_and_the_one_that_tests(readme):
    (first, second) = re.search(r"```sh\n(.*?)\n(.*?)\n```", readme).groups()
    assert first.startswith("python3 -m venv .venv && ")
    assert first.endswith(".venv/bin/dsa-ledger estimate glm52-8xh200-fp8")
    assert second.endswith(".venv/bin/python -m pytest -q")


def test_each_shown_output_is_what_the_command_prints(readme):
    blocks = re.findall(r"^```text\n\$ ([^\n]*)\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for command, body in blocks:
        out = printed(command)
        kept = [part.strip("\n") for part in f"\n{body}\n".split(f"\n{LEFT_OUT}\n") if part.strip()]
        assert kept
        for part in kept:
            assert f"\n{part}\n" in f"\n{out}\n", f"run: cog -r README.md ({command})"


def test_every_printed_command_runs(texts, capsys):
    commands = commands_of(texts)
    assert len(commands) >= 7
    for command in dict.fromkeys(commands):
        with pytest.raises(SystemExit) as left:
            main(shlex.split(command)[1:])
        said = capsys.readouterr()
        assert left.value.code == (3 if "exit code 3" in line_of(texts, command) else 0), f"{command}\n{said.err}"
        assert said.out


def line_of(text: str, command: str) -> str:
    return next(line for line in text.splitlines() if command in line)


def test_the_python_example_runs(readme):
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - our own example
    assert names["ledger"]["cell.bytes"] == 48_408  # PR #30531: 47,700 and 708 for MTP


def test_the_table_of_commands_is_complete(readme):
    rows = [line for line in readme.split("## Commands")[1].split("##")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z]+)[` ]", row.split(" | ")[0])}
    existing = {command.callback.__name__ for command in application().registered_commands}
    assert named == existing
    assert set(OTHERS) <= named


def test_the_exit_codes_are_those_of_the_help(readme, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    codes = re.findall(r"\b\d\b", re.search(r"Exit codes: (.*)", capsys.readouterr().out).group(1))
    line = re.search(r"Exit codes: (.*)", readme).group(1)
    assert codes == ["0", "2", "3", "4"] == re.findall(r"\b\d\b", line)


def test_the_models_said_to_be_refused_are(readme):
    refused = re.search(r"Not modelled: (.*?) and hybrid models", readme).group(1).split(", ")
    assert refused
    known = [name.rpartition("/")[2] for name in unmodelled_names()]
    assert [name for name in refused if not any(entry.startswith(name) for entry in known)] == []


def test_links_lead_to_files(root, texts):
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", texts) if "://" not in target]
    assert targets
    lost = [name for name in targets if not (root / name).exists() and not (root / "scenarios" / name).exists()]
    assert lost == []


def test_the_h200_has_the_memory_that_the_readme_says(readme):
    """An H200's driver reports 143,771 MiB (github.com/sgl-project/sglang/issues/3196)."""
    assert f"{143_771 / 1024:.2f} GiB" in readme
    assert "140.40 GiB" in printed("dsa-ledger gpus")
