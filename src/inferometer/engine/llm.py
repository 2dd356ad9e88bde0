"""The offline interface: a model, loaded, that generates and encodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from math import inf
from numbers import Real
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import torch

from inferometer.engine.device import resolve_device, resolve_dtype, resolve_kv_dtype, resolve_numerics
from inferometer.engine.engine import PAGE_SIZE, SEATS, SWEEP_TOKENS, Engine
from inferometer.engine.memory import check_weights, page_budget
from inferometer.engine.pooling import Pooling, pool, read_pooling
from inferometer.engine.sampler import check
from inferometer.engine.text_stream import TextStream
from inferometer.engine.tuning import tune
from inferometer.errors import UserError
from inferometer.model.description import describe, with_weights
from inferometer.model.families import family
from inferometer.model.quantisation import check_quantize, read_quantisation, resolve_quantize
from inferometer.nn.batch import paged_prompt, prompt_batch
from inferometer.nn.cache import PagedCache
from inferometer.nn.formats.layout import QuantLayout, layouts
from inferometer.nn.formats.stored import QuantisedSource, stored_layouts
from inferometer.nn.load import load, open_source
from inferometer.nn.names import fitted
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission as admission_of
from inferometer.schedule.completion import Completion, StreamedToken
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request, request_seed
from inferometer.schedule.sampling import SEEDS, SamplingParams
from inferometer.text.load import load_tokenizer

if TYPE_CHECKING:
    import numpy

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


class LLM:
    """A transformer on a device, ready to generate (decoders) or encode (encoders).

    model: a local folder or .gguf file, a preset or Hub id; None for the embedded model.
    revision: of a model of the Hub: a branch, tag or commit; None for main.
    weights: "auto" reads the checkpoint, "dummy" makes seeded random ones on the device.
    tokenizer: a folder, file or "byte"; None for the model's own ("byte" with dummy weights).
    quantize: the format that the layers' matrices are rounded to as they are read: int8, w8a8, int4-g32, int4-g64 (also int4), int4-g128,
    each of these with -sym, or fp8; None for as they are stored. "gptq" and "awq" say that they are stored so.
    kv_dtype: of the KV cache: "auto" for the activations' own, or "fp8" or "int8" with a scale for each head of each page.
    admission: which requests enter at which sweep: "continuous" (as room comes free), "zigzag" (a block of num_groups groups of
    group_size requests enters and leaves together), "diagonal" (a group enters at every sweep), "row" (one group at a time). All give
    the same tokens.
    gpu_memory: GiB that weights, cache and activations may take together on the GPU (on the CPU: the cache); None for
    memory_fraction of the device. deterministic: every prompt gets the same tokens, and log-probabilities equal to the bit, alone and in
    any company, on one machine with one number of threads; slower. seed: of dummy weights and of requests that bring none.
    Raises UserError, one line, for whatever cannot be found, read or run.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        weights: Literal["auto", "dummy"] = "auto",
        tokenizer: str | Path | None = None,
        quantize: str | None = None,
        kv_dtype: str = "auto",
        admission: str = "continuous",
        group_size: int | None = None,
        num_groups: int | None = None,
        gpu_memory: float | None = None,
        memory_fraction: float = 0.9,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        if gpu_memory is not None and not (_is_number(gpu_memory) and 0 < gpu_memory < inf):
            raise UserError(f"gpu_memory must be a number of GiB above 0, not {gpu_memory!r}")
        if not (_is_number(memory_fraction) and 0 < memory_fraction <= 1):
            raise UserError(f"memory_fraction must be a number above 0 and at most 1, not {memory_fraction!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise UserError(f"seed must be a whole number from 0 to 2^64 - 1, not {seed!r}")
        if not isinstance(deterministic, bool):
            raise UserError(f"deterministic must be True or False, not {deterministic!r}")
        self.admission = admission_of(admission, group_size, num_groups)
        self.device = resolve_device(device)
        numerics = resolve_numerics(self.device, deterministic=deterministic)
        resolve_dtype(dtype, self.device, None)  # a wrong --dtype is told before any file is opened
        check_quantize(quantize)
        narrow = resolve_kv_dtype(kv_dtype, deterministic=deterministic)
        described = describe(None if model is None else str(model), config_only=weights == "dummy", revision=revision)
        self.description = described if weights == "dummy" else with_weights(described, revision=revision)
        self.weight_format = weights_in = resolve_quantize(quantize, read_quantisation(self.description.config, self.description.name))
        with closing(open_source(self.description, weights=weights, seed=seed)) as source:
            kind = family(self.description.spec.family)
            self.spec = fitted(self.description.spec, source, kind)
            self.dtype = resolve_dtype(dtype, self.device, source.dtype)
            self.kv_dtype = self.dtype if narrow is None else narrow
            quantised = None
            if isinstance(source, QuantisedSource):
                quantised = stored_layouts(self.spec, source, kind, self.device)
            elif weights_in is not None:
                quantised = layouts(self.spec, QuantLayout.of(weights_in, self.device))
            check_weights(self.spec, self.device, self.dtype, weights_in)
            self.model = Transformer(self.spec, self.device, self.dtype, numerics, quantised)
            load(self.model, source, kind)
        self.model.pack()
        if tokenizer is None and weights == "dummy":
            tokenizer = "byte"
        self.tokenizer = load_tokenizer(self.description.path if tokenizer is None else tokenizer)
        self.seed = seed
        self._gpu_memory, self._memory_fraction = gpu_memory, memory_fraction
        self._engine: Engine | None = None
        self._requests = 0
        self._inboxes: dict[int, deque[Emission]] = {}  # of the requests that an iterator waits for: one an iterator

    @property
    def engine(self) -> Engine:
        """The loop under `generate`, for callers that drive it step by step. Raises UserError for an encoder."""
        if self.spec.encoder:
            raise UserError(f"{self.spec.name} is an encoder: it embeds text and does not generate; use a decoder model")
        if self._engine is None:
            tune(self.model)  # before memory is measured and sweeps are recorded
            pages = self.room(seats=SEATS, sweep_tokens=SWEEP_TOKENS)
            self._engine = Engine(self.model, pages=pages, admission=self.admission, kv_dtype=self.kv_dtype)
        return self._engine

    def room(self, *, seats: int, sweep_tokens: int) -> int:
        """Pages of KV cache that the device has memory for now, beside sweeps of so many sequences and tokens.

        Raises UserError if there is memory for none.
        """
        return page_budget(
            self.model,
            page_size=PAGE_SIZE,
            seats=seats,
            sweep_tokens=sweep_tokens,
            fraction=self._memory_fraction,
            limit_bytes=None if self._gpu_memory is None else int(self._gpu_memory * 2**30),
            kv_dtype=self.kv_dtype,
        )

    @property
    def context_limit(self) -> int | None:
        """Most tokens of one sequence: the positions the model has, or its sliding window if that is shorter."""
        limits = [limit for limit in (self.spec.context_limit, self.spec.sliding_window) if limit is not None]
        return min(limits, default=None)

    @property
    def text_limit(self) -> int | None:
        """Most tokens of a text that `encode` takes in, special ones included; None for any number."""
        return self._text_limit(read_pooling(self._folder, has_pooler=self.spec.pooler))

    def generate(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] = SamplingParams()) -> list[Completion]:
        """Continues every prompt; one completion a prompt, in order.

        prompts: a text, texts, or lists of token ids. params: for all, or one a prompt. Raises UserError for an impossible request.
        """
        completions: dict[int, Completion] = {}
        for stream, _, _, completion in self._run(self._checked(prompts, params)):
            if completion is not None:
                completions[stream.prompt] = completion
        return [completions[index] for index in sorted(completions)]

    def stream(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] = SamplingParams()
    ) -> Generator[StreamedToken, None, None]:
        """As `generate`, but yields each token as it comes. Closing the iterator early drops what is unfinished.

        The request is checked at once, before the first token is asked for. Several iterators may be open at a time: each drives the
        engine for all of them. Raises RuntimeError if the engine is cleared or closed meanwhile.
        """
        return self._streamed(self._checked(prompts, params))

    def encode(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, pooling: Pooling | None = None) -> numpy.ndarray:
        """float32 (texts, hidden): one vector a text, from an encoder.

        The pooling is the one the model's folder declares unless given. Texts longer than the model's limit are cut there, as
        is usual for embeddings. Raises UserError for a decoder or an empty list of tokens.
        """
        if not self.spec.encoder:
            raise UserError(f"{self.spec.name} is a decoder: it generates and does not encode; use an encoder such as all-minilm-l6-v2")
        how = pooling or read_pooling(self._folder, has_pooler=self.spec.pooler)
        limit = self._text_limit(how)
        rows = [self._cut(ids, len(ids) if limit is None else limit) for ids in self._token_ids(texts)]
        out = torch.empty(len(rows), self.spec.hidden)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # equal lengths side by side share one attention call
        with torch.inference_mode():
            # Attention without a cache is torch's, whose order of additions may differ with the batch.
            together = 1 if self.model.numerics is Numerics.INVARIANT else 32
            for start in range(0, len(order), together):
                part = order[start : start + together]
                batch = prompt_batch([rows[i] for i in part], self.device)
                out[part] = pool(self.model, self.model.sweep(batch), batch, how).cpu()
        return out.numpy()

    @torch.inference_mode()
    def hidden_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(tokens, hidden) on the device: what `model.logits` makes the distribution after each token of.

        Through a KV cache of their own where that is in fewer bits than the activations.
        """
        if self.kv_dtype == self.dtype:
            return self.model.sweep(prompt_batch([token_ids], self.device))
        pages = -(-len(token_ids) // PAGE_SIZE)
        cache = PagedCache(self.model.local, pages, PAGE_SIZE, self.device, self.kv_dtype)
        return self.model.sweep(paged_prompt(token_ids, PAGE_SIZE, self.device), cache)

    def close(self) -> None:
        """Drops all requests and frees the cache."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _checked(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
        engine, requests = self.engine, self._build(prompts, params)  # in this order: an encoder is refused as such, not for its lengths
        for request in requests:
            engine.check(request)
        return requests

    def _streamed(self, requests: list[Request]) -> Generator[StreamedToken, None, None]:
        with closing(self._run(requests)) as tokens:
            for stream, emission, piece, completion in tokens:
                yield stream.streamed(emission, piece, completion)

    def _run(self, requests: list[Request]) -> Generator[tuple[TextStream, Emission, str, Completion | None], None, None]:
        """Every token as it comes, with the text that it makes certain and, at its end, the completion."""
        engine = self.engine  # the same until the end, whatever becomes of it
        streams = {request.id: TextStream(request, place, self.tokenizer) for place, request in enumerate(requests)}
        inbox: deque[Emission] = deque()
        self._inboxes.update(dict.fromkeys(streams, inbox))
        try:
            sequences = {request.id: engine.add(request) for request in requests}
            while streams:
                while not inbox:
                    self._step(engine)
                    if not inbox and any(sequences[request_id].ended for request_id in streams):
                        raise RuntimeError("requests were dropped while they ran: the engine was cleared or closed, or a sweep failed")
                emission = inbox.popleft()
                stream = streams.get(emission.request_id)
                if stream is None:
                    continue  # came before its text ended at a stop string, while another iterator drove the engine
                piece, completion = stream.push(emission)
                if completion is not None:
                    self._drop(engine, emission.request_id)
                    del streams[emission.request_id]
                yield stream, emission, piece, completion
        finally:
            for request_id in streams:
                self._drop(engine, request_id)

    def _step(self, engine: Engine) -> None:
        """One step, whoever asks for it, and every token to whoever waits for it."""
        for emission in engine.step():
            inbox = self._inboxes.get(emission.request_id)
            if inbox is not None:  # else its text has ended, or nobody wants it any longer
                inbox.append(emission)

    def _drop(self, engine: Engine, request_id: int) -> None:
        self._inboxes.pop(request_id, None)
        engine.abort(request_id)

    def _build(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
        rows = self._token_ids(prompts)
        wanted = [params] * len(rows) if isinstance(params, SamplingParams) else params
        if not isinstance(wanted, Sequence) or not all(isinstance(own, SamplingParams) for own in wanted):
            raise UserError(f"params must be SamplingParams, or a list with one a prompt, not {type(params).__name__}")
        if len(wanted) != len(rows):
            raise UserError(f"{len(rows)} prompts but {len(wanted)} sampling parameters; give one for all or one a prompt")
        eos = () if self.tokenizer is None else self.tokenizer.eos_token_ids
        requests: list[Request] = []
        for ids, own in zip(rows, wanted, strict=True):
            check(own, self.spec.vocabulary)
            if own.stop and self.tokenizer is None:
                raise UserError(f"{self.spec.name} has no tokenizer, so stop strings cannot be matched; use stop_token_ids or --tokenizer")
            kept = ids if own.truncate is None else ids[-own.truncate :]
            self._require_room(len(kept), own.max_new_tokens)
            seed = request_seed(self.seed, self._requests + len(requests)) if own.seed is None else own.seed
            requests.append(Request(self._requests + len(requests), tuple(kept), own, seed, self.description.eos_token_ids or eos))
        self._requests += len(requests)
        return requests

    def _require_room(self, prompt: int, new: int) -> None:
        limit = self.context_limit
        if limit is not None and prompt + new > limit:
            what = "positions" if limit == self.spec.context_limit else "tokens of its sliding window"
            raise UserError(
                f"{prompt} prompt tokens and {new} new ones are more than the {limit} {what} of {self.spec.name}; "
                "shorten the prompt or lower --max-new-tokens"
            )

    def _token_ids(self, prompts: Prompts) -> list[list[int]]:
        if isinstance(prompts, str):
            prompts = [prompts]
        refusal = UserError("prompts are texts or lists of token ids, which are whole numbers; wrap a single prompt's ids in a list")
        if not isinstance(prompts, Iterable):
            raise refusal
        rows = []
        for prompt in prompts:
            if isinstance(prompt, str):
                if self.tokenizer is None:
                    raise UserError(f"{self.spec.name} has no tokenizer; give token ids, or a tokenizer with --tokenizer PATH|byte")
                ids = self.tokenizer.encode(prompt)
            else:
                try:
                    ids = [index(token) for token in prompt]
                except TypeError:  # no list, or no whole numbers in it
                    raise refusal from None
            if not ids:
                raise UserError("a prompt has no tokens; give at least one")
            wrong = next((token for token in ids if not 0 <= token < self.spec.vocabulary), None)
            if wrong is not None:
                raise UserError(f"token id {wrong} is outside the vocabulary of {self.spec.name}, 0 to {self.spec.vocabulary - 1}")
            rows.append(ids)
        return rows

    def _text_limit(self, how: Pooling) -> int | None:
        return min([limit for limit in (how.max_tokens, self.context_limit) if limit is not None], default=None)

    def _cut(self, ids: list[int], length: int) -> list[int]:
        """The first `length` tokens; a closing special token ([SEP]) stays the last one, as in training."""
        if len(ids) <= length:
            return ids
        closing = self.tokenizer is not None and self.tokenizer.is_special(ids[-1])
        return [*ids[: length - 1], ids[-1]] if closing else ids[:length]

    @property
    def _folder(self) -> Path | None:
        path = self.description.path
        return path if path is not None and path.is_dir() else None


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
