"""Random streams of requests through the engine: what the tests of engines ask, and what each request must get whatever its company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import strategies as st

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request
from thread_link import ThreadLink

VOCABULARY = 48  # small, so that end and stop tokens are met
EOS = 7
CONFIG = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
# Frequencies that depend on the prompt's length: its keys do, too.
DYNAMIC = {**CONFIG, "max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 8.0}}
ALIBI = {"model_type": "bloom", "vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 3}
MODELS = {"llama": CONFIG, "dynamic": DYNAMIC, "bloom": ALIBI}

BASES = tuple(tuple((a * i * i + b * i + a) % VOCABULARY for i in range(60)) for a, b in ((1, 5), (3, 2)))
KINDS = (
    SamplingParams(ignore_eos=True),
    SamplingParams(),
    SamplingParams(do_sample=True, temperature=2.0, stop_token_ids=(3, 11)),
    SamplingParams(top_k=9, top_p=0.9, temperature=1.5),
    SamplingParams(repetition_penalty=1.4, frequency_penalty=0.3, ignore_eos=True, prompt_logprobs=True, top_logprobs=2),
    SamplingParams(prompt_logprobs=True, min_new_tokens=4, do_sample=True),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its id; `arrives`: before which step it is added; `aborted`: before which one it is dropped, None for never."""

    base: int
    prompt: int
    suffix: int
    kind: int
    new: int
    seed: int
    arrives: int
    aborted: int | None

    def request(self, number: int) -> Request:
        prompt = (*BASES[self.base][: self.prompt], *((self.suffix * 17,) if self.suffix else ()))
        prompt = tuple(token % VOCABULARY for token in prompt)
        kind = KINDS[self.kind]
        params = replace(kind, max_new_tokens=self.new, min_new_tokens=min(kind.min_new_tokens, self.new))
        return Request(number, prompt, params, self.seed, (EOS,))


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    near = draw(st.sampled_from((1, 4, 8, 12, 16, 32, 48)))  # lengths around pages and chunks
    return Asked(
        base=draw(st.integers(0, 1)),
        prompt=max(1, min(50, near + draw(st.integers(-1, 2)))),
        suffix=draw(st.integers(0, 2)),
        kind=draw(st.integers(0, len(KINDS) - 1)),
        new=draw(st.integers(1, 18)),
        seed=draw(st.integers(0, 3)),
        arrives=draw(st.integers(0, 12)),
        aborted=draw(st.none() | st.none() | st.integers(0, 25)),
    )


@dataclass(frozen=True, slots=True)
class OnHost:
    """Pages on the host. resident: most pages on the device. slot: pages of a slot beside those of the largest request.

    bytes_s: of a throttled link each way; None to copy at once. links: that were made.
    """

    resident: int
    slot: int
    bytes_s: float | None
    links: list[ThreadLink] = field(default_factory=list)

    def options(self, pages: int, largest: int) -> dict[str, Any]:
        link = {} if self.bytes_s is None else {"link": self._link}
        return {"device_pages": min(self.resident, pages), "slot_pages": largest + self.slot, **link}

    def _link(self, device: object) -> ThreadLink:
        made = ThreadLink(self.bytes_s or 0)
        self.links.append(made)
        return made


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine's. pages: beside those that the largest request needs."""

    page_size: int
    pages: int
    seats: int
    sweep_tokens: int
    lookahead: int
    order: str
    group_size: int | None
    num_groups: int | None
    on_host: OnHost | None = None

    def engine(self, model: Transformer, requests: list[Request]) -> Engine:
        largest = max(-(-(request.tokens - 1) // self.page_size) for request in requests)
        pages = largest + self.pages
        return Engine(
            model,
            pages=pages,
            **({} if self.on_host is None else self.on_host.options(pages, largest)),
            page_size=self.page_size,
            seats=self.seats,
            sweep_tokens=self.sweep_tokens,
            lookahead=self.lookahead,
            # "greedy": lets in whoever fits now, so that many are preempted soon after.
            admission=Continuous(horizon=0) if self.order == "greedy" else admission(self.order, self.group_size, self.num_groups),
        )


@st.composite
def setting(draw: st.DrawFn) -> Setting:
    order = draw(st.sampled_from(("continuous", "greedy", "zigzag", "diagonal", "row")))
    return Setting(
        page_size=draw(st.sampled_from((1, 4, 16))),
        pages=draw(st.sampled_from((0, 1, 3, 8, 100))),
        seats=draw(st.integers(1, 6)),
        sweep_tokens=draw(st.sampled_from((6, 8, 16, 17, 64, 1000))),
        lookahead=draw(st.integers(0, 1)),
        order=order,
        group_size=None if order in ("continuous", "greedy") else draw(st.integers(1, 3)),
        num_groups=draw(st.none() | st.integers(1, 3)) if order in ("zigzag", "diagonal") else None,
    )


@cache
def model(name: str) -> Transformer:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[name]))
        made = LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=3).model
    with torch.no_grad():  # sharper than dummy weights are, so that a wrong key or position shows
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return made


