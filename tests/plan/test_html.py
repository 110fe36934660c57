"""The pages: self-contained and escaped by their text, and looked at by a real browser where one is installed."""

from __future__ import annotations

import html.parser
import re
from typing import TYPE_CHECKING, Any

import pytest
from browser import Browser, chromium
from hypothesis import given
from hypothesis import strategies as st

from dsa_ledger import Scenario, estimate
from dsa_ledger.catalog import load_gpu, load_model
from dsa_ledger.cli import main
from dsa_ledger.picture import Scale, line, scale
from dsa_ledger.render import ledger_text
from dsa_ledger.render.html import Series, chart, page, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "<script>document.title='ran'</script><img src=http://127.0.0.1:9/x onerror=\"document.title='ran'\">"
COMMANDS = {
    "estimate": ["estimate", "glm52-8xh200-fp8"],
    "stages": ["estimate", "glm52-16xh100-pp2"],
    "explain": ["explain", "pool.tokens", "glm52-8xh200-fp8"],
    "compare": ["compare", "pr30531-main", "pr30531-pr"],
    "matrix": ["compare", "glm52-8xh200-fp8", "--engine-matrix", "--engines", "sglang@0.5.22,sglang@0.5.23"],
    "answers": ["plan", "glm53-8xh200-vllm-1m", "--largest-context", "--safe-chunk"],
    "ranking": ["plan", "glm52-8xh200-fp8", "--machines", "8xH200", "--top", "3"],
    "nothing": ["plan", "glm52-8xh200-fp8", "--machines", "2xH100"],
    "machines": ["plan", "glm52-8xh200-fp8", "--smallest-machine"],
    "demand": ["plan", "glm52-8xh200-fp8", "--price-per-gpu-hour", "2", "--accepted", "2"],
    "sweep": ["sweep", "glm52-8xh200-fp8", "--over", "context=8Ki:64Ki:8Ki", "--over", "batch=1,4"],
    "gains": ["plan", "glm52-8xh200-fp8", "--changes"],
    "layers": ["layers", "zai-org/GLM-5.2"],
    "models": ["models"],
}


