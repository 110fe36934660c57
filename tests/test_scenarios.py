"""The scenarios that come with the program: each runs, and says what its public source says.

No expectation here is computed by the program: a figure is typed from the source beside it, or from arithmetic on it.
Records: main KV 576 (FP8), 656 (FP8 packed, with scales), index-K 132 = 128 + one fp32 scale; GLM-5.2 has 78 layers, of
which `indexer_types` in its config.json makes 21 full: 0, 1, 2, 6, 10, .., 74.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from golden_cases import misses
from readme_blocks import SCENARIOS, first_comment, scenario_table

from dsa_ledger import Ledger, Scenario, estimate
from dsa_ledger.scenario_file import read, shipped

GIB = 2**30
PATHS = sorted(SCENARIOS.glob("*.toml"))
DO_NOT_START = {"glm53-8xh200-vllm-1m", "slow-at-1m"}

FIGURES: dict[str, dict[str, Any]] = {
    # https://github.com/sgl-project/sglang/pull/30531, comment of 2026-08-14: 55,225 B a token, 107.74 "GB" of weights,
    # 2,574,848 tokens. What that box had free is not in the log, so the tokens are met within 2%.
    "pr30531-main": {
        "cell.target_bytes": 55_224,
        "cell.draft_bytes": 708,
        "model.index_k_layers": 78,
        "model.full_layers": 21,
        "weights.rank_bytes": {"near": 107.74 * GIB, "rel": 0.003},
        "pool.tokens": {"near": 2_574_848, "rel": 0.02},
    },
    # the other arm: 47,702 B a token, 106.76 "GB" of weights, 3,002,752 tokens
    "pr30531-pr": {
        "cell.target_bytes": 47_700,
        "cell.draft_bytes": 708,
        "model.index_k_layers": 21,
        "weights.rank_bytes": {"near": 106.76 * GIB, "rel": 0.003},
        "pool.tokens": {"near": 3_002_752, "rel": 0.02},
    },
    # 53,940 B a token: https://github.com/vllm-project/recipes/pull/893 (same layout, see below); MTP 656 + 132 more.
    # The step reads 132 B a token in 21 full layers and the MTP layer, for four requests.
    "glm52-8xh200-fp8": {
        "cell.target_bytes": 53_940,
        "cell.draft_bytes": 788,
        "pool.requests_at_context": 4,
        "step.index_k_read_bytes": 132 * 22 * 131_072 * 4,
    },
    # full layers 0, 1, 2, 6, .., 38 come first: 39 x 656 + 12 x 132, and 39 x 656 + 9 x 132
    "glm52-16xh100-pp2": {
        "stage[0].model.full_layers": 12,
        "stage[1].model.full_layers": 9,
        "stage[0].cell.bytes": 27_168,
        "stage[1].cell.bytes": 26_772,
        "cell.bytes": 27_168,
    },
    # the B arm's cell; each of eight ranks has requests of its own
    "glm52-8xb200-dp8": {"record.main_kv_bytes": 576, "cell.bytes": 48_408, "load.requests": 8},
    # the two stages make up the B arm's 47,700
    "glm52-4xgb300-pp2": {"stage[0].cell.bytes": 24_048, "stage[1].cell.bytes": 23_652},
    # https://github.com/vllm-project/recipes/pull/893: 25.94 GiB left; 59,763,793,920 B on 8 ranks hold 138,496 tokens
    "glm53-8xh200-vllm-1m": {
        "cell.bytes": 59_763_793_920 // 8 // 138_496,
        "pool.budget_bytes": {"gib": 25.94},
        "pool.tokens": {"near": 516_000, "abs": 1_000},
    },
    # 132 B x 21 full layers x 10^6 tokens, 0.58 ms at 4.8 TB/s: no share of the 9.65 ms between 38 and 60 tokens/s
    "slow-at-1m": {
        "step.index_k_read_bytes": 132 * 21 * 1_000_000,
        "time.indexer_floor_s": {"near": 132 * 21e6 / 4.8e12, "rel": 1e-9},
        "time.indexer_s": {"near": 9.65e-3, "rel": 0.1},
    },
    # eight times that: 341,504 and 2,720,768 tokens in the logs of https://github.com/local-inference-lab/rtx6kpro
    "glm53-8xh200-vllm-dcp8": {"pool.tokens": {"near": 516_000 * 2_720_768 / 341_504, "rel": 0.006}},
    # https://github.com/NVIDIA/TensorRT-LLM/pull/16558: its test asserts 78 x 576 + 21 x 132
    "glm53-8xb200-trtllm": {"cell.target_bytes": 47_700, "cell.draft_bytes": 708, "engine.mem_fraction": 0.9},
    # https://github.com/SemiAnalysisAI/InferenceX/pull/2651: 335.34 GB a rank, of which 270 are main KV
    "glm52-8xb300-hicache-0521": {
        "cell.target_bytes": 55_224,
        "host.pool_bytes": {"near": 335.34e9, "abs": 0.005e9},
        "host.pool_tokens": {"near": 6_009_728, "abs": 64},  # the log counts one pad page of 64 more
    },
    # index-K of 21 layers instead of 78: 6,009,728 x 57 x 132 B = 45.22 GB less than 335.34
    "glm52-8xb300-hicache-0522": {
        "cell.target_bytes": 47_700,
        "host.pool_bytes": {"near": 290.12e9, "abs": 0.01e9},
    },
    # sglang 0.5.23 pool_configurator.py: most layers of a rank, and one scratch layer: 11 x 576 + 5 x 132
    "glm52-8xb200-layer-split": {"cell.bytes": 6_996},
    # https://github.com/sgl-project/sglang/pull/11309: 43.67 "GB" for 975,424 tokens is 48,071 B; 61 x (656 + 132)
    "dsv32-8xh200-fp8": {"cell.bytes": 48_068, "model.full_layers": 61, "model.shared_layers": 0},
}


def ledger_of(stem: str, **over: object) -> Ledger:
    tables = read(SCENARIOS / f"{stem}.toml")
    return estimate(Scenario.model_validate(tables | over))


def test_every_scenario_has_figures_and_is_shipped():
    assert {path.stem for path in PATHS} == set(FIGURES) == set(shipped())


@pytest.mark.parametrize("stem", FIGURES)
def test_a_scenario_says_what_its_source_says(stem):
    assert misses(ledger_of(stem), FIGURES[stem]) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_scenario_opens_with_what_it_shows(path):
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert tables["schema"] == 1
    assert tables["title"]
    assert "@" in tables["engine"], "a version, so that the answer stays"
    comment = first_comment(path)
    assert comment.startswith("What it shows: ")
    assert re.search(r"https://github\.com/|Source", comment), "no public source"


@pytest.mark.parametrize("stem", FIGURES)
def test_the_command_answers_a_scenario_by_its_name(stem, run):
    code, out, _ = run("estimate", stem, "--format", "json")
    assert code == (3 if stem in DO_NOT_START else 0)
    printed = json.loads(out)
    assert {"cell.bytes", "pool.tokens", "step.index_k_read_bytes"} <= {entry["key"] for entry in printed["entries"]}


@pytest.mark.parametrize(
    ("stem", "tokens", "target", "draft"),
    [("pr30531-main", 2_574_848, 132.43, 1.70), ("pr30531-pr", 3_002_752, 133.40, 1.98)],
)
def test_the_logs_token_count_gives_the_logs_pool_sizes(stem, tokens, target, draft):
    """PR #30531, both arms, to the last printed digit; its GB are GiB."""
    ledger = ledger_of(stem, limits={"max_total_tokens": tokens})
    sizes = {"pool.tokens": tokens, "pool.target_bytes": {"gib": target}, "pool.draft_bytes": {"gib": draft}}
    assert misses(ledger, sizes) == []


