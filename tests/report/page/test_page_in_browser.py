"""The page in a real browser: no complaint, nothing loaded, charts that can be pointed at, a table that sorts and filters by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find
from report_records import answered
from sweep_records import study

from inferometer.bench.study.library import find_study
from inferometer.report.page.page import page
from inferometer.report.study.plots import plots
from inferometer.report.study.tables import document_parts

EXECUTABLE = find()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no chromium on this machine")

SHOWN = "[...document.querySelectorAll('#cases tbody tr')].filter((row) => row.checkVisibility())"
# Labels that leave their chart or cover another.
MISPLACED = """[...document.querySelectorAll("figure svg")].flatMap((svg) => {
      const all = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
      const out = boxes.filter(([, b]) => b.left < all.left - 1 || b.right > all.right + 1
        || b.bottom > all.bottom + 1 || b.top < all.top - 1);
      const over = boxes.filter(([, a], i) => boxes.some(([, b], j) => j < i && a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 4 && b.top < a.bottom - 4));
      return [...out, ...over].map(([words]) => svg.getAttribute("aria-label") + ": " + words);
    })"""
COLUMN = SHOWN + ".map((row) => row.cells[{}].textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE is not None
    with Browser(EXECUTABLE) as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "study.html"
    path.write_text(page(study(), title="A study"), "utf-8")
    return path


def press(browser: Browser, key: str, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "")


def point(browser: Browser, selector: str, place: int = 0) -> dict[str, Any]:
    """Moves the pointer to an element, in view, and says where that is."""
    find_it = f"document.querySelectorAll({selector!r})[{place}]"
    browser.run(f"{find_it}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    # The scrolling is told at the next frame, and hides what the pointer showed.
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box: dict[str, Any] = browser.run(f"JSON.parse(JSON.stringify({find_it}.getBoundingClientRect()))")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] / 2, y=box["y"] + box["height"] / 2)
    return box


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
def test_no_complaint_nothing_loaded_and_no_sideways_scrolling(browser: Browser, file: Path, width: int, height: int, dark: bool) -> None:
    browser.open(file, width=width, height=height, dark=dark)
    assert browser.complaints == []
    assert browser.requests == [file.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) is dark
    assert browser.run("document.querySelectorAll('figure svg').length") > 20
    assert browser.run("[...document.querySelectorAll('figure svg')].every((svg) => svg.getBoundingClientRect().height > 100)")


@pytest.mark.parametrize("width", [1366, 390])
def test_no_label_leaves_its_chart_or_covers_another(browser: Browser, file: Path, width: int) -> None:
    browser.open(file, width=width)
    assert browser.run(MISPLACED) == []


def test_pointing_at_a_mark_says_its_exact_value(browser: Browser, file: Path) -> None:
    browser.open(file)
    mark = point(browser, "#batch circle")
    assert browser.run("document.getElementById('tip').checkVisibility()")
    said = browser.run("document.getElementById('tip').textContent")
    assert said.startswith("native bf16, batch 1: ")
    assert said.endswith(", 5 runs)")
    box = browser.run("JSON.parse(JSON.stringify(document.getElementById('tip').getBoundingClientRect()))")
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1366
    # Ten pixels beside a mark it is still meant, by a finger too.
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=mark["x"] + mark["width"] / 2, y=mark["y"] - 10)
    assert browser.run("document.getElementById('tip').textContent") == said
    point(browser, "h1")
    assert not browser.run("document.getElementById('tip').checkVisibility()")
    point(browser, "#batch .x")
    assert ": oom. OutOfMemoryError" in browser.run("document.getElementById('tip').textContent")
    point(browser, "#memory rect")
    assert "weights" in browser.run("document.getElementById('tip').textContent")
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["backend-sweep", "gpt3-latency", "offload-schedules"])
def test_a_studys_own_plots_are_in_its_page(browser: Browser, tmp_path: Path, name: str) -> None:
    asked = find_study(name).study()
    records = answered(asked)
    images = [image for _, image in plots(asked, records).values()]
    path = tmp_path / "study.html"
    path.write_text(page(records, title=name, study=document_parts(asked, records), plots=images), "utf-8")
    for width, dark in ((1366, False), (390, True)):
        browser.open(path, width=width, dark=dark)
        assert browser.complaints == []
        assert browser.requests == [path.resolve().as_uri()]
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("document.querySelectorAll('#study .plots svg').length") == len(images)
        assert browser.run(MISPLACED.replace("figure svg", ".plots svg")) == []
        ink = browser.run("getComputedStyle(document.querySelector('.plots text')).fill")
        assert (sum(map(int, ink[4:-1].split(","))) > 300) is dark
        marks = browser.run(
            "[...document.querySelectorAll('.plots :is(circle, rect, polyline)')].map((mark) => getComputedStyle(mark))"
            ".map((style) => [style.fill, style.stroke])"
        )
        # Each mark has a colour of the page's, and none is black for want of a style.
        assert len(marks) > 10
        assert all({fill, stroke} & {"rgb(0, 0, 0)"} == set() and {fill, stroke} != {"none"} for fill, stroke in marks)
    point(browser, ".plots circle, .plots rect", 0)
    assert browser.run("document.getElementById('tip').checkVisibility()")
    assert browser.complaints == []


def test_the_table_sorts_by_keys_and_says_so(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run("document.querySelectorAll('#cases th button')[2].focus()")
    press(browser, "Enter", "\r")
    batches = [int(cell) for cell in browser.run(COLUMN.format(2))]
    assert batches == sorted(batches)
    assert browser.run("document.querySelectorAll('#cases thead th')[2].getAttribute('aria-sort')") == "ascending"
    press(browser, "Enter", "\r")
    assert [int(cell) for cell in browser.run(COLUMN.format(2))] == sorted(batches, reverse=True)
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1
    assert browser.run("document.querySelectorAll('[aria-sort=descending]').length") == 1


@pytest.mark.parametrize("column", range(16))
def test_every_column_sorts_both_ways_with_the_unknown_last(browser: Browser, file: Path, column: int) -> None:
    browser.open(file)
    for way in ("ascending", "descending"):
        browser.run(f"document.querySelectorAll('#cases th button')[{column}].click()")
        cells = browser.run(COLUMN.format(column))
        known = [cell for cell in cells if cell != "-"]
        assert cells == known + ["-"] * (len(cells) - len(known))
        numeric = browser.run(f"document.querySelectorAll('#cases thead th')[{column}].classList.contains('n')")
        if numeric:
            numbers = browser.run(f"{COLUMN.format(column)}.filter((text) => text !== '-').map(parseFloat)")
            assert numbers == sorted(numbers, reverse=way == "descending")
        else:
            assert known == sorted(known, key=str.lower, reverse=way == "descending")


def test_the_table_filters_by_words_and_status(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run("document.getElementById('filter').focus()")
    browser.call("Input.insertText", text="HF 6.7b fp32")
    assert set(browser.run(COLUMN.format(0))) == {"hf fp32"}
    shown = len(browser.run(COLUMN.format(0)))
    assert browser.run("document.getElementById('shown').textContent") == f"{shown} of {len(study())} cases"
    browser.run("(() => { const s = document.getElementById('status'); s.value = 'oom'; s.dispatchEvent(new Event('change')); })()")
    assert set(browser.run(COLUMN.format(4))) == {"oom"}
    browser.run("document.querySelectorAll('#cases th button')[2].click()")
    assert set(browser.run(COLUMN.format(4))) == {"oom"}
    press(browser, "Enter", "\r")
    assert browser.complaints == []


def test_every_control_is_reached_by_the_tab_key(browser: Browser, file: Path) -> None:
    browser.open(file)
    wanted = browser.run("document.querySelectorAll('a, summary, input, select, button, [tabindex=\"0\"]').length")
    seen = set()
    for _ in range(wanted + 30):
        press(browser, "Tab")
        seen.add(
            browser.run(
                "(() => { const a = document.activeElement; a.dataset.seen ??= String(Math.random()); "
                "return a === document.body ? '' : a.dataset.seen; })()"
            )
        )
    # What lies in a closed detail is not reached until it is opened.
    closed = browser.run("document.querySelectorAll('details:not([open]) :is([tabindex=\"0\"], a, button)').length")
    assert len(seen - {""}) == wanted - closed


def test_it_prints_light_without_controls(browser: Browser, file: Path) -> None:
    browser.open(file, dark=True, media="print")
    assert browser.run("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#16191d"
    for hidden in ("nav", ".filter", "details", "#tip"):
        assert not browser.run(f"document.querySelector({hidden!r}).checkVisibility()")
    assert browser.run("document.querySelector('#batch svg').checkVisibility()")
    printed = browser.call("Page.printToPDF", printBackground=True)["data"]
    assert len(printed) > 20_000


def test_without_scripts_everything_but_sorting_is_there(browser: Browser, file: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(file)
        assert browser.run("document.querySelectorAll('svg title').length") > 300
        assert len(browser.run(COLUMN.format(0))) == len(study())
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_words_of_others_run_nothing(browser: Browser, tmp_path: Path) -> None:
    from report_records import made

    attack = "</title></script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'><svg onload='window.owned = 1'>"
    records = [
        made([10.0], [2.0], model=attack, device_name=attack, environment={"cpu": attack}),
        made([12.0], [2.0], batch_size=2, backend=attack, model=attack, device_name=attack),
        made(batch_size=4, status="error", evidence=attack, model=attack),
    ]
    path = tmp_path / "attack.html"
    path.write_text(page(records, title=attack, remarks=[attack]), "utf-8")
    browser.open(path)
    assert browser.run("window.owned === undefined")
    assert browser.complaints == []
    assert browser.requests == [path.resolve().as_uri()]
    assert browser.run("document.title") == attack
