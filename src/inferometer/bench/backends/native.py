"""The native backend: this product's own engine, driven step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from inferometer import __version__
from inferometer.bench.backends.backend import Continuation, PageUse, Prompts
from inferometer.bench.backends.native_batch import NativeBatch
from inferometer.bench.backends.native_forward import forward, logits
from inferometer.bench.backends.native_room import NativeRoom
from inferometer.bench.backends.native_tuning import NativeTuning
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.prompts import told_apart
from inferometer.bench.backends.request import TUNING_SECONDS
from inferometer.bench.backends.residents import residents, rows_of_sweeps
from inferometer.bench.machine.link_rate import copy_rate
from inferometer.bench.machine.memory import release_caches
from inferometer.engine.engine import Engine
from inferometer.engine.invented import fill, invent
from inferometer.engine.llm import LLM
from inferometer.engine.page_room import PageRoom
from inferometer.engine.parallel.leader import Leader
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sizes import PAGE_SIZE, SEATS
from inferometer.engine.streamed_sweeps import over_the_link
from inferometer.kernels.support import usable, variants
from inferometer.schedule.admission import Admission
from inferometer.schedule.groups import Zigzag
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams


def open_backend(opening: Opening) -> NativeBackend:
    """Loads the model into an LLM, with the settings of the request."""
    request = opening.request
    llm = LLM(
        request.model,
        dtype=opening.dtype_name,
        device=str(opening.device),
        weights=cast(Literal["auto", "dummy"], request.weights),
        tokenizer=request.tokenizer,
        quantize=request.quantize,
        kv_dtype=request.kv_dtype,
        offload=request.offload,
        percent=request.percent,
        host_memory=request.host_memory,
        disk=request.disk,
        tensor_parallel=request.tensor_parallel,
        gpu_memory=request.gpu_memory,
        deterministic=request.deterministic,
        seed=request.seed,
    )
    return NativeBackend(llm, request.order(), tuning_seconds=request.tuning_seconds)


class NativeBackend:
    """A loaded LLM as the runner sees it, with an engine of its own: no prefix cache, as the same prompts run again and again, and a
    pool of pages as large as a case needs.

    admission: how the rows of a batch are run; None for one block of them all, which prefills as a whole, decodes as a whole, and must
    have pages for all rows together. sweep_tokens, lookahead: the engine's, None for its own. tuning_seconds: after which no launch for
    a number of rows is measured any more, where none is on file: what is left is the table's.
    """

    name = "native"
    stack_version = __version__

    def __init__(
        self,
        llm: LLM,
        admission: Admission | None = None,
        *,
        sweep_tokens: int | None = None,
        lookahead: int | None = None,
        tuning_seconds: float = TUNING_SECONDS,
    ) -> None:
        self._llm = llm
        self._admission = admission
        self._asked_tokens = sweep_tokens
        self._sweep_tokens = 0  # of the engine that is prepared
        self._lookahead = lookahead
        residency = llm.model.residency
        self._streamed = residency if isinstance(residency, StreamedLayers) else None
        self._weight_bytes = llm.model.weight_bytes
        if self._streamed is not None:
            placement = self._streamed.placement
            self._weight_bytes -= placement.total_bytes - placement.device_bytes
        self._room = NativeRoom(llm)
        self._engine: Engine | None = None
        self._tuning = NativeTuning(llm, tuning_seconds)
        self._together = 0
        self._batch: NativeBatch | None = None
        self.phased = True
        self.begun: tuple[float, int] | None = None
        self.device = llm.device
        self.encoder = llm.spec.encoder
        # Pages and activations in eight bits: of a row's largest number those round as coarsely as bfloat16 does.
        rounds = llm.kv_dtype != llm.dtype or any(weight.activations != "wide" for weight in llm.model.quantised.values())
        self.coarsest = torch.bfloat16 if rounds else llm.dtype
        self.output_width = llm.spec.hidden if llm.spec.encoder else llm.spec.vocabulary

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights and of the engine's pages."""
        return self._weight_bytes + (0 if self._engine is None else self._engine.device_pages * self._engine.page_bytes)

    @property
    def usable(self) -> bool:
        """Whether another batch can run. The ranks of a model end together, and nothing runs on those that are left."""
        return not isinstance(self._llm.ranks, Leader) or self._llm.ranks.well

    def prepare(self, rows: int, tokens: int) -> None:
        """Takes as many pages as such a batch can come to use; raises CacheTooSmallError where there is no room.

        Without an admission that is a place for every row's tokens at once. With one it is what its groups hold together: all of them if
        their number was asked for, else as much of that as there is room for, but no less than one group (one row, under continuous
        admission).
        """
        self.abandon()
        if self.device.type == "cuda":
            release_caches(self.device)  # recorded graphs are part of cycles, and with them the pages of the batch before
        admission = over_the_link(self._admission or Zigzag(rows, 1), self._llm.prompts_beside)
        # The last token's keys are never written.
        each = -(-(tokens - 1) // PAGE_SIZE)
        least, most = residents(admission, rows)
        self._together = most
        self._tuning.tune(rows_of_sweeps(admission, most))
        self._sweep_tokens = self._asked_tokens or self._llm.sweep_tokens(admission, SEATS)
        room = self._room.require(rows, least, tokens - 1, least * each, most * each, sweep_tokens=self._sweep_tokens)
        self.phased = isinstance(admission, Zigzag) and most == rows and room.pages >= rows * each
        self._engine = self._made(room, rows, admission, prefix_caching=False)

    def reorder(self, admission: Admission | None) -> None:
        """Runs the batches that are prepared from now on under another admission."""
        self.abandon()
        self._admission = admission

    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        """As many sweeps as the prompts take; the last of them samples the last row's first token."""
        self._batch = NativeBatch(self._running, prompts, params)
        self._batch.prefill()

    def fill(self, prompts: Prompts, params: SamplingParams) -> None:
        """Pages of random keys and values for the prompts, but for what lies behind the last full one; that is computed."""
        engine = self._finding
        unlike = told_apart(prompts, self.output_width)  # rows that are alike would find, and read, each other's pages
        engine.everywhere(invent, [Request(row, tuple(prompt), params, 0) for row, prompt in enumerate(unlike)])
        self.prefill(unlike, params)

    def decode(self) -> None:
        """One sweep of a token a row. On a GPU what it reads are the tokens of the sweep before it."""
        self._under_way.step()

    def generate(self, prompts: Prompts, params: SamplingParams) -> None:
        """As many sweeps as the admission takes."""
        self.begun = None
        self._batch = NativeBatch(self._running, prompts, params)
        self._batch.run()
        self.begun = self._batch.begun

    def hold(self, prompts: Prompts, params: SamplingParams, steps: int, *, filled: bool) -> None:
        """Stops after the middle step, while every row is still to go on."""
        more = replace(params, max_new_tokens=params.max_new_tokens + 2)
        if steps < 2:  # the only step is the last one, after which a row has ended
            self.prepare(len(prompts), len(prompts[0]) + more.max_new_tokens)
            params = more
        (self.fill if filled else self.prefill)(prompts, params)
        for _ in range((steps + 1) // 2):
            self.decode()
        self._running.drain()

    def again(self) -> None:
        """Launches that step's sweep once more."""
        self._running.relaunch()

    def page_use(self) -> PageUse | None:
        """The pages of the last batch; None where no cache was taken."""
        engine = self._engine
        if engine is None:
            return None
        return PageUse(engine.pages, engine.pages_peak, engine.page_size, engine.page_bytes, engine.device_pages)

    @cached_property
    def link_copy_bytes_s(self) -> float | None:
        """What plain copies over the link reach, measured now; None where there is none to the device."""
        return copy_rate(self.device) if self.device.type == "cuda" else None

    @property
    def link_bytes(self) -> int | None:
        """Bytes that came over the link from the host so far, weights and pages; None where all is on the device."""
        pages = 0 if self._engine is None else self._engine.page_traffic_bytes[0]
        if self._streamed is None and (self._engine is None or self._engine.device_pages == self._engine.pages):
            return None
        return pages + (0 if self._streamed is None else self._streamed.brought_bytes)

    def finish(self) -> Sequence[Sequence[int]]:
        """The tokens of the batch, which ends; its pages are kept for the next."""
        return [[token_id for token_id, _ in row] for row in self._end()]

    def abandon(self) -> None:
        """Drops the batch, the pages and the recorded graphs."""
        self._batch = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def preparations(self) -> int:
        """How much has been compiled, recorded or measured, and sizes met, in this process: what the next run finds there."""
        made = self._tuning.measured + (0 if self._engine is None else self._engine.preparations) + self._llm.text_graphs.preparations
        return made + (variants() if usable(self.device) else 0)

    @property
    def launches(self) -> dict[str, int] | None:
        """Of the linear maps' sizes in a decode step, how many there are, and of how many the launch has been measured; None where nothing
        is chosen."""
        return self._tuning.known(self._together)

    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        """One forward; the loss is taken chunk by chunk, so that no (tokens, vocabulary) matrix need exist."""
        self._tuning.tune([sum(map(len, prompts))])
        return self._llm.everywhere(forward, prompts, loss)

    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        """float32 logits, or an encoder's hidden states and pooled output, without a cache."""
        return self._llm.everywhere(logits, prompts, last_only)

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy, through the engine and under the admission that is timed."""
        if self._engine is None:
            self.prepare(len(prompts), len(prompts[0]) + steps)
        self.generate(prompts, SamplingParams(max_new_tokens=steps, ignore_eos=True))
        rows = self._end()
        return Continuation(
            tuple(tuple(token_id for token_id, _ in row) for row in rows),
            tuple(tuple(logprob for _, logprob in row) for row in rows),
        )

    def synchronise(self) -> None:
        """Waits for the device."""
        self._llm.synchronise()

    def close(self) -> None:
        """Frees the pages; the weights go with the last reference."""
        self.abandon()
        self._llm.close()

    def _end(self) -> list[list[tuple[int, float]]]:
        """The tokens of the batch and their log-probabilities, by row."""
        rows, self._batch = self._under_way.end(), None
        return rows

    @property
    def _under_way(self) -> NativeBatch:
        if self._batch is None:
            raise RuntimeError("a step, and the end, need a batch that has begun")
        return self._batch

    @property
    def _finding(self) -> Engine:
        """The engine with all its pages filled at random, and able to find them by the prompts that they stand for."""
        engine = self._running
        if not engine.prefix_caching:
            engine.close()
            self._engine = engine = self._made(PageRoom(*[engine.pages] * 2), engine.seats, engine.admission, prefix_caching=True)
            engine.everywhere(fill, engine.pages, 0)
        return engine

    def _made(self, room: PageRoom, rows: int, admission: Admission, *, prefix_caching: bool) -> Engine:
        return self._llm.make_engine(
            pages=room.pages,
            device_pages=room.device,
            slot_pages=room.slot_pages,
            page_size=PAGE_SIZE,
            seats=rows,
            sweep_tokens=max(self._sweep_tokens, rows),
            admission=admission,
            prefix_caching=prefix_caching,
            lookahead=self._lookahead,
        )

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("a batch needs a cache prepared for it")
        return self._engine
