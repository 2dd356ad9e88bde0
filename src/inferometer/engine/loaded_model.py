"""A model on its device, or its parts on those of several ranks: what engines and texts run on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import torch

from inferometer.engine.device import resolve_dtype, resolve_kv_dtype, resolve_numerics, synchronise
from inferometer.engine.engine import Engine
from inferometer.engine.loaded_part import DeviceLimits, load_part
from inferometer.engine.model_settings import ModelSettings
from inferometer.engine.page_room import PageRoom
from inferometer.engine.parallel.leader import Leader
from inferometer.engine.parallel.placement import rank_device
from inferometer.engine.parallel.rank_engine import LeadingEngine
from inferometer.engine.parallel.ranks import Ranks
from inferometer.engine.parallel.start import end_ranks, local_ranks, ranks_of, share_threads
from inferometer.engine.parallel.wire import RANKS, Call, Forget
from inferometer.engine.residency.storage import Storage
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.room_beside import RoomBeside
from inferometer.engine.streamed_sweeps import sweep_tokens_for, tokens_beside_the_link
from inferometer.engine.text_graphs import TextGraphs
from inferometer.engine.text_states import hidden_states, log_probabilities
from inferometer.engine.tuning import SECONDS, tune
from inferometer.errors import UserError
from inferometer.kernels.skinny_choice import BUCKETS
from inferometer.model.description import describe, with_weights
from inferometer.model.quantisation import check_quantize, read_quantisation, resolve_quantize
from inferometer.model.shard import check_shards
from inferometer.nn.numerics import Numerics
from inferometer.schedule.admission import Admission

T = TypeVar("T")


class LoadedModel:
    """A transformer that is loaded: this rank's part, `model`, and the ranks that have the others.

    settings, tensor_parallel: as `LLM` has them. description: of the model as a whole; spec, dtype, kv_dtype: of what was made of it.
    Raises UserError, one line, for whatever cannot be found, read or run.
    """

    def __init__(self, settings: ModelSettings, tensor_parallel: int | Ranks) -> None:
        self._settings = settings
        self._limits = DeviceLimits(settings.gpu_memory, settings.memory_fraction)
        self._storage = Storage.of(settings.offload, settings.percent, settings.host_memory, settings.disk)
        local_rank, local_size = local_ranks(tensor_parallel)
        size = tensor_parallel if isinstance(tensor_parallel, int) else tensor_parallel.size
        if size > 1 and self._storage.offload.name is not None:
            raise UserError("--offload and --percent are for one device; leave them out, or --tensor-parallel")
        self.device = rank_device(settings.device, local_rank, local_size)
        numerics = resolve_numerics(self.device, deterministic=settings.deterministic)
        resolve_dtype(settings.dtype, self.device, None)  # a wrong --dtype is told before any file is opened
        check_quantize(settings.quantize)
        narrow = resolve_kv_dtype(settings.kv_dtype, deterministic=settings.deterministic)
        if self._storage.offload.pages and narrow is not None:
            raise UserError(f"--kv-dtype {settings.kv_dtype} keeps all pages on the device; leave it out, or leave out --offload pages")
        dummy, name = settings.weights == "dummy", None if settings.model is None else str(settings.model)
        described = describe(name, config_only=dummy, revision=settings.revision)
        self.description = described if dummy else with_weights(described, revision=settings.revision)
        self.weight_format = resolve_quantize(settings.quantize, read_quantisation(self.description.config, self.description.name))
        self.last_states: torch.Tensor | None = None  # of the text that was read last
        if size > 1:
            check_shards(self.description.spec, size)  # before anything is started
        self._before_weights()
        self.ranks = ranks = ranks_of(tensor_parallel)
        self._name = RANKS  # under which other ranks hold theirs
        self._end: Callable[[], object] | None = None
        if isinstance(ranks, Leader):
            self._lead(ranks, (numerics, narrow), started=isinstance(tensor_parallel, int) and ranks.owned)
        elif ranks.leads:
            self._load(numerics, narrow)

    def _before_weights(self) -> None:
        """What else is read of the model, once it is described: a mistake there is told before ranks are started and weights are read."""

    def _lead(self, ranks: Leader, loading: tuple[Any, ...], *, started: bool) -> None:
        """Has the other ranks find the model, then all load it. started: whether they were for this model, and end with it."""
        self._name = name = ranks.name()
        if started:
            self._end = weakref.finalize(self, partial(end_ranks, ranks, share_threads(self.device, ranks.local_size)))
        else:
            self._end = weakref.finalize(self, partial(ranks.tell, Forget(name)))
        try:
            ranks.ask(Call(RANKS, _following, (self._settings,), answered=True, keeps=name), lambda: None, last=started)
            ranks.ask(Call(name, LoadedModel._load, loading, answered=True), lambda: self._load(*loading), last=started)
        except BaseException:
            self._end()
            raise

    def _load(self, numerics: Numerics, narrow: torch.dtype | None) -> None:
        """This rank's part of the weights."""
        part = load_part(
            self.description,
            self.weight_format,
            self.device,
            self._settings.dtype,
            numerics,
            self.ranks,
            self._storage,
            self._limits,
            weights=self._settings.weights,
            seed=self._settings.seed,
        )
        self.spec, self.dtype, self.model = part.spec, part.dtype, part.model
        self.kv_dtype = part.dtype if narrow is None else narrow

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
            call = Call(self._name, LoadedModel._room, (seats, sweep_tokens), answered=True)
            own, others = self.ranks.ask(call, lambda: self._room(seats, sweep_tokens))
            return min(own, *map(int, others))
        return self._room(seats, sweep_tokens)

    def _room(self, seats: int, sweep_tokens: int) -> int:
        return self._beside.device_pages(seats, sweep_tokens)

    def hidden_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(tokens, hidden) on the device: what `log_probabilities` makes the distribution after each token of.

        Through a KV cache of their own where that is in fewer bits than the activations.
        """
        return self.everywhere(hidden_states, tuple(token_ids))

    def log_probabilities(self, start: int, stop: int) -> torch.Tensor:
        """float32 (positions, vocabulary): of the next token, after tokens start to stop of the last `hidden_states`."""
        return self.everywhere(log_probabilities, start, stop)

    def close(self) -> None:
        """Drops what runs on it. Weights that live elsewhere than on the device go with it, and so do the ranks that were started for it,
        or its part in them: such a model runs no longer."""
        self.last_states = None
        self.__dict__.pop("text_graphs", None)
        if isinstance(self.model.residency, StreamedLayers):
            self.model.residency.close()
        if self._end is not None:
            self._end()


def _following(ranks: Ranks, settings: ModelSettings) -> LoadedModel:
    """Another rank's, which has found the model and loads its part when it is told to."""
    return LoadedModel(settings, ranks)


def _tune(loaded: LoadedModel, rows: tuple[int, ...], seconds: float) -> int:
    return tune(loaded.model, rows, seconds=seconds)
