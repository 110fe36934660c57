"""A map of ranks: every row at fault is named, a GPU stands for one rank, groups are told."""

from __future__ import annotations

import json

import pytest
from made_up_fleet import few, hosts, profile

from calib.profile import save
from calib.ranks import first_lines, groups_of_hosts, size_lines

HEAD = "group,rank,host,uuid\n"


def test_the_worst_rank_of_each_group(answer, tmp_path):
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    few(boxes)
    save(profile(90, 0.7), boxes)
    ranks = tmp_path / "ranks.csv"
    lines = [f"tp{number // 3},{number},node000,GPU-{number:08}" for number in range(6)]
    ranks.write_text("\n".join(["group,rank,host,uuid", *lines, "tp1,6,node011,", "tp1,7,,GPU-none"]), encoding="utf-8")
    found = json.loads(answer("profiles", "fleet", boxes, "--ranks", ranks, "--format", "json")[0])
    assert [(row["group"], row["worst_rank"], row["ranks"], row["slow"]) for row in found["groups"]] == [
        ("tp1", "6", 4, True),
        ("tp0", "2", 3, False),
    ]
    [left] = found["left_out"]
    assert "ranks line 9: 'GPU-none'" in left
    assert "rank 7 is left out" in left
    ranks.write_text("rank,host\n", encoding="utf-8")
    assert "missing ['group', 'uuid']" in answer("profiles", "fleet", boxes, "--ranks", ranks, code=2)[1]


def test_a_gpu_or_a_rank_twice_in_a_map_is_a_fault(answer, tmp_path):
    """Rule: every row at fault is named; spaces and a byte order mark, as spreadsheets write it, are none."""
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    hosts(boxes, {"a": [1, 1, 1], "b": [1]})
    lines = ["group, rank, host, uuid", "g, 0, , a-0", "g,1,,a-1", "h,0,,a-1", "g,1,,a-2", "h,1,a,", "h,2,b,", "h,3"]
    ranks.write_text("\n".join(lines), encoding="utf-8-sig")
    found = json.loads(answer("profiles", "fleet", boxes, "--ranks", ranks, "--format", "json")[0])
    assert {row["group"]: row["ranks"] for row in found["groups"]} == {"g": 2, "h": 1}
    assert found["left_out"] == [
        "ranks line 4: 'a-1': expected a row of its own: line 3 has it; rank 0 is left out",
        "ranks line 5: 'g 1': expected a row of its own: line 3 has it; rank 1 is left out",
        "ranks line 6: 'a': expected the whole UUID of a profile, or a host with one profile; rank 1 is left out",
        "ranks line 8: '': expected the whole UUID of a profile, or a host with one profile; rank 3 is left out",
    ]


@pytest.fixture
def fleet(answer, tmp_path):
    """Return what `profiles fleet` answers to a map of hosts a (3 GPUs), b.lan and c (1 each): groups and faults."""
    boxes, ranks = tmp_path / "boxes", tmp_path / "ranks.csv"
    boxes.mkdir()
    hosts(boxes, {"a": [1, 1, 1], "b.lan": [1], "c": [0.9]})

    def ask(text: str, *words: str, code: int = 0) -> tuple[str, str]:
        ranks.write_text(text, encoding="utf-8")
        return answer("profiles", "fleet", boxes, "--ranks", ranks, *words, code=code)

    return ask


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            "g,0,c,\ng,1,,c-0\nh,0,c,\n",
            ["line 3: 'c-0': expected a row of its own", "line 4: 'c': expected a row of its"],
        ),
        ("g,0,,a-0\ng,1,a,A-0\n", ["line 3: 'A-0': expected a row of its own: line 2 has it; rank 1 is left out"]),
        ("g,0,a,a-0\ng,1,b,a-1\n", ["line 3: 'b': expected a, the host of a-1 by its profile; rank 1 is left out"]),
        ("g,0,a,a-0\n,1,a,a-1\n", ["line 3: group: absent: expected a name; the row is left out"]),
        ("g,0,a,a-0\ng,,a,a-1\n", ["line 3: rank: absent: expected a name; the row is left out"]),
        ("g,0,a,a-0\ng\x1b[31m,1,a,a-1\n", ["line 3: group: 'g\\x1b[31m': expected letters that print"]),
        ('g,0,a,a-0\ng,"1\n",a,a-1\ng,"1\n2",a,a-2\n', ["line 6: rank: '1\\n2': expected letters that print"]),
        ("g,0,a.lan,a-0\ng,1,B,b.lan-0\ng,2,c.example.com,\n\n,,,\n", []),
    ],
)
def test_a_row_at_fault_is_named_and_the_others_are_used(fleet, rows, said):
    """Rules: a GPU is one rank, however it is named; a UUID's host is the profile's, domain and case aside."""
    found = json.loads(fleet(HEAD + rows, "--format", "json")[0])
    assert len(found["left_out"]) == len(said)
    assert all(f"ranks {start}" in line for line, start in zip(found["left_out"], said, strict=True))
    lines = [row for row in rows.replace('"1\n"', "1").replace('"1\n2"', "").splitlines() if row.strip(",")]
    assert [row["ranks"] for row in found["groups"]] == [len(lines) - len(said)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group,rank,host,uuid,uuid\ng,0,a,a-0,a-1\n", "each column once; twice ['uuid']"),
        ("group,rank,host\n", "missing ['uuid']"),
        ("group\x1b[31m,rank\n", "\\x1b[31m"),
        (HEAD, "at least one row"),
        (HEAD + "g,0,,nobody\n", "ranks line 2: 'nobody': expected the whole UUID of a profile"),
    ],
)
def test_a_map_without_one_good_row_is_refused(fleet, text, said):
    assert said in fleet(text, code=2)[1]


