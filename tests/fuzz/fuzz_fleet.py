"""Feeds bytes to what a fleet reads: rank maps and profile files; only groups, faults or bad input may come back.

Run by hand, where atheris and this project are installed:
`python tests/fuzz/fuzz_fleet.py -runs=100000 -max_len=2048 -len_control=0`. Each find becomes a plain test in
tests/calibration (test_ranks.py, test_profile.py); pytest neither collects this file nor needs atheris.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "calibration"))  # the helpers of the tests
with atheris.instrument_imports(include=["calib", "dsa_ledger"]):
    from made_up_fleet import profile

    from calib.fleet_report import read_fleet
    from calib.profile import load, save
    from calib.ranks import groups_of_map
    from dsa_ledger.errors import BadInput

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-fleet-"))
BOXES = FOLDER / "boxes"
BOXES.mkdir()
for number in range(4):
    save(profile(number, cases=1, samples=1), BOXES)
FLEET = read_fleet(BOXES)
WHOLE = json.loads(next(BOXES.iterdir()).read_text(encoding="utf-8"))
HEADERS = (b"group,rank,host,uuid\n", b"\xef\xbb\xbfgroup, rank, host, uuid\r\n", b"uuid,rank,group\n", b"")


def mutated(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with some of its parts replaced."""
    if chance.random() < 0.02:
        return chance.choice([None, True, -1, 0, 1 << 70, 1e308, float("nan"), "", "x" * 99, [], {}, [[1]], {"a": 1}])
    if isinstance(value, dict):
        return {key: mutated(one, chance) for key, one in value.items() if chance.random() > 0.005}
    return [mutated(one, chance) for one in value] if isinstance(value, list) else value


def check(bad: BadInput) -> None:
    """Each fault is one line."""
    assert all("\n" not in line for line in bad.lines())


def one_input(data: bytes) -> None:
    """Read one map and one profile."""
    provider = atheris.FuzzedDataProvider(data)
    path = FOLDER / "input"
    header = HEADERS[provider.ConsumeIntInRange(0, len(HEADERS) - 1)]
    seed = provider.ConsumeInt(4)
    rest = provider.ConsumeBytes(len(data))
    path.write_bytes(header + rest)
    try:
        groups, faults = groups_of_map(FLEET.boxes, path)
    except BadInput as bad:
        check(bad)
    else:
        check(BadInput(faults))
        assert sum(map(len, groups.values())) <= len(FLEET.boxes)
    content = mutated(WHOLE, random.Random(seed))  # noqa: S311 - a mutation, no secret
    content.pop("seal", None) if isinstance(content, dict) else None
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()  # as if it were ours
    text = json.dumps(content | {"seal": seal} if isinstance(content, dict) else content).encode()
    path.write_bytes(text if seed % 3 else text[: seed % len(text)] + rest)
    for briefly in (True, False):
        try:
            load(path, briefly=briefly)
        except BadInput as bad:
            check(bad)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
