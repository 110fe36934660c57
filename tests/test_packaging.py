"""What is installed: version, command, and a wheel that holds every module and data file and nothing else."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import dsa_ledger

DATA = {".toml", ".json", ".cu", ".h", ".typed"}


@pytest.fixture(scope="module")
def wheel(root, project_files, tmp_path_factory) -> Path:
    """Build the wheel from a copy of the project's files, so that nothing is left behind in the tree."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    for path in project_files:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, tree / path)
    build = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, out], cwd=tree, check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def read(wheel: Path, ending: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return next(archive.read(name).decode() for name in archive.namelist() if name.endswith(ending))


def test_version_is_that_of_the_metadata():
    assert dsa_ledger.__version__ == importlib.metadata.version("dsa-ledger")


def test_changelog_opens_with_this_version(root):
    headings = [
        line for line in (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]
    assert headings[0].startswith(f"## {dsa_ledger.__version__} ")


def test_the_command_is_installed_and_is_the_module():
    command = Path(sys.executable).with_name("dsa-ledger")
    assert command.exists(), "install the project first, as the README says"
    shown = [
        subprocess.run(
            [*words, "--version"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        ).stdout
        for words in ([str(command)], [sys.executable, "-m", "dsa_ledger"])
    ]
    assert shown[0] == shown[1]
    assert dsa_ledger.__version__ in shown[0]


def test_wheel_installs_the_packages_and_no_bare_scenarios(names):
    metadata = f"dsa_ledger-{dsa_ledger.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"calib", "dsa_ledger", metadata}


def test_wheel_holds_every_module_and_data_file(names, project_files):
    wanted = {
        f"dsa_ledger/{path}" if path.startswith("scenarios/") else path
        for path in project_files
        if path.startswith(("calib/", "dsa_ledger/", "scenarios/")) and PurePosixPath(path).suffix in DATA | {".py"}
    }
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert any(name.startswith("dsa_ledger/scenarios/") for name in wanted)
    assert "calib/paged_read.cu" in wanted


def test_wheel_names_command_licence_and_python(wheel, names):
    assert "dsa-ledger = dsa_ledger.__main__:main" in read(wheel, "entry_points.txt")
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    metadata = read(wheel, "METADATA")
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_a_bare_install_needs_three_packages_with_lower_bounds_only(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {text.partition(">=")[0] for text in project["dependencies"]} == {"pydantic", "rich", "typer"}
    everything = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    assert [text for text in everything if set(text) & set("<~=!") - {"="} or "==" in text] == []


def test_ci_runs_the_readme_test_command(root):
    lines = [line.strip() for line in (root / "README.md").read_text(encoding="utf-8").splitlines()]
    commands = [line for line in lines if line.endswith("-m pytest -q")]
    assert len(commands) == 1, "the README has one command that runs the tests"
    assert commands[0] in (root / ".ci" / "run").read_text(encoding="utf-8")
