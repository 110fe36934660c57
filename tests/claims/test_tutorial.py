"""The tutorial: its blocks are what the program prints, its commands run, its links lead somewhere."""

from __future__ import annotations

import re

import pytest
from claim_blocks import claims_table
from readme_blocks import LEFT_OUT, printed

from dsa_ledger import claims


@pytest.fixture(scope="module")
def tutorial(root) -> str:
    return (root / "scenarios" / "claims" / "README.md").read_text(encoding="utf-8")


def test_each_block_is_what_the_command_prints(tutorial):
    blocks = re.findall(r"^```text\n\$ ([^\n]*)\n(.*?)^```", tutorial, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == tutorial.count("cog.out(shown(") == 7
    for command, body in blocks:
        out = printed(command)
        kept = [part.strip("\n") for part in f"\n{body}\n".split(f"\n{LEFT_OUT}\n") if part.strip()]
        assert kept
        for part in kept:
            assert f"\n{part}\n" in f"\n{out}\n", f"run: cog -r scenarios/claims/README.md ({command})"


def test_the_table_of_claims_is_current(tutorial):
    assert claims_table() in tutorial, "run: cog -r scenarios/claims/README.md"


def test_every_claim_named_in_the_text_exists(tutorial):
    named = set(re.findall(r"\bC\d+\b", tutorial))
    assert named == set(claims.known())


def test_links_lead_to_files(tutorial, root):
    targets = re.findall(r"\]\(([^)]+)\)", tutorial)
    assert len(targets) >= len(claims.known())
    assert [name for name in targets if not (root / "scenarios" / "claims" / name).exists()] == []


def test_the_words_of_the_map_are_those_of_the_design(tutorial):
    for word in ("GB", "KV size", "cell", "block", "step"):
        assert f"\n| {word} |" in tutorial
