"""Logs written from the engines' format strings, audited: records, owners, draft and tokens must come back."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writer import LAYERS, MODELS, Truth, sglang_log, trtllm_log, vllm_log

from dsa_ledger.audit import figures, startup
from dsa_ledger.audit.logfile import Line
from dsa_ledger.audit.report import Report, audit, audit_log
from dsa_ledger.audit.seen import seen_of

SGLANG = [(0, 5, 9), (0, 5, 10), (0, 5, 14), (0, 5, 15), (0, 5, 17), (0, 5, 18), (0, 5, 20), (0, 5, 23)]
VLLM = [(0, 19, 0), (0, 20, 2), (0, 22, 0), (0, 23, 0), (0, 24, 0), (0, 27, 0), (0, 28, 0), (0, 33, 0)]
TRTLLM = [(1, 3, 0, 15), (1, 3, 0, 25), (1, 4, 0, 2)]


def owners(engine: str, version: tuple[int, ...], family: str) -> int:
    """Return the layers with an index-K: all, until the release that stores it for those alone that run an indexer."""
    layers, full = LAYERS[family]
    first = {"sglang": (0, 5, 18), "vllm": (0, 24, 0), "tensorrt-llm": (1, 3, 0, 23)}[engine]
    return full if version >= first else layers


@st.composite
def sglang_truths(draw) -> Truth:
    version, family = draw(st.sampled_from(SGLANG)), draw(st.sampled_from(list(LAYERS)))
    dp = draw(st.sampled_from([1, 1, 2, 4]))
    return Truth(
        "sglang",
        version,
        family,
        record=draw(st.sampled_from([576, 656, 1152])),
        owners=owners("sglang", version, family),
        draft=draw(st.integers(0, 1)),
        tokens=64 * draw(st.integers(400, 70_000)),
        dp=dp,
        tp=draw(st.sampled_from([4, 8])),
        context=draw(st.sampled_from([131072, 202752, 1048576])),
    )


@st.composite
def vllm_truths(draw) -> Truth:
    version, family = draw(st.sampled_from(VLLM)), draw(st.sampled_from(list(LAYERS)))
    dcp = draw(st.sampled_from([1, 1, 1, 8])) if version >= (0, 29, 0) else 1
    return Truth(
        "vllm",
        version,
        family,
        record=draw(st.sampled_from([576, 656, 1152])),
        owners=owners("vllm", version, family),
        draft=draw(st.integers(0, 1)),
        tokens=64 * dcp * draw(st.integers(400, 40_000)),
        context=draw(st.sampled_from([131072, 202752, 250000, 1048576])),
        dcp=dcp,
    )


def audited(text: str, tables: dict[str, object]) -> Report:
    return audit_log(startup.log_of(Line(number, line) for number, line in enumerate(text.splitlines(), 1)), tables)


def recovered(text: str, truth: Truth) -> dict[str, object]:
    tables: dict[str, object] = {"model": MODELS[truth.family]}
    if truth.engine == "vllm" and truth.dcp > 1:
        tables["sharding"] = {"dcp": truth.dcp}
    found = audited(text, tables).inferred
    return {key: found.get(key) for key in told(truth)}


def told(truth: Truth) -> dict[str, object]:
    return {
        "record.main_kv_bytes": truth.record,
        "index_k.layers": truth.owners + (truth.draft if truth.engine != "sglang" else 0),  # of that pool
        "model.index_k_layers": truth.owners,
        "model.draft_layers": truth.draft,
    }


@settings(max_examples=200)
@given(truth=sglang_truths())
def test_a_written_sglang_log_gives_its_figures_back(truth):
    """SGLang prints the target pool, then the draft pool: tokens exact, GiB to two digits, a pad page inside."""
    text = sglang_log(truth)
    assert recovered(text, truth) == told(truth)
    seen = seen_of(startup.log_of(Line(1, line) for line in text.splitlines()).start)
    assert (seen.tokens, seen.context) == (truth.tokens, truth.context)
    assert (seen.draft is not None) == bool(truth.draft)
    assert (
        abs(seen.target.size_bytes - (truth.tokens + 64) * (truth.record * truth.layers + 132 * truth.owners))
        <= 0.0051 * 2**30
    )


@settings(max_examples=200)
@given(truth=vllm_truths(), slack=st.integers(0, 5_000_000))
def test_a_written_vllm_log_gives_its_figures_back(truth, slack):
    """What vLLM prints: the pool's memory and a size derived from whole blocks; the blocks come back exactly."""
    text = vllm_log(truth, slack)
    assert recovered(text, truth) == told(truth)
    tables = {"model": MODELS[truth.family], "sharding": {"dcp": truth.dcp}}
    assert audited(text, tables).inferred["pool.blocks"] == truth.tokens // (64 * truth.dcp)


