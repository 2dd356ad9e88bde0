"""Chooses, once a device, how a model's linear maps of few rows are launched, or the matrix library instead: by the time of a whole step.

Alone, a launch is timed without what matters most: whether the next one finds room to begin early beside it, and what it saves the
ones before and behind it. So all maps are launched as in a decode step, and one map's launch is changed at a time.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from inferometer.engine.decode_chain import DecodeChain
from inferometer.kernels.quant_choice import format_name
from inferometer.kernels.quant_launch import quant_candidates, quant_tiling
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny_choice import BUCKETS, DTYPES, PLAIN, Shape, bucket, choice_path, load_choices, save_choices
from inferometer.kernels.skinny_launch import Tiling, candidates, tiling
from inferometer.kernels.support import processors, usable
from inferometer.nn.head import Head
from inferometer.nn.linear import Linear
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer

SECONDS = 5.0
"""After which no further measurement is started: what is left is measured at the next start."""
NOISE = 0.003
"""The part of a step's time that two measurements of it may be apart: what gains less is left."""
PASSES = 2
"""Times that every map is gone through: what is best for one depends on the others."""

Size = tuple[int, int, str]
"""A weight's outputs and inputs, and how it is stored, as in `Shape`."""
Choice = Tiling | None


@torch.inference_mode()
def tune(model: Transformer, rows: Sequence[int] = BUCKETS, *, seconds: float = SECONDS) -> int:
    """Gives every linear map of a model on a GPU the launches with which a decode step is fastest. Returns how many were measured.

    rows: buckets to measure for, fewest rows first; seconds: after which no further measurement is started. What was measured before, by
    any process and for any bucket, is read from a file in the cache, and what is measured is added to it; for what is in neither the table
    decides. Runs kernels on the current stream and waits for them: to be called before sweeps are launched or recorded. Does nothing for
    other devices, in float32, for encoders, where numerics leave no choice, and where there is no memory for a step.

    Of ranks that share a model rank 0 measures its part without the others, and all take its choices: a map that is copied to every rank
    must add up in one order on all.
    """
    if not _chooses(model):
        return 0
    # Where the link sets the time of a step no launch is worth measuring.
    deadline = time.monotonic() + (seconds if model.resident else 0.0)
    maps = _maps(model)
    path = choice_path(torch.cuda.get_device_name(model.device))
    ranks, known = model.collective, load_choices(path)
    measured: dict[Shape, Choice] = {}
    dtype = str(model.dtype).removeprefix("torch.")
    for count in sorted(set(rows) & set(BUCKETS)) if ranks.rank == 0 else ():
        shapes = {size: Shape(dtype, count, *size) for size in maps}
        launches = {size: candidates_for(count, _weight(modules[0], model)) for size, modules in maps.items()}
        standard = {size: standard_for(count, _weight(modules[0], model)) for size, modules in maps.items()}
        start = {size: known.get(shape, standard[size]) for size, shape in shapes.items()}
        options = {size: (*launches[size], None) for size, shape in shapes.items() if shape not in known}
        if not options or time.monotonic() >= deadline:
            continue
        clock = clock_of(model, count, maps)
        if clock is None:
            break
        found = settled(start, options, clock, lambda: time.monotonic() < deadline)
        del clock
        torch.cuda.empty_cache()  # every graph had memory of its own, which the allocator keeps
        measured |= {shapes[size]: choice for size, choice in found.items()}
    if measured:
        save_choices(path, measured)
    known, count_measured = ranks.broadcast((known | measured, len(measured)))
    for size, modules in maps.items():
        wanted = {count: Shape(dtype, count, *size) for count in BUCKETS}
        chosen = {count: known[shape] for count, shape in wanted.items() if shape in known}
        for module in modules:
            module.launches = chosen
    return count_measured


def launches_known(model: Transformer, rows: int) -> tuple[int, int] | None:
    """Of the sizes that the linear maps of a model have, how many have a launch for so many rows that has been measured, and how many there
    are; None where there is nothing to choose."""
    if not _chooses(model) or not 0 < rows <= BUCKETS[-1]:
        return None
    maps = _maps(model)
    return sum(bucket(rows) in modules[0].launches for modules in maps.values()), len(maps)


