"""The page as text: every section or why it is left out, nothing but text from others, nothing from elsewhere, and its size."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import answered, made
from sweep_records import COLUMNS, ENVIRONMENT, case, study, sweep

from inferometer.bench.records.record import Bound, PeakMemory, Predicted, Record
from inferometer.bench.study.library import find_study
from inferometer.report.markup.parts import Bullets, Code, Grid, Heading, Image, Paragraph
from inferometer.report.page.page import page
from inferometer.report.plots.bar_plot import BarSeries, grouped_bars
from inferometer.report.study.plots import plots
from inferometer.report.study.tables import document_parts

SECTIONS = ("batch", "roofline", "prediction", "memory", "context", "energy", "table", "environment", "failures")
VOID = {"meta", "link", "input", "br"}


class Document(HTMLParser):
    """What a browser would find: elements with their attributes, and the text within each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"] or ""

    def handle_data(self, data: str) -> None:
        self.text[self._section] = self.text.get(self._section, "") + data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= found.items() for name, found in self.elements)


@pytest.fixture(scope="module")
def whole() -> str:
    return page(study(), title="A study")


def test_every_section_is_there_with_its_figures(whole: str) -> None:
    found = Document(whole)
    ids = [attributes["id"] for tag, attributes in found.elements if tag == "section"]
    assert ids == ["columns", *SECTIONS]
    assert found.count("svg") == found.count("figure") > 20
    assert "left-out" not in ids
    assert whole.startswith("<!doctype html>")
    assert found.count("h1") == 1


def test_nothing_is_loaded_and_only_the_pages_own_script_and_style_may_run(whole: str) -> None:
    assert not re.search(r"https?://|@import|url\(|<img|<iframe|\bsrc=|javascript:", whole)
    found = Document(whole)
    links = [attributes["href"] for tag, attributes in found.elements if tag in ("a", "link")]
    assert all(link and (link.startswith("#") or link == "data:,") for link in links)
    (policy,) = (a["content"] for tag, a in found.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", whole, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not any(name == "style" or name.startswith("on") for _, attributes in found.elements for name in attributes)


def test_ids_are_unique_and_links_lead_to_them(whole: str) -> None:
    elements = Document(whole).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for tag, a in elements if tag == "a"} <= set(ids)


def test_failures_are_on_the_charts_and_their_evidence_is_told(whole: str) -> None:
    found = Document(whole)
    for status in ("oom", "timeout", "error"):
        assert f">{status}</text>" in whole
        assert status in found.text["table"]
    assert "no answer within 300 s" in found.text["failures"]
    assert "deepspeed is not installed" in found.text["failures"]
    assert found.count("path", **{"class": "lost"}) >= 7


def test_the_memory_of_cases_stands_beside_what_the_device_has(whole: str) -> None:
    text = Document(whole).text["memory"]
    assert "h100-sxm has 79.6 GiB" in text
    assert "measured peak of tensors" in text
    for use in ("weights", "KV cache", "activations or logits", "outside tensors"):
        assert use in text


def test_a_device_that_has_far_more_than_is_needed_does_not_press_the_bars_flat() -> None:
    text = page(sweep(COLUMNS[:1], (1, 2), model="opt-125m"), title="t")
    assert re.search(r">79\.6 GiB, \d\d+ times as much, is above<", text)
    heights = [float(height) for height in re.findall(r"<rect class=u0 [^>]*height=([\d.]+)", text)]
    assert min(heights) > 50


def test_figures_have_tables_and_predictions_their_errors(whole: str) -> None:
    found = Document(whole)
    assert found.count("details") >= 8
    assert re.search(r"mean error \d+\.\d\u00a0%, worst \d+\u00a0%", found.text["prediction"])
    assert "expected " in found.text["prediction"]


def test_a_column_has_one_colour_everywhere(whole: str) -> None:
    legend = dict(re.findall(r'<th scope=row class="k (c\d)">([^<]+)<', whole))
    colours: dict[str, set[str]] = {}
    for colour, name in re.findall(r'<g class="(c\d)">(?:<path class=lead[^>]*/>)?<text [^>]*class=n>([^<]+)</text>', whole):
        colours.setdefault(name, set()).add(colour)
    assert set(legend.values()) == {"native bf16", "hf bf16", "hf fp32", "deepspeed fp16"}
    for name in ("native bf16", "hf bf16", "hf fp32"):
        assert {colour for colour, named in legend.items() if named == name} == colours[name]


