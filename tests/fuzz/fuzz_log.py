"""Feeds mutated start-up logs to the audit; only a report or bad input may come back.

Run by hand, where atheris and this project are installed:
`python tests/fuzz/fuzz_log.py -runs=100000 -max_len=4096 -len_control=0`. Each find becomes a plain test in
tests/audit/test_audit.py; pytest neither collects this file nor needs atheris.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dsa_ledger.audit"]):
    from dsa_ledger.audit.report import audit
    from dsa_ledger.errors import BadInput, ExpectedError

from dsa_ledger.render.audit import audit_text

HERE = Path(__file__).parent
FILE = Path(tempfile.mkdtemp(prefix="fuzz-log-")) / "log"
LOGS = tomllib.loads((HERE.parent / "audit" / "logs.toml").read_text(encoding="utf-8"))["log"]
LINES = [line for log in LOGS for line in log["lines"].strip().splitlines()]
PEAK = (
    "Peak memory during memory usage profiling (torch + non-torch): 99.00 GiB, available KV cache memory when "
    "calculating max tokens: 36.00 GiB, fraction is set 0.9, kv size per token is 48408. device total memory 139.80 GiB"
)
LINES += [
    "[2026-09-01 10:00:00 PP1 TP0] Load weight begin. avail mem=139.00 GB",
    "[2026-09-01 10:00:02 PP1 TP0] Load weight end. elapsed=1.00 s, avail mem=44.54 GB, mem usage=94.46 GB.",
    "server_args=ServerArgs(model_path='nvidia/GLM-5.2-NVFP4', tp_size=4, dp_size=1, speculative_algorithm='EAGLE')",
    "max_total_num_tokens=1, chunked_prefill_size=8192, max_prefill_tokens=1, max_running_requests=48, context_len=1",
    "[TRT-LLM] [I] [DSACacheManager] Indexer k-cache: 21 of 78 local layers own an indexer k-cache.",
    PEAK,
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.16 GiB.",
]
NUMBERS = ["0", "-1", "1", "64", "0.00", "9" * 30, "1e9", "999999.99", "0.01", ",,", "nan"]
SLOW_S = 20.0


def line_of(data: atheris.FuzzedDataProvider) -> str:
    """Return a line of a real log, perhaps with a number replaced, cut, wrapped or spoilt."""
    line = data.PickValueInList(LINES)
    kind = data.ConsumeIntInRange(0, 7)
    if kind == 0:
        digits = [place for place, char in enumerate(line) if char.isdigit()]
        place = data.PickValueInList(digits or [0])
        return line[:place] + data.PickValueInList(NUMBERS) + line[place + 1 :]
    if kind == 1:
        return line[: data.ConsumeIntInRange(0, len(line))]
    if kind == 2:
        return json.dumps({"log": line})
    if kind == 3:
        place = data.ConsumeIntInRange(0, len(line))
        return line[:place] + data.ConsumeUnicodeNoSurrogates(12) + line[place:]
    return line


def one(raw: bytes) -> None:
    """Try one input; a traceback, an answer that cannot be printed or a slow one is a find."""
    data = atheris.FuzzedDataProvider(raw)
    count = data.ConsumeIntInRange(0, 12)
    text = "\n".join(line_of(data) for _ in range(count))
    spoilt = data.ConsumeBytes(64)
    FILE.write_bytes(text.encode("utf-8", "replace") + (b"\n" + spoilt if spoilt else b""))
    tables: dict[str, object] = {}
    if data.ConsumeBool():
        tables["model"] = data.PickValueInList(["nvidia/GLM-5.2-NVFP4", "deepseek-ai/DeepSeek-V3.2", "no/model"])
    if data.ConsumeIntInRange(0, 7) == 0:  # a ledger for each release is slow
        tables["gpu"] = data.PickValueInList(["H200", "GB300", "no GPU"])
    start = time.process_time()
    try:
        report = audit(str(FILE), tables)
        for form in ("table", "json", "md", "csv"):
            audit_text(report, form)
    except BadInput as bad:
        if any("\n" in line for line in bad.lines()):
            raise AssertionError(f"more than one line: {bad.lines()!r}") from bad
    except ExpectedError:
        pass
    if time.process_time() - start > SLOW_S:
        raise AssertionError(f"slow: {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
