"""Measure by hand how many ledgers a second a sweep makes on one core, two peers beside it in the same run.

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install ridgepoint==0.1.2 kvfit==0.3.0
    python tests/sweepspeed.py --peers /tmp/peers/bin/python --config config.json

`--config` is the GLM config.json that kvfit's function reads; ridgepoint runs a model that is built into it, because
it has none of this kind. The peers answer less: kvfit the bytes of one request's cache, ridgepoint a dense model's fit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = 1 << 16
PEERS = """
import json, sys, time
config, duration = json.load(open(sys.argv[1])), float(sys.argv[2])

def rate(work):
    work(1024)
    made, start = 0, time.process_time()
    while time.process_time() - start < duration:
        for context in range(1024, 1024 * 101, 1024):
            work(context)
        made += 100
    return made / (time.process_time() - start)

import kvfit
print("kvfit 0.3.0 estimate_cache", rate(lambda tokens: kvfit.estimate_cache(config, context_tokens=tokens)))
import ridgepoint
model = sys.argv[3]
print("ridgepoint 0.1.2 fit", rate(lambda tokens: ridgepoint.fit(model, "h200-141gb", count=8, ctx=tokens)))
"""


def rate(work: Callable[[], Any], made: int, duration_s: float) -> float:
    """Return ledgers a second of processor time: `work` makes so many."""
    work()
    count, start = 0, time.process_time()
    while time.process_time() - start < duration_s:
        work()
        count += made
    return count / (time.process_time() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="glm52-8xh200-fp8")
    parser.add_argument("--peers", help="Python of an environment that holds ridgepoint and kvfit")
    parser.add_argument("--config", help="config.json for kvfit")
    parser.add_argument("--model", default="llama-3-70b", help="a model built into ridgepoint")
    parser.add_argument("--loop-seconds", type=float, default=3.0)
    asked = parser.parse_args()
    import numpy as np

    from dsa_ledger import Scenario
    from dsa_ledger.account.many import estimate_many
    from dsa_ledger.scenario_file import find, read
    from dsa_ledger.sweep import Axis, sweep

    scenario = Scenario.model_validate(read(find(asked.scenario)))
    contexts = np.arange(8192, 8192 + POINTS, dtype=np.int64)
    values = {"context": contexts, "batch": contexts % 300 + 1}
    rows = [Axis("load.context", tuple(contexts.tolist()))]
    found = {
        "ledgers as arrays": rate(lambda: estimate_many(scenario, values), POINTS, asked.loop_seconds),
        "sweep, rows made": rate(lambda: sweep(scenario, rows), POINTS, asked.loop_seconds),
    }
    for name, value in found.items():
        print(f"{name:32}{value:>14,.0f} /s")
    if asked.peers and asked.config:
        command = [asked.peers, "-c", PEERS, asked.config, str(asked.loop_seconds), asked.model]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            name, _, value = line.rpartition(" ")
            print(f"{name:32}{float(value):>14,.0f} /s")
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
    print(f"Python {sys.version.split()[0]}, one core, processor time, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
