"""A whole benchmark: describes the model, opens the backends, runs the sweep, closes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import cast

import torch

from inferometer.bench.backends.backend import Backend, Prompts, Reference
from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.prompts import random_prompts, text_prompts
from inferometer.bench.backends.registry import entry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.machine.environment import device_name, device_slug
from inferometer.bench.machine.memory import release_caches
from inferometer.bench.measurement.column import Failure, Unopened
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.measurement.elsewhere import benchmark_elsewhere
from inferometer.bench.measurement.progress import Progress
from inferometer.bench.measurement.runner import Runner
from inferometer.bench.prediction.outlook import outlook
from inferometer.bench.prediction.sizes import sizes
from inferometer.bench.records.case import Case
from inferometer.bench.records.failures import evidence_of, status_of
from inferometer.bench.records.record import Record
from inferometer.engine.device import resolve_device, resolve_dtype
from inferometer.errors import UserError
from inferometer.hardware.catalogue import find_device
from inferometer.model.description import ModelDescription, describe, with_weights
from inferometer.model.quantisation import read_quantisation, resolve_quantize
from inferometer.nn.load import open_source
from inferometer.text.load import load_tokenizer


def benchmark(request: BenchRequest, emit: Callable[[Record], None], progress: Progress | None = None) -> list[Record]:
    """Runs what is asked and returns a record for each case; `emit` gets each as soon as it is there.

    Raises UserError for what cannot be done at all. What only fails for a case, or for loading a backend, is in the records.
    """
    request.check()
    apart = [found for found in map(entry, request.backends) if found.python != sys.executable]
    if apart and len(request.backends) > 1:
        name, variable = apart[0].name, apart[0].python_variable
        raise UserError(f"--backend {name} runs under a Python of its own ({variable}); run it by itself, or in a study")
    if apart:
        return benchmark_elsewhere(apart[0], request, emit, progress)
    opening = resolve(request)
    with ExitStack() as stack:
        backends: dict[str, Backend | Unopened] = {}
        for name in request.backends:
            backends[name] = opened = open_backend(entry(name), opening)
            if not isinstance(opened, Unopened):
                stack.callback(opened.close)
        return runner(opening, backends, progress).run(rounds(opening), emit)


def resolve(request: BenchRequest) -> Opening:
    """Describes the model and settles device and number format. Raises UserError for what no backend could do."""
    device = resolve_device(request.device)
    resolve_dtype(request.dtype, device, None)  # a wrong device or type is told before anything is fetched or opened
    dummy = request.weights == "dummy"
    description = describe(request.model, config_only=dummy)
    request.check_model(description.spec)
    if not dummy:
        description = with_weights(description)
    dtype = _dtype(request, description, device)
    # Records and bounds count the bytes that weights have, whoever rounded them.
    quantize, stored = request.quantize, read_quantisation(description.config, description.name)
    if stored is not None:
        resolve_quantize(quantize, stored)  # refuses another format than the checkpoint is in
        quantize = quantize or stored.named
    resolved = replace(request, dtype=str(dtype).removeprefix("torch."), quantize=quantize)
    rounded = stored is not None and stored.method == "inferometer"
    resolved.check_backends(spec=description.spec, device=device.type, rounded=rounded)
    return Opening(request=resolved, description=description, device=device, dtype=dtype)


def open_backend(found: BackendEntry, opening: Opening) -> Backend | Unopened:
    """The loaded backend, or how its cases end: skipped without its package, oom or error where loading failed.

    Raises UserError for what the user can put right.
    """
    absent = found.missing(opening.request, opening.description.spec)
    if absent is not None:
        return Unopened(found.version() or "not installed", Failure("skipped", absent))
    try:
        return found.open(opening)
    except Exception as error:  # a stack that cannot load the model is a result, and the others still run
        if isinstance(error, UserError) and not isinstance(error, MemoryError):
            raise
        failure = Failure(status_of(error), f"loading the model failed: {evidence_of(error)}")
    release_caches(opening.device)
    return Unopened(found.version() or "unknown", failure)


def runner(opening: Opening, backends: dict[str, Backend | Unopened], progress: Progress | None = None) -> Runner:
    """What runs cases of that model on these backends, one of which is held against the others where it can be."""
    request, spec = opening.request, opening.description.spec
    slug = device_slug(opening.device)
    known = None if slug is None else find_device(slug)
    return Runner(
        backends,
        _prompts(request, opening.description),
        Effort(request.runs, request.warmups, request.energy),
        reference=_reference(request, backends),
        device=opening.device,
        dtype=opening.dtype,
        context_limit=spec.context_limit,
        outlook_of=lambda case: outlook(case, spec, known),
        sizes_of=lambda case: sizes(case, spec),
        progress=progress,
    )


def rounds(opening: Opening) -> list[list[Case]]:
    """The cases of the request on this device."""
    slug, name = device_slug(opening.device), device_name(opening.device)
    return opening.request.rounds(opening.description.spec, dtype=opening.dtype_name, device=slug, device_name=name)


def _reference(request: BenchRequest, backends: dict[str, Backend | Unopened]) -> Reference | None:
    """The backend that the others are checked against: quantized weights cannot be widened to what they were."""
    for name, backend in backends.items():
        if entry(name).reference and request.quantize is None and not isinstance(backend, Unopened):
            return cast(Reference, backend)
    return None


def _dtype(request: BenchRequest, description: ModelDescription, device: torch.device) -> torch.dtype:
    """One dtype for all backends: "auto" looks at the checkpoint, which need not be read for that."""
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
