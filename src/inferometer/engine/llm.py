"""The offline interface: a model, loaded, that generates and encodes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import torch

from inferometer.engine.damage import damaged
from inferometer.engine.engine import Engine
from inferometer.engine.loaded_model import LoadedModel
from inferometer.engine.model_settings import ModelSettings
from inferometer.engine.parallel.ranks import Ranks
from inferometer.engine.pooling import Pooling, PoolingMode, read_pooling, resolve_pooling
from inferometer.engine.prompt_reader import PromptReader, Prompts
from inferometer.engine.shared_loop import SharedLoop
from inferometer.engine.sizes import SEATS
from inferometer.engine.streamed_sweeps import over_the_link
from inferometer.engine.text_states import vectors
from inferometer.errors import UserError
from inferometer.schedule.admission import admission as admission_of
from inferometer.schedule.completion import Completion, StreamedToken
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.text.load import load_tokenizer

if TYPE_CHECKING:
    import numpy


class LLM(LoadedModel):
    """A transformer on a device, ready to generate (decoders) or encode (encoders).

    model: a local folder or .gguf file, a preset or Hub id; None for the embedded model.
    revision: of a model of the Hub: a branch, tag or commit; None for main.
    dtype, device: by torch's names, or as torch's own; "auto" for what serves best here.
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
    Threads may share it: their requests run together, whoever of them takes the steps.
    Raises UserError, one line, for whatever cannot be found, read or run.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
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
        settings = ModelSettings(
            model=model,
            revision=revision,
            dtype=str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype,
            device=str(device) if isinstance(device, torch.device) else device,
            weights=weights,
            quantize=quantize,
            kv_dtype=kv_dtype,
            admission=admission,
            group_size=group_size,
            num_groups=num_groups,
            offload=offload,
            percent=percent,
            host_memory=host_memory,
            disk=disk,
            gpu_memory=gpu_memory,
            memory_fraction=memory_fraction,
            deterministic=deterministic,
            seed=seed,
        )
        self.admission = admission_of(admission, group_size, num_groups)
        self._engine: Engine | None = None
        self._device_room = 0  # pages that the engine's device has memory for
        self._loop = SharedLoop()
        self.seed = seed
        self._named_tokenizer = "byte" if tokenizer is None and weights == "dummy" else tokenizer
        super().__init__(settings, tensor_parallel)
        eos = self.description.eos_token_ids or (() if self.tokenizer is None else self.tokenizer.eos_token_ids)
        self._reader = PromptReader(self.spec, self.tokenizer, tuple(eos))

    def _before_weights(self) -> None:
        # Text is rank 0's alone, and so is this class: others have a LoadedModel.
        self.tokenizer = load_tokenizer(self.description.path if self._named_tokenizer is None else self._named_tokenizer)

    @property
    def engine(self) -> Engine:
        """The loop under `generate`, for callers that drive it step by step. Raises UserError for an encoder."""
        if self.spec.encoder:
            raise UserError(f"{self.spec.name} is an encoder: it embeds text and does not generate; use a decoder model")
        with self._loop.turns.lock:
            if self._engine is None:
                self._engine = self._made_engine()
            return self._engine

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

    def encode(
        self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, pooling: Pooling | PoolingMode | None = None
    ) -> numpy.ndarray:
        """float32 (texts, hidden): one vector a text, from an encoder.

        The pooling is the one the model's folder declares unless given, as a `Pooling` or its mode's name. Texts longer than the model's
        limit are cut there, as is usual for embeddings. Raises UserError for a decoder or an empty list of tokens, ModelError where the
        vectors hold what is no number.
        """
        if not self.spec.encoder:
            raise UserError(f"{self.spec.name} is a decoder: it generates and does not encode; use an encoder such as all-minilm-l6-v2")
        how = resolve_pooling(pooling, self._folder, has_pooler=self.spec.pooler)
        limit = self._text_limit(how)
        rows = [self._reader.cut(ids, len(ids) if limit is None else limit) for ids in self._reader.token_ids(texts)]
        with self._loop.turns.asked(), self._loop.turns.lock:
            found = self.everywhere(vectors, rows, how)
        if not found.isfinite().all():
            raise damaged(self.spec.name, self.dtype, "makes vectors that are not finite")
        return found.numpy()

    def reorder(self, admission: str, group_size: int | None = None, num_groups: int | None = None) -> None:
        """Drops all requests and runs what comes under another admission. Raises UserError for settings that mean nothing."""
        order = admission_of(admission, group_size, num_groups)
        with self._loop.turns.asked(), self._loop.turns.lock:
            self._drop_engine()
            self.admission = order

    def close(self) -> None:
        """Drops all requests and frees the cache. Weights that live elsewhere than on the device go with it, and so do the ranks that were
        started for a model, or its part in them: such a model runs no longer."""
        with self._loop.turns.asked(), self._loop.turns.lock:
            self._drop_engine()
            super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _checked(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
        engine = self.engine  # before anything is read: an encoder is refused as such, not for its lengths
        requests = self._reader.requests(prompts, params, self.seed)
        for request in requests:
            engine.check(request)
        return requests

    def _made_engine(self) -> Engine:
        self.tune()
        sweep_tokens = self.sweep_tokens(self.admission, SEATS)
        self._device_room = self.room(seats=SEATS, sweep_tokens=sweep_tokens)
        room = self.page_room(seats=SEATS, sweep_tokens=sweep_tokens, device=self._device_room)
        return self.make_engine(
            pages=room.pages,
            device_pages=room.device,
            slot_pages=room.slot_pages,
            sweep_tokens=sweep_tokens,
            admission=over_the_link(self.admission, self.prompts_beside),
        )

    def _drop_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

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
