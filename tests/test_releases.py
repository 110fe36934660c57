"""Whose rules a version gets: its own, the older neighbour's with a warning, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from dsa_ledger import BadInput, NotModelled
from dsa_ledger.engines.releases import READ, Release, key_of, releases, resolve, sort_key
from dsa_ledger.engines.rules import Rule, engine_source, since
from dsa_ledger.schema import Engine


def resolved(text: str) -> tuple[Release, list[str]]:
    return resolve(Engine.model_validate(text))


NUMBER = st.integers(0, 40)
VERSIONS = st.builds(
    lambda major, minor, patch, suffix: f"{major}.{minor}.{patch}{suffix}",
    NUMBER,
    NUMBER,
    NUMBER,
    st.sampled_from(["", "rc0", "rc1", "rc12"]),
)


@given(VERSIONS, VERSIONS)
def test_order_is_that_of_packaging(first, second):
    """Versions and release candidates are ordered as the packaging library orders them."""
    ours = (key_of(first) > key_of(second)) - (key_of(first) < key_of(second))
    theirs = (Version(first) > Version(second)) - (Version(first) < Version(second))
    assert ours == theirs


@given(NUMBER, NUMBER, NUMBER, st.integers(0, 99))
def test_a_post_release_counts_as_its_release(major, minor, patch, post):
    """A post-release has the place of its release."""
    assert sort_key(f"{major}.{minor}.{patch}.post{post}") == sort_key(f"{major}.{minor}.{patch}")


@given(st.text(max_size=40))
def test_any_text_has_a_place_or_none(text):
    """Any text has a place in the order or is no version; it never fails."""
    key = sort_key(text)
    assert key is None or len(key) == 4


@pytest.mark.parametrize("engine", READ)
def test_the_read_releases_are_in_order(engine):
    keys = [key for key, _ in releases(engine)]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("name", [f"{engine}@{version}" for engine, versions in READ.items() for version in versions])
def test_a_read_release_has_its_own_rules(name):
    release, warnings = resolved(name)
    assert release.label == name
    assert release.rules == release.version
    assert warnings == []


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("sglang@0.5.10.post1", "0.5.10"),
        ("sglang@0.5.15.post1", "0.5.15"),
        ("sglang@v0.5.23", "0.5.23"),
        ("SGLang@0.5.18", "0.5.18"),
        ("vllm@0.33", "0.33.0"),
        ("trtllm@1.3.0rc23", "1.3.0rc23"),
    ],
)
def test_spellings_of_a_read_release(name, rules):
    release, warnings = resolved(name)
    assert (release.rules, warnings) == (rules, [])


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("sglang@0.5.11", "0.5.10"),
        ("sglang@0.5.13.post1", "0.5.10"),
        ("vllm@0.22.1", "0.22.0"),
        ("vllm@0.24.1rc1", "0.24.0"),
        ("tensorrt-llm@1.3.0", "1.3.0rc25"),
        ("tensorrt-llm@1.3.0rc3", "1.2.1"),
    ],
)
def test_a_release_between_has_the_older_ones_rules_and_a_warning(name, rules):
    release, (warning,) = resolved(name)
    assert release.rules == rules
    assert rules in warning
    assert name.partition("@")[2] in warning


@pytest.mark.parametrize(
    "name",
    [
        "sglang@0.4.0",
        "sglang@0.5.8",
        "sglang@0.5.9rc1",
        "sglang@0.5.24",
        "sglang@1.0",
        "vllm@0.18.0",
        "vllm@0.34.0",
        "tensorrt-llm@1.4.0",
        "tensorrt-llm@1.0.0",
    ],
)
def test_outside_what_was_read_nothing_is_guessed(name):
    with pytest.raises(NotModelled) as refused:
        resolved(name)
    assert name.partition("@")[2] in str(refused.value)


@pytest.mark.parametrize("engine", READ)
def test_without_a_version_the_newest_is_meant_and_said(engine):
    release, (warning,) = resolved(engine)
    assert release.version == list(READ[engine])[-1]
    assert f"{engine}@VERSION" in warning


@pytest.mark.parametrize(
    "text", ["latest", "main", "0", "0.5.x", "1.2.3.4.5", "0.5.23-beta", "\u0660.\u0665.\u0669", "0.5.9 0.5.10"]
)
def test_what_is_no_version_is_bad_input(text):
    with pytest.raises(BadInput, match=r"engine\.version"):
        resolve(Engine(name="sglang", version=text))


def test_a_rule_holds_from_its_first_release():
    rule = Rule("sglang", "a feature", ("0.5.10", "old", "a.py"), ("0.5.17", "new", "b.py"))
    values = {
        version: rule.of(resolved(f"sglang@{version}")[0]) for version in ("0.5.10", "0.5.16", "0.5.17", "0.5.23")
    }
    assert values == {"0.5.10": "old", "0.5.16": "old", "0.5.17": "new", "0.5.23": "new"}
    fact = rule.at(resolved("sglang@0.5.23")[0])
    assert (fact.source.ref, fact.source.date) == ("sglang 0.5.17: b.py", "2026-08-08")
    with pytest.raises(NotModelled, match=r"a feature \(sglang@0\.5\.9\)"):
        rule.of(resolved("sglang@0.5.9")[0])


def test_a_release_between_is_judged_by_the_rules_it_gets():
    between, _ = resolved("sglang@0.5.13")
    assert since(between, "0.5.10")
    assert not since(between, "0.5.14")
    assert engine_source(between, "x.py").ref == "sglang 0.5.10: x.py"