def settled(
    start: Mapping[Size, Choice],
    options: Mapping[Size, Sequence[Choice]],
    seconds_of: Callable[[Mapping[Size, Choice]], float],
    goes_on: Callable[[], bool],
) -> dict[Size, Choice]:
    """The best of its options for each size, one size after another, all others as they are by then: from `start`, PASSES times or until
    nothing changes. Whoever is tried takes the place of the best so far only if it is faster by more than NOISE, and still is once the best
    is timed again behind it: the first ones may have been timed while the card was still waking.

    seconds_of: infinite where a launch does not fit the card. A start with such a one gives way to the matrix library for all sizes that
    have options. goes_on: asked before every option. Sizes of which not all options were tried by then are left out.
    """
    best = dict(start)
    found: dict[Size, Choice] = {}
    if not goes_on():
        return found
    if seconds_of(best) == math.inf:
        best |= dict.fromkeys(options, None)
    for _ in range(PASSES):
        before = dict(best)
        for size, choices in options.items():
            least, choice = math.inf, best[size]
            for tried in (choice, *(other for other in choices if other != choice)):
                if not goes_on():
                    return found
                took = seconds_of(best | {size: tried})
                if took < least * (1 - NOISE) < math.inf:
                    least = min(least, seconds_of(best | {size: choice}))
                if took < least * (1 - NOISE):
                    least, choice = took, tried
            best[size] = found[size] = choice
        if best == before:
            break
    return found


def clock_of(
    model: Transformer, rows: int, maps: Mapping[Size, Sequence[Linear | Head]]
) -> Callable[[Mapping[Size, Choice]], float] | None:
    """What measures a step, in seconds, with given launches of the maps; None where there is no memory for one."""
    try:
        chain = DecodeChain(model, rows, torch.cuda.get_device_properties(model.device).L2_cache_size)
    except torch.OutOfMemoryError:
        return None

    def seconds_of(choices: Mapping[Size, Choice]) -> float:
        for size, choice in choices.items():
            for module in maps[size]:
                module.launches = {rows: choice}
        try:
            return chain.seconds()
        except Exception as error:
            # Triton has many ways of saying that a launch does not fit the card. After a fault nothing would run.
            if isinstance(error, torch.AcceleratorError):
                raise
            return math.inf

    return seconds_of


def standard_for(rows: int, weight: Tensor | QuantWeight) -> Choice:
    """What serves for so many rows of a map (outputs, inputs) unless measuring says otherwise."""
    if isinstance(weight, Tensor):
        outputs, inputs = weight.shape
        return tiling(rows, outputs, inputs, processors(weight.device))
    return quant_tiling(rows, weight)


def candidates_for(rows: int, weight: Tensor | QuantWeight) -> tuple[Tiling, ...]:
    """What may be launched for so many rows of a map (outputs, inputs)."""
    return candidates(rows, weight.shape[1]) if isinstance(weight, Tensor) else quant_candidates(rows, weight)


def _chooses(model: Transformer) -> bool:
    return model.numerics is not Numerics.INVARIANT and usable(model.device) and model.dtype in DTYPES and model.head is not None


def _maps(model: Transformer) -> dict[Size, list[Linear | Head]]:
    """The linear maps of a model by size."""
    maps: dict[Size, list[Linear | Head]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, Linear | Head):
            maps[_size(_weight(module, model))].append(module)
    return maps


def _weight(module: Linear | Head, model: Transformer) -> Tensor | QuantWeight:
    if module.quant is not None:
        return module.quant
    if module.weight is None:  # a head that is tied
        return model.embedding.token.matrix
    return module.weight


def _size(weight: Tensor | QuantWeight) -> Size:
    return weight.shape[0], weight.shape[1], PLAIN if isinstance(weight, Tensor) else format_name(weight)
