"""The audit as a whole: causes, advice, versions inferred, failures to allocate, the command line, speed and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from writer import MODELS, Truth, sglang_log, vllm_log

from dsa_ledger.audit import startup
from dsa_ledger.audit.logfile import CHUNK_BYTES, LONGEST_LINE_BYTES, STEADY_AFTER_BYTES, Line, LogLines
from dsa_ledger.audit.report import Report, audit, audit_log
from dsa_ledger.errors import BadInput

GIB = 1 << 30
MAIN = Truth("sglang", (0, 5, 17), "GLM-5.2", 576, 78, 1, 2_574_848, tp=4, context=1048576)
HEAD = MAIN._replace(version=(0, 5, 18), owners=21, tokens=3_002_752)
ON_GB300 = {"model": "nvidia/GLM-5.2-NVFP4", "gpu": "GB300", "sharding": {"tp": 4}, "draft": {"steps": 5}}


def audited(text: str, tables: dict[str, object]) -> Report:
    lines = (Line(number, line) for number, line in enumerate(text.splitlines(), 1))
    return audit_log(startup.log_of(lines), json.loads(json.dumps(tables)))


def check(report: Report, key: str):
    return next(check for check in report.checks if check.key == key)


def test_pr_30531_the_a_arm_says_that_57_buffers_are_dead_and_what_the_upgrade_brings():
    """https://github.com/sgl-project/sglang/pull/30531: +16.62% measured, 57 dead layers, 0.98 GiB of weights freed."""
    report = audited(sglang_log(MAIN), ON_GB300)
    (advice,) = [said for said in report.advice if "dead" in said]
    assert "all 78 layers and 57 of the buffers are dead" in advice
    assert "sglang 0.5.18 gives +15.5% tokens from the same bytes" in advice
    assert "+16.4% (about 2,997,120) with the 1.00 GiB of indexer weights" in advice
    assert report.inferred["index_k.layers"] == 78
    assert report.certainty["engine.version"].startswith("open: 0.5.14 to 0.5.17")


def test_pr_30531_the_b_arm_confirms_it():
    report = audited(sglang_log(HEAD), ON_GB300)
    assert report.inferred["index_k.layers"] == 21
    assert not [said for said in report.advice if "dead" in said]
    assert check(report, "pool.target_bytes").cause.startswith("agrees to the last printed digit")
    assert check(report, "pool.draft_bytes").cause.startswith("agrees to the last printed digit")


def test_pr_30531_both_arms_agree_to_the_token():
    """A's bytes and 0.98 GiB of freed weights make B's tokens, draft charged by layers: int(47,700 x 79/78)."""
    budget = 2_574_848 * 55_932 + round(0.98 * GIB)
    assert budget // 48_311 // 64 * 64 <= 3_002_752 <= (budget + 64 * 55_932 + round(0.005 * GIB)) // 48_311


@pytest.mark.parametrize(
    ("truth", "key", "cause"),
    [
        (
            MAIN._replace(record=656),
            "record.main_kv_bytes",
            "the pool stores packed fp8 (flashmla_kv) records, not raw fp8",
        ),
        (HEAD, "pool.index_k_layers", "index-K on 21 layers instead of 78"),
        (MAIN._replace(draft=0), "model.draft_layers", "no draft pool in the log"),
        (MAIN._replace(owners=0), "pool.index_k_layers", "the printed size leaves the index-K out"),
    ],
)
def test_a_difference_has_its_cause(truth, key, cause):
    report = audited(sglang_log(truth), {**ON_GB300, "engine": "sglang@0.5.17"})
    assert cause in check(report, key).cause


def test_index_k_on_all_layers_is_the_cause_under_a_release_that_stores_owners_only():
    report = audited(sglang_log(MAIN), {**ON_GB300, "engine": "sglang@0.5.18"})
    assert (
        "index-K is allocated on all 78 layers, not on the 21 that own one: 57 are dead"
        in check(report, "cell.target_bytes").cause
    )


def test_bf16_says_what_fp8_gives():
    """(78 x 1152 + 21 x 132) / (78 x 656 + 21 x 132) = 92,628 / 53,940 = 1.717."""
    report = audited(sglang_log(HEAD._replace(record=1152, tokens=640_000, draft=0)), {"model": MODELS["GLM-5.2"]})
    assert any(
        "KV is bf16: --kv-cache-dtype fp8_e4m3 gives x1.7 tokens (92,628 to 53,940" in said for said in report.advice
    )


