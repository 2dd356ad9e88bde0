"""What a rank does in tests of sharded models. `ranks` comes first: a rank runs these in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferometer.engine.engine import Engine
from inferometer.kernels.token_rows import Places
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.nn.batch import prompt_batch
from inferometer.nn.collective import Collective
from inferometer.nn.formats.layout import format_layouts
from inferometer.nn.load import load, open_source
from inferometer.nn.names import fitted
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

PROMPTS = ((5, 1, 2, 3, 4), (2,), (4, 4, 0, 1))
SHARPER = 8
"""Dummy weights give logits that are nearly equal; these decide."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model in a folder and how it is run. compiled: whether the kernels for CPUs may serve."""

    folder: Path
    quantize: str | None = None
    dtype: str = "float32"
    kv_dtype: str | None = None
    deterministic: bool = False
    weights: str = "dummy"
    compiled: bool = True
    device: str = "cpu"


def model_of(ranks: Collective, case: Case) -> Transformer:
    """The rank's part of the model, filled and packed."""
    described = describe(str(case.folder), config_only=case.weights == "dummy")
    source, kind = open_source(described, weights=case.weights, seed=3), family(described.spec.family)
    spec = fitted(described.spec, source, kind, ranks)
    kept = None
    if case.quantize is not None:
        kept = format_layouts(spec, weight_format(case.quantize, case.dtype), torch.device(case.device))
    device = torch.device(case.device)
    numerics = Numerics.INVARIANT if case.deterministic else Numerics.FASTEST
    model = Transformer(spec, device, getattr(torch, case.dtype), numerics, kept, ranks)
    load(model, source, kind)
    if case.weights == "dummy":
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and name not in model.quantised:
                parameter.mul_(SHARPER)
    model.pack()
    if not case.compiled:
        model.compiled = None
    return model


@torch.inference_mode()
def outputs(ranks: Collective, case: Case) -> dict[str, Tensor]:
    """Hidden states of whole prompts, and of a decoder the logits after them, log-probabilities of targets, and the best tokens."""
    model = model_of(ranks, case)
    batch = prompt_batch(PROMPTS, model.device)
    hidden = model.sweep(batch)
    found = {"hidden": hidden}
    if model.spec.pooler:
        found["pooled"] = model.pooled(hidden, batch)
    if not model.spec.encoder:
        targets = torch.arange(len(hidden), device=model.device) % model.spec.vocabulary
        places = Places.on(model.device, len(hidden))
        model.choose(hidden, places)
        found |= {"logits": model.logits(hidden), "told": model.log_probabilities(hidden, targets, chunk=4)}
        found |= {"tokens": places.token_ids.clone(), "logprobs": places.logprobs.clone()}
    return {name: tensor.cpu() for name, tensor in found.items()}


GREEDY = SamplingParams(max_new_tokens=6, ignore_eos=True, prompt_logprobs=True)
WAYS = (
    GREEDY,
    SamplingParams(max_new_tokens=6, do_sample=True, temperature=1.3, ignore_eos=True),
    SamplingParams(max_new_tokens=5, top_k=9, top_p=0.9, repetition_penalty=1.2, ignore_eos=True, top_logprobs=2),
    replace(GREEDY, prompt_logprobs=False),
)


def generated(ranks: Collective, case: Case, requests: Sequence[int] = range(6)) -> dict[int, list[tuple[Any, ...]]]:
    """(token, log-probability, those of the prompt) of requests by their numbers.

    They share beginnings, some are greedy and some sampled; more than run together, and in sweeps that cut prompts.
    """
    model = model_of(ranks, case)
    kv_dtype = None if case.kv_dtype is None else getattr(torch, case.kv_dtype)
    engine = Engine(model, pages=24, page_size=4, seats=4, sweep_tokens=9, kv_dtype=kv_dtype)
    shared = tuple(i * i % model.spec.vocabulary for i in range(9))
    for number in requests:
        prompt = (*shared[: 9 if number % 2 else 4], *(number % model.spec.vocabulary,) * (number + 1))
        engine.add(Request(number, prompt, WAYS[number % len(WAYS)], seed=number))
    found: dict[int, list[tuple[Any, ...]]] = {number: [] for number in requests}
    while engine.has_work:
        for emission in engine.step():
            found[emission.request_id].append((emission.token_id, emission.logprob, emission.prompt_logprobs))
    engine.close()
    return found
