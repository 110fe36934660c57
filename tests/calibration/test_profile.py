"""Profile files: whole or not there, sealed, merged only where machine and protocol are the same."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import pathlib
import stat

import made_up
import pytest

from calib import compare
from calib import profile as files
from calib.fits import fits_of
from calib.profile import Case, Profile, Protocol, State
from dsa_ledger.errors import BadInput


def case(key: str = "grid/read_pages/contiguous/b1/L4096", *samples: float, **changes: object) -> Case:
    given = {
        "key": key,
        **dict(zip(("group", "kernel", "order"), key.split("/"), strict=False)),
        "rows": 1,
        "tokens": 4096,
        "read_bytes": 540_672,
        "write_bytes": 0,
        "reuse_bytes": 2**30,
        "fragmentation": {"mean_run_pages": 64.0},
        "verified": True,
        "samples_s": samples or (1.0e-6, 1.1e-6, 1.2e-6),
    }
    return Case.model_validate(given | changes)


def profile(*cases: Case, **changes: object) -> Profile:
    cases = cases or (case(),)
    given = {
        "created": "2026-01-02T03:04:05+00:00",
        "hardware": made_up.hardware(),
        "software": made_up.software(),
        "protocol": Protocol(
            quick=True,
            pool_bytes=10**9,
            tensors=21,
            span_bytes=10**7,
            replays=3,
            free_fraction=0.85,
            seed=1,
            block_table_sha256="",
        ),
        "before": State(),
        "after": State(sm_mhz=1980),
        "drift": 0.01,
        "cases": cases,
        "fits": fits_of(cases, made_up.PEAK),
        "warnings": ("cold",),
    }
    return Profile.model_validate(given | changes)


def test_a_profile_survives_the_round_trip(tmp_path):
    saved = profile(case(), case("scan/scan_rows/contiguous/b1/L8"))
    path = files.save(saved, tmp_path / "box.json")
    assert files.load(path) == saved
    assert files.load(path).cases[0].summary.median_s == pytest.approx(1.1e-6)
    assert files.load(path).cases[0].rate_bytes_per_s == pytest.approx(540_672 / 1.1e-6)


def test_a_profile_from_before_a_field_was_added_is_still_whole(tmp_path):
    path = files.save(profile(), tmp_path / "old.json")
    content = json.loads(path.read_text())
    del content["seal"], content["absent"]
    text = json.dumps(content, sort_keys=True)
    path.write_text(json.dumps({"seal": hashlib.sha256(text.encode()).hexdigest(), **content}))
    assert files.load(path) == profile()


def test_in_a_folder_a_profile_has_its_boxs_name(tmp_path):
    assert files.save(profile(), tmp_path) == tmp_path / "nvidia-h200-gpu-0001.json"


def test_nothing_but_the_profile_is_left(tmp_path):
    files.save(profile(), tmp_path / "box.json")
    files.save(profile(), tmp_path / "box.json")
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, failure):
    path = files.save(profile(), tmp_path / "box.json")
    before = path.read_bytes()

    def broken(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises((BadInput, KeyboardInterrupt)):
        files.save(profile(drift=0.02), path)
    assert [found.name for found in tmp_path.iterdir()] == ["box.json"]
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"out: .*a place that can be written"):
        files.save(profile(), tmp_path / "absent" / "box.json")


@pytest.mark.parametrize("field", ["drift", "created", "warnings", "cases"])
def test_an_edited_file_is_found(tmp_path, field):
    path = files.save(profile(), tmp_path / "box.json")
    content = json.loads(path.read_text())
    if field == "cases":
        content["cases"][0]["samples_s"][0] = 0.9e-6
    else:
        content[field] = {"drift": 0.0, "created": "2027", "warnings": []}[field]
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="edited or damaged"):
        files.load(path)


@pytest.mark.parametrize("cut", [1, 100, 2000])
def test_a_file_cut_short_is_found(tmp_path, cut):
    path = files.save(profile(), tmp_path / "box.json")
    path.write_bytes(path.read_bytes()[:-cut])
    if cut == 1:  # the final line feed alone is missing
        files.load(path)
        return
    with pytest.raises(BadInput, match="damaged"):
        files.load(path)


def test_every_wrong_field_is_named_at_once(tmp_path):
    path = files.save(profile(), tmp_path / "box.json")
    content = json.loads(path.read_text())
    content["hardware"]["units"] = 0
    content["cases"][0]["samples_s"] = [1.0, -1.0]
    content["schema_version"] = 2
    content["spare"] = 1
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput) as bad:
        files.load(path)
    named = {fault.path for fault in bad.value.faults}
    assert named == {
        "profile.hardware.units",
        "profile.cases.0.samples_s",
        "profile.schema_version",
        "profile.spare",
    }


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "as `dsa-ledger calibrate` writes"), ("x", "damaged"), (None, "No such")]
)
def test_a_file_that_is_no_profile_is_one_line(tmp_path, text, said):
    path = tmp_path / "box.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=said):
        files.load(path)


def test_runs_of_one_box_merge_into_all_their_samples():
    first = profile(case("a/read_pages/contiguous", 1.0, 2.0), case("b/read_pages/contiguous", 5.0))
    second = profile(
        case("a/read_pages/contiguous", 3.0), case("c/read_pages/contiguous", 7.0), drift=-0.02, warnings=("noisy",)
    )
    merged = compare.merge([first, second])
    assert {one.key[0]: one.samples_s for one in merged.cases} == {"a": (1.0, 2.0, 3.0), "b": (5.0,), "c": (7.0,)}
    assert merged.merged_from == (first.seal, second.seal)
    assert merged.drift == -0.02
    assert merged.warnings == ("cold", "noisy")


def test_merging_fits_again():
    halved = compare.merge(
        [profile(case("grid/read_pages/contiguous", 2.0e-6)), profile(case("grid/read_pages/contiguous", 1.0e-6))]
    )
    assert halved.fits.shapes[0].rate_bytes_per_s == pytest.approx(540_672 / 1.5e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hardware": made_up.hardware(identity="GPU-0002")}, "hardware.identity: \"'GPU-0001' and 'GPU-0002'\""),
        ({"software": made_up.software(driver="2")}, "software.driver"),
        ({"protocol": {**vars(profile().protocol), "tensors": 1}}, "protocol.tensors"),
    ],
)
def test_different_machines_and_protocols_are_not_merged(change, named):
    with pytest.raises(BadInput, match="not merged") as bad:
        compare.merge([profile(), profile(drift=0.0, **change)])
    assert len(bad.value.faults) == 1
    assert named in str(bad.value)


def test_a_run_is_not_merged_with_itself():
    with pytest.raises(BadInput, match="given twice"):
        compare.merge([profile(), profile()])


def test_a_comparison_gives_ratios_and_tells_noise_from_change():
    first = profile(case("a/k/o", 1.0, 1.1, 1.2), case("b/k/o", 1.0, 1.0), case("only/k/o", 1.0))
    second = profile(case("a/k/o", 1.15, 1.2, 1.25), case("b/k/o", 2.0, 2.0))
    assert compare.compared(first, second) == [
        {"case": "a/k/o", "first_s": 1.1, "second_s": 1.2, "ratio": pytest.approx(1.2 / 1.1), "within_noise": True},
        {"case": "b/k/o", "first_s": 1.0, "second_s": 2.0, "ratio": 2.0, "within_noise": False},
    ]


def test_a_cpus_profile_says_that_no_gpu_estimate_uses_it():
    cpu = profile(hardware=made_up.hardware(kind="cpu", peak_bytes_per_s=None))
    assert "never used for a GPU estimate" in cpu.label
    assert "never" not in profile().label


def test_an_estimate_is_given_no_cpus_profile(tmp_path):
    cpu = files.save(profile(hardware=made_up.hardware(kind="cpu", peak_bytes_per_s=None)), tmp_path / "cpu.json")
    gpu = files.save(profile(), tmp_path / "gpu.json")
    assert files.load_for_estimate(gpu) == profile()
    with pytest.raises(BadInput, match=r"profile\.hardware\.kind: 'cpu': expected gpu"):
        files.load_for_estimate(cpu)


def test_what_was_not_measured_is_not_guessed():
    fits = fits_of((case(),), None)
    assert fits.ceiling_bytes_per_s is None
    assert fits.run_length is None
    assert fits.scans == ()
    assert fits.shapes[0].eta is None


def test_a_profile_is_read_briefly_by_the_seal_of_its_text_or_of_its_content(tmp_path):
    saved = profile(case(), case("scan/scan_rows/contiguous/b1/L8"))
    path = files.save(saved, tmp_path / "box.json")
    brief = files.load(path, briefly=True)
    assert brief == saved.model_copy(update={"cases": saved.cases[:1]})
    text = path.read_text(encoding="utf-8")
    path.write_text(json.dumps(json.loads(text)), encoding="utf-8")  # other white space, the same content
    assert files.load(path, briefly=True) == brief
    assert files.load(path) == saved
    for before, after in (('"quick": true', '"quick": false'), ("1.2e-06", "1.3e-06"), ('"seal": "', '"seal": "0')):
        assert before in text
        path.write_text(text.replace(before, after), encoding="utf-8")
        for briefly in (True, False) if "seal" not in before else (False,):
            with pytest.raises(BadInput, match="edited or damaged"):
                files.load(path, briefly=briefly)


def test_runs_that_end_together_all_stay(tmp_path):
    """Rule: ten processes that save runs of one box at the same moment leave ten files."""
    ready = multiprocessing.get_context("fork").Barrier(10)

    def run(number: int) -> None:
        one = profile(created=f"2026-01-02T03:04:{number:02}+00:00")
        ready.wait()
        files.save_in(one, tmp_path)

    processes = [multiprocessing.get_context("fork").Process(target=run, args=(number,)) for number in range(10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    kept = [files.load(path) for path in tmp_path.iterdir()]
    assert len({one.created for one in kept}) == len(kept) == 10


def test_a_folder_that_has_gone_is_a_fault_and_no_file_of_its_name(tmp_path):
    with pytest.raises(BadInput, match="a place that can be written"):
        files.save_in(profile(), tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []


def test_without_hard_links_a_second_run_stays_as_well(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(pathlib.Path, "hardlink_to", refuse)
    names = [files.save_in(profile(), tmp_path).stem for _ in range(2)]
    assert names == ["nvidia-h200-gpu-0001", "nvidia-h200-gpu-0001-run2"]
    assert len(list(tmp_path.iterdir())) == 2


def test_who_may_read_a_profile_is_for_the_umask_to_say(tmp_path):
    before = os.umask(0o022)
    try:
        assert stat.S_IMODE(files.save(profile(), tmp_path / "box.json").stat().st_mode) == 0o644
    finally:
        os.umask(before)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000])
def test_what_is_nested_deeply_is_damaged(tmp_path, text):
    path = tmp_path / "deep.json"
    path.write_text(text, encoding="utf-8")
    for briefly in (True, False):
        with pytest.raises(BadInput, match="this one is damaged"):
            files.load(path, briefly=briefly)


def test_a_pipe_and_a_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(BadInput, match="a file of at most"):
            files.load(tmp_path / f"{name}.json")
