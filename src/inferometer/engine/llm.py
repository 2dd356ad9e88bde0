"""The offline interface: a model, loaded, that generates and encodes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch

from inferometer.engine.device import resolve_dtype, resolve_kv_dtype, resolve_numerics, synchronise
from inferometer.engine.engine import SEATS, Engine
from inferometer.engine.loaded_part import DeviceLimits, load_part
from inferometer.engine.page_room import PageRoom
from inferometer.engine.parallel.leader import Leader
from inferometer.engine.parallel.placement import rank_device
from inferometer.engine.parallel.rank_engine import LeadingEngine
from inferometer.engine.parallel.ranks import Ranks
from inferometer.engine.parallel.start import end_ranks, local_ranks, ranks_of, share_threads
from inferometer.engine.parallel.wire import RANKS, Call, Forget
from inferometer.engine.pooling import Pooling, read_pooling
from inferometer.engine.prompt_reader import PromptReader, Prompts
from inferometer.engine.residency.storage import Storage
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.room_beside import RoomBeside
from inferometer.engine.shared_loop import SharedLoop
from inferometer.engine.streamed_sweeps import over_the_link, sweep_tokens_for, tokens_beside_the_link
from inferometer.engine.text_graphs import TextGraphs
from inferometer.engine.text_states import hidden_states, log_probabilities, vectors
from inferometer.engine.tuning import SECONDS, tune
from inferometer.errors import UserError
from inferometer.kernels.skinny_choice import BUCKETS
from inferometer.model.description import describe, with_weights
from inferometer.model.quantisation import check_quantize, read_quantisation, resolve_quantize
from inferometer.model.shard import check_shards
from inferometer.nn.numerics import Numerics
from inferometer.schedule.admission import Admission
from inferometer.schedule.admission import admission as admission_of
from inferometer.schedule.completion import Completion, StreamedToken
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SEEDS, SamplingParams
from inferometer.text.load import load_tokenizer

if TYPE_CHECKING:
    import numpy

T = TypeVar("T")


class LLM:
    """A transformer on a device, ready to generate (decoders) or encode (encoders).

    model: a local folder or .gguf file, a preset or Hub id; None for the embedded model.
    revision: of a model of the Hub: a branch, tag or commit; None for main.
    weights: "auto" reads the checkpoint, "dummy" makes seeded random ones on the device.
    tokenizer: a folder, file or "byte"; None for the model's own ("byte" with dummy weights).
    quantize: the format that the layers' matrices are rounded to as they are read: int8, w8a8, int4-g32, int4-g64 (also int4), int4-g128,
    each of these with -sym, or fp8; None for as they are stored. "gptq" and "awq" say that they are stored so.
    kv_dtype: of the KV cache: "auto" for the activations' own, or "fp8" or "int8" with a scale for each head of each page.
    tensor_parallel: ranks that share the model, each on a GPU of its own (any number on a CPU), in processes that are started with it and
    end with it; all that torchrun has started, where that has started this one, and rank 0 goes on while the others follow. Or `ranks` of
    another LLM, to share its processes.
    admission: which requests enter at which sweep: "continuous" (as room comes free), "zigzag" (a block of num_groups groups of
    group_size requests enters and leaves together), "diagonal" (a group enters at every sweep), "row" (one group at a time). All give
    the same tokens.
    offload: "weights" or "weights:FRACTION": that share of the layers' bytes comes to the device for as long as a layer runs; "pages": the
    KV cache lies in the host's memory, and comes as well; both with a comma between. percent:
    instead, FlexGen's six numbers: percent of weights on the GPU and the host (the rest is on the disk), of the cache, of activations.
    host_memory: GiB of the host that these may take. disk: a folder for the weights that it has no room for.
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
        tensor_parallel: int | Ranks = 1,
        admission: str = "continuous",
        group_size: int | None = None,
        num_groups: int | None = None,
        offload: str | None = None,
        percent: str | Sequence[int] | None = None,
        host_memory: float | None = None,
        disk: str | Path | None = None,
        gpu_memory: float | None = None,
        memory_fraction: float = 0.9,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        # What other ranks make theirs of. Text is rank 0's alone.
        settings = {name: value for name, value in locals().items() if name not in ("self", "tensor_parallel", "tokenizer")}
        self._limits = DeviceLimits(gpu_memory, memory_fraction)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise UserError(f"seed must be a whole number from 0 to 2^64 - 1, not {seed!r}")
        if not isinstance(deterministic, bool):
            raise UserError(f"deterministic must be True or False, not {deterministic!r}")
        self.admission = admission_of(admission, group_size, num_groups)
        self._storage = Storage.of(offload, percent, host_memory, disk)
        local_rank, local_size = local_ranks(tensor_parallel)
        size = tensor_parallel if isinstance(tensor_parallel, int) else tensor_parallel.size
        if size > 1 and self._storage.offload.name is not None:
            raise UserError("--offload and --percent are for one device; leave them out, or --tensor-parallel")
        self.device = rank_device(device, local_rank, local_size)
        numerics = resolve_numerics(self.device, deterministic=deterministic)
        resolve_dtype(dtype, self.device, None)  # a wrong --dtype is told before any file is opened
        check_quantize(quantize)
        narrow = resolve_kv_dtype(kv_dtype, deterministic=deterministic)
        if self._storage.offload.pages and narrow is not None:
            raise UserError(f"--kv-dtype {kv_dtype} keeps all pages on the device; leave it out, or leave out --offload pages")
        described = describe(None if model is None else str(model), config_only=weights == "dummy", revision=revision)
        self.description = described if weights == "dummy" else with_weights(described, revision=revision)
        self.weight_format = resolve_quantize(quantize, read_quantisation(self.description.config, self.description.name))
        self._engine: Engine | None = None
        self._device_room = 0  # pages that the engine's device has memory for
        self._loop = SharedLoop()
        self.last_states: torch.Tensor | None = None  # of the text that was read last
        if size > 1:
            check_shards(self.description.spec, size)  # before anything is started
        self.ranks = ranks = ranks_of(tensor_parallel)
        self._name = RANKS  # under which other ranks hold theirs
        self._end: Callable[[], object] | None = None
        if isinstance(ranks, Leader):
            self._lead(ranks, settings, (weights, dtype, numerics, narrow, seed), started=isinstance(tensor_parallel, int) and ranks.owned)
        elif ranks.leads:
            self._load(weights, dtype, numerics, narrow, seed)
        if tokenizer is None and weights == "dummy":
            tokenizer = "byte"
        # Text is rank 0's alone.
        self.tokenizer = load_tokenizer(self.description.path if tokenizer is None else tokenizer) if ranks.leads else None
        if ranks.leads:
            eos = self.description.eos_token_ids or (() if self.tokenizer is None else self.tokenizer.eos_token_ids)
            self._reader = PromptReader(self.spec, self.tokenizer, tuple(eos))
        self.seed = seed

    def _lead(self, ranks: Leader, settings: dict[str, Any], loading: tuple[Any, ...], *, started: bool) -> None:
        """Has the other ranks find the model, then all load it. started: whether they were for this model, and end with it."""
        self._name = name = ranks.name()
        if started:
            self._end = weakref.finalize(self, partial(end_ranks, ranks, share_threads(self.device, ranks.local_size)))
        else:
            self._end = weakref.finalize(self, partial(ranks.tell, Forget(name)))
        try:
            ranks.ask(Call(RANKS, _following, (settings,), answered=True, keeps=name), lambda: None, last=started)
            ranks.ask(Call(name, LLM._load, loading, answered=True), lambda: self._load(*loading), last=started)
        except BaseException:
            self._end()
            raise

    def _load(self, weights: Literal["auto", "dummy"], dtype: str, numerics: Numerics, narrow: torch.dtype | None, seed: int) -> None:
        """This rank's part of the weights."""
        part = load_part(
            self.description,
            self.weight_format,
            self.device,
            dtype,
            numerics,
            self.ranks,
            self._storage,
            self._limits,
            weights=weights,
            seed=seed,
        )
        self.spec, self.dtype, self.model = part.spec, part.dtype, part.model
        self.kv_dtype = part.dtype if narrow is None else narrow

    @property
    def engine(self) -> Engine:
        """The loop under `generate`, for callers that drive it step by step. Raises UserError for an encoder."""
        if self.spec.encoder:
            raise UserError(f"{self.spec.name} is an encoder: it embeds text and does not generate; use a decoder model")
        if self._engine is None:
            self.tune()
            sweep_tokens = self.sweep_tokens(self.admission, SEATS)
            self._device_room = self.room(seats=SEATS, sweep_tokens=sweep_tokens)
            room = self.page_room(seats=SEATS, sweep_tokens=sweep_tokens, device=self._device_room)
            self._engine = self.make_engine(
                pages=room.pages,
                device_pages=room.device,
                slot_pages=room.slot_pages,
                sweep_tokens=sweep_tokens,
                admission=over_the_link(self.admission, self.prompts_beside),
            )
        return self._engine

    def sweep_tokens(self, admission: Admission, seats: int) -> int:
        """The most tokens of a sweep under an admission of so many sequences, as far as --gpu-memory lets them."""
        return self._beside.sweep_tokens(sweep_tokens_for(admission, self.prompts_beside, seats), seats)

    @cached_property
    def prompts_beside(self) -> int | None:
        """Prompt tokens that the device computes while a sweep's weights come in; None where none come, or nobody knows."""
        return tokens_beside_the_link(self.model, self.weight_format)

    def page_room(self, *, seats: int, sweep_tokens: int, wanted: int | None = None, device: int | None = None) -> PageRoom:
        """Pages that both sides have room for now, beside sweeps of so many sequences and tokens; no more than `wanted`.

        device: what `room` said of them, if it has been asked. Warns where all wanted would fit on the device, though some are to be
        elsewhere. Raises UserError if there is room for none.
        """
        device = self.room(seats=seats, sweep_tokens=sweep_tokens) if device is None else device
        return self._beside.shared(device, seats=seats, wanted=wanted)

    @cached_property
    def text_graphs(self) -> TextGraphs:
        """Forwards of whole texts, recorded where that pays."""
        return TextGraphs(self.model)

    @property
    def _beside(self) -> RoomBeside:
        return RoomBeside(self.model, self.kv_dtype, self._storage, self._limits)

    def make_engine(self, *, pages: int, **settings: Any) -> Engine:
        """An engine over this model, on every rank, with such pages and other settings of `Engine`; the cache is in the model's `kv_dtype`.

        Raises what Engine raises.
        """
        settings = {"pages": pages, "kv_dtype": self.kv_dtype, **settings}
        if isinstance(self.ranks, Leader):
            return LeadingEngine(self.ranks, self._name, self.model, **settings)
        return Engine(self.model, **settings)

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> T:
        """function(llm, *arguments), of a function that a module defines, on every rank; what it gives on this one.

        For whatever calls the model itself, in which all its ranks take part. Raises what the function does, and RanksError.
        """
        if isinstance(self.ranks, Leader):
            return self.ranks.run(Call(self._name, function, arguments), lambda: function(self, *arguments))
        return function(self, *arguments)

    def synchronise(self) -> None:
        """Waits until the device has done all that was asked of it. Raises RanksError."""
        if isinstance(self.ranks, Leader) and self.device.type == "cuda":
            event: Any = torch.cuda.Event  # untyped in torch
            arrived = event()
            arrived.record(torch.cuda.current_stream(self.device))
            self.ranks.wait(arrived)
        synchronise(self.device)

    def tune(self, rows: Sequence[int] = BUCKETS, *, seconds: float = SECONDS) -> int:
        """Has launches chosen, on a GPU by measuring; to be called before memory is measured and sweeps are recorded.

        rows: for how many, one of each of the buckets in which they count; seconds: after which no further measurement is started.
        Returns how many launches were measured.
        """
        return self.everywhere(_tune, tuple(rows), seconds)

    def room(self, *, seats: int, sweep_tokens: int) -> int:
        """Pages of KV cache that the device has memory for now, beside sweeps of so many sequences and tokens: the fewest of all ranks.

        Raises UserError if there is memory for none.
        """
        if isinstance(self.ranks, Leader):
            call = Call(self._name, LLM._room, (seats, sweep_tokens), answered=True)
            own, others = self.ranks.ask(call, lambda: self._room(seats, sweep_tokens))
            return min(own, *map(int, others))
        return self._room(seats, sweep_tokens)

    def _room(self, seats: int, sweep_tokens: int) -> int:
        return self._beside.device_pages(seats, sweep_tokens)

    @property
    def context_limit(self) -> int | None:
        """Most tokens of one sequence: the positions the model has, or its sliding window if that is shorter."""
        return self._reader.context_limit

    @property
    def text_limit(self) -> int | None:
        """Most tokens of a text that `encode` takes in, special ones included; None for any number."""
        return self._text_limit(read_pooling(self._folder, has_pooler=self.spec.pooler))

    def generate(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] = SamplingParams()) -> list[Completion]:
        """Continues every prompt; one completion a prompt, in order.

        prompts: a text, texts, or lists of token ids. params: for all, or one a prompt. Raises UserError for an impossible request.
        """
        return [completion for _, completion in sorted(self.completions(prompts, params), key=lambda ended: ended[0])]

    def completions(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] = SamplingParams()
    ) -> Generator[tuple[int, Completion], None, None]:
        """As `generate`, but yields each completion, behind the place of its prompt, as it ends. Checked and closed as `stream`."""
        requests = self._checked(prompts, params)
        self._beside.say_if_pointless(requests, self._device_room)
        return self._completions(requests)

    def check(self, prompt: str | Sequence[int], params: SamplingParams) -> list[int]:
        """The token ids of a prompt that could run. Raises UserError for one that could not, before any runs."""
        (request,) = self._checked([prompt], params)
        return list(request.prompt_token_ids)

    def stream(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] = SamplingParams()
    ) -> Generator[StreamedToken, None, None]:
        """As `generate`, but yields each token as it comes. Closing the iterator early drops what is unfinished.

        The request is checked at once, before the first token is asked for. Several iterators may be open at a time: each drives the
        engine for all of them. Raises RuntimeError if the engine is cleared or closed meanwhile.
        """
        requests = self._checked(prompts, params)
        self._beside.say_if_pointless(requests, self._device_room)
        return self._streamed(requests)

    def encode(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, pooling: Pooling | None = None) -> numpy.ndarray:
        """float32 (texts, hidden): one vector a text, from an encoder.

        The pooling is the one the model's folder declares unless given. Texts longer than the model's limit are cut there, as
        is usual for embeddings. Raises UserError for a decoder or an empty list of tokens.
        """
        if not self.spec.encoder:
            raise UserError(f"{self.spec.name} is a decoder: it generates and does not encode; use an encoder such as all-minilm-l6-v2")
        how = pooling or read_pooling(self._folder, has_pooler=self.spec.pooler)
        limit = self._text_limit(how)
        rows = [self._reader.cut(ids, len(ids) if limit is None else limit) for ids in self._reader.token_ids(texts)]
        return self.everywhere(vectors, rows, how).numpy()

    def hidden_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(tokens, hidden) on the device: what `log_probabilities` makes the distribution after each token of.

        Through a KV cache of their own where that is in fewer bits than the activations.
        """
        return self.everywhere(hidden_states, tuple(token_ids))

    def log_probabilities(self, start: int, stop: int) -> torch.Tensor:
        """float32 (positions, vocabulary): of the next token, after tokens start to stop of the last `hidden_states`."""
        return self.everywhere(log_probabilities, start, stop)

    def reorder(self, admission: str, group_size: int | None = None, num_groups: int | None = None) -> None:
        """Drops all requests and runs what comes under another admission. Raises UserError for settings that mean nothing."""
        order = admission_of(admission, group_size, num_groups)
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.admission = order

    def close(self) -> None:
        """Drops all requests and frees the cache. Weights that live elsewhere than on the device go with it, and so do the ranks that were
        started for a model, or its part in them: such a model runs no longer."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.last_states = None
        self.__dict__.pop("text_graphs", None)
        if isinstance(self.model.residency, StreamedLayers):
            self.model.residency.close()
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _checked(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
        engine, requests = (
            self.engine,
            self._reader.requests(prompts, params, self.seed),
        )  # in this order: an encoder is refused as such, not for its lengths
        for request in requests:
            engine.check(request)
        return requests

    def _completions(self, requests: list[Request]) -> Generator[tuple[int, Completion], None, None]:
        with closing(self._loop.run(self.engine, requests, self.tokenizer)) as tokens:
            for stream, _, _, completion in tokens:
                if completion is not None:
                    yield stream.prompt, completion

    def _streamed(self, requests: list[Request]) -> Generator[StreamedToken, None, None]:
        with closing(self._loop.run(self.engine, requests, self.tokenizer)) as tokens:
            for stream, emission, piece, completion in tokens:
                yield stream.streamed(emission, piece, completion)

    def _text_limit(self, how: Pooling) -> int | None:
        return min([limit for limit in (how.max_tokens, self.context_limit) if limit is not None], default=None)

    @property
    def _folder(self) -> Path | None:
        path = self.description.path
        return path if path is not None and path.is_dir() else None


def _following(ranks: Ranks, settings: dict[str, Any]) -> LLM:
    """Another rank's, which has found the model and loads its part when it is told to."""
    return LLM(**settings, tensor_parallel=ranks)


def _tune(llm: LLM, rows: tuple[int, ...], seconds: float) -> int:
    return tune(llm.model, rows, seconds=seconds)