def test_a_long_context_says_what_its_logits_hold():
    """48 requests x 6 rows x 4 B x 1,048,832 columns of 1M context = 1.125 GiB (SGLang 0.5.18, EAGLE 5/1/6)."""
    report = audited(sglang_log(HEAD), ON_GB300)
    assert any("lower --context-length: 1.13 GiB of decode logits" in said for said in report.advice)


def test_the_tokens_follow_from_the_free_memory_that_the_log_prints():
    """44.54 - 0.114 x 139.00 = 28.694 GiB; over 53,940 B a token, in pages of 64: 571,136 tokens."""
    tokens = 571_136
    size = (tokens + 64) * 53_940 / GIB
    text = (
        "[2026-09-01 10:00:01 TP0] Load weight begin. avail mem=139.00 GB\n"
        "[2026-09-01 10:00:02 TP0] Load weight end. elapsed=1.00 s, type=GlmMoeDsaForCausalLM, "
        "avail mem=44.54 GB, mem usage=94.46 GB.\n"
        f"[2026-09-01 10:00:03 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, "
        f"#tokens: {tokens}, KV size: {size:.2f} GB\n"
    )
    tables = {
        "model": "zai-org/GLM-5.2-FP8",
        "gpu": "H200",
        "engine": "sglang@0.5.23",
        "sharding": {"tp": 8},
        "kv_dtype": "fp8_e4m3",
        "limits": {"mem_fraction": 0.886},
    }
    assert check(audited(text, tables), "pool.reported_tokens").cause == "agrees to the token"
    tables["limits"] = {"mem_fraction": 0.8}
    assert "imply a memory fraction of 0.886, not 0.8" in check(audited(text, tables), "pool.reported_tokens").cause


def test_other_processes_are_seen_before_the_weights():
    text = sglang_log(MAIN, free_gib=150.0)  # 240 GiB free of the 284,208 MiB that a GB300 has
    assert "other processes" in check(audited(text, {**ON_GB300, "engine": "sglang@0.5.17"}), "memory.held_bytes").cause


def test_vllm_blocks_and_the_ledger_agree():
    """12,262 blocks of 64 x 54,728 B in 40 GiB (GLM-5.2, packed fp8, MTP inside), from vLLM's own planner."""
    truth = Truth("vllm", (0, 33, 0), "GLM-5.2", 656, 21, 1, 64 * 12_262, context=131072)
    tables = {
        "model": MODELS["GLM-5.2"],
        "gpu": "H200",
        "sharding": {"tp": 8},
        "kv_dtype": "fp8",
        "draft": {"steps": 3},
    }
    report = audited(vllm_log(truth, 2_000_000), tables)
    assert report.version == "0.33.0"
    assert report.inferred["pool.blocks"] == 12_262
    assert check(report, "cell.bytes").cause.startswith("agrees")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        # sglang #30505: 1.02 GiB = 8,192 rows x about 33,400 keys x 4 B
        (
            "Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 79.18 GiB of which 837.06 MiB is free.",
            "workspace.prefill_logits_bytes",
        ),
        # sglang #38507: 10.62 GiB = 8,192 x 348,000 x 4 B
        ("Tried to allocate 10.62 GiB", "workspace.prefill_logits_bytes"),
    ],
)
def test_a_failed_allocation_names_its_entry_and_flag(text, key):
    report = audited(text, {"engine": "sglang"})
    ((refusal, found),) = report.refusals
    assert refusal.tried_bytes > GIB
    assert found[0].key == key
    assert "8,192 rows" in found[0].says
    assert "--chunked-prefill-size" in found[0].shrinks


def test_a_log_of_another_engine_than_named_is_bad_input():
    with pytest.raises(BadInput, match="whose log this is"):
        audited(sglang_log(MAIN), {"engine": "vllm"})


