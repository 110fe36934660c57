"""Measure by hand how long the command takes to start, and how many ledgers a second one process makes.

    python3 -m venv /tmp/wheel && /tmp/wheel/bin/pip install .
    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install kvfit==0.3.0
    /tmp/wheel/bin/python tests/coldstart.py --scenario STEM --peer /tmp/peer/bin/kvfit

Run it with the Python of an environment that holds the installed wheel: an editable install adds some 27 ms a start.
Every round runs each command once, in turn, so that a busy moment of the machine hits all of them; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The floor that our dependencies set: a typer command with one option that builds one pydantic model and prints it.
FLOOR = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

@app.command()
def show(batch: int = 1) -> None:
    import pydantic
    class Load(pydantic.BaseModel):
        batch: int
    print(Load(batch=batch).model_dump_json())

app()
"""


def seconds(command: list[str], folder: str) -> float:
    """Return how long one whole process took [s]; a command that fails stops the measurement (exit 3 is an answer)."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    taken = time.perf_counter() - start
    if done.returncode not in {0, 3}:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode()}")
    return taken


def measure(commands: dict[str, list[str]], rounds: int, folder: str) -> dict[str, list[float]]:
    """Return the times of each command [s], interleaved; a first round, which compiles the files, is thrown away."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            taken = seconds(command, folder)
            if turn:
                times[name].append(taken)
    return times


def ledgers_per_second(scenario: str, duration_s: float) -> float:
    """Return full ledgers made in one process per second, each of another context length."""
    from dsa_ledger import Scenario, estimate
    from dsa_ledger.scenario_file import find, read

    first = Scenario.model_validate(read(find(scenario)))
    shortest = first.load.new_tokens or 1024
    variants = [
        first.model_copy(update={"load": first.load.model_copy(update={"context": context})})
        for context in range(shortest, shortest + 65536, 1024)
    ]
    estimate(first)
    made, start = 0, time.perf_counter()
    while time.perf_counter() - start < duration_s:
        for variant in variants:
            estimate(variant)
        made += len(variants)
    return made / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", required=True, help="stem of an installed scenario")
    parser.add_argument("--peer", type=Path, help="path of the kvfit command, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--loop-seconds", type=float, default=3.0)
    asked = parser.parse_args()
    ours = str(Path(sys.executable).with_name("dsa-ledger"))
    with tempfile.TemporaryDirectory() as folder:
        floor = Path(folder) / "floor.py"
        floor.write_text(FLOOR, encoding="utf-8")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "floor: typer + one pydantic model": [sys.executable, str(floor), "--batch", "2"],
            "dsa-ledger --version": [ours, "--version"],
            "dsa-ledger estimate --format json": [ours, "estimate", asked.scenario, "--format", "json"],
        }
        if asked.peer:
            commands["kvfit --version"] = [str(asked.peer.absolute()), "--version"]
        times = measure(commands, asked.rounds, folder)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    empty, least = median["python -c pass"], median["floor: typer + one pydantic model"]
    print(f"Python {sys.version.split()[0]}, {asked.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'command':36}{'median ms':>10}{'best ms':>9}{'x empty':>9}{'x floor':>9}")
    for name, value in median.items():
        best = min(times[name])
        print(f"{name:36}{value * 1e3:10.0f}{best * 1e3:9.0f}{value / empty:9.2f}{value / least:9.2f}")
    print(f"in one process: {ledgers_per_second(asked.scenario, asked.loop_seconds):,.0f} ledgers/s")


if __name__ == "__main__":
    main()
