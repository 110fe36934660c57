"""A GPU or a head count without measurements: what is carried, and by what."""

from __future__ import annotations

import pytest

from dsa_ledger import Scenario, estimate
from dsa_ledger.timing.evaluate import Wanted, floor
from dsa_ledger.timing.siblings import Machine, carried_decode, carried_prefill

ETA = 0.82


def decode_table(label="glm bfloat16 bfloat16 64", us=1000.0):
    kind = label.split()[1]
    return {
        "batches": [1],
        "tokens": [1, 2048],
        "floor": {label: [us]},
        "gather": {},
        "growth": {kind: [[0.0, 0.0]]},
        "longest": 2048,
    }


def carried_floor(source, target, module="shared_layer"):
    return carried_decode([(source, decode_table())], target, module=module)["floor"]["glm bfloat16 bfloat16 64"][0]


# A shared layer of GLM, 64 heads, bf16: 6,144 x (2,048 + 512 + 64) + 2,048 x 64 x 256 + 64 x 256 x 6,144 weights of two
# bytes, and 64 x 448 x 512 absorbed ones.
WEIGHTS = 330_039_296


def test_weights_go_by_memory():
    slow, fast = Machine("slow", 1e6, 100, 9, 0), Machine("fast", 2e6, 100, 9, 0)
    assert carried_floor(slow, fast) == pytest.approx(1000 - WEIGHTS / (ETA * 1e6) / 2)
    assert carried_floor(fast, slow) == pytest.approx(1000 + WEIGHTS / (ETA * 2e6))


def test_weights_that_half_of_l2_holds_are_not_read_again():
    """Rule: tables are replays over one layer."""
    slow, fast = Machine("slow", 1e6, 100, 9, 2 * WEIGHTS), Machine("fast", 2e6, 100, 9, 2 * WEIGHTS)
    assert carried_floor(slow, fast) == 1000


def test_the_rest_goes_by_the_clock():
    # B200 1,965 MHz, GB200 2,062 MHz: ByteDance-Seed/VeOmni PR #986.
    slow, fast = Machine("B200", 8e6, 148, 10, 0), Machine("GB200", 8e6, 152, 10, 0)
    assert carried_floor(slow, fast, module="sparse_mla_kernel") == pytest.approx(1000 * 1965 / 2062)
    assert carried_floor(slow, Machine("B300", 8e6, 148, 10, 0), module="sparse_mla_kernel") == 1000  # clock unknown


def prefill_table(host_us, per_thousand_us=1000.0, launch=1.0):
    label = "glm fp8 fp8_block 64"
    path = {
        "host": {label: host_us},
        "own": {label: [per_thousand_us, launch]},
        "law": [10.0] * 11,
        "tokens": [512],
        "new": [512],
        "prefix": [0],
        "correction": {label: [0]},
        "far": host_us / 4,
        "fresh": host_us / 10,
    }
    return {"sparse": path}


def test_the_host_is_that_of_the_targets_cpu():
    """Rule: host constants come from GPUs on the same CPU, and a launch is never dearer than on that host."""
    grace, other = Machine("GX", 8e6, 152, 10, 0), Machine("X9", 8e6, 132, 9, 0)
    tables = {"GX": prefill_table(3000), "X9": prefill_table(1500)}
    found = carried_prefill(tables, [grace], Machine("X10", 8e6, 152, 10, 0), module="full_layer")["sparse"]
    assert other.major != grace.major
    assert found["host"]["glm fp8 fp8_block 64"] == 1500
    assert (found["far"], found["fresh"]) == (375, 150)
    assert found["own"]["glm fp8 fp8_block 64"] == [pytest.approx(1000), 0.5]


def test_activations_and_logits_of_a_prefill_go_by_memory():
    slow, fast = Machine("slow", 1e6, 100, 9, 0), Machine("fast", 2e6, 100, 9, 0)
    found = carried_prefill({"slow": prefill_table(10, 2000.0)}, [slow], fast, module="full_layer")["sparse"]
    # GLM: bf16 written and read: 2 x 6,144 + 2,048 + 512 + 64 and 64 x (256 + 576 + 512 + 256) numbers a token.
    moved = 4 * (14_912 + 64 * 1600) * 1e3
    assert found["own"]["glm fp8 fp8_block 64"][0] == pytest.approx(2000 - moved / (ETA * 1e6) / 2)
    assert found["law"][5] == pytest.approx(10 - 8e6 / (ETA * 1e6) / 2)  # fp32 written and read, a million of them
    assert found["law"][0] == 10


def test_fewer_heads_than_measured_save_what_they_save_in_another_family():
    rows = {"glm fp8 fp8_block 8": [50.0], "glm fp8 fp8_block 64": [106.0], "v32 fp8 fp8_block 64": [100.0]}
    wanted = Wanted("v32", "fp8", "fp8_block", 8, 1e7 / ETA)
    # GLM saves 56 us for 56 heads; a head's weights are 2,555,904 B there and 1,474,560 B here, at 1e7 B/us.
    saved = 56 - 56 * (2_555_904 - 1_474_560) / 1e7
    assert floor(rows, [1], wanted, 1, indexer=True) == pytest.approx(100 - saved)


def test_fewer_heads_than_any_family_has_go_on_on_the_line():
    rows = {"glm fp8 fp8_block 8": [50.0], "glm fp8 fp8_block 64": [106.0]}
    assert floor(rows, [1], Wanted("glm", "fp8", "fp8_block", 4, 1e7), 1, indexer=True) == pytest.approx(46)


@pytest.mark.parametrize("gpu", ["H20", "H20-3e"])
def test_a_board_slow_at_matrices_has_no_prefill_time_and_its_decode_says_why(gpu):
    """Rule: what is bound by matrices is not carried by memory: 148 against 989 TFLOP/s (flash-attention #1310)."""
    load = {"context": 131_072, "new_tokens": 8192}
    asked = {
        "model": "zai-org/GLM-5.2-FP8",
        "gpu": gpu,
        "engine": "sglang@0.5.14",
        "sharding": {"tp": 16},
        "load": load,
    }
    ledger = estimate(Scenario.model_validate(asked | {"load": load}))
    assert "prefill.attention_s" not in ledger
    assert ledger["prefill.score_flops"] > 0
    assert any(f"no prefill table of sglang serves {gpu}" in sentence for sentence in ledger.warnings)
    assert any(f"{gpu} multiplies matrices at 148 TFLOP/s" in sentence for sentence in ledger.warnings)
    assert ledger["time.attention_s"] > 0
