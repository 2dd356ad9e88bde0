"""The HTTP process's side of the engine: what it does with requests that come when it takes no more."""

from __future__ import annotations

import asyncio

import pytest

from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.server.engine_client import EngineClient
from inferometer.server.failures import ApiError, cut_off
from inferometer.server.generation import Generation
from inferometer.server.messages import Embed


def generation(client: EngineClient, number: int) -> Generation:
    request = Request(number, (1, 2, 3), SamplingParams(max_new_tokens=4), 0)
    return Generation(request, None, keep_stop=True, drop=client.drop)


async def end_of(made: Generation) -> str:
    """The kind of error that it ends with."""
    with pytest.raises(ApiError) as caught:
        async for _ in made.steps():
            pass
    return caught.value.kind


def test_what_is_on_its_way_when_all_is_cut_off_ends_as_what_is_open_does() -> None:
    """A request that was let in and is still being tokenised would else wait for an engine that nobody lets answer."""

    async def served() -> tuple[list[str], str]:
        client = EngineClient()
        opened, coming = generation(client, 0), generation(client, 1)
        client.submit([opened])
        client.end_all(cut_off)
        client.submit([coming])
        ends = [await asyncio.wait_for(end_of(each), 5) for each in (opened, coming)]
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(client.embed(Embed(2, ((1,),))), 5)
        return ends, caught.value.kind

    assert asyncio.run(served()) == (["incomplete_generation"] * 2, "incomplete_generation")


def test_a_failed_step_ends_what_is_open_and_nothing_that_comes_later() -> None:
    async def served() -> bool:
        client = EngineClient()
        opened, coming = generation(client, 0), generation(client, 1)
        client.submit([opened])
        client.fail_all(cut_off)
        client.submit([coming])
        assert await end_of(opened) == "incomplete_generation"
        return coming.failed

    assert not asyncio.run(served())
