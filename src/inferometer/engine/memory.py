"""Whether a model's weights have room, and how many pages the KV cache may have on a device that already holds them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from inferometer.engine.device import sixteen_bits
from inferometer.engine.engine import Engine
from inferometer.engine.residency.streamed import hides_launches
from inferometer.errors import UserError
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.model.byte_size import gib
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats, WeightFormat
from inferometer.model.spec import ModelSpec
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams


class WeightsTooLargeError(UserError, MemoryError):
    """The weights have no room; the message says how much they need and how much is free."""


def check_weights(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, weights: WeightFormat | None = None, *, shards: int = 1
) -> None:
    """Raises WeightsTooLargeError where the host lacks the memory for the weights, in few bits if `weights` says so.

    shards: ranks that the model is cut over, all of them on this host. Raises UserError where they do not divide it.

    The system grants a process more than there is and kills it when it writes there, so that nobody could say what happened. A GPU
    refuses by itself.
    """
    if device.type != "cpu":
        return
    name = str(dtype).removeprefix("torch.")
    needed = shards * resident_weight_bytes(spec, Formats(dtype=name, weights=weights, shards=shards))
    free = free_host_bytes()
    if needed > free:
        name = name if weights is None else weights.name
        raise WeightsTooLargeError(
            f"the weights of {spec.name} in {name} need {gib(needed, digits=1)}, {gib(free, digits=1)} of this machine's memory are "
            "free; use a smaller model, or ask `inferometer estimate` where it fits"
        )


def page_budget(
    model: Transformer,
    *,
    page_size: int,
    seats: int,
    sweep_tokens: int,
    fraction: float,
    limit_bytes: int | None,
    kv_dtype: torch.dtype | None = None,
    relief: Callable[[int], str | None] = lambda left: None,
) -> int:
    """Pages for which there is room.

    seats, sweep_tokens: the most sequences that run together and the most tokens of a sweep, for whose worst case room is left.
    fraction: share of the memory that is free now, of the whole device on a GPU. limit_bytes: a cap on everything the process takes
    there (--gpu-memory), weights included; on a CPU a cap on the pages. kv_dtype: of the pages, None for the model's. relief: what else
    than the options named here would help where so many bytes are left, fewer than none if they lack.
    Raises UserError if there is room for none.
    """
    spec, device = model.local, model.device
    if device.type == "cuda":
        left = _left_on_gpu(model, page_size, seats, sweep_tokens, fraction, limit_bytes, kv_dtype)
    else:
        # Ranks on a CPU share its memory.
        left = int(free_host_bytes() * fraction) // model.collective.size - activation_bytes(spec, model.dtype, sweep_tokens)
        left = left if limit_bytes is None else min(left, limit_bytes)
    pages = left // PagedCache.page_bytes(spec, kv_dtype or model.dtype, page_size)
    if pages < 1:
        also = relief(left)
        raise UserError(
            f"no memory is left for the KV cache beside the weights of {spec.name} on {device.type}; "
            f"{'' if also is None else f'{also}, '}raise --gpu-memory, or use {sixteen_bits(device, model.dtype)}a smaller model"
        )
    return pages


def _left_on_gpu(
    model: Transformer,
    page_size: int,
    seats: int,
    sweep_tokens: int,
    fraction: float,
    limit_bytes: int | None,
    kv_dtype: torch.dtype | None,
) -> int:
    device = model.device
    try:
        passing = worst_sweep_bytes(model, page_size=page_size, seats=seats, sweep_tokens=sweep_tokens, kv_dtype=kv_dtype)
    except torch.OutOfMemoryError:
        return 0
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    if not hides_launches(model.residency):
        passing *= 2  # what recorded graphs use for their temporaries stays theirs
    free, total = torch.cuda.mem_get_info(device)
    left = int(free - (1 - fraction) * total) - passing
    if limit_bytes is not None:
        left = min(left, limit_bytes - torch.cuda.memory_allocated(device) - passing)
    return left


def worst_sweep_bytes(model: Transformer, *, page_size: int, seats: int, sweep_tokens: int, kv_dtype: torch.dtype | None = None) -> int:
    """The most that an engine takes on a GPU beside weights and pages, measured: a sweep of as many tokens as may run together, a new token
    drawn for every seat through all filters and reported among the likeliest, and a prompt that is scored.
    """
    device = model.device
    params = SamplingParams(
        max_new_tokens=1, temperature=0.9, top_k=50, top_p=0.9, typical_p=0.9, repetition_penalty=1.1, top_logprobs=5, ignore_eos=True
    )
    scored = SamplingParams(max_new_tokens=1, prompt_logprobs=True, ignore_eos=True)
    lengths = rehearsed_lengths(seats, sweep_tokens, model.spec.context_limit)
    pages = sum(-(-length // page_size) for length in lengths)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    engine = _Rehearsal(
        model,
        pages=pages,
        page_size=page_size,
        seats=seats,
        sweep_tokens=sweep_tokens,
        prefix_caching=False,
        graphs=False,
        kv_dtype=kv_dtype,
    )
    torch.cuda.reset_peak_memory_stats(device)
    for number, length in enumerate(lengths):
        last = number == len(lengths) - 1
        engine.add(Request(number, (0,) * length, scored if last else params, number))
    while engine.has_work:
        engine.step()
    return max(0, torch.cuda.max_memory_allocated(device) - before - engine.cache.nbytes)


def rehearsed_lengths(seats: int, sweep_tokens: int, context_limit: int | None) -> list[int]:
    """Prompts that fill a sweep: one as long as may be, up to half of the tokens, and for the other seats what is left, shared out evenly.

    All the tokens of the sweep, unless that many sequences cannot hold them. Each leaves room for a token behind it.
    """
    longest = sweep_tokens if context_limit is None else max(1, context_limit - 1)
    most = min(sweep_tokens, seats * longest)
    long = most if seats == 1 else min(max(1, sweep_tokens // 2), longest)
    others = min(seats - 1, most - long)
    each, more = divmod(most - long, others) if others else (0, 0)
    return [each + 1] * more + [each] * (others - more) + [long]


class _Rehearsal(Engine):
    """An engine that measures what a sweep takes, and must not itself take what it is to find room for."""

    def _cache(self, stride: int) -> PagedCache:
        return PagedCache.of_one_layer(self.model.local, self.pages, self.page_size, self.model.device, self.kv_dtype)


def activation_bytes(spec: ModelSpec, dtype: torch.dtype, tokens: int) -> int:
    """Upper estimate of what one sweep of `tokens` holds at once: residual, norm, the wider of attention and feed-forward."""
    attention = 2 * (spec.query_size + 2 * spec.kv_size) + spec.query_size
    feed_forward = spec.feed_forward * (4 if spec.gated else 2)
    return tokens * dtype.itemsize * (3 * spec.hidden + max(attention, feed_forward))