@settings(max_examples=100)
@given(
    version=st.sampled_from(TRTLLM),
    family=st.sampled_from(list(LAYERS)),
    record=st.sampled_from([576, 1152]),
    draft=st.integers(0, 1),
    blocks=st.integers(400, 40_000),
)
def test_a_written_tensorrt_log_gives_its_figures_back(version, family, record, draft, blocks):
    """TensorRT-LLM prints the bytes of a token; of two allocations the last is the pool that serves."""
    truth = Truth("tensorrt-llm", version, family, record, owners("tensorrt-llm", version, family), draft, 64 * blocks)
    text = trtllm_log(truth)
    assert recovered(text, truth) == told(truth)
    assert seen_of(startup.log_of(Line(1, line) for line in text.splitlines()).start).tokens == truth.tokens


FIXED = Truth("sglang", (0, 5, 15), "GLM-5.2", 576, 78, 1, 2_574_848, tp=4)


def broken_gb(monkeypatch):
    """GB for GiB."""
    monkeypatch.setitem(figures.SCALES, "gib", 10**9)


def broken_order(monkeypatch):
    """Draft taken for target."""
    monkeypatch.setattr(
        startup.RankStart, "all", lambda self, name: [f for kind, f in reversed(self.events) if kind == name]
    )


def broken_last(monkeypatch):
    """Last match wins."""
    own = startup.Start.add

    def add(self, rank, name, found) -> None:
        kept = self.ranks.get(rank)
        if kept:
            kept.events = [event for event in kept.events if event[0] != name]
        own(self, rank, name, found)

    monkeypatch.setattr(startup.Start, "add", add)


@pytest.mark.parametrize("fault", [broken_gb, broken_order, broken_last], ids=lambda fault: fault.__doc__)
def test_a_planted_fault_is_seen(fault, monkeypatch):
    """A parser that is wrong about one thing gives other figures than those written."""
    assert recovered(sglang_log(FIXED), FIXED) == told(FIXED)
    fault(monkeypatch)
    assert recovered(sglang_log(FIXED), FIXED) != told(FIXED)