@pytest.mark.parametrize(
    ("records", "left_out"),
    [
        ([made([10.0], [2.0])], {"batch", "roofline", "prediction", "memory", "context", "energy", "environment", "failures"}),
        ([made(status="oom", evidence="x", batch_size=size) for size in (1, 2)], set(SECTIONS) - {"table", "failures"}),
        (sweep(batches=(1, 2)), {"context", "energy", "failures"}),
        (sweep(batches=(1,), energy=True), {"batch", "context", "failures"}),
    ],
)
def test_a_section_without_data_is_one_line_that_says_why(records: list[Record], left_out: set[str]) -> None:
    text = page(records, title="t")
    absent = re.findall(r"<li id=(\w+)><b>[^<]+</b>: ([^<]{10,}\.)", text)
    assert {slug for slug, _ in absent} == left_out
    assert not left_out & {a["id"] for tag, a in Document(text).elements if tag == "section"}
    assert not {f"#{slug}" for slug in left_out} & {a.get("href") for tag, a in Document(text).elements if tag == "a"}


def test_energy_that_was_not_measured_says_why() -> None:
    assert "no case has a measured energy: NVML is not there." in page(sweep(batches=(1, 2)), title="t")


HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)> \"' & \u202e \x00 \ud800 ]]> <!--"


def test_words_of_others_are_text_wherever_they_stand() -> None:
    def hostile(words: str) -> str:
        names: dict[str, Any] = {"model": words, "device_name": words, "environment": {"cpu": words, words: 1}}
        records = [
            made([10.0], [2.0], **names),
            made([12.0], [2.0], batch_size=2, backend=words, **names),
            made(batch_size=4, status="error", evidence=words, **names),
        ]
        return page(records, title=words, remarks=[words])

    attack, harmless = (Document(hostile(words)) for words in (HOSTILE, "harmless"))
    shape = [(tag, sorted(attributes)) for tag, attributes in harmless.elements]
    assert [(tag, sorted(attributes)) for tag, attributes in attack.elements] == shape
    text = hostile(HOSTILE)
    assert "\u202e" not in text
    assert "\x00" not in text
    text.encode()


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_any_words_leave_the_page_as_it_is(words: str) -> None:
    def shape(said: str) -> list[str]:
        records = [made([10.0], [2.0], model=said or "m"), made(batch_size=2, status="error", evidence=said or "e", model=said or "m")]
        return [tag for tag, _ in Document(page(records, title=said)).elements]

    assert shape(words) == shape("plain")


def dense(column: tuple[str, str], batch: int, new: int = 32) -> Record:
    """A record that fills every figure, with figures of many digits, quickly made."""
    times = {"prefill_ms": 123.456789 * batch, "decode_token_ms": 7.654321 + batch / 7}
    ends = {name: (0.8123456 * ms, 1.4123456 * ms) for name, ms in times.items()}
    ends |= {"peak_memory_bytes": (11.1e9, 17.7e9), "j_per_token": (0.54321, 1.23456)}
    return made(
        [times["prefill_ms"] * factor for factor in (1.01, 1.02, 1.03)],
        [times["decode_token_ms"] * factor for factor in (1.01, 1.02, 1.03)],
        batch_size=batch,
        decode_length=new,
        model="opt-6.7b",
        backend=column[0],
        dtype=column[1],
        device="h100-sxm",
        device_name="NVIDIA H100 80GB HBM3",
        environment=ENVIRONMENT,
        started_at=f"2026-05-04T09:{new:02d}:{batch % 60:02d}.000+00:00",
        peak_memory_bytes=PeakMemory(allocated=14_555_666_777 + batch),
        energy={"prefill_j": 12.345678, "decode_j": 123.456789, "j_per_token": 0.987654321, "basis": "the GPU's energy counter"},
        bound=Bound(**{name: ms / 2 for name, ms in times.items()}, binds=dict.fromkeys(times, "memory"), basis="datasheet"),
        predicted=Predicted(**times, peak_memory_bytes=14_111_222_333, j_per_token=0.8765432, basis="b", interval=ends),
    )