@pytest.mark.parametrize("text", ["", "nothing to see\n", "\x00\xff\n", "{" * 1000])
def test_a_text_without_a_start_is_bad_input(text):
    with pytest.raises(BadInput):
        audited(text, {})


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsa_ledger", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def test_the_command_prints_the_contract():
    done = run("audit", "-", "--gpu", "GB300", "--format", "json", stdin=sglang_log(MAIN))
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert {"engine", "version", "observed", "checks", "inferred", "warnings"} <= set(answer)
    assert {"key", "observed", "predicted", "difference", "cause"} == set(answer["checks"][0])
    assert answer["inferred"]["record.main_kv_bytes"] == 576
    assert answer["inferred"]["model.draft_layers"] == 1


@pytest.mark.parametrize("form", ["table", "md", "csv"])
def test_every_format_says_the_cause(form):
    done = run("audit", "-", "--gpu", "GB300", "--format", form, stdin=sglang_log(MAIN))
    assert done.returncode == 0
    assert "agrees to the last printed digit" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()) or form != "table"


def test_a_command_beside_the_log_is_taken_too():
    launch = "sglang serve nvidia/GLM-5.2-NVFP4 --tp 4 --port 1 --speculative-algorithm EAGLE --speculative-num-steps 5"
    done = run("audit", "-", "--gpu", "GB300", "--from-command", launch, "--format", "json", stdin=sglang_log(MAIN))
    assert any("no effect on the ledger: --port 1" in said for said in json.loads(done.stdout)["warnings"])


def test_a_missing_log_is_bad_input():
    done = run("audit", "no/such.log")
    assert done.returncode == 2
    assert "no such file" in done.stderr


# --- long logs

