"""A measured box in an estimate: three places and what stands on them, by how much, what is said, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from made_up import hardware, software

from calib.profile import Case, Fits, Gather, Profile, Protocol, RunLength, ScanLine, Shape, State, save
from dsa_ledger import Scenario, estimate
from dsa_ledger.errors import BadInput
from dsa_ledger.timing.box import catalog_name, load_box, reference_scan_bytes_per_s
from dsa_ledger.timing.tables import machine_of

TOKENS = 131_072
READ, SCAN, GATHER, R_HALF = 3.9e12, 40e9, 2e12, 0.25
NOISE = ((0.0, 0.0), (0.0, 0.0))


def fits(read: float = READ, scan: float = SCAN, gather: float = GATHER, r_half: float | None = R_HALF) -> Fits:
    law = r_half is not None and RunLength(
        rate_inf_bytes_per_s=read, r_half_pages=r_half, covariance=NOISE, residuals=(0.0,), held_at_zero=""
    )
    grid = [(1, 65_536, 1.0), (1, 262_144, 1.0), (16, 65_536, 1.0), (16, 262_144, 1.0)]
    return Fits(
        ceiling_bytes_per_s=read,
        run_length=law or None,
        shapes=tuple(
            Shape(rows=rows, tokens=tokens, order="contiguous", rate_bytes_per_s=read * share, eta=None)
            for rows, tokens, share in grid
        ),
        scans=(
            ScanLine(
                kernel="scan_rows",
                t0_s=0.0,
                s_per_token=8 / scan,
                bytes_per_s=scan,
                covariance=NOISE,
                residuals=(0.0,),
            ),
        ),
        gathers=(
            Gather(record_bytes=576, rate_bytes_per_s=1.0),
            Gather(record_bytes=656, rate_bytes_per_s=gather),
            Gather(record_bytes=1152, rate_bytes_per_s=1.0),
        ),
    )


def made(found: Fits, *, span_bytes: int = 150 << 20, driver: str = "580.65.06", **of: object) -> Profile:
    case = Case(
        key="grid/read_pages/contiguous/b1/L64",
        group="grid",
        kernel="read_pages",
        order="contiguous",
        rows=1,
        tokens=64,
        read_bytes=8448,
        write_bytes=0,
        reuse_bytes=8448,
        fragmentation={},
        verified=True,
        samples_s=(1e-6,),
    )
    return Profile(
        created="2026-11-20T00:00:00+00:00",
        hardware=hardware(**of),
        software=software(driver=driver),
        protocol=Protocol(
            quick=True,
            pool_bytes=1 << 30,
            tensors=21,
            span_bytes=span_bytes,
            replays=20,
            free_fraction=0.85,
            seed=1,
            block_table_sha256="",
        ),
        before=State(),
        after=State(),
        drift=0.0,
        cases=(case,),
        fits=found,
        warnings=(),
    )


def ledger(profile: object = None, load: dict[str, object] | None = None, **changes: object):
    asked = {
        "model": "GLM-5.2-FP8",
        "gpu": "H200",
        "engine": "sglang@0.5.14",
        "kv_dtype": "fp8_e4m3",
        "sharding": {"tp": 8},
        "load": {"context": TOKENS, "batch": 4, "measured_step": "20 ms@8192"} | (load or {}),
        "profile": None if profile is None else str(profile),
    }
    return estimate(Scenario.model_validate(asked | changes))


@pytest.fixture
def box(tmp_path):
    return save(made(fits()), tmp_path / "box.json")


def moved(before, after) -> set[str]:
    assert set(before.entries) == set(after.entries)
    return {key for key in before.entries if before[key] != after[key]}


FULL = {
    "time.full_layer_s",
    "time.full_layer_separated_s",
    "time.full_layer_worst_s",
    "time.full_layer_low_s",
    "time.full_layer_high_s",
}
SHARED = {"time.shared_layer_s", "time.shared_layer_low_s", "time.shared_layer_high_s"}
STEP = {
    *(f"time.{name}" for name in ("attention_s", "attention_low_s", "attention_high_s", "indexer_s")),
    *(f"time.{name}" for name in ("step_s", "step_low_s", "step_high_s")),
    *(f"time.tokens_per_s{of}{end}" for of in ("", "_per_request") for end in ("", "_low", "_high")),
    "time.anchor.full_layer_s",
    "time.anchor.attention_s",
}


def test_half_the_read_rate_doubles_the_bytes_term_and_moves_what_stands_on_it(box, tmp_path):
    before, after = ledger(box), ledger(save(made(fits(read=READ / 2)), tmp_path / "box2.json"))
    bytes_s = {"time.layer.bytes_s", "time.layer.hidden_s"}
    rates = {"box.straight_bytes_per_s", "box.read_bytes_per_s", "box.sustained_share"}
    assert moved(before, after) == bytes_s | rates | FULL | STEP
    # 132 B of key and 4 B of score, 4 requests, as far as the table shows it, at 3.9 TB/s and at half of it
    seen = 136 * 4 * TOKENS * before["time.layer.bytes_seen_share"]
    assert before["time.layer.bytes_s"] == pytest.approx(seen / 3.9e12)
    assert after["time.layer.bytes_s"] == pytest.approx(seen / 1.95e12)
    assert after["time.attention_s"] - before["time.attention_s"] == pytest.approx(21 * seen / 3.9e12)
    assert after["time.layer.bytes_prior_s"] == pytest.approx(seen / (0.82 * 4.8e12))


def test_half_the_scan_rate_doubles_top_k_and_moves_what_stands_on_it(box, tmp_path):
    before, after = ledger(box), ledger(save(made(fits(scan=SCAN / 2)), tmp_path / "box2.json"))
    topk = {"time.layer.topk_s", "time.layer.topk_saved_s", "box.scan_bytes_per_s"}
    assert moved(before, after) == topk | FULL | STEP
    assert after["time.layer.topk_s"] == pytest.approx(2 * before["time.layer.topk_s"])
    grown = after["time.full_layer_s"] - before["time.full_layer_s"]
    assert grown == pytest.approx(before["time.layer.topk_s"])
    # H200: 8 B over 0.219 ns a token, separated scores (github.com/ai-dynamo/aiconfigurator@095f58a5, glm5 top-k)
    assert before["box.reference_scan_bytes_per_s"] == pytest.approx(8 / 0.219e-9, rel=0.02)
    assert before["time.layer.topk_s"] == pytest.approx(
        before["time.layer.topk_prior_s"] * before["box.reference_scan_bytes_per_s"] / 40e9
    )


def test_half_the_gather_rate_moves_the_gathers_alone_by_their_bytes(box, tmp_path):
    before, after = ledger(box), ledger(save(made(fits(gather=GATHER / 2)), tmp_path / "box2.json"))
    gathers = {"time.layer.gather_s", "time.shared_layer.gather_s", "box.gather_bytes_s", "box.gather_bytes_per_s"}
    # The indexer is a full layer without a shared one: both gather, and it stays.
    stays = {"time.indexer_s", "time.step_s", "time.tokens_per_s", "time.tokens_per_s_per_request"}
    found = moved(before, after)
    assert found - stays == gathers | FULL | SHARED | {"time.anchor.shared_layer_s"} | (STEP - stays)
    # 4 requests x 2,048 records of 656 B: at 1 TB/s instead of 2
    assert after["time.shared_layer.gather_s"] - before["time.shared_layer.gather_s"] == pytest.approx(
        4 * 2048 * 656 / 2e12
    )
    # The anchor's layers gather as much: nothing of it is growth.
    assert after["time.step_s"] == pytest.approx(before["time.step_s"], rel=1e-9)
    assert after["time.indexer_s"] == pytest.approx(before["time.indexer_s"], rel=1e-9)


def test_a_profile_stands_beside_the_prior_marks_its_rows_and_leaves_the_rest(box):
    plain, found = ledger(), ledger(box)
    for key in ("layer.bytes", "layer.topk", "layer.gather", "shared_layer.gather", "full_layer", "attention"):
        assert found[f"time.{key}_prior_s"] == pytest.approx(plain[f"time.{key}_s"]), key
        assert f"time.{key}_prior_s" not in plain
    for key in ("layer.bytes_s", "layer.topk_s", "layer.gather_s", "shared_layer.gather_s"):
        source = found.entries[f"time.{key}"].source
        assert (source.kind, source.date) == ("measured", "2026-11-20")
        assert source.ref == "profile box: NVIDIA H200, driver 580.65.06"
    untouched = {"time.weights_s", "time.layer.floor_s", "time.sustained_share", "time.step_floor_s", "cell.bytes"}
    assert {key: found[key] for key in untouched} == {key: plain[key] for key in untouched}
    assert set(plain.entries) < set(found.entries)


def test_runs_of_pages_follow_the_law_of_the_box(box, tmp_path):
    straight, ones = ledger(box), ledger(box, {"mean_run_pages": 1})
    assert ones["box.run_share"] == pytest.approx(1 / 1.25)
    assert ones["time.layer.bytes_s"] == pytest.approx(1.25 * straight["time.layer.bytes_s"])
    assert "time.fragmented_share" not in ones
    lawless = ledger(save(made(fits(r_half=None)), tmp_path / "lawless.json"), {"mean_run_pages": 1})
    assert lawless["time.layer.bytes_s"] == straight["time.layer.bytes_s"]
    assert lawless["time.fragmented_share"] == 0.1
    assert lawless["time.layer.fragmented_s"] == pytest.approx(0.1 * straight["time.layer.bytes_s"])


def test_a_dumped_table_gives_its_mean_run(box, tmp_path):
    np.save(tmp_path / "table.npy", np.array([[5, 6, 7, 9], [2, 0, 0, 0]]))  # runs of 3, 1 and 1 pages
    found = ledger(box, {"block_table": str(tmp_path / "table.npy")})
    assert found["load.mean_run_pages"] == pytest.approx(5 / 3)
    assert found["box.run_share"] == pytest.approx((5 / 3) / (5 / 3 + 0.25))


def test_the_rate_is_that_of_the_batch_and_length(tmp_path):
    shapes = {(1, 65_536): 1e12, (1, 262_144): 3e12, (16, 65_536): 2e12}
    grid = tuple(
        Shape(rows=rows, tokens=tokens, order="contiguous", rate_bytes_per_s=rate, eta=None)
        for (rows, tokens), rate in shapes.items()
    )
    scattered = Shape(rows=1, tokens=65_536, order="runs-1", rate_bytes_per_s=1.0, eta=None)
    found = load_box(str(save(made(fits().model_copy(update={"shapes": (*grid, scattered)})), tmp_path / "a.json")))
    assert found.straight_bytes_per_s(1, 131_072) == pytest.approx(2e12)  # half way in the logarithm
    assert found.straight_bytes_per_s(4, 65_536) == pytest.approx(1.5e12)
    assert found.straight_bytes_per_s(4, 131_072) == pytest.approx(2e12)
    assert found.straight_bytes_per_s(1, 1) == 1e12
    assert found.straight_bytes_per_s(1000, 10**6) == 2e12  # beyond the grid its edge stays
    assert [found.covers(*place) for place in ((4, 131_072), (17, 131_072), (1, 262_145))] == [True, False, False]


@pytest.mark.parametrize(
    ("change", "asked", "said"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, {}, "is of NVIDIA H100 80GB HBM3, not of H200"),
        ({}, {"observed": {"driver": "570.1"}}, "driver 580.65.06, the server has 570.1"),
        ({"span_bytes": 8 << 30}, {}, "scattered pages may cost less than measured"),
        ({"span_bytes": 1 << 20}, {}, "scattered pages may cost more than measured"),
        ({}, {"load": {"context": 1024}}, "measured no reads of 4 x 1,024 tokens"),
    ],
)
def test_what_differs_is_said(tmp_path, change, asked, said):
    found = ledger(save(made(fits(), **change), tmp_path / "box.json"), **asked)
    assert [warning for warning in found.warnings if said in warning]


def test_the_box_itself_is_nothing_to_warn_of(box):
    plain, found = ledger(), ledger(box, observed={"driver": "580.65.06"})
    span = found["pool.tokens"] * 132
    assert span / 2 < 150 << 20 < span * 2, "the made-up span is no longer that of the pool"
    assert found.warnings == plain.warnings


def test_what_a_profile_does_not_hold_stays_the_tables(tmp_path):
    nothing = Fits(ceiling_bytes_per_s=None, run_length=None, shapes=(), scans=(), gathers=())
    plain, found = ledger(), ledger(save(made(nothing), tmp_path / "box.json"))
    assert {key: found[key] for key in plain.entries} == {key: entry.value for key, entry in plain.entries.items()}
    for said in ("no paged reads", "no row scan", "no gather"):
        assert any(said in warning for warning in found.warnings)


def test_the_reference_of_every_gpu_is_one_processors_row_scan():
    # 8 B over 0.178-0.220 ns a token (separated scores): github.com/ai-dynamo/aiconfigurator@095f58a5, glm5 top-k
    for gpu in ("H100", "H200", "B200", "B300", "GB200", "GB300"):
        rate, _ = reference_scan_bytes_per_s(machine_of(gpu))
        assert 8 / 0.225e-9 < rate < 8 / 0.175e-9


def test_a_cpus_profile_an_edited_one_and_none_are_refused(box, tmp_path):
    of_cpu = save(made(fits(), kind="cpu", name="some CPU", peak_bytes_per_s=None), tmp_path / "cpu.json")
    edited = tmp_path / "edited.json"
    content = json.loads(box.read_text())
    content["fits"]["scans"][0]["bytes_per_s"] = 1.0
    edited.write_text(json.dumps(content))
    for path, said in ((of_cpu, "no other memory"), (edited, "edited or damaged"), (tmp_path / "none.json", "No such")):
        with pytest.raises(BadInput, match=said):
            ledger(path)
        with pytest.raises(BadInput, match=said):
            ledger(path, load={"context": None, "measured_step": None, "batch": 1})


def test_both_ways_to_state_the_run_are_refused():
    with pytest.raises(ValueError, match="not both"):
        ledger(load={"mean_run_pages": 2, "block_table": "a.npy"})


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 NVL", "H100-NVL"), ("NVIDIA GB300", "GB300"), ("RTX 4090", None)],
)
def test_the_drivers_name_is_found_in_the_catalog(driver_name, name):
    assert catalog_name(driver_name) == name


def test_the_command_takes_a_profile_and_names_the_option_of_a_bad_one(box, tmp_path):
    asked = ["--model", "GLM-5.2-FP8", "--gpu", "H200", "--tp", "8", "--engine", "sglang@0.5.14", "--context", "128Ki"]
    command = [sys.executable, "-m", "dsa_ledger", "estimate", *asked, "--format", "json", "--profile"]
    good = subprocess.run([*command, str(box)], capture_output=True, text=True, check=True)
    assert '"time.layer.topk_prior_s"' in good.stdout
    bad = subprocess.run([*command, str(tmp_path / "none.json")], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("bad input: profile (--profile): ")
