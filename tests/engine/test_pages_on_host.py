"""Pages that lie on the host and come in layer by layer: the tokens of the resident engine, in every order, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_streams import BASES, MODELS, Asked, OnHost, Setting, asked, model, run, setting
from inferometer import SamplingParams
from inferometer.engine.engine import Engine
from inferometer.schedule.request import Request
from thread_link import ThreadLink


@st.composite
def on_host(draw: st.DrawFn) -> OnHost:
    return OnHost(
        resident=draw(st.sampled_from((0, 0, 1, 5, 30))),
        slot=draw(st.sampled_from((0, 1, 7, 200))),
        bytes_s=draw(st.sampled_from((None, 2e8))),
    )


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=st.lists(asked(), min_size=1, max_size=9), how=setting(), where=on_host())
def test_everybody_gets_what_they_get_alone_wherever_pages_lie(name: str, stream: list[Asked], how: Setting, where: OnHost) -> None:
    run(name, stream, replace(how, on_host=where))


@pytest.mark.parametrize("order", ["continuous", "zigzag", "diagonal", "row"])
def test_several_chunks_a_layer_under_a_slow_link(order: str) -> None:
    """Slots of one sequence, a link slower than the computation, sweeps planned ahead: every copy is waited for."""
    stream = [Asked(i % 2, 40 - 3 * i, 0, i % 6, 12, i, 0, None) for i in range(6)]
    groups = (None, None) if order == "continuous" else (2, None)
    how = Setting(4, 60, 6, 64, 1, order, *groups, OnHost(7, 0, 2e7))
    engine = run("llama", stream, how)
    assert engine.scheduler.pool.available == engine.pages


def decoded(resident: int | None, tokens: int) -> tuple[Engine, list[int]]:
    engine = Engine(model("llama"), pages=12, page_size=4, device_pages=resident)
    engine.add(Request(0, BASES[0][:tokens], SamplingParams(max_new_tokens=3, ignore_eos=True), 0))
    found = []
    while engine.has_work:
        found += [emission.token_id for emission in engine.step()]
    return engine, found


def test_what_travels_is_what_lies_elsewhere() -> None:
    """Seven tokens in pages of four: a prompt writes two pages, a step reads what is there and writes the page of its token."""
    engine, found = decoded(0, 7)
    assert found == decoded(None, 7)[1]
    page = engine.page_bytes
    assert engine.page_traffic_bytes == ((2 + 2) * page, (2 + 1 + 1) * page)  # the second step's token begins a page
    assert decoded(12, 7)[0].page_traffic_bytes == (0, 0)
    assert decoded(1, 7)[0].page_traffic_bytes == ((1 + 1) * page, (1 + 1 + 1) * page)


def test_closing_waits_for_the_copies() -> None:
    made: list[ThreadLink] = []

    def link(_: object) -> ThreadLink:
        made.append(ThreadLink(1e7))
        return made[-1]

    engine = Engine(model("llama"), pages=12, page_size=4, device_pages=0, link=link)
    engine.add(Request(0, BASES[0][:20], SamplingParams(max_new_tokens=3), 0))
    engine.step()
    engine.close()
    assert len(made) == 2
    assert all(each._jobs.empty() for each in made)
    assert engine.page_traffic_bytes == (0, 0)
    for each in made:
        each.close()


def test_a_failed_copy_reaches_the_step_that_waits_for_it() -> None:
    class Broken(ThreadLink):
        def _copy(self, target: object, source: object) -> None:
            raise OSError("the link is down")

    links = [Broken(1e9), Broken(1e9)]
    engine = Engine(model("llama"), pages=12, page_size=4, device_pages=0, link=lambda _: links.pop())
    ours = list(links)
    engine.add(Request(0, BASES[0][:20], SamplingParams(max_new_tokens=3), 0))
    with pytest.raises(OSError, match="the link is down"):  # noqa: PT012 - the prompt's pages go out, which nobody waits for at once
        engine.step()
        engine.step()
    assert not engine.has_work
    assert engine.scheduler.pool.in_use == 0
    for each in ours:
        each.close()


def test_prefixes_are_not_shared_where_pages_lie_elsewhere() -> None:
    assert not Engine(model("llama"), pages=12, device_pages=11).prefix_caching
    assert Engine(model("llama"), pages=12, device_pages=12).prefix_caching


@pytest.mark.parametrize("resident", [-1, 13])
def test_no_more_pages_on_the_device_than_there_are(resident: int) -> None:
    with pytest.raises(ValueError, match="device_pages must be from 0 to 12"):
        Engine(model("llama"), pages=12, device_pages=resident)
