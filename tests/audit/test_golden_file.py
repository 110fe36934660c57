"""`validate --golden`: its reading of the records against the tests' own, and what a wrong file says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import golden_records

from dsa_ledger.audit.golden import golden_of, groups_of, read_golden
from dsa_ledger.errors import BadInput

RECORDS = Path(__file__).parents[1] / "golden" / "records.toml"
GOLDEN = golden_of(read_golden(str(RECORDS)))


def test_every_figure_comes_out_as_in_the_tests_own_check():
    """Two readers of one format, written apart: the same spans, the same errors, the same verdicts."""
    own = [row for record in golden_records.records() for row in golden_records.rows_of(record)]
    assert [(row.record, row.key, row.inside) for row in GOLDEN.rows] == [
        (row.record, row.key, row.inside) for row in own
    ]
    for ours, theirs in zip(GOLDEN.rows, own, strict=True):
        assert ours.error == pytest.approx(float(theirs.error), abs=1e-12)


def test_records_that_cannot_be_checked_are_listed_with_the_reason():
    missing = {record["id"]: record["missing"] for record in golden_records.records() if "missing" in record}
    assert GOLDEN.unchecked == missing


def test_the_median_of_each_engine_is_far_below_a_percent_and_the_worst_is_named():
    groups = {group.engine: group for group in groups_of(GOLDEN) if group.module == "all"}
    assert {"sglang", "vllm"} <= set(groups)
    assert all(group.median_error < 0.001 for group in groups.values())
    assert all(row.outside for row in GOLDEN.rows if not row.inside)


RECORD = """
[[record]]
id = "x"
url = "https://example.org"
date = "2026-01-01"
engine = "sglang"
version = "0.5.17"
model = "m"
gpu = "GB300"
read = "r"
scenario = { model = "nvidia/GLM-5.2-NVFP4", gpu = "GB300", engine = "sglang@0.5.17", sharding = { tp = 4 } }
observed = { "cell.bytes" = { value = 55224 }, "record.index_k_bytes" = [{ printed = "132" }, { value = 66 }] }
"""


def answered(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "golden.toml"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "dsa_ledger", "validate", "--golden", str(file), "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_error_is_a_share_and_its_median_and_worst_are_the_groups(tmp_path):
    """Cell 78 x (576 + 132) = 55,224: 0; 132 against 132: 0; 132 against 66: +100%."""
    answer = json.loads(answered(RECORD, tmp_path).stdout)
    (group,) = [group for group in answer["groups"] if group["module"] == "all"]
    assert (group["n"], group["median_error"], group["worst_error"]) == (3, 0.0, 1.0)
    assert group["bias"] == pytest.approx(1 / 3)
    assert group["coverage"] == pytest.approx(2 / 3)
    assert [miss["key"] for miss in answer["outside"]] == ["record.index_k_bytes"]


@pytest.mark.parametrize(
    "text",
    [
        "[[record",
        "record = 3",
        RECORD.replace('"cell.bytes"', '"no.such.key"'),
        RECORD.replace("value = 55224", "valeu = 55224"),
        RECORD.replace("nvidia/GLM-5.2-NVFP4", "no/model"),
        RECORD.replace("scenario =", "scneario ="),
        RECORD.replace('printed = "132"', 'printed = "many"'),
    ],
)
def test_a_wrong_file_is_bad_input_without_a_traceback(text, tmp_path):
    done = answered(text, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bad input: ")
    assert "Traceback" not in done.stderr


def test_without_a_file_it_says_what_it_wants():
    with pytest.raises(BadInput):
        read_golden("no/such/file.toml")
