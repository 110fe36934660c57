"""CSV of measured times: what is refused, by line, and what is counted."""

from __future__ import annotations

import gzip

import pytest

from dsa_ledger.errors import BadInput
from dsa_ledger.timing.measured import COLUMNS, family_of, parse, read

ROW = "H200,sglang,0.5.14,decode,full_layer,zai-org/GLM-5,fp8,fp8_block,8,1,1,4096,88.0,"
TOPK = "H200,sglang,0.5.14,decode,topk_kernel,zai-org/GLM-5,fp8,fp8_block,64,1,1,64,0.0,flat"
HEADER = ",".join(COLUMNS)


def text(*rows: str):
    return "\n".join([HEADER, *rows]) + "\n"


def faults(*rows: str, header=HEADER):
    with pytest.raises(BadInput) as caught:
        parse("\n".join([header, *rows]) + "\n", "rows.csv")
    return caught.value.lines()


def test_a_repeated_cell_is_averaged_and_a_zero_of_top_k_skipped():
    found = parse(text(ROW, ROW.replace("88.0", "90.0"), TOPK), "rows.csv")
    assert [row.seconds for row in found.rows] == [pytest.approx(89e-6)]
    assert (found.repeated, found.not_launched) == (1, 1)


def test_a_missing_column_is_named():
    assert "latency_us" in faults(header=HEADER.replace("latency_us,", ""))[0]


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("88.0", "88 us", "latency_us"),
        ("88.0", "nan", "latency_us"),
        ("88.0", "0", "latency_us"),
        ("88.0", "-1", "latency_us"),
        ("88.0", "inf", "latency_us"),
        ("4096", "4Ki", "prefix_tokens"),
        (",8,1,1,", ",8,0,1,", "batch"),
        ("full_layer", "layer", "module"),
        ("decode", "Decode", "phase"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(old, new, column):
    found = faults(ROW, ROW.replace(old, new))
    assert len(found) == 1
    assert found[0].startswith(f"rows.csv:3 {column}: ")


def test_a_zero_in_a_layer_row_is_a_fault_and_all_faults_come_at_once():
    found = faults(ROW.replace("88.0", "0"), TOPK, ROW.replace("88.0", "x"))
    assert [line.split(" ")[0] for line in found] == ["rows.csv:2", "rows.csv:4"]


def test_no_rows_are_no_measurement():
    assert "at least one" in faults()[0]


def test_gzip_is_read_and_damage_refused(tmp_path):
    good = tmp_path / "rows.csv.gz"
    good.write_bytes(gzip.compress(text(ROW).encode()))
    assert len(read(good).rows) == 1
    good.write_bytes(good.read_bytes()[:-12])
    with pytest.raises(BadInput):
        read(good)
    with pytest.raises(BadInput):
        read(tmp_path / "absent.csv")


def test_models_of_one_shape_are_one_family():
    assert {family_of(name) for name in ("zai-org/GLM-5", "nvidia/GLM-5.2-NVFP4")} == {"glm"}
    assert family_of("deepseek-ai/DeepSeek-V3.2") == "v32"