ROUNDING = 2e-6
"""By what part hidden states may be off where sums were made in another order: some ten times what log-probabilities show."""
NUDGES = 8
"""Times that such a difference is drawn."""


@cache
def alone(name: str, what: Request, nudge: int | None = None) -> tuple[Emission, ...]:
    """nudge: the seed of a difference that rounding might make to all hidden states."""
    with nullcontext() if nudge is None else rounded(model(name), nudge):
        engine = Engine(model(name), pages=20, prefix_caching=False, lookahead=0)
        engine.add(what)
        found: list[Emission] = []
        while engine.has_work:
            found += engine.step()
    return tuple(found)


@contextmanager
def rounded(whose: Transformer, seed: int) -> Iterator[None]:
    """The model as it may be where its sums are made in another order."""
    generator = torch.Generator().manual_seed(seed)

    def sweep(*arguments: Any) -> torch.Tensor:
        hidden = type(whose).sweep(whose, *arguments)
        return hidden * (1 + ROUNDING * torch.randn(hidden.shape, generator=generator))

    whose.__dict__["sweep"] = sweep
    try:
        yield
    finally:
        del whose.__dict__["sweep"]


def expected_of(name: str, what: Request, got: list[Emission]) -> tuple[Emission, ...]:
    """What the request gets alone. Of a draw that lies within rounding of the boundary between two tokens, on the side where it fell."""
    first = alone(name, what)
    tokens = [emission.token_id for emission in got]
    for each in chain((first,), (alone(name, what, nudge) for nudge in range(NUDGES))):
        if [emission.token_id for emission in each[: len(got)]] == tokens:
            return each
    return first


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-4, rtol=0)


def run(name: str, stream: list[Asked], how: Setting) -> Engine:
    """Runs the stream and checks everything; the engine, empty."""
    requests = [one.request(i) for i, one in enumerate(stream)]
    engine = how.engine(model(name), requests)
    found: dict[int, list[Emission]] = {request.id: [] for request in requests}
    dropped: set[int] = set()
    step = 0
    while engine.has_work or step <= max(one.arrives for one in stream):
        for request, one in zip(requests, stream, strict=True):
            if one.arrives == step:
                engine.add(request)
            if one.aborted == step:
                engine.abort(request.id)  # may be unknown yet, or over
                if one.arrives <= step and not (found[request.id] and found[request.id][-1].finish_reason):
                    dropped.add(request.id)
        for emission in engine.step():
            assert emission.request_id not in dropped
            found[emission.request_id].append(emission)
        engine.scheduler.check_pages()
        step += 1
        assert step < 3000, "somebody starves"
    assert engine.scheduler.pool.in_use == 0
    assert engine.scheduler.running == engine.scheduler.waiting == 0
    assert not engine._scores  # of prompts: what is kept until the first token is given out, once
    for request in requests:
        got = found[request.id]
        expected = expected_of(name, replace(request, id=0), got)
        if request.id in dropped:
            expected = expected[: len(got)]
        assert [e.token_id for e in got] == [e.token_id for e in expected]
        assert [e.finish_reason for e in got] == [e.finish_reason for e in expected]
        close([e.logprob for e in got], [e.logprob for e in expected])
        for ours, theirs in zip(got, expected, strict=True):
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
            assert (ours.prompt_logprobs is None) == (theirs.prompt_logprobs is None)
            if ours.prompt_logprobs is not None and theirs.prompt_logprobs is not None:
                assert ours.prompt_logprobs[0] is None
                close(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:])
    engine.close()
    for link in [] if how.on_host is None else how.on_host.links:
        link.close()
        link.check()
    return engine