def test_names_of_columns_count_without_case_and_spaces(fleet):
    found = json.loads(fleet(" Group ,RANK,Host , Uuid\ng,0,a,a-0\n", "--format", "json")[0])
    assert [(row["group"], row["worst_rank"]) for row in found["groups"]] == [("g", "0")]


def test_csv_of_a_map_is_its_groups(fleet):
    """Rule: CSV is one table; the other is named."""
    shown, said = fleet(HEAD + "g,0,a,a-0\nh,0,c,\n", "--format", "csv")
    lines = shown.splitlines()
    assert lines[0].startswith("group,ranks,worst_rank,slow,host,")
    assert [line.split(",")[:3] for line in lines[1:]] == [["h", "1", "0"], ["g", "1", "0"]]
    assert "the slow boxes are another table: without --ranks" in said


def test_of_many_rows_at_fault_people_see_twenty_and_programs_all(fleet):
    rows = HEAD + "g,0,a,a-0\n" + "".join(f"g,{number},,x-{number}\n" for number in range(1, 501))
    assert len(json.loads(fleet(rows, "--format", "json")[0])["left_out"]) == 500
    table = fleet(rows)[0]
    assert table.count("expected the whole UUID of a profile") == 20
    assert "480 more, which --format json lists" in table
    said = fleet(rows.replace("g,0,a,a-0\n", ""), code=2)[1]
    assert said.count("expected the whole UUID of a profile") == 20
    assert "480 more lines" in said


def boxes_of(sizes: dict[str, int], folder):
    from calib.fleet_report import read_fleet

    hosts(folder, {host: [1.0] * count for host, count in sizes.items()})
    return read_fleet(folder).boxes


def test_groups_by_host_say_what_was_assumed_and_which_are_of_another_size(tmp_path):
    groups, assumed = groups_of_hosts(boxes_of({"h1": 8, "h2": 8, "h3": 1, "h4": 16}, tmp_path), 8)
    assert {name: len(ranks) for name, ranks in groups.items()} == {"h1": 8, "h2": 8, "h3": 1, "h4": 16}
    assert assumed.startswith("each host is taken as one group")
    assert size_lines(groups, 8, 8) == [
        "group h3 has 1 rank with a profile, a server of this scenario 8",
        "group h4 has 16 ranks with a profile, a server of this scenario 8",
    ]


def test_groups_of_one_size_are_one_sentence_the_rarest_size_first(tmp_path):
    sizes = {f"h{number}": 8 for number in range(6)} | {"h6": 7}
    groups, _ = groups_of_hosts(boxes_of(sizes, tmp_path), 4)
    assert size_lines(groups, 4, 4) == [
        "group h6 has 7 ranks with a profile, a server of this scenario 4",
        "6 groups (h0, h1, h2, h3, ...) have 8 ranks with a profile, a server of this scenario 4",
    ]


def test_a_row_at_fault_takes_no_rank_from_a_good_one(fleet):
    found = json.loads(fleet("group,rank,host,uuid\ng,0,,a-0\ng,1,,a-0\ng,1,,a-1\n", "--format", "json")[0])
    assert {row["group"]: row["ranks"] for row in found["groups"]} == {"g": 2}
    assert len(found["left_out"]) == 1


def test_hosts_that_lack_a_profile_become_one_group_and_that_is_said(tmp_path):
    groups, assumed = groups_of_hosts(boxes_of({"h1": 7, "h2": 7, "h3": 7, "h4": 7}, tmp_path), 8)
    assert {name: len(ranks) for name, ranks in groups.items()} == {"all hosts": 28}
    assert "8 ranks and no host more than 7 profiles: all 28 are taken as one group" in assumed
    assert size_lines(groups, 8, 8) == ["group all hosts has 28 ranks with a profile, a server of this scenario 8"]


def test_first_lines_count_the_rest():
    assert first_lines(["a"] * 20, "more") == ["a"] * 20
    assert first_lines(["a"] * 21, "more") == [*["a"] * 20, "1 more"]
