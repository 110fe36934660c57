"""Public parquet tables become rows of the documented CSV; pyarrow is a stand-in that reads JSON, or the real one."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import pytest

from calib.aiconfigurator import band_rows, csv_text, read_folder, save_csv, summary_rows
from dsa_ledger.errors import BadInput
from dsa_ledger.timing import measured


class Table:
    def __init__(self, rows: list) -> None:
        self.to_pylist = lambda: rows


@pytest.fixture
def parquet(monkeypatch):
    """Put in place of pyarrow a reader of JSON."""
    package, reader = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
    reader.read_table = package.parquet = lambda path: Table(json.loads(path.read_text()))
    package.parquet = reader
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", reader)


def row(latency: float, **changes: object) -> dict:
    """Return a row with the columns of the public tables; latency in ms."""
    given = {
        "framework": "SGLang",
        "version": "0.5.14",
        "device": "NVIDIA H200",
        "op_name": "dsa_generation_module",
        "kernel_source": "sglang_dsa_indexer_flashmla_kv",
        "model": "zai-org/GLM-5-FP8",
        "architecture": "GlmMoeDsaForCausalLM",
        "mla_dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "gemm_type": "fp8_block",
        "num_heads": 8,
        "batch_size": 1,
        "isl": 1,
        "tp_size": 8,
        "step": 131_072,
        "latency": latency,
    }
    return given | changes


def topk(tokens: int, mode: str, latency: float, **changes: object) -> dict:
    return row(latency, step=tokens, score_mode=mode, op_name="glm5_topk_module", num_heads=64, **changes)


TABLES = {
    "h200_sxm/sparse_attention/sglang/0.5.14/dsa_generation_module_perf.parquet": [
        row(0.1522),
        row(0.0515, op_name="dsa_generation_module_skip_indexer", model="zai-org/GLM-5.2-FP8"),
        row(0.9, kernel_source="sglang_dsa_dense_mha_trtllm_ragged"),
        row(0.9, isl=2),
    ],
    "h200_sxm/sparse_attention/sglang/0.5.14/dsa_context_module_perf.parquet": [
        row(1.5, op_name="dsa_context_module", isl=512, step=0, kernel_source="sglang_dsa_dense_mha_trtllm_ragged"),
        row(1.5, op_name="dsa_context_module", isl=1, step=0),
    ],
    "h200_sxm/sparse_attention/sglang/0.5.14/glm5_topk_module_perf.parquet": [
        topk(2048, "flat", 0.0),
        topk(65_536, "flat", 0.030),
        topk(131_072, "flat", 0.056),
        topk(65_536, "top_last", 0.017),
        topk(131_072, "top_last", 0.031),
        topk(131_072, "sawtooth", 0.031),
    ],
    "h200_sxm/sparse_attention/sglang/0.5.14/glm5_mqa_logits_module_perf.parquet": [row(0.5), row(0.5, isl=512)],
    "h200_sxm/sparse_attention/sglang/0.5.14/glm5_dsa_attn_module_perf.parquet": [row(0.02)],
    "gb200/trtllm/1.3.0rc20/dsa_generation_module_perf.parquet": [row(0.2)],
    "h200_sxm/sparse_attention/sglang/0.5.14/dsv4_csa_context_module_perf.parquet": [{"other": "model"}],
    "h200_sxm/gemm/sglang/0.5.14/gemm_perf.parquet": [{"m": 1}],
}


@pytest.fixture
def folder(tmp_path):
    for name, rows in TABLES.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))
    return tmp_path / "data"


@pytest.mark.usefixtures("parquet")
def test_rows_are_those_of_the_documented_columns(folder):
    found = read_folder(folder)
    rows = measured.parse(csv_text(found.rows), "layers.csv")
    by_module = {(one.group, one.series.score_mode, one.cell): one.seconds for one in rows.rows}
    group = measured.Group("H200", "sglang", "0.5.14", "decode", "full_layer")
    assert by_module[group, "", measured.Cell(1, 1, 131_072)] == pytest.approx(152.2e-6)
    assert by_module[group._replace(module="shared_layer"), "", (1, 1, 131_072)] == pytest.approx(51.5e-6)
    assert by_module[group._replace(phase="prefill"), "", (1, 512, 0)] == pytest.approx(1.5e-3)
    assert by_module[group._replace(module="topk_kernel"), "flat", (1, 1, 65_536)] == pytest.approx(30e-6)
    assert by_module[group._replace(gpu="GB200", engine="tensorrt-llm", version="1.3.0rc20"), "", (1, 1, 131_072)]
    assert (len(rows.rows), rows.not_launched) == (9, 1)
    assert {tuple(one.values())[-1] for one in summary_rows(found)} == {1, 5}


@pytest.mark.usefixtures("parquet")
def test_what_decode_never_runs_is_left_out_and_counted(folder):
    assert read_folder(folder).left_out == {
        "decode row of a ragged or dense kernel": 1,
        "decode row with more than one new token": 1,
        "prefill row with one new token": 1,
        "ragged scoring of one row a request: not what decode runs": 1,
        "ragged scoring kernel alone": 1,
        "top-k row of another score mode": 1,
    }


@pytest.mark.usefixtures("parquet")
def test_top_k_is_a_band_from_separated_to_tied_scores(folder):
    (band,) = band_rows(read_folder(folder))
    assert band["separated_ns_per_token"] == pytest.approx(14_000 / 65_536, abs=1e-4)
    assert band["tied_ns_per_token"] == pytest.approx(26_000 / 65_536, abs=1e-4)


@pytest.mark.usefixtures("parquet")
def test_the_command_writes_the_csv_and_says_what_it_holds(folder, tmp_path, answer):
    out = tmp_path / "layers.csv.gz"
    shown, said = answer("profiles", "import-aiconfigurator", folder, "--out", out, "--format", "json")
    assert said == f"written: {out}\n"
    assert set(json.loads(shown)) == {"groups", "topk_band", "left_out"}
    assert len(measured.read(out).rows) == 9
    assert out.read_bytes() == save_csv(read_folder(folder).rows, out).read_bytes()
    shown, _ = answer("profiles", "import-aiconfigurator", folder)
    assert "priors, not measurements of yours" in shown.replace("\n", " ")


@pytest.mark.usefixtures("parquet")
@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("h200_sxm/sglang/0.5.14/dsa_context_module_perf.parquet", [{"isl": 1}], "no model, kv_cache_dtype"),
        ("h200_sxm/sglang/0.5.14/dsa_generation_module_perf.parquet", [row(1.0), row(-1.0)], "row 1 latency"),
        ("h200_sxm/sglang/0.5.14/dsa_generation_module_perf.parquet", [row(float("nan"))], "row 0 latency"),
        ("h200_sxm/other/1/dsa_generation_module_perf.parquet", [row(1.0)], "its folders"),
        ("h200_sxm/sglang/0.5.14/dsa_generation_module_perf.parquet", None, "no Git LFS pointer"),
        ("h200_sxm/sglang/0.5.14/gemm_perf.parquet", [], "files such as"),
        ("h200_sxm/sglang/0.5.14/dsa_generation_module_perf.parquet", [], "a table with rows"),
    ],
)
def test_a_bad_table_is_named_by_file_and_row(tmp_path, name, rows, said):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("version https://git-lfs.github.com/spec/v1" if rows is None else json.dumps(rows))
    with pytest.raises(BadInput) as caught:
        read_folder(tmp_path)
    assert said in str(caught.value)


def test_no_folder_and_no_pyarrow_are_one_line(tmp_path, folder, monkeypatch):
    with pytest.raises(BadInput, match="a folder with"):
        read_folder(tmp_path / "absent")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"pip install 'dsa-ledger\[parquet\]'"):
        read_folder(folder)


def test_the_real_reader_is_met_where_it_is_installed(tmp_path):
    path = tmp_path / "h200_sxm/sglang/0.5.14/dsa_generation_module_perf.parquet"
    path.parent.mkdir(parents=True)
    if importlib.util.find_spec("pyarrow") is None:
        path.write_text("no parquet")
        with pytest.raises(BadInput, match="pyarrow"):
            read_folder(tmp_path)
        return
    pyarrow, writer = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    writer.write_table(pyarrow.Table.from_pylist([row(0.1522)]), path)
    assert [one["latency_us"] for one in read_folder(tmp_path).rows] == [152.2]
    path.write_text("no parquet")
    with pytest.raises(BadInput, match="a parquet file"):
        read_folder(tmp_path)
