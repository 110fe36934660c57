"""`estimate --fleet`: each group at the pace of its slowest rank, and what is said where that is not known."""

from __future__ import annotations

import json

import pytest
from made_up_fleet import few, hosts, profile

from calib.profile import Fits, save

ESTIMATE = (
    "estimate", "--model", "zai-org/GLM-5.2-FP8", "--tp", "8", "--engine", "sglang@0.5.23", "--context", "128Ki",
)  # fmt: skip
TWO = ("--tp", "2")  # which does not fit: the ledger is printed all the same


def entries(answer, *words: object) -> dict[str, object]:
    code = 3 if words[:2] == TWO else 0
    found = json.loads(answer(*ESTIMATE, "--gpu", "H200", "--format", "json", *words, code=code)[0])
    return {entry["key"]: entry["value"] for entry in found["entries"]} | {"warnings": found["warnings"]}


PACE = ("time.attention_s", "time.step_low_s", "time.step_high_s")


def test_an_estimate_gives_each_group_the_pace_of_its_slowest_rank(answer, tmp_path):
    """Rule: a group's keys are those of `--profile` of its slowest rank, the plain keys those of the slowest group."""
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    hosts(boxes, {"a": [1, 0.8, 1, 1], "b": [1, 1, 0.6, 1]})
    lines = ["left,0,,a-0", "left,1,,a-1", "right,0,,b-2", "right,1,,b-3", "third,0,,a-2", "third,1,,b-1"]
    ranks.write_text("\n".join(["group,rank,host,uuid", *lines]), encoding="utf-8")
    found = entries(answer, *TWO, "--fleet", boxes, "--ranks", ranks)
    shown = [key for key in found if key.startswith("group[")]
    assert shown == [f"group[{name}].{key}" for name in ("right", "left", "third") for key in PACE]
    for name, slowest in (("left", "a-a-1"), ("right", "b-b-2"), ("third", "a-a-2")):
        alone = entries(answer, *TWO, "--profile", boxes / f"{slowest}.json")
        assert [found[f"group[{name}].{key}"] for key in PACE] == [alone[key] for key in PACE]
        if name == "right":
            assert {key: found[key] for key in alone if key != "warnings"} == {
                key: value for key, value in alone.items() if key != "warnings"
            }
    assert "group right, the slowest of 3: its rank 0, profile b-b-2.json, reads at 60.0%" in str(found["warnings"])


def test_slowest_is_who_takes_longest_under_the_load(answer, tmp_path):
    """Rule: the step decides, not the reads alone: one slow row scan costs more at 128Ki than reads at 99%."""
    few(tmp_path, 8)
    slow = profile(50, host="node000")
    law = {"t0_s": 1e-6, "s_per_token": 1e-9, "covariance": ((0, 0), (0, 0)), "residuals": ()}
    scan = {"kernel": "scan_rows", "bytes_per_s": 1e9, **law}
    fits = Fits.model_validate(slow.fits.model_dump() | {"scans": [scan]})
    save(slow.model_copy(update={"fits": fits}), tmp_path)
    assert "its rank GPU-00000050" in str(entries(answer, "--fleet", tmp_path)["warnings"])


def test_without_a_map_a_host_is_a_group_unless_a_server_spans_several(answer, tmp_path):
    hosts(tmp_path, {"a": [1, 1, 0.9], "b": [0.8, 1]})
    save(profile(91, 0.1, hardware={"name": "NVIDIA B200"}), tmp_path)
    one = entries(answer, "--fleet", tmp_path)
    assert [key for key in one if key.startswith("group[")] == [f"group[all hosts].{key}" for key in PACE]
    assert "nvidia-b200" not in str(one["warnings"])
    assert "'NVIDIA B200': expected a profile of H200" in str(one["warnings"])
    two = entries(answer, *TWO, "--fleet", tmp_path)
    assert [key for key in two if key.endswith("attention_s") and "[" in key] == [
        "group[b].time.attention_s",
        "group[a].time.attention_s",
    ]
    shown = answer(*ESTIMATE, "--gpu", "H200", *TWO, "--fleet", tmp_path, code=3)[0]
    assert shown.index("group[b].time.step_high_s") < shown.index("group[a].time.step_high_s")
    assert "profiles of H100" in answer(*ESTIMATE, "--gpu", "H100", "--fleet", tmp_path, code=2)[1]


def test_a_map_of_other_groups_than_the_scenarios_is_said(answer, tmp_path):
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    hosts(boxes, {"a": [1, 1, 1]})
    ranks.write_text("group,rank,host,uuid\ng,0,,a-0\ng,1,,a-9\n", encoding="utf-8")
    said = str(entries(answer, "--fleet", boxes, "--ranks", ranks)["warnings"])
    assert "group g has 1 rank with a profile, a server of this scenario 8" in said
    assert "left out: ranks line 3: 'a-9': expected the whole UUID of a profile" in said
    ranks.write_text("group,rank,host,uuid\n", encoding="utf-8")
    for words, wanted in (
        (("--fleet", boxes, "--ranks", ranks), "at least one row"),
        (("--ranks", ranks), "--fleet DIR beside it"),
        (("--fleet", boxes, "--profile", boxes / "a-a-0.json"), "none beside --fleet"),
    ):
        assert wanted in answer(*ESTIMATE, "--gpu", "H200", *words, code=2)[1]


