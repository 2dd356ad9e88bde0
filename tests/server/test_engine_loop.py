"""The engine's side, without processes: what commands do and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.schedule.request import Request
from inferometer.server.engine_loop import EngineLoop
from inferometer.server.messages import Abort, Add, Broken, Command, Event, Refused, Step, Stop
from tiny_models import tiny_model

LONG = SamplingParams(max_new_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tiny_model(tmp_path_factory.mktemp("loop"), "llama")
    return LLM(folder, dtype="float32", device="cpu", weights="dummy", gpu_memory=0.1)


class Script:
    """Runs a loop over `engine`; `after` may send commands behind every event. All events are kept."""

    def __init__(self, engine: Engine, *commands: Command, after: Callable[[Script, Event], None] | None = None) -> None:
        self.engine = engine
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.events: list[Event] = []
        self._after = after
        for command in commands:
            self.commands.put(command)
        EngineLoop(engine, self.commands, self._tell).run()

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step)]

    def tokens(self, request_id: int) -> list[int]:
        return [
            token_id for step in self.steps for key, token_id in zip(step.request_ids, step.token_ids, strict=True) if key == request_id
        ]

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        if self._after is not None:
            self._after(self, event)


def stop_when_idle(script: Script, event: Event) -> None:
    if not script.engine.has_work:
        script.commands.put(Stop())


def request(number: int, prompt: list[int], params: SamplingParams = LONG) -> Request:
    return Request(number, tuple(prompt), params, number)


def test_a_step_tells_all_that_came_of_it(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=5, ignore_eos=True, top_logprobs=2, prompt_logprobs=True)
    script = Script(Engine(llm.model, pages=16), Add((request(1, [1, 2, 3], params), request(2, [4] * 20, LONG))), after=stop_when_idle)
    assert script.tokens(1) == llm.generate([[1, 2, 3]], params)[0].token_ids
    assert script.tokens(2) == llm.generate([[4] * 20], LONG)[0].token_ids
    first = script.steps[0]
    assert first.started == ((1, 0), (2, 0))
    assert (first.load.prompt_tokens, first.load.decode_tokens, first.load.running) == (23, 0, 2)
    assert (script.steps[1].load.prompt_tokens, script.steps[1].load.decode_tokens, script.steps[1].load.context_tokens) == (0, 2, 4 + 21)
    extra = first.extras[first.request_ids.index(1)]
    assert len(extra.top) == 2
    assert extra.prompt_logprobs is not None
    assert [each.finish_reason for step in script.steps for each in step.extras.values() if each.finish_reason] == ["length"] * 2
    last = script.steps[-1].load
    assert (last.running, last.waiting, last.pages_in_use) == (0, 0, 0)


def test_an_abort_frees_within_two_steps(llm: LLM) -> None:
    seen: dict[str, Any] = {}

    def after(script: Script, event: Event) -> None:
        if len(script.steps) == 5 and "aborted" not in seen:
            seen["aborted"] = len(script.steps)
            script.commands.put(Abort((1, 3, 99)))
        stop_when_idle(script, event)

    prompts = Add(tuple(request(number, [number] * 17) for number in (1, 2, 3)))
    script = Script(Engine(llm.model, pages=64, seats=2), prompts, after=after)
    later = script.steps[seen["aborted"] + 1 :]
    assert all(1 not in step.request_ids and 3 not in step.request_ids for step in later)
    assert all(step.load.running <= 1 and step.load.waiting == 0 for step in later)
    assert later[0].load.pages_in_use <= 3
    assert script.tokens(2) == llm.generate([[2] * 17], LONG)[0].token_ids


def test_an_engine_that_aborts_leave_idle_says_so(llm: LLM) -> None:
    def after(script: Script, event: Event) -> None:
        if len(script.steps) == 3:
            script.commands.put(Abort((1, 2)))
        stop_when_idle(script, event)

    script = Script(Engine(llm.model, pages=16, seats=1), Add((request(1, [1] * 17), request(2, [2]))), after=after)
    before, last = script.steps[-2:]
    assert (before.load.running, before.load.waiting, before.load.pages_in_use) == (1, 1, 2)
    assert (last.load.running, last.load.waiting, last.load.pages_in_use) == (0, 0, 0)
    assert (last.request_ids, last.load.prompt_tokens, last.load.decode_tokens) == ((), 0, 0)


def test_a_step_tells_how_prompts_were_cut(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    engine = Engine(llm.model, pages=16, sweep_tokens=20)
    script = Script(engine, Add((request(1, [1, 2, 3], params), request(2, [4] * 40, params))), after=stop_when_idle)
    cuts = [(step.load.pieces, step.load.piece_context_tokens, step.load.prompt_tokens) for step in script.steps]
    assert sum(tokens for _, _, tokens in cuts) == 43
    assert cuts[0] == (2, 0, 3 + 16)  # pieces end with pages
    assert cuts[1][:2] == (1, 16)


def test_what_can_never_run_is_refused_and_the_rest_served(llm: LLM) -> None:
    wrong = [
        request(1, [1] * 60),
        request(2, [300]),
        request(3, [1], SamplingParams(logit_bias={300: 1.0})),
        request(5, [1], SamplingParams(min_new_tokens=1, stop_token_ids=tuple(range(llm.spec.vocabulary)))),  # no token is left
    ]
    script = Script(Engine(llm.model, pages=16), Add((request(4, [1], SamplingParams(max_new_tokens=2)), *wrong)), after=stop_when_idle)
    assert [event.request_id for event in script.events if isinstance(event, Refused)] == [1, 2, 3, 5]
    assert len(script.tokens(4)) == 2


def test_a_step_that_fails_takes_its_requests_and_no_more(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(llm.model, pages=16)
    real, failures = engine.scheduler.next, iter([True])

    def failing() -> Any:
        if len(script_events) == 3 and next(failures, False):
            raise MemoryError("no room")
        return real()

    script_events: list[Event] = []

    def after(script: Script, event: Event) -> None:
        script_events.append(event)
        if isinstance(event, Broken):
            script.commands.put(Add((request(7, [5, 6]),)))
        else:
            stop_when_idle(script, event)

    monkeypatch.setattr(engine.scheduler, "next", failing)
    script = Script(engine, Add((request(1, [1]), request(2, [2]))), after=after)
    (broken,) = [event for event in script.events if isinstance(event, Broken)]
    assert sorted(broken.request_ids) == [1, 2]
    assert broken.message == "MemoryError: no room"
    assert script.tokens(7) == llm.generate([[5, 6]], LONG)[0].token_ids


def test_a_prompt_that_is_known_tells_how_much_of_it(llm: LLM) -> None:
    def after(script: Script, event: Event) -> None:
        if not script.engine.has_work:
            script.commands.put(Add((request(2, [3] * 40, SamplingParams(max_new_tokens=1)),)) if not script.tokens(2) else Stop())

    script = Script(Engine(llm.model, pages=16), Add((request(1, [3] * 40, SamplingParams(max_new_tokens=1)),)), after=after)
    assert dict(entry for step in script.steps for entry in step.started) == {1: 0, 2: 32}
    assert script.steps[-1].load.hit_tokens == 32