def test_what_the_pull_request_frees_is_57_indexers():
    """PR #30531 frees 0.98 "GB" a rank in segments of the allocator; 57 x 18,744,320 B are asked for."""
    before, after = (ledger_of(stem) for stem in ("pr30531-main", "pr30531-pr"))
    assert before["weights.rank_bytes"] - after["weights.rank_bytes"] == 57 * 18_744_320


def test_the_host_tier_is_that_of_the_log_on_the_release_of_the_log():
    """InferenceX PR #2651 ran SGLang 0.5.16: 270 + 61.88 + 3.46 GB, at 44,928 + 10,296 + 576 B a slot."""
    ledger = ledger_of("glm52-8xb300-hicache-0521", engine="sglang@0.5.16")
    assert ledger["host.cell_bytes"] == 44_928 + 10_296 + 576
    assert round(ledger["host.pool_bytes"] / 1e9, 2) == 335.34


def test_the_offloaded_bytes_of_the_recipe_are_cells():
    """Recipes PR #893: two prompts, floored to 256 tokens, on 8 ranks; not a byte over."""
    cell = ledger_of("glm53-8xh200-vllm-1m")["cell.bytes"]
    assert (8 * cell * 138_496, 8 * cell * 44_288) == (59_763_793_920, 19_111_157_760)


def test_what_does_not_start_says_what_would():
    (sentence,) = ledger_of("glm53-8xh200-vllm-1m").shortfalls
    assert "would not start" in sentence
    assert "--context-length" in sentence
    assert "DCP" in sentence
    assert "--kv-dtype fp8" not in sentence, "it is fp8 already"


def test_the_table_of_scenarios_is_current(root):
    text = (root / "scenarios" / "README.md").read_text(encoding="utf-8")
    assert scenario_table() in text, "run: cog -r scenarios/README.md"