STEADY = (
    b"[2026-09-01 12:00:01 TP0] Decode batch, #running-req: 12, #token: 123456, token usage: 0.12, cuda graph: True, "
    b"gen throughput (token/s): 512.33, #queue-req: 0\n"
    b'[2026-09-01 12:00:01] INFO:     127.0.0.1:52344 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)


def test_a_restart_deep_in_a_log_is_found_with_its_line_number(tmp_path):
    log = tmp_path / "log"
    filler = STEADY * ((STEADY_AFTER_BYTES + 3 * CHUNK_BYTES) // len(STEADY))
    later = HEAD._replace(tokens=640_000)
    log.write_bytes(sglang_log(MAIN).encode() + filler + sglang_log(later).encode() + filler)
    report = audit(str(log), {"model": "nvidia/GLM-5.2-NVFP4"})
    assert report.inferred["index_k.layers"] == 21
    before = log.read_bytes().split(b"#tokens: 640000")[0].count(b"\n") + 1
    assert next(figure.line for figure in report.observed if figure.value == 640_000) == before
    assert report.lines == log.read_bytes().count(b"\n")


def test_a_line_without_end_is_cut_and_said(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(sglang_log(MAIN).encode() + b"avail mem=" * (LONGEST_LINE_BYTES // 4) + b"\n" + STEADY)
    report = audit(str(log), {"model": "nvidia/GLM-5.2-NVFP4"})
    assert any("longer than what is read of one" in said for said in report.warnings)
    assert report.inferred["index_k.layers"] == 78


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no GPU: measured with /proc, which Linux has")
def test_a_long_log_is_read_fast_and_in_little_memory(tmp_path):
    """1 GiB may take 20 s and 200 MB: a sixteenth of it a sixteenth of the time, start of the interpreter apart."""
    log = tmp_path / "log"
    mebibyte = STEADY * ((1 << 20) // len(STEADY))
    with log.open("wb") as file:
        file.write(sglang_log(MAIN).encode())
        for _ in range(64):
            file.write(mebibyte)
    script = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from dsa_ledger.audit.logfile import LogLines\n"
        "held = []\n"
        # The kernel's own peak can start at that of the process that forked this one, so what is held is sampled.
        "def sample():\n"
        "    while not done.wait(0.005):\n"
        "        held.append(int(Path('/proc/self/status').read_text().split('VmRSS:')[1].split()[0]))\n"
        "done = threading.Event()\n"
        "sampler = threading.Thread(target=sample)\n"
        "sampler.start()\n"
        "start = time.process_time()\n"
        "found = sum(1 for _ in LogLines(sys.argv[1]))\n"
        "seconds = time.process_time() - start\n"
        "done.set()\n"
        "sampler.join()\n"
        "print(found, seconds, max(held))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=True)
    found, seconds, kib = map(float, done.stdout.split())
    assert found > 20
    assert seconds < 20 / 16
    assert kib < 200_000


@pytest.mark.parametrize(
    "piece",
    ["avail mem=", "KV Cache is allocated. #tokens: ", "[[[[", "Load weight end. type=a, ", "\x1b[", '{"log": "GiB'],
)
def test_hostile_lines_take_time_in_proportion(piece, tmp_path):
    """Four times the text takes at most about four times the time; ten is a wide margin for a shared machine."""
    times = []
    for length in (50_000, 200_000):
        log = tmp_path / str(length)
        log.write_text((piece * (length // len(piece)) + "\n") * 4, encoding="utf-8")
        start = time.process_time()
        startup.log_of(LogLines(str(log)))
        times.append(time.process_time() - start)
    assert times[1] < 10 * max(times[0], 0.02)


def test_paths_in_a_log_are_not_opened(monkeypatch):
    text = sglang_log(MAIN).replace("zai-org/GLM-5.2-FP8", "/etc/hostname/config.json")
    opened: list[Path] = []
    own = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: opened.append(self) or own(self, *a, **k))
    audited(text, {})
    assert not [path for path in opened if "hostname" in str(path)]


def test_figures_that_nothing_can_be_held_against_are_shown():
    """https://github.com/vllm-project/vllm/issues/44376: a server that did not start, of no sparse model."""
    text = (
        "ERROR 06-03 14:24:40 [core.py:1165] ValueError: To serve at least one request with the model's max seq len "
        "(30000), (6.66 GiB KV cache is needed, which is larger than the available KV cache memory (5.44 GiB). Based "
        "on the available memory, the estimated maximum model length is 13528."
    )
    shown = run("audit", "-", stdin=text).stdout
    assert shown.startswith("vllm: 1 line read\n")
    assert "refused.needed_bytes = 6.66 GiB  (line 1)" in shown


def test_without_a_model_the_dead_buffers_are_told_for_the_model_that_has_them():
    text = "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2574848, KV size: 132.43 GB"
    (advice,) = audited(text, {}).advice
    assert advice.startswith(
        "if the model is zai-org/GLM-5.2: index-K is allocated on all 78 layers and 57 of the buffers"
    )


def test_the_host_tier_is_held_against_the_ledger():
    """InferenceX #2651: 270 + 61.88 + 3.46 GB (10^9) a rank for --hicache-size 270 on 8 x B300, SGLang 0.5.16."""
    host = (
        "[2026-08-18 10:00:00 TP0] Allocating 270.00 GB host memory for hierarchical KV cache.\n"
        "[2026-08-18 10:00:00 TP0] Allocating 61.88 GB host memory for DSA indexer (layout=page_first_direct).\n"
        "[2026-08-18 10:00:00 TP0] Allocating 3.46 GB host memory for hierarchical KV cache.\n"
    )
    tables = {
        "model": "nvidia/GLM-5.2-NVFP4",
        "gpu": "B300",
        "engine": "sglang@0.5.16",
        "sharding": {"tp": 8},
        "draft": {"steps": 3},
        "features": ["hicache"],
        "hicache": {"size_gb": 270.0},
    }
    found = check(audited(host, tables), "host.pool_bytes")
    assert found.observed == 335_340_000_000
    assert found.cause == "agrees"


def test_an_allocation_that_fails_while_graphs_are_captured_says_so():
    text = (
        "[2026-09-01 10:00:01 TP0] Capture target decode CUDA graph begin. bs=[1, 2], avail mem=1.20 GB\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."
    )
    ((_, found),) = audited(text, {}).refusals
    assert any("capture of CUDA graphs" in one.says and "--cuda-graph-max-bs" in one.shrinks for one in found)


def test_flashmla_accumulators_are_among_the_suspects():
    """8.00 GiB (vLLM #44545) = 65,536 rows x 64 x 512 x 4 B, and 8,192 x 262,144 x 4 B too: both are named."""
    ((_, found),) = audited("Tried to allocate 8.00 GiB", {"engine": "vllm"}).refusals
    assert any(
        "65,536 rows x 64 x 512 x 4 B" in one.says and one.shrinks == "--max-num-batched-tokens" for one in found
    )
    assert any("8,192 rows x about 262,144 keys" in one.says for one in found)
