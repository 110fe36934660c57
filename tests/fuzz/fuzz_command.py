"""Feeds mutated launch commands, scripts and YAML to the command reader; only a reading or bad input may come back.

Run by hand, where atheris and this project are installed:
`python tests/fuzz/fuzz_command.py -runs=100000 -max_len=4096 -len_control=0`. Each find becomes a plain test in
tests/audit/test_command.py; pytest neither collects this file nor needs atheris.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dsa_ledger.audit"]):
    from dsa_ledger.audit.flagtable import flag_table
    from dsa_ledger.audit.launch import Source, read_launch
    from dsa_ledger.audit.merge import merge_command, sentences
    from dsa_ledger.errors import BadInput, Faults

SLOW_S = 5.0  # of 4 KiB of text, instrumented; plain it takes milliseconds
STARTS = [
    "sglang serve ",
    "python3 -m sglang.launch_server ",
    "vllm serve m ",
    "trtllm-serve m ",
    "docker run x/vllm-openai:v0.28.0 ",
]
FLAGS = [name for engine in ("sglang", "vllm", "tensorrt-llm") for name in flag_table(engine).flags]
VALUES = [
    "8",
    "-1",
    "0.85",
    "128k",
    "1Mi",
    "20G",
    "$X",
    "${X:-3}",
    "$(id)",
    "'{\"index_topk_freq\": 4}'",
    "fp8",
    "1e309",
    "9" * 40,
    "٣",
]
GLUE = [" ", "=", "\n", " \\\n", "'", '"', ";", "&&", "(", ")", "{", "}", "<<EOF\n", "EOF\n", "#", "$", "`", ".", "_"]
YAML = [
    "services:\n  a:\n",
    "    image: lmsysorg/sglang:v0.5.18\n",
    "    command: ",
    "kind: Pod\nspec:\n  containers:\n",
    "  - args: [",
    "]\n",
    "&a ",
    "*a",
    "? ",
    "!!python/object ",
]


def text_of(data: atheris.FuzzedDataProvider) -> str:
    """Return words of the format glued together, and now and then anything."""
    start = data.ConsumeIntInRange(0, 9)
    parts = [data.PickValueInList(STARTS if start < 7 else YAML)] if start < 9 else []
    for _ in range(data.ConsumeIntInRange(0, 40)):
        kind = data.ConsumeIntInRange(0, 5)
        if kind == 0:
            parts.append(data.PickValueInList(FLAGS))
        elif kind == 1:
            flag = data.PickValueInList(FLAGS)
            parts.append(flag[: data.ConsumeIntInRange(1, len(flag))])
        elif kind == 2:
            parts.append(data.PickValueInList(VALUES))
        elif kind == 3:
            parts.append(data.PickValueInList([*GLUE, *YAML]))
        elif kind == 4:
            parts.append(data.ConsumeUnicodeNoSurrogates(12))
        else:
            parts.append(" ")
    return "".join(parts)


def one(raw: bytes) -> None:
    """Try one input; a traceback, a line break in a message or a slow answer is a find."""
    data = atheris.FuzzedDataProvider(raw)
    version = data.PickValueInList([None, "0.5.9", "0.5.23", "0.33.0"])
    source = Source(text_of(data), is_yaml=data.ConsumeIntInRange(0, 7) == 0)
    start = time.process_time()
    try:
        reading = read_launch([source], None, version)
        faults = Faults()
        said = sentences(reading)
        if data.ConsumeIntInRange(0, 15) == 0 and not Path(source.text[:40]).exists():
            merge_command({}, (source.text,), None, (), faults)
    except BadInput as bad:
        said = bad.lines()
    except OSError:
        said = []
    if any("\n" in line for line in said):
        raise AssertionError(f"more than one line: {said!r}")
    if time.process_time() - start > SLOW_S:
        raise AssertionError(f"slow: {time.process_time() - start:.1f} s for {len(source.text)} characters")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
