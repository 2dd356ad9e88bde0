"""A whole benchmark: describes the model, opens the backends, runs the sweep, closes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import import_module
from typing import Literal, TypeVar, cast

import torch

from inferometer import __version__
from inferometer.bench.backend import Backend, Prompts, Reference
from inferometer.bench.column import Failure, Unopened
from inferometer.bench.environment import device_name, device_slug, version_of
from inferometer.bench.failures import evidence_of, status_of
from inferometer.bench.memory import release_caches
from inferometer.bench.outlook import outlook
from inferometer.bench.prompts import random_prompts, text_prompts
from inferometer.bench.record import Record
from inferometer.bench.request import BenchRequest
from inferometer.bench.runner import Effort, Progress, Runner
from inferometer.engine.device import resolve_device, resolve_dtype
from inferometer.engine.memory import check_weights
from inferometer.errors import UserError
from inferometer.hardware.catalogue import find_device
from inferometer.model.description import ModelDescription, describe, with_weights
from inferometer.model.families import family
from inferometer.nn.load import open_source
from inferometer.nn.names import fitted
from inferometer.text.load import load_tokenizer

B = TypeVar("B", bound=Backend)


def benchmark(request: BenchRequest, emit: Callable[[Record], None], progress: Progress | None = None) -> list[Record]:
    """Runs what is asked and returns a record for each case; `emit` gets each as soon as it is there.

    Raises UserError for what cannot be done at all. What only fails for a case, or for loading a backend, is in the records.
    """
    request.check()
    dummy = request.weights == "dummy"
    description = describe(request.model, config_only=dummy)
    request.check_model(description.spec)
    if not dummy:
        description = with_weights(description)
    if "hf" in request.backends:
        import_module("inferometer.bench.hf")  # without transformers, that is told before anything is loaded
    device = resolve_device(request.device)
    dtype = _dtype(request, description, device)
    prompts_for = _prompts(request, description)
    with ExitStack() as stack:
        backends: dict[str, Backend | Unopened] = {}
        reference: Reference | None = None
        for name in request.backends:
            if name == "hf":
                opened = _opened(lambda: _hf(request, description, device, dtype), version_of("transformers"), device)
                reference = None if isinstance(opened, Unopened) else opened
                backends[name] = opened
            else:
                backends[name] = _opened(lambda: _native(request, device, dtype), __version__, device)
        for backend in backends.values():
            if not isinstance(backend, Unopened):
                stack.callback(backend.close)
        slug = device_slug(device)
        known = None if slug is None else find_device(slug)
        runner = Runner(
            backends,
            prompts_for,
            Effort(request.runs, request.warmups),
            reference=reference,
            device=device,
            dtype=dtype,
            context_limit=description.spec.context_limit,
            outlook_of=lambda case: outlook(case, description.spec, known),
            progress=progress,
        )
        name = str(dtype).removeprefix("torch.")
        rounds = request.rounds(description.spec, dtype=name, device=slug, device_name=device_name(device))
        return runner.run(rounds, emit)


def _dtype(request: BenchRequest, description: ModelDescription, device: torch.device) -> torch.dtype:
    """One dtype for all backends: "auto" looks at the checkpoint, which need not be read for that."""
    resolve_dtype(request.dtype, device, None)  # a wrong --dtype is told before any file is opened
    with closing(open_source(description, weights=request.weights, seed=request.seed)) as source:
        return resolve_dtype(request.dtype, device, source.dtype)


def _prompts(request: BenchRequest, description: ModelDescription) -> Callable[[int, int], Prompts]:
    vocabulary = description.spec.vocabulary
    tokenizer = None
    # Bytes of a text mean nothing to a model with another vocabulary; random ids cover its table instead.
    if request.tokenizer != "byte" and (request.tokenizer is not None or request.weights != "dummy"):
        tokenizer = load_tokenizer(description.path if request.tokenizer is None else request.tokenizer)
    if tokenizer is None:
        return lambda batch_size, length: random_prompts(request.seed, batch_size, length, vocabulary)
    return lambda batch_size, length: text_prompts(tokenizer, batch_size, length, vocabulary)


def _opened(load: Callable[[], B], stack_version: str | None, device: torch.device) -> B | Unopened:
    try:
        return load()
    except Exception as error:  # a stack that cannot load the model is a result, and the others still run
        if isinstance(error, UserError) and not isinstance(error, MemoryError):
            raise
        failure = Failure(status_of(error), f"loading the model failed: {evidence_of(error)}")
    release_caches(device)
    return Unopened(stack_version or "unknown", failure)


def _native(request: BenchRequest, device: torch.device, dtype: torch.dtype) -> Backend:
    from inferometer.bench.native import NativeBackend
    from inferometer.engine.llm import LLM

    llm = LLM(
        request.model,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        weights=cast(Literal["auto", "dummy"], request.weights),
        tokenizer=request.tokenizer,
        gpu_memory=request.gpu_memory,
        deterministic=request.deterministic,
        seed=request.seed,
    )
    return NativeBackend(llm, request.order())


def _hf(request: BenchRequest, description: ModelDescription, device: torch.device, dtype: torch.dtype) -> Reference:
    from inferometer.bench.hf import HFBackend

    with closing(open_source(description, weights=request.weights, seed=request.seed)) as source:
        spec = fitted(description.spec, source, family(description.spec.family))
        check_weights(spec, device, dtype)
        return HFBackend(description.config, spec, source, device, dtype)
