"""The native backend: this product's own engine, driven step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferometer import __version__
from inferometer.bench.backend import Continuation, Prompts
from inferometer.engine.device import synchronise
from inferometer.engine.engine import CacheTooSmallError, Engine
from inferometer.engine.llm import LLM
from inferometer.errors import UserError
from inferometer.nn.batch import prompt_batch
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request, request_seed
from inferometer.schedule.sampling import SamplingParams


class NativeBackend:
    """A loaded LLM as the runner sees it."""

    name = "native"
    stack_version = __version__

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._weight_bytes = sum(parameter.nbytes for parameter in llm.model.parameters())
        self._tokens: list[list[int]] = []
        self._opened: Engine | None = None
        self.device = llm.device
        self.encoder = llm.spec.encoder
        self.output_width = llm.spec.hidden if llm.spec.encoder else llm.spec.vocabulary

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights and of the cache that the engine keeps."""
        cache = None if self._opened is None else self._opened.cache
        return self._weight_bytes + (0 if cache is None else cache.keys.nbytes + cache.values.nbytes)

    def prepare(self, rows: int, tokens: int) -> None:
        """Takes a cache for exactly this batch; raises CacheTooSmallError where it has no room beside the weights."""
        self._engine.max_batch = max(self._engine.max_batch, rows)
        self._engine.reserve(rows, tokens)

    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        """One sweep over all prompts, which emits the first tokens."""
        self._tokens = [[] for _ in prompts]
        self._take(self._start(prompts, params))

    def decode(self) -> None:
        """One sweep of a token a row."""
        self._take(self._step(len(self._tokens)))

    def finish(self) -> Sequence[Sequence[int]]:
        """The tokens of the batch, which ends; its cache is kept for the next."""
        tokens, self._tokens = self._tokens, []
        self._engine.clear()
        return tokens

    def abandon(self) -> None:
        """Drops the batch and the cache."""
        self._tokens = []
        if self._opened is not None:
            self._opened.close()

    @torch.inference_mode()
    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        """One forward; the loss is taken chunk by chunk, so that no (tokens, vocabulary) matrix need exist."""
        model, batch = self._llm.model, prompt_batch(prompts, self.device)
        hidden = model.sweep(batch)
        if self.encoder:
            if self._llm.spec.pooler:
                model.pooled(hidden, batch)
            return None
        if not loss:
            model.logits(hidden)
            return None
        # Every position is scored, as in the measured forward elsewhere; the last of each row has no next token to be held against.
        following = batch.token_ids.roll(-1)
        last = torch.zeros_like(following, dtype=torch.bool)
        last[batch.last_tokens] = True
        return float(-model.log_probabilities(hidden, following)[~last].mean())

    @torch.inference_mode()
    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        """float32 logits, or an encoder's hidden states and pooled output, without a cache."""
        model, batch = self._llm.model, prompt_batch(prompts, self.device)
        if not self.encoder:
            scores: Tensor = model(batch, logits="last" if last_only else "all")
            return scores.float().view(len(prompts), -1, self.output_width)
        hidden = model.sweep(batch)
        states = hidden.view(len(prompts), -1, self.output_width)
        pooled = [model.pooled(hidden, batch)[:, None]] if self._llm.spec.pooler else []
        return torch.cat([states, *pooled], 1).float()

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy, through the engine."""
        sweeps = [self._start(prompts, SamplingParams(max_new_tokens=steps, ignore_eos=True))]
        sweeps += [self._step(len(prompts)) for _ in range(steps - 1)]
        self._engine.clear()
        rows = [[sweep[row] for sweep in sweeps] for row in range(len(prompts))]
        return Continuation(
            tuple(tuple(emission.token_id for emission in row) for row in rows),
            tuple(tuple(emission.logprob for emission in row) for row in rows),
        )

    def synchronise(self) -> None:
        """Waits for the device."""
        synchronise(self.device)

    def close(self) -> None:
        """Frees the engine's cache; the weights go with the last reference."""
        self._llm.close()

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            try:
                self._opened = self._llm.engine
            except UserError as error:  # of a decoder: there is no room for any cache beside the weights
                raise CacheTooSmallError(str(error)) from error
            # A batch is one sweep and runs together, or the case is not what its record says.
            self._opened.prefill_tokens = None
        return self._opened

    def _start(self, prompts: Prompts, params: SamplingParams) -> list[Emission]:
        engine = self._engine
        engine.clear()
        for row, prompt in enumerate(prompts):
            engine.add(Request(row, tuple(prompt), params, request_seed(params.seed or 0, row)))
        return self._step(len(prompts))

    def _step(self, rows: int) -> list[Emission]:
        """One sweep's emissions in the order of the rows, all of which must be in it."""
        emissions = sorted(self._engine.step(), key=lambda emission: emission.request_id)
        if [emission.request_id for emission in emissions] != list(range(rows)):
            raise RuntimeError(f"a sweep over {rows} sequences gave {len(emissions)} tokens")
        return emissions

    def _take(self, emissions: list[Emission]) -> None:
        for row, emission in zip(self._tokens, emissions, strict=True):
            row.append(emission.token_id)
