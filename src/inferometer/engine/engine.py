"""The loop: requests come in, every step is one sweep, tokens go out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from inferometer.engine.sampler import Sampled, SamplingBatch, SamplingRow, sample
from inferometer.errors import ModelError, UserError
from inferometer.nn.batch import RaggedBatch, decode_batch, prompt_batch
from inferometer.nn.cache import KVCache
from inferometer.nn.transformer import Transformer
from inferometer.schedule.completion import FinishReason
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request


class CacheTooSmallError(UserError):
    """The KV cache cannot hold what was asked; the message says how much is needed and how much there is."""


@dataclass(slots=True)
class _Running:
    """A sequence in the batch; its cache slot is its place in the list."""

    request: Request
    generated: list[int] = field(default_factory=list)

    @property
    def context(self) -> int:
        """Tokens in the cache: all but the newest, which the next step writes."""
        return len(self.request.prompt_token_ids) + len(self.generated) - 1


class Engine:
    """Runs requests over one transformer, with a contiguous cache slot for each running sequence.

    kv_bytes: most bytes the cache may take. max_batch: most sequences that run together. prefill_tokens: most prompt tokens of
    one sweep (a longer prompt goes alone), None for no limit. Not thread-safe.
    """

    def __init__(self, model: Transformer, *, kv_bytes: int, max_batch: int = 256, prefill_tokens: int | None = 8192) -> None:
        self.model = model
        self.kv_bytes = kv_bytes
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.cache: KVCache | None = None
        self._waiting: deque[Request] = deque()
        self._running: list[_Running] = []
        self._sampling: SamplingBatch | None = None
        empty = torch.empty(0, dtype=torch.int64, device=model.device)
        self._token_ids, self._positions, self._prompt_lengths = empty, empty, empty

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def add(self, request: Request) -> None:
        """Queues a request. Raises CacheTooSmallError for one that could never run."""
        self.check(request)
        self._waiting.append(request)

    def check(self, request: Request) -> None:
        """Raises CacheTooSmallError for a request that could never run, however long it waited."""
        self._require(1, request.tokens)

    def reserve(self, sequences: int, tokens: int) -> None:
        """Makes room for `sequences` of `tokens` each to run together. Raises CacheTooSmallError; drops whatever is running."""
        self.clear()
        self._require(sequences, tokens)
        self._resize(sequences, tokens)

    def abort(self, request_id: int) -> None:
        """Drops a request, waiting or running; nothing more is emitted for it. Unknown ids are ignored."""
        self._waiting = deque(request for request in self._waiting if request.id != request_id)
        self._keep([i for i, sequence in enumerate(self._running) if sequence.request.id != request_id])

    def clear(self) -> None:
        """Drops every request; the cache's memory stays."""
        self._waiting.clear()
        self._keep([])

    def close(self) -> None:
        """Drops every request and gives the cache's memory back."""
        self.clear()
        self.cache = None

    @torch.inference_mode()
    def step(self) -> list[Emission]:
        """One sweep: the prompts of all requests that can be admitted now, else one token of every running sequence.

        Each sequence in the sweep emits one token. Returns nothing if there is no work.
        """
        admitted = self._admit()
        if admitted:
            return self._prefill(admitted)
        return self._decode() if self._running else []

    def _prefill(self, admitted: list[Request]) -> list[Emission]:
        first_slot = len(self._running)
        batch = prompt_batch([request.prompt_token_ids for request in admitted], self.model.device, first_slot=first_slot)
        hidden = self.model.sweep(batch, self.cache)
        last = batch.last_tokens
        rows = [SamplingRow(request.params, request.seed, request.prompt_token_ids, (), request.eos_token_ids) for request in admitted]
        sampling = SamplingBatch.build(rows, self.model.spec.vocabulary, self.model.device)
        sampled = sample(self.model.logits(hidden[last]), sampling)
        prompt_logprobs = self._prompt_logprobs(admitted, batch, hidden)
        sampling.update(sampled.token_ids)
        lengths = batch.rotary_lengths[last]
        if self._sampling is None or not self._running:
            self._sampling = sampling
        else:
            self._sampling.extend(sampling)
        self._running += [_Running(request) for request in admitted]
        self._token_ids = torch.cat((self._token_ids, sampled.token_ids))
        self._positions = torch.cat((self._positions, lengths))
        self._prompt_lengths = torch.cat((self._prompt_lengths, lengths))
        return self._emit(first_slot, sampled, prompt_logprobs)

    def _decode(self) -> list[Emission]:
        assert self._sampling is not None
        contexts = tuple(sequence.context + 1 for sequence in self._running)
        slots = torch.arange(len(contexts), device=self.model.device)
        lengths = torch.maximum(self._prompt_lengths, self._positions + 1)
        batch = decode_batch(self._token_ids, self._positions, contexts, slots, lengths)
        sampled = sample(self.model.logits(self.model.sweep(batch, self.cache)), self._sampling)
        self._sampling.update(sampled.token_ids)
        self._token_ids = sampled.token_ids
        self._positions = self._positions + 1
        return self._emit(0, sampled, [None] * len(contexts))

    def _prompt_logprobs(self, admitted: list[Request], batch: RaggedBatch, hidden: Tensor) -> list[tuple[float | None, ...] | None]:
        result: list[tuple[float | None, ...] | None] = []
        start = 0
        for request, length in zip(admitted, batch.query_lengths, strict=True):
            if not request.params.prompt_logprobs:
                result.append(None)
            elif length == 1:
                result.append((None,))
            else:
                states, targets = hidden[start : start + length - 1], batch.token_ids[start + 1 : start + length]
                result.append((None, *self.model.log_probabilities(states, targets).tolist()))
            start += length
        return result

    def _emit(self, first: int, sampled: Sampled, prompt_logprobs: list[tuple[float | None, ...] | None]) -> list[Emission]:
        """Reads the sampled tokens of the sequences from `first` on, and takes the finished ones out of the batch."""
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        if -inf in logprobs:  # the sampler's word for a row of NaN; whatever token it names there was not the model's choice
            name, dtype = self.model.spec.name, str(self.model.dtype).removeprefix("torch.")
            raise ModelError(f"{name} in {dtype} gives no token a finite score: its weights are damaged, or need --dtype float32")
        tops = sampled.tops()
        emissions, finished = [], set()
        for row, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            sequence = self._running[first + row]
            sequence.generated.append(token_id)
            reason = finish_reason(sequence.request, sequence.generated)
            if reason is not None:
                finished.add(first + row)
            emissions.append(Emission(sequence.request.id, token_id, logprob, tops[row], prompt_logprobs[row], reason))
        if finished:
            self._keep([i for i in range(len(self._running)) if i not in finished])
        return emissions

    def _admit(self) -> list[Request]:
        """Takes from the queue, in order, what fits beside the running sequences."""
        if not self._waiting:
            return []
        if not self._running:
            self._fit_cache()
        assert self.cache is not None
        admitted: list[Request] = []
        tokens = 0
        while self._waiting:
            request = self._waiting[0]
            tokens += len(request.prompt_token_ids)
            free = self.cache.slots - len(self._running) - len(admitted)
            too_much = bool(admitted) and self.prefill_tokens is not None and tokens > self.prefill_tokens
            if not free or request.tokens > self.cache.length or too_much:
                break
            admitted.append(self._waiting.popleft())
        return admitted

    def _fit_cache(self) -> None:
        """Sizes the idle cache for as many of the waiting requests as fit together; keeps it if it is large enough."""
        slots, length = 0, 0
        for request in self._waiting:
            longer = max(length, request.tokens)
            if slots == self.max_batch or (slots + 1) * longer * self._bytes_per_token > self.kv_bytes:
                break
            slots, length = slots + 1, longer
        if self.cache is None or self.cache.slots < slots or self.cache.length < length:
            self._resize(slots, length)

    def _resize(self, slots: int, length: int) -> None:
        self.cache = None  # before the new one is taken, so that the two never stand side by side
        self.cache = KVCache(self.model.spec, slots, length, self.model.device, self.model.dtype)

    @torch.inference_mode()
    def _keep(self, rows: list[int]) -> None:
        """Shrinks the batch to `rows`. The last sequences move into the slots that came free, so that few are copied."""
        if len(rows) == len(self._running):
            return
        kept = set(rows)
        holes = [i for i in range(len(rows)) if i not in kept]
        order = list(range(len(rows)))
        for hole, source in zip(holes, (i for i in rows if i >= len(rows)), strict=True):
            assert self.cache is not None
            self.cache.move(source, hole, self._running[source].context)
            order[hole] = source
        self._running = [self._running[i] for i in order]
        index = torch.tensor(order, dtype=torch.int64, device=self.model.device)
        self._token_ids, self._positions, self._prompt_lengths = (
            self._token_ids[index],
            self._positions[index],
            self._prompt_lengths[index],
        )
        if self._sampling is not None:
            self._sampling = self._sampling.select(order) if order else None

    @property
    def _bytes_per_token(self) -> int:
        return KVCache.bytes_per_token(self.model.spec, self.model.dtype)

    def _require(self, sequences: int, tokens: int) -> None:
        needed = sequences * tokens * self._bytes_per_token
        if needed > self.kv_bytes:
            gib = 2**30
            raise CacheTooSmallError(
                f"{sequences} x {tokens} tokens need {needed / gib:.2f} GiB of KV cache, {self.kv_bytes / gib:.2f} GiB are available; "
                "use a smaller batch or length, or raise --gpu-memory"
            )


def finish_reason(request: Request, generated: list[int]) -> FinishReason | None:
    """Why a sequence ends with its newest token, None if it goes on. An end token on the last permitted place counts as one."""
    params = request.params
    if generated[-1] in params.stop_token_ids:
        return "stop_sequence"
    if generated[-1] in request.eos_token_ids and not params.ignore_eos:
        return "eos_token"
    return "length" if len(generated) >= params.max_new_tokens else None