def test_slices_other_models_and_unknown_ones_are_left_out_by_name(answer, tmp_path):
    """Rule: a GPU that the catalog does not know is not the scenario's, nor is a slice of one that is."""
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    hosts(boxes, {"a": [1, 0.99]})
    slices = {"mig": True, "memory_bytes": 18 * 2**30}
    for number, hardware in enumerate(({"name": "NVIDIA GeForce RTX 4090"}, {"name": "NVIDIA B200"}, slices), 1):
        save(profile(number, 0.1, host="ws", hardware=hardware), boxes)
    said = str(entries(answer, *TWO, "--fleet", boxes)["warnings"])
    assert "pace of group a, the slowest of 1" in said
    for name in ("NVIDIA GeForce RTX 4090", "NVIDIA B200", "NVIDIA H200 (MIG, 18 GiB)"):
        assert f"'{name}': expected a profile of H200, the whole GPU" in said
    ranks.write_text("group,rank,host,uuid\ng,0,,a-0\ng,1,,a-1\ng,2,,GPU-00000002\n", encoding="utf-8")
    said = str(entries(answer, *TWO, "--fleet", boxes, "--ranks", ranks)["warnings"])
    assert "'GPU-00000002': expected a GPU of the scenario's model, this is NVIDIA B200; rank 2 is left out" in said


def test_a_gpu_given_as_a_file_has_the_profiles_of_its_name(answer, tmp_path):
    boxes, file = tmp_path / "boxes", tmp_path / "mine.toml"
    boxes.mkdir()
    hosts(boxes, {"a": [1] * 7 + [0.9]})
    lines = [
        'name = "H200"',
        "sms = 132",
        'l2_bytes = "60 MiB"',
        "compute_capability = [9, 0]",
        'hbm = { capacity_bytes = "143771 MiB", peak_bytes_per_s = "4.8 TB/s", marketing = "141 GB" }',
        'provenance = { "hbm.capacity_bytes" = { kind = "driver", ref = "a test", date = "2026-01-01" } }',
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    words = (*ESTIMATE, "--gpu", file, "--fleet", boxes, "--format", "json")
    assert "pace of group a" in str(json.loads(answer(*words)[0])["warnings"])


@pytest.mark.parametrize("engine", ["sglang@0.5.23", "vllm@0.24.0", "tensorrt-llm@1.3.0"])
def test_pipeline_stages_take_a_profile_and_a_fleet(answer, tmp_path, engine):
    """Rule: a profile's span is held against the widest stage's pool; keys of a group are the slowest stage's."""
    hosts(tmp_path, {"a": [1] * 15 + [0.9]})
    words = (*ESTIMATE, "--gpu", "H200", "--pp", "2", "--engine", engine, "--format", "json")
    alone = json.loads(answer(*words, "--profile", tmp_path / "a-a-15.json")[0])
    assert any("spread its pages over" in line for line in alone["warnings"])
    fleet = {entry["key"]: entry["value"] for entry in json.loads(answer(*words, "--fleet", tmp_path)[0])["entries"]}
    [slowest] = [entry["value"] for entry in alone["entries"] if entry["key"] == "time.attention_s"]
    assert fleet["group[a].time.attention_s"] == fleet["time.attention_s"] == slowest


def test_a_group_has_no_step_time_for_no_one_knows_whose_step_was_measured(answer, tmp_path):
    """Rule: not modelled, and said; without it two groups of unlike pace had one step."""
    hosts(tmp_path, {"a": [1] * 8, "b": [0.8] * 8})
    found = entries(answer, "--measured-step", "20ms@128Ki", "--fleet", tmp_path)
    assert [key for key in found if key.startswith("group[")] == [
        f"group[{name}].{key}" for name in "ba" for key in PACE
    ]
    assert found["time.step_s"] == 0.02
    assert "time.step_s takes its measured step as one of group b; a step of another group was not seen" in str(
        found["warnings"]
    )


def test_without_a_load_no_pace_is_claimed(answer, tmp_path):
    hosts(tmp_path, {"a": [1] * 8, "b": [0.8] * 8})
    words = (*ESTIMATE[:-2], "--gpu", "H200", "--fleet", tmp_path, "--format", "json")
    said = str(json.loads(answer(*words)[0])["warnings"])
    assert "no group is the slowest: --context" in said
    assert "at the pace of" not in said


def test_sizes_of_groups_by_host_are_said(answer, tmp_path):
    hosts(tmp_path, {"a": [1] * 8, "b": [0.9]})
    said = str(entries(answer, "--fleet", tmp_path)["warnings"])
    assert "each host is taken as one group" in said
    assert "group b has 1 rank with a profile, a server of this scenario 8" in said


def test_a_file_is_read_once_and_what_no_profile_changes_is_worked_out_once(tmp_path, monkeypatch):
    """Rule: of a thousand profiles each costs one reading and its own times, not a ledger."""
    import calib.profile
    import dsa_ledger.account
    from dsa_ledger import Scenario
    from dsa_ledger.cli_fleet import ledger_of_fleet

    hosts(tmp_path, {"a": [1, 0.99, 0.98, 0.98], "b": [1, 0.97, 0.97, 0.97]})
    read: list[str] = []
    posted: list[object] = []
    whole, post = calib.profile.from_json, dsa_ledger.account.post_load
    monkeypatch.setattr(calib.profile, "from_json", lambda text: read.append(text) or whole(text))
    monkeypatch.setattr(dsa_ledger.account, "post_load", lambda *given: posted.append(given) or post(*given))
    scenario = Scenario.model_validate(
        {
            "model": "zai-org/GLM-5.2-FP8",
            "gpu": "H200",
            "engine": "sglang@0.5.23",
            "sharding": {"tp": 4},
            "load": {"context": 4096},
        }
    )
    ledger_of_fleet(scenario, tmp_path, None)
    assert len(read) == 8
    assert len(posted) == 3, "to find the slowest of each group, for what is shown of these, and for the ledger"