class Reader(html.parser.HTMLParser):
    """Collects tags, what they point to, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in {"meta", "polyline", "polygon", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def hostile_page() -> str:
    model = load_model("zai-org/GLM-5.3", {}).model_copy(update={"name": HOSTILE})
    gpu = load_gpu("H200").model_copy(update={"name": HOSTILE})
    base = {"title": HOSTILE, "engine": "sglang@0.5.23", "sharding": {"tp": 8}, "load": {"context": 1000}}
    scenario = Scenario.model_validate(base | {"model": model, "gpu": gpu})
    return ledger_text(scenario, estimate(scenario), "html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Write each command's page once."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, arguments in COMMANDS.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(printed(arguments), encoding="utf-8")
    found["hostile"] = folder / "hostile.html"
    found["hostile"].write_text(hostile_page(), encoding="utf-8")
    return found


def printed(arguments: list[str]) -> str:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as left:
        main([*arguments, "--format", "html"])
    assert left.value.code in (0, 3)
    return out.getvalue()


def test_a_log_and_the_profiles_have_pages_too(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("[2026-08-14 10:00:01 TP0] KV Cache is allocated. #tokens: 2574848, KV size: 132.43 GB\n")
    asked = ["--model", "nvidia/GLM-5.2-NVFP4", "--gpu", "GB300", "--tp", "4", "--engine", "sglang@0.5.17"]
    for arguments in (["audit", str(log), *asked], ["profiles", "list"]):
        text = printed(arguments)
        assert text.startswith("<!DOCTYPE html>")
        assert read(text).tags >= {"html", "body", "h1"}


@pytest.mark.parametrize("name", [*COMMANDS, "hostile"])
def test_a_page_is_self_contained_small_and_well_formed(pages, name):
    text = pages[name].read_text(encoding="utf-8")
    reader = read(text)
    assert reader.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    assert not [key for key, _ in reader.attributes if key in {"src", "href"} or key.startswith("on")]
    assert len(text.encode()) < 6_000_000
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe-eval" not in text
    assert "url(" not in text


def test_a_page_of_one_ledger_is_no_megabyte(pages):
    assert len(pages["estimate"].read_bytes()) < 700_000


def test_a_pipeline_has_one_bar_of_memory_and_a_comparison_says_what_it_compares(pages):
    text = pages["ranking"].read_text(encoding="utf-8")
    assert text.count('<div class="bar"') == 3, "one for each of three deployments, of the fullest stage"
    text = pages["compare"].read_text(encoding="utf-8")
    assert "<h1>Compared: engine.version: 0.5.17 | 0.5.18</h1>" in text
    assert ">107.76 GiB</td>" in text


def test_a_sweep_says_what_varies_and_gives_reasons_by_number():
    text = printed(
        ["sweep", "glm52-8xh200-fp8", "--set", "load.new_tokens=1", "--over", "tp=4,8", "--over", "batch=1,400"]
    )
    assert "<h1>Sweep of zai-org/GLM-5.2-FP8 over sharding.tp (2 values), load.batch (2 values)</h1>" in text
    assert ">no (1)</td>" in text
    assert "<li>(1) the weights" in text


def test_lists_and_words_are_swept_on_a_page_too():
    over = ["--over", "features=none,hicache", "--over", "kv-dtype=bf16,fp8_e4m3", "--over", "tp=8,16"]
    text = printed(["sweep", "glm52-8xh200-fp8", *over])
    assert "features hicache, kv_dtype bf16" in text
    assert ">none</td>" in text


def test_the_same_question_gives_the_same_bytes(pages):
    assert printed(COMMANDS["estimate"]) == pages["estimate"].read_text(encoding="utf-8")


@given(st.text(max_size=60))
def test_no_text_becomes_markup(text):
    """Any text shown in a page is read back as text: it opens no tag and ends none."""
    reader = read(page(text, table([{text or "a": text}]), chart(text, [Series(text, [(1, 1), (2, 2)])], str, str)))
    plain = read(page("a", table([{"a": "a"}]), chart("a", [Series("a", [(1, 1), (2, 2)])], str, str)))
    assert reader.tags == plain.tags
    assert {name for name, _ in reader.attributes} == {name for name, _ in plain.attributes}


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1e9)), min_size=1, max_size=9), st.booleans(), st.booleans())
def test_every_point_lies_in_the_picture(points, log_x, log_y):
    """Whatever the values, a line stays within its box, and ticks stand where their values are."""
    drawn = [(x, max(y, 1.0)) for x, y in points] if log_y else points
    across = scale([x for x, _ in drawn], logarithmic=log_x)
    up = scale([y for _, y in drawn], logarithmic=log_y)
    numbers = [float(part) for part in re.split("[ ,]", line(drawn, across, up))]
    assert all(0 <= number <= 100 for number in numbers)
    assert all(0 <= across.place(tick) <= 100 for tick in across.ticks())
    assert len(across.ticks()) <= 12


def test_ticks_are_round_and_in_place():
    assert Scale(1024, 1 << 20, True).ticks() == [1 << power for power in (10, 12, 14, 16, 18, 20)]  # noqa: FBT003 - logarithmic
    assert Scale(0, 0.05, False).place(0.025) == 50  # noqa: FBT003 - linear
    assert Scale(0, 9, False).ticks() == [0, 2, 4, 6, 8]  # noqa: FBT003 - linear


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium: install Debian's chromium package")
    opened = Browser(program)
    yield opened
    opened.close()


# The smallest text that is drawn, in CSS pixels; empty boxes and what is folded away are not drawn.
SMALLEST = """Math.min(...[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
[...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => parseFloat(getComputedStyle(e).fontSize)))"""
CONTRAST = """(() => { const rgb = c => c.match(/[0-9.]+/g).slice(0, 3).map(v => { v /= 255;
return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
const light = c => { const [r, g, b] = rgb(c); return .2126 * r + .7152 * g + .0722 * b; };
const back = light(getComputedStyle(document.body).backgroundColor);
return Math.min(...[...document.querySelectorAll('h1,h2,p,li,th,td,code,summary,span,figcaption')]
.filter(e => e.checkVisibility()).map(e => { const ink = light(getComputedStyle(e).color);
return (Math.max(ink, back) + .05) / (Math.min(ink, back) + .05); })); })()"""


@pytest.mark.parametrize("name", [*COMMANDS, "hostile"])
@pytest.mark.parametrize(("width", "dark"), [(360, False), (1440, True)])
def test_a_browser_shows_it_without_complaint(browser, pages, name, width, dark):
    browser.said.clear()
    browser.asked.clear()
    browser.show(pages[name], width, dark=dark)
    assert browser.value("document.title") != "ran"
    assert browser.said == []
    assert browser.asked == [pages[name].as_uri()]
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(SMALLEST) >= 12
    assert browser.value(CONTRAST) >= 4.5


# The right end of what is drawn, but for what scrolls in a box of its own.
OFF_SCREEN = """[...document.querySelectorAll('td,.plot span,.key li,p,h1,h2')].filter(e => e.checkVisibility() &&
e.getBoundingClientRect().width && (e.getBoundingClientRect().right > innerWidth + 8 ||
e.getBoundingClientRect().left < 0)).map(e => e.textContent)"""


@pytest.mark.parametrize("name", ["ranking", "answers", "compare", "machines", "sweep", "gains"])
def test_on_a_phone_nothing_lies_off_the_screen(browser, pages, name):
    """Each cell stands in a line of its own with its column's name; labels of an axis stay within the page."""
    browser.show(pages[name], 360)
    assert browser.value(OFF_SCREEN) == []


@pytest.mark.parametrize("name", ["explain", "matrix", "demand"])
def test_a_page_of_text_keeps_its_columns_and_scrolls_in_its_box(browser, pages, name):
    browser.show(pages[name], 360)
    assert browser.value("getComputedStyle(document.querySelector('pre')).whiteSpace") == "pre"
    assert browser.value("document.querySelector('pre').scrollWidth > document.querySelector('pre').clientWidth")


def test_the_browser_would_see_what_it_must_not(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        f"<title>x</title>{HOSTILE}<script>console.error('seen')</script><p style='width:999px;font-size:6px'>a"
    )
    browser.said.clear()
    browser.asked.clear()
    browser.show(bad, 360)
    assert browser.value("document.title") == "ran"
    assert any("seen" in text for text in browser.said)
    assert len(browser.asked) > 1
    assert browser.value("document.documentElement.scrollWidth") > 360
    assert browser.value(SMALLEST) == 6


def test_a_row_opens_down_to_its_sources(browser, pages):
    browser.show(pages["estimate"], 1440)
    shut: Any = browser.value("document.querySelectorAll('details pre')[0].checkVisibility()")
    browser.value("document.querySelector('details').open = true")
    assert not shut
    assert browser.value("document.querySelectorAll('details pre')[0].checkVisibility()")
