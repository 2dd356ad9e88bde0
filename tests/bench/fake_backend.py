"""A backend without a transformer: next-token scores are a fixed function of the last two tokens, so every path can be exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.bench.backends.backend import Continuation, PageUse, Prompts
from inferometer.schedule.sampling import SamplingParams

VOCABULARY = 50


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeBackend:
    """`fail(what, rows)` is called before each piece of work and may raise; `error` is added to its logits, `drift` to those of
    the cached path; prefill and decode take the given seconds of `clock`. `pages`: what each run's page_use says in turn."""

    stack_version = "1"
    device = torch.device("cpu")

    def __init__(
        self,
        name: str = "native",
        *,
        clock: Clock | None = None,
        prefill_s: Sequence[float] = (0.5,),
        decode_s: Sequence[float] = (0.25,),
        fail: Callable[[str, int], None] = lambda what, rows: None,
        error: float = 0.0,
        drift: float = 0.0,
        missing: int = 0,
        encoder: bool = False,
        phased: bool = True,
        pages: Sequence[PageUse | None] = (None,),
        journal: list[tuple[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.encoder = encoder
        self.output_width = VOCABULARY
        self.resident_bytes = 0
        self.phased = phased
        self.closed = self.abandoned = 0
        self._pages, self._runs = pages, 0
        self._clock = clock or Clock()
        self._prefill_s, self._decode_s = list(prefill_s), list(decode_s)
        self._prefills = self._decodes = 0
        self._fail, self._error, self._drift, self._missing = fail, error, drift, missing
        self._journal = journal if journal is not None else []
        generator = torch.Generator().manual_seed(1)
        self._table = torch.randn(2, VOCABULARY, VOCABULARY, generator=generator)
        self._rows: list[list[int]] = []

    def prepare(self, rows: int, tokens: int) -> None:
        self._fail("prepare", rows)

    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        self._fail("prefill", len(prompts))
        self._journal.append((self.name, "prefill"))
        self._rows = [[0] for _ in prompts]
        self._clock.sleep(self._prefill_s[self._prefills % len(self._prefill_s)])
        self._prefills += 1

    def decode(self) -> None:
        self._fail("decode", len(self._rows))
        for row in self._rows:
            row.append(0)
        self._clock.sleep(self._decode_s[self._decodes % len(self._decode_s)])
        self._decodes += 1

    def generate(self, prompts: Prompts, params: SamplingParams) -> None:
        self._journal.append((self.name, "generate"))
        self.prefill(prompts, params)
        for _ in range(params.max_new_tokens - 1):
            self.decode()

    def page_use(self) -> PageUse | None:
        return self._pages[(self._runs - 1) % len(self._pages)]

    def finish(self) -> Sequence[Sequence[int]]:
        self._runs += 1
        rows, self._rows = self._rows, []
        return [row[: len(row) - self._missing] for row in rows]

    def abandon(self) -> None:
        self.abandoned += 1
        self._rows = []

    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        self._fail("forward", len(prompts))
        self._clock.sleep(self._prefill_s[self._prefills % len(self._prefill_s)])
        self._prefills += 1
        if not loss:
            return None
        scores = self._scores(prompts)[:, :-1]
        return float(functional.cross_entropy(scores.flatten(0, 1), torch.tensor([row[1:] for row in prompts]).flatten())) + self._drift

    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        self._fail("logits", len(prompts))
        scores = self._scores(prompts)
        # An encoder that mixes the rows of a batch, if it is to be wrong.
        if self.encoder and len(prompts) > 1:
            scores = scores + self._drift
        scores[..., 3] += self._error
        return scores[:, -1:] if last_only else scores

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        self._fail("continuation", len(prompts))
        rows, logprobs = [list(p) for p in prompts], [[] for _ in prompts]
        for _ in range(steps):
            scores = self._scores(rows)[:, -1]
            scores[:, 7] += self._drift
            for row, own, score in zip(rows, logprobs, scores, strict=True):
                token = int(score.argmax())
                row.append(token)
                own.append(float(score.log_softmax(0)[token]))
        return Continuation(tuple(tuple(r[-steps:]) for r in rows), tuple(tuple(p) for p in logprobs))

    @contextmanager
    def exact(self) -> Iterator[None]:
        self._fail("exact", 0)
        yield

    def synchronise(self) -> None:
        self._journal.append((self.name, "synchronise"))

    def close(self) -> None:
        self.closed += 1

    def _scores(self, prompts: Prompts) -> Tensor:
        ids = torch.tensor([list(row) for row in prompts])
        before = functional.pad(ids[:, :-1], (1, 0))
        return self._table[0][ids] + 0.5 * self._table[1][before]
