"""Models and GPUs from names and files of the user's own, and every way in which they can be wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from dsa_ledger.catalog import load_gpu, load_model
from dsa_ledger.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path


def one_fault(name: str, load: Any, *also: Any) -> str:
    """Return the one line that loading `name` fails with."""
    with pytest.raises(BadInput) as refused:
        load(name, *also)
    (line,) = refused.value.lines()
    assert "\n" not in line
    return line


def test_typo_names_the_nearest():
    assert "H200" in one_fault("H20O", load_gpu)
    assert "'zai-org/GLM-5.2-FP8'" in one_fault("GLM-5.2-PF8", load_model, {})


@pytest.mark.parametrize("name", ["", "\0", "a" * 5000, "ü", "../..", "-"])
def test_odd_names(name):
    assert one_fault(name, load_model, {}).startswith("model: ")
    assert one_fault(name, load_gpu).startswith("gpu: ")


BAD_JSON = {
    "empty": (b"", "no valid JSON"),
    "truncated": (b'{"hidden_size": 61', "no valid JSON"),
    "binary": (bytes(range(128, 256)), "no UTF-8"),
    "nul": (b"\0\0\0\0", "no valid JSON"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "no UTF-8"),
    "not-a-number": (b'{"hidden_size": NaN}', "NaN"),
    "infinity": (b'{"hidden_size": -Infinity}', "Infinity"),
    "huge-float": (b'{"hidden_size": 1e999}', "beyond any float"),
    "huge-integer": (b'{"hidden_size": ' + b"9" * 5000 + b"}", "no valid JSON"),
    "deep": (b'{"a":' * 100_000, "nested too deeply"),
    "deep-list": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "twice": (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' stands twice"),
    "twice-below": (b'{"q": {"a": 1, "b": 2, "a": 3}}', "'a' stands twice"),
    "list": (b"[1, 2]", "expected an object"),
    "text": (b'"config"', "expected an object"),
    "null": (b"null", "expected an object"),
    "other": (b'{"vocab_size": 10}', "not a DSA model"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case, tmp_path):
    content, says = BAD_JSON[case]
    file = tmp_path / "config.json"
    file.write_bytes(content)
    for name in (file, tmp_path):
        line = one_fault(str(name), load_model, {})
        assert line.startswith("model")
        assert says in line
        assert len(line) < 600


BAD_TOML = {
    "binary": (bytes(range(128, 256)), "no UTF-8"),
    "truncated": (b"name = 'x", "no valid TOML"),
    "deep": (b"a = " + b"[" * 20_000, "nested too deeply"),
    "twice": (b"name = 'a'\nname = 'b'\n", "no valid TOML"),
    "huge-integer": (b"sms = " + b"9" * 5000, "no valid TOML"),
}


@pytest.mark.parametrize("case", BAD_TOML)
def test_bad_toml(case, tmp_path):
    content, says = BAD_TOML[case]
    file = tmp_path / "gpu.toml"
    file.write_bytes(content)
    line = one_fault(str(file), load_gpu)
    assert line.startswith("gpu: ")
    assert says in line


def test_long_file_is_not_read_whole(tmp_path):
    """A sparse file of 1 TiB is refused after its first 16 MiB."""
    file = tmp_path / "config.json"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    assert "longer than 16,777,216 bytes" in one_fault(str(file), load_model, {})
    assert "longer than 65,536 bytes" in one_fault(str(file), load_gpu)


def test_no_such_file_or_config(tmp_path):
    assert "no such file" in one_fault("no/such/config.json", load_model, {})
    assert "no such file" in one_fault("no/such/gpu.toml", load_gpu)
    assert "holds no config.json" in one_fault(str(tmp_path), load_model, {})
    folder = tmp_path / "config.json"
    folder.mkdir()
    assert "no such file" in one_fault(str(folder), load_model, {})
    (tmp_path / "gpu.toml").mkdir()
    assert "no regular file" in one_fault(str(tmp_path / "gpu.toml"), load_gpu)


def test_a_long_path_keeps_its_end(tmp_path):
    deep = tmp_path / ("a" * 100) / "b" / "config.json"
    assert "b/config.json'" in one_fault(str(deep), load_model, {})


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "no regular file" in one_fault(str(tmp_path / "config.json"), load_model, {})


def test_a_folder_named_like_the_catalog(tmp_path, monkeypatch):
    """A stray folder without a config does not hide a model or GPU; a folder with one is the model meant."""
    monkeypatch.chdir(tmp_path)
    for name in ("GLM-5", "H200"):
        (tmp_path / name).mkdir()
    assert load_model("GLM-5", {}).name == "zai-org/GLM-5"
    assert load_gpu("H200").name == "H200"
    (tmp_path / "GLM-5" / "config.json").write_text("[]", encoding="utf-8")
    assert "expected an object" in one_fault("GLM-5", load_model, {})


GPU = """
name = "Q1"
sms = 10
l2_bytes = "4 MiB"
compute_capability = [9, 0]
[hbm]
capacity_bytes = "1 GiB"
peak_bytes_per_s = "1 TB/s"
[provenance."hbm.capacity_bytes"]
kind = "driver"
ref = "the machine itself"
"""


def gpu_file(folder: Path, text: str) -> str:
    (folder / "gpu.toml").write_text(text, encoding="utf-8")
    return str(folder / "gpu.toml")


def test_gpu_from_a_file(tmp_path):
    gpu = load_gpu(gpu_file(tmp_path, GPU))
    assert (gpu.name, gpu.hbm.capacity_bytes, gpu.hbm.peak_bytes_per_s) == ("Q1", 2**30, 1e12)
    assert gpu.provenance["hbm.capacity_bytes"].ref == "the machine itself"


def test_every_fault_of_a_gpu_file(tmp_path):
    text = GPU.replace('"1 GiB"', '"1 G"').replace("sms = 10", "sms = 0\ncolour = 1").replace('"1 TB/s"', "nan")
    with pytest.raises(BadInput) as refused:
        load_gpu(gpu_file(tmp_path, text))
    assert {fault.path for fault in refused.value.faults} == {
        "gpu.hbm.capacity_bytes",
        "gpu.hbm.peak_bytes_per_s",
        "gpu.sms",
        "gpu.colour",
    }


def test_a_gpu_file_states_where_its_capacity_is_from(tmp_path):
    text = GPU.replace('provenance."hbm.capacity_bytes"', "provenance.sms")
    assert one_fault(gpu_file(tmp_path, text), load_gpu).startswith("gpu.provenance: 'sms'")


def test_a_gpu_file_that_is_empty(tmp_path):
    with pytest.raises(BadInput) as refused:
        load_gpu(gpu_file(tmp_path, ""))
    assert {fault.path for fault in refused.value.faults} >= {"gpu.name", "gpu.hbm", "gpu.provenance"}
