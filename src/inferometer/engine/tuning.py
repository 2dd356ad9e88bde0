"""Measures, once a device, whether a model's linear maps of few rows are faster in this package's kernel or in the matrix library."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.engine.graph import Graph
from inferometer.kernels.quant_choice import format_name, multiplies, quant_many
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.kernels.quant_linear import quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_choice import BUCKETS, DTYPES, PLAIN, Shape, choice_path, load_choices, save_choices
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.kernels.support import usable
from inferometer.nn.head import Head
from inferometer.nn.layers import Layer
from inferometer.nn.linear import Linear
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer

SECONDS = 5.0
"""After which no further measurement is started: what is left is measured at the next start."""
REPEATS = 5
MOST_WEIGHTS = 64
NORM_SECONDS = 1.5e-6
"""What a launch for a norm of few rows takes."""
EPILOGUE_SECONDS = 1e-6
"""What the kernel may be slower, since bias, activation and residual cost it no launches."""


@torch.inference_mode()
def tune(model: Transformer, rows: Sequence[int] = BUCKETS, *, seconds: float = SECONDS) -> int:
    """Gives every linear map of a model on a GPU the launches that are fastest there. Returns how many choices were measured.

    rows: buckets to decide for; others are left to the table. What was measured before, by any process, is read from a file in the
    cache, and what is measured is added to it. Runs kernels on the current stream and waits for them: to be called before sweeps
    are launched or recorded. Does nothing for other devices, in float32, and where numerics leave no choice.
    """
    if model.numerics is Numerics.INVARIANT or not usable(model.device) or model.dtype not in DTYPES:
        return 0
    deadline = time.monotonic() + seconds
    maps: dict[tuple[int, int, str], list[Linear | Head]] = defaultdict(list)
    normed: set[tuple[int, int, str]] = set()
    for module in model.modules():
        if isinstance(module, Linear | Head):
            maps[_kind(_weight(module, model))].append(module)
        elif isinstance(module, Layer):
            normed.update(_kind(_weight(linear, model)) for linear in module.normed_maps)
    path = choice_path(torch.cuda.get_device_name(model.device))
    known = load_choices(path)
    measured: dict[Shape, Tiling | None] = {}
    dtype = str(model.dtype).removeprefix("torch.")
    for count in sorted(set(rows) & set(BUCKETS)):
        for kind, modules in maps.items():
            shape = Shape(dtype, count, *kind)
            if shape not in known and time.monotonic() < deadline:
                weights = [_weight(module, model) for module in modules[:MOST_WEIGHTS]]
                measured[shape] = known[shape] = fastest(count, weights, NORM_SECONDS if kind in normed else 0.0, model.dtype)
    if measured:
        save_choices(path, measured)
    for kind, modules in maps.items():
        shapes = {count: Shape(dtype, count, *kind) for count in rows}
        launches = {count: known[shape] for count, shape in shapes.items() if shape in known}
        for module in modules:
            module.launches = launches
    return len(measured)


def fastest(rows: int, weights: Sequence[Tensor | QuantWeight], norm_s: float, dtype: torch.dtype) -> Tiling | None:
    """The fastest launch for so many rows of a type and weights of one shape and format, which follow each other so that none is in the
    cache; None where what computes many rows is faster. norm_s: seconds that a launch saves which can norm the rows first."""
    inputs = weights[0].shape[1]
    cache = torch.cuda.get_device_properties(weights[0].device).L2_cache_size
    enough = -(-3 * cache // max(1, weights[0].nbytes))
    weights = [weights[i % len(weights)] for i in range(max(4, min(enough, MOST_WEIGHTS)))]
    x = torch.randn(rows, inputs, dtype=dtype, device=weights[0].device)
    library = duration([partial(_many, x, weight) for weight in weights], x.device)
    times: dict[Tiling, float] = {}
    for launch in candidates(rows, inputs) if isinstance(weights[0], Tensor) else quant_candidates(rows, weights[0]):
        try:
            times[launch] = duration([partial(_few, x, weight, launch) for weight in weights], x.device)
        except Exception as error:
            # Triton has many ways of saying that a launch does not fit the card. After a fault nothing would run.
            if isinstance(error, torch.AcceleratorError):
                raise
    times = {launch: time - norm_s if launch.whole else time for launch, time in times.items()}
    best = min(times, key=lambda launch: times[launch], default=None)
    return best if best is not None and times[best] <= library + EPILOGUE_SECONDS else None


def _few(x: Tensor, weight: Tensor | QuantWeight, launch: Tiling) -> Tensor:
    return skinny_triton(x, weight, launch=launch) if isinstance(weight, Tensor) else quant_linear_triton(x, weight, launch=launch)


def _many(x: Tensor, weight: Tensor | QuantWeight) -> Tensor:
    if isinstance(weight, Tensor):
        return functional.linear(x, weight)
    if multiplies(weight.activations, x.device):
        return quant_many(x, weight, None)
    return functional.linear(x, widened(weight, x.dtype))


def duration(runs: Sequence[Callable[[], Tensor]], device: torch.device) -> float:
    """Seconds of one of them, as they follow each other in a graph: the median of a few times."""
    runs[0]()  # compiled before it is recorded

    def all_runs() -> None:
        for run in runs:
            run()

    event: Any = torch.cuda.Event
    graph = Graph(all_runs, device, torch.cuda.graph_pool_handle())
    graph()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        graph()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(runs))
    return statistics.median(times)


def _weight(module: Linear | Head, model: Transformer) -> Tensor | QuantWeight:
    if isinstance(module, Linear) and module.quant is not None:
        return module.quant
    if module.weight is None:  # a head that is tied
        return model.embedding.token.weight
    return module.weight


def _kind(weight: Tensor | QuantWeight) -> tuple[int, int, str]:
    return weight.shape[0], weight.shape[1], PLAIN if isinstance(weight, Tensor) else format_name(weight)
