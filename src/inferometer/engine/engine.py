"""The loop: requests come in, every step launches one sweep and reads an earlier one, tokens go out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, TypeVar

import torch

from inferometer.engine.damage import damaged
from inferometer.engine.flight import Flight
from inferometer.engine.prompt_scores import PromptScores
from inferometer.engine.residency.brought_pages import PageTraffic
from inferometer.engine.residency.link import Link, link_to
from inferometer.engine.residency.streamed import hides_launches
from inferometer.engine.runner import Runner
from inferometer.engine.sampled import Tokens
from inferometer.engine.sequence_limit import check_length, sequence_limit
from inferometer.engine.sizes import PAGE_SIZE, SEATS, SWEEP_TOKENS
from inferometer.engine.watermark import DEFAULT_WATERMARK, Watermark
from inferometer.nn.cache import PagedCache
from inferometer.nn.tiered_cache import TieredCache, slot_pages_for
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import Admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.emission import Emission, Emissions
from inferometer.schedule.pages import PagePool
from inferometer.schedule.prefix import prompt_salt
from inferometer.schedule.request import Request
from inferometer.schedule.scheduler import Scheduler
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Sweep

T = TypeVar("T")


class Engine:
    """Runs requests over one transformer and a pool of `pages` pages of KV cache.

    seats: most sequences that run together. sweep_tokens: most tokens of one sweep. admission: which requests enter at which sweep.
    prefix_caching: whether pages of equal beginnings are shared. lookahead: 1 to launch a sweep before the one before it is read, so
    that it is scheduled while that one runs; 0 to read every sweep at once; None for 1 on a GPU and 0 on a CPU, which does not run by
    itself.
    graphs: whether decode sweeps become CUDA graphs, where the device can. watermark: of the requests that ask for one. Not thread-safe.
    kv_dtype: of the cache; None for the model's own, torch.int8 or torch.float8_e4m3fn for 8 bits with scales.
    device_pages: how many of the pages lie on the device, None for all; the others, which go out last, lie in the host's memory and come in
    layer by layer (not in 8 bits). Nothing is found by its beginning then. slot_pages: host pages of one layer that come together, None
    for as many as make a good copy. link: to the host, made once for each direction.
    sweep: the one that the last step launched, None if it launched none.

    Raises torch.OutOfMemoryError or MemoryError where the pages have no room, ValueError for another lookahead.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        pages: int,
        page_size: int = PAGE_SIZE,
        seats: int = SEATS,
        sweep_tokens: int = SWEEP_TOKENS,
        admission: Admission | None = None,
        prefix_caching: bool = True,
        lookahead: int | None = None,
        graphs: bool = True,
        watermark: Watermark = DEFAULT_WATERMARK,
        kv_dtype: torch.dtype | None = None,
        device_pages: int | None = None,
        slot_pages: int | None = None,
        link: Callable[[torch.device], Link] = link_to,
    ) -> None:
        if device_pages is not None and not 0 <= device_pages <= pages:
            raise ValueError(f"device_pages must be from 0 to {pages}, not {device_pages}")
        if lookahead not in (None, 0, 1):
            raise ValueError(
                f"lookahead must be 0 or 1, not {lookahead}: the sampler takes sequences up again from tokens that the host has read"
            )
        self.model = model
        self.page_size = page_size
        self.seats = seats
        self.sweep_tokens = sweep_tokens
        self.admission: Admission = admission or Continuous()
        self.device_pages = pages if device_pages is None else device_pages
        # A page that two read would have to be in both their slots, as new as either writes it.
        self.prefix_caching = prefix_caching and self.device_pages == pages
        self._slot_pages, self._link = slot_pages, link
        self.lookahead = (1 if model.device.type == "cuda" else 0) if lookahead is None else lookahead
        self.graphs = graphs
        self.watermark = watermark
        self.kv_dtype = model.dtype if kv_dtype is None else kv_dtype
        self.sweep: Sweep | None = None
        self._flights: deque[Flight] = deque()
        self._scores = PromptScores()
        self._stepping = False
        self._unwanted: list[int] = []  # requests to drop once the step under way is over
        self.scheduler = Scheduler(
            PagePool(pages, page_size),
            self.admission,
            max_batch=seats,
            sweep_tokens=sweep_tokens,
            prefix_caching=self.prefix_caching,
            salt=partial(prompt_salt, model.spec.positions),  # not a method: an engine that its scheduler knew would stay when it is let go
        )
        self._runner: Runner | None = None
        self._runner = self._running

    @property
    def page_bytes(self) -> int:
        """Bytes of a page over all layers."""
        return PagedCache.page_bytes(self.model.local, self.kv_dtype, self.page_size)

    @property
    def pages(self) -> int:
        """Pages that there are."""
        return self.scheduler.pool.pages

    @property
    def pages_peak(self) -> int:
        """The most pages that were in use at once since `reset_peak`."""
        return self.scheduler.pool.peak_in_use

    @property
    def page_traffic_bytes(self) -> tuple[int, int]:
        """Bytes of pages that came to the device and that went back to the host since the cache was taken."""
        traffic = None if self._runner is None else self._runner.traffic
        return (0, 0) if traffic is None else (traffic.bytes_in, traffic.bytes_out)

    @property
    def cache(self) -> PagedCache:
        """The memory of the pages."""
        return self._running.cache

    def reset_peak(self) -> None:
        """Starts `pages_peak` anew."""
        self.scheduler.pool.reset_peak()

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running, or any token not yet read."""
        return self.scheduler.has_work or bool(self._flights)

    @property
    def recorded(self) -> int:
        """CUDA graphs of decode sweeps that there are."""
        return 0 if self._runner is None else self._runner.recorded

    @property
    def preparations(self) -> int:
        """How much of what sweeps come back to has been met, recorded or measured: while it grows, sweeps take longer than they will."""
        return 0 if self._runner is None else self._runner.preparations

    def most_prompt_tokens(self, decoding: int) -> int:
        """The most tokens of prompts in a sweep in which so many sequences decode."""
        left = self.sweep_tokens - decoding
        return self.admission.left_for_prompts(left, decoding) if isinstance(self.admission, Continuous) else left

    def check(self, request: Request) -> None:
        """Raises RequestTooLargeError for a request that could never run, however long it waited."""
        check_length(request, self.model.spec)
        self.scheduler.check(request)

    def add(self, request: Request) -> Sequence:
        """Queues a request; the sequence tells how far it is. Raises RequestTooLargeError for one that could never run."""
        check_length(request, self.model.spec)
        return self.scheduler.add(request)

    def abort(self, request_id: int) -> None:
        """Drops a request, waiting or running; nothing more is emitted for it. Unknown ids are ignored.

        During a step (the garbage collector may find an abandoned iterator there, which aborts what it asked for) the request is dropped
        at the step's end, as the plan that is being made counts on it.
        """
        if self._stepping:
            self._unwanted.append(request_id)
            return
        self.scheduler.abort(request_id)
        self._scores.drop(request_id)

    def clear(self) -> None:
        """Drops every request and forgets the prefix cache; the pages' memory stays."""
        self.scheduler.clear()
        self._flights.clear()
        self._scores.clear()
        if self._runner is not None:
            self._runner.clear()

    def close(self) -> None:
        """Drops every request and gives the memory of pages and graphs back; the next step takes it again."""
        self.clear()
        if self._runner is not None:
            self._runner.close()
        self._runner = None
        if self.model.device.type == "cuda":
            # To the driver: what the allocator keeps it may hand out in small parts, and so large a piece is not had back then.
            torch.cuda.empty_cache()

    def step(self) -> Emissions:
        """Launches the next sweep, if anything can run, and returns the tokens of the oldest one that is due to be read.

        Whatever is raised (an interrupt, a lack of memory), no request is left: pages that the prefix cache knows may never have been
        written, and tokens may have been lost on the way.
        """
        with self._all_or_nothing():
            self.sweep = sweep = self.scheduler.next()
            if sweep is not None:
                self._flights.append(self._running.launch(sweep))
            elif not self._flights and self.scheduler.has_work:
                raise RuntimeError("requests are waiting, nothing is running, and none of them can run")
            if self._flights and (sweep is None or len(self._flights) > self.lookahead):
                return self._land(self._flights.popleft())
            return Emissions()

    def relaunch(self) -> None:
        """Launches the newest sweep once more, as it was: the same tokens at the same places. Nobody gets what comes of it.

        For measurements; drop the requests afterwards. None of them may have ended meanwhile.
        """
        if self.sweep is None:
            raise RuntimeError("there is no sweep to launch again")
        with self._all_or_nothing():
            self._flights.append(self._running.launch(self.sweep))
            if len(self._flights) > self.lookahead:
                self._read(self._flights.popleft())

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> T:
        """function(engine, *arguments), of a function that a module defines, on every rank of the model; what it gives on this one."""
        return function(self, *arguments)

    def drain(self) -> list[Emission]:
        """Reads all that has been launched, and launches nothing. Raises as `step` does."""
        emissions: list[Emission] = []
        with self._all_or_nothing():
            while self._flights:
                emissions += self._land(self._flights.popleft())
        return emissions

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        self._stepping = True
        try:
            yield
        except BaseException:
            self.clear()
            raise
        finally:
            self._stepping = False
            while self._unwanted:
                self.abort(self._unwanted.pop())

    @property
    def _running(self) -> Runner:
        if self._runner is None:
            stride = min(self.pages, -(-sequence_limit(self.model.spec) // self.page_size))
            cache = self._cache(stride)
            traffic = PageTraffic(cache, *map(self._link, [self.model.device] * 2)) if isinstance(cache, TieredCache) else None
            graphs = self.graphs and not hides_launches(self.model.residency)
            self._runner = Runner(
                self.model,
                cache,
                seats=self.seats,
                stride=stride,
                graphs=graphs,
                watermark=self.watermark,
                traffic=traffic,
                grouped=not isinstance(self.admission, Continuous),
            )
        return self._runner

    def _cache(self, stride: int) -> PagedCache:
        spec, device = self.model.local, self.model.device
        if self.device_pages == self.pages:
            return PagedCache(spec, self.pages, self.page_size, device, self.kv_dtype)
        elsewhere = self.pages - self.device_pages
        slot = self._slot_pages or slot_pages_for(spec, self.kv_dtype, self.page_size, longest=min(stride, elsewhere), elsewhere=elsewhere)
        return TieredCache(spec, self.pages, self.device_pages, self.page_size, device, self.kv_dtype, slot_pages=slot)

    def _land(self, flight: Flight) -> Emissions:
        """Reads a sweep: the tokens of the sequences that still want them."""
        tokens = self._read(flight)
        self._scores.keep(flight.scores)
        sequences, (token_ids, logprobs, tops) = flight.wanted(tokens)
        if -inf in logprobs:  # the sampler's word for a row of NaN; whatever token it names there was not the model's choice
            self._fail()
        scored = [self._scores.take(sequence) if sequence.request.params.prompt_logprobs else None for sequence in sequences]
        reasons = self.scheduler.take_all(sequences, token_ids)
        return Emissions([sequence.request.id for sequence in sequences], token_ids, logprobs, tops, scored, reasons)

    def _read(self, flight: Flight) -> Tokens:
        """Its tokens. Waits until they are there."""
        return flight.read()

    def _fail(self) -> None:
        self.close()  # pages that hold NaN go with it: a mask does not keep them out of who comes next
        raise damaged(self.model.spec.name, self.model.dtype, "gives no token a finite score")
