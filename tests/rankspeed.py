"""Measure by hand how long `plan` takes to rank all layouts of 64 GPUs, 3 engines and 5 KV formats, start included.

    python tests/rankspeed.py

Measured on 2026-11-29, two shared cores of a virtual machine, Python 3.11.7: 1.31 to 1.72 s of wall time, 14 runs
(804 deployments, 378 fit), of which 0.3 to 0.4 s is the start; the load of the machine was 1.3 to 1.8 before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

COMMAND = (
    "-m", "dsa_ledger", "plan", "glm52-8xh200-fp8", "--machines", "64xH200", "--engines", "any", "--kv-dtypes", "any",
)  # fmt: skip
RUNS = 7


def main() -> None:
    """Run the command several times; print wall and processor seconds of each, and the least of both."""
    walls, processors = [], []
    for _ in range(RUNS):
        start, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, *COMMAND], check=True, capture_output=True)
        after = os.times()
        walls.append(time.perf_counter() - start)
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        processors.append(spent)
        print(f"{walls[-1]:.2f} s of wall time, {spent:.2f} s of processor time")
    print(f"least: {min(walls):.2f} s and {min(processors):.2f} s; load before: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