def test_a_thousand_cases_are_less_than_two_megabytes() -> None:
    columns = (("native", "bfloat16"), ("hf", "bfloat16"), ("hf", "float32"))
    cases = [dense(column, batch, new=new) for batch in range(1, 15) for column in columns for new in range(2, 26)]
    assert len(cases) == 1008
    text = page(cases, title="t")
    assert len(text.encode()) < 2_000_000
    assert Document(text).count("tr") > 1008


def test_one_sweep_of_a_thousand_batch_sizes_is_small_too() -> None:
    text = page([dense(("native", "bfloat16"), batch) for batch in range(1, 1001)], title="t")
    assert len(text.encode()) < 2_000_000
    assert "Lines of more than 120 batch sizes have marks at some of them." in text


def test_cases_measured_again_count_once_in_charts_and_the_page_says_so() -> None:
    again = replace(case(batch=2), started_at="2026-05-04T09:30:00.000+00:00")
    text = page([case(batch=1), case(batch=2), again], title="t")
    assert "1 records are of cases that were measured again later" in text


def test_a_mixture_is_told_at_the_top() -> None:
    other = [replace(record, device_name="NVIDIA H100 NVL") for record in sweep(batches=(1, 2))]
    text = page([*sweep(batches=(1, 2)), *other], title="t")
    assert "From 2 machines: NVIDIA H100 80GB HBM3" in Document(text).text[""]


def test_a_studys_tables_stand_first_with_their_headings_and_notes() -> None:
    rows = (("1", "63.4 | **15.8**", "**12.0**"), ("2", "oom", "<i>"))
    parts = [
        Heading(1, "A study"),
        Paragraph("What it is & why."),
        Heading(2, "Throughput"),
        Grid(("batch", "hf", "hf"), rows),
        Bullets(("a note",)),
        Code("inferometer study run x"),
        Image("plot.svg", "a plot"),
    ]
    text = page(sweep(batches=(1, 2)), title="A study", study=parts)
    found = Document(text)
    assert [a["id"] for tag, a in found.elements if tag == "section"][:3] == ["columns", "study", "batch"]
    assert found.count("h1") == 1
    said = found.text["study"]
    for words in ("What it is & why.", "Throughput", "63.4 | **15.8**", "12.0", "<i>", "a note", "inferometer study run x"):
        assert words in said
    assert "<th scope=col colspan=2>hf" in text
    assert "<b>12.0</b>" in text
    assert "plot.svg" not in text
    assert "study" not in [a["id"] for tag, a in Document(page(sweep(batches=(1,)), title="t")).elements if tag == "section"]


def test_a_studys_plots_stand_before_its_tables_in_the_pages_colours() -> None:
    image = grouped_bars("Speed & more", "batch", "time", ["1"], [BarSeries(name="ours", values=(2.0,))])
    parts = [Heading(1, "A study"), Paragraph("What it is."), Heading(2, "Throughput"), Grid(("batch",), (("1",),))]
    text = page(sweep(batches=(1, 2)), title="A study", study=parts, plots=[image])
    assert text.index("What it is.") < text.index("Speed &amp; more") < text.index("<h3>Throughput")
    assert text.count("<style>") == 1
    assert ">The study&#x27;s plots and tables<" in text


@pytest.mark.parametrize("name", ["backend-sweep", "estimate-vs-measured", "gpt3-latency", "offload-schedules", "tensor-parallel"])
def test_the_page_of_a_whole_study_is_small_enough_to_send(name: str) -> None:
    asked = find_study(name).study()
    records = answered(asked)
    images = [image for _, image in plots(asked, records).values()]
    text = page(records, title=name, study=document_parts(asked, records), plots=images)
    assert text.count("<svg xmlns=") == len(images) >= 1
    assert len(text.encode()) < 2_000_000


def test_nothing_is_no_page() -> None:
    with pytest.raises(ValueError, match="at least one"):
        page([], title="t")