def wrapped_in_json(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-09-01T10:00:00Z"})


WRAPS = {
    "json lines": wrapped_in_json,
    "nested json": lambda line: json.dumps({"level": "info", "body": {"message": line}}),
    "colours": lambda line: f"\x1b[32m{line}\x1b[0m",
    "kubectl prefix": lambda line: f"[pod/glm-0/server] 2026-09-01T10:00:00.123456789Z stdout F {line}",
    "compose prefix": lambda line: f"server-1  | {line}",
    "progress bar": lambda line: f"Loading: 10%|#\rLoading: 100%|##\r{line}",
    "windows ends": lambda line: line + "\r",
}


@pytest.mark.parametrize("wrap", WRAPS, ids=str)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_shippers_put_around_a_line_does_not_matter(wrap, engine, tmp_path):
    truth = FIXED if engine == "sglang" else Truth("vllm", (0, 28, 0), "GLM-5.2", 656, 21, 1, 64 * 12_262)
    text = sglang_log(truth) if engine == "sglang" else vllm_log(truth)
    log = tmp_path / "log"
    log.write_text("\n".join(WRAPS[wrap](line) for line in text.splitlines()), encoding="utf-8", newline="")
    report = audit(str(log), {"model": MODELS[truth.family]})
    assert {key: report.inferred[key] for key in told(truth)} == told(truth)


@pytest.mark.parametrize("pack", [gzip, lzma])
def test_compressed_logs_are_told_by_their_first_bytes(pack, tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(pack.compress(sglang_log(FIXED).encode()))
    assert audit(str(log), {"model": MODELS["GLM-5.2"]}).inferred["index_k.layers"] == 78


def test_the_ranks_keep_their_own_figures():
    truth = FIXED._replace(dp=4, tp=8)
    start = startup.log_of(Line(1, line) for line in sglang_log(truth).splitlines()).start
    with_pool = [rank for rank, one in start.ranks.items() if one.all("pool")]
    assert len(with_pool) == 8
    assert {rank.dp for rank in with_pool} == {0, 1, 2, 3}
    assert all(len(one.all("pool")) == 2 for rank, one in start.ranks.items() if rank in with_pool)


def test_two_contradictory_pools_are_both_shown():
    first = "[2026-09-01 10:00:01 TP0] KV Cache is allocated. #tokens: 975424, KV size: 43.67 GB"
    second = "[2026-09-01 10:00:02 TP0] KV Cache is allocated. #tokens: 1462784, KV size: 65.49 GB"
    report = audited(f"{first}\n{second}\n", {"model": "deepseek-ai/DeepSeek-V3.2"})
    assert any("contradict" in said and "975,424" in said and "1,462,784" in said for said in report.warnings)
    assert [check.key for check in report.checks].count("pool.other_bytes") == 1
    untagged = audited(f"{first}\n{second}\n".replace(" TP0", ""), {"model": "deepseek-ai/DeepSeek-V3.2"})
    assert any("rank without a tag prints pools that contradict" in said for said in untagged.warnings)


def test_a_second_start_is_told_from_the_first():
    later = FIXED._replace(tokens=1_000_000 // 64 * 64)
    report = audited(sglang_log(FIXED) + sglang_log(later), {"model": MODELS["GLM-5.2"]})
    assert next(check.observed for check in report.checks if check.key == "pool.target_bytes") < 60e9
    assert any("another start of sglang, with 2,574,848 tokens" in said for said in report.warnings)


def test_a_line_that_no_pattern_reads_is_counted_and_shown():
    report = audited(sglang_log(FIXED) + "[x] KV Cache is allocated. #tokens: many, KV size: some GB\n", {})
    assert any(
        "1 lines look like figures and were not read" in said and "#tokens: many" in said for said in report.warnings
    )


def test_stages_print_their_own_pools():
    """78 layers over two stages: 39 with 12 owners, 39 with 9, on SGLang 0.5.18 (first layers 0-38, 39-77)."""
    tokens = 64 * 20_000
    lines = []
    for stage, full in ((0, 12), (1, 9)):
        size = (tokens + 64) * (576 * 39 + 132 * full) / 2**30
        lines.append(
            f"[2026-09-01 10:00:01 PP{stage} TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, "
            f"#tokens: {tokens}, KV size: {size:.2f} GB"
        )
    report = audited("\n".join(lines), {"model": "zai-org/GLM-5.2-FP8"})
    assert report.inferred["index_k.layers"] == 12
    assert report.inferred["main_kv.layers"] == 39


def test_the_writer_does_not_know_the_parser():
    """The writer quotes the engines; were it built from the parser's patterns, both could be wrong alike."""
    assert "dsa_ledger" not in Path(__file__).with_name("writer.py").read_text(encoding="utf-8")


def test_an_index_replicated_over_dcp_ranks_is_told_from_the_bytes():
    """SGLang's DCP keeps the whole index-K on each rank: (78 x 576 + 21 x 132 x 2) B a row."""
    tokens = 64 * 20_000
    size = (tokens + 64) * (78 * 576 + 21 * 132 * 2) / 2**30
    text = f"KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {tokens}, KV size: {size:.2f} GB"
    found = audited(text, {"model": "zai-org/GLM-5.2-FP8"}).inferred
    assert (found["record.main_kv_bytes"], found["index_k.layers"], found["sharding.dcp"]) == (576, 21, 2)


def test_an_index_charged_twice_is_told_from_the_bytes():
    """TensorRT-LLM before PR #15088 charged (576 + 132) x 2 B a layer of bf16: 110,448 B over 78 layers."""
    report = audited(
        "Peak memory during memory usage profiling (torch + non-torch): 99.00 GiB, available KV cache memory when "
        "calculating max tokens: 36.00 GiB, fraction is set 0.9, kv size is 110448. device total memory 139.80 GiB",
        {"model": "zai-org/GLM-5.1-FP8"},
    )
    assert (report.inferred["record.main_kv_bytes"], report.inferred["index_k.layers"]) == (1152, 78)
    assert any("charged twice over" in said for said in report.warnings)
