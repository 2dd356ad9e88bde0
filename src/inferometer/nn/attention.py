"""Attention over a ragged batch and a paged cache: what every layer of a sweep shares, and the path it takes.

On a GPU kernels read the pages through the block table. Elsewhere torch's own attention is given the keys that lie in the pages
(`nn/segments.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.kv_scaled import scaled_write
from inferometer.kernels.kv_write import kv_write
from inferometer.kernels.paged_decode import Fresh
from inferometer.kernels.rotary_write import rotary_apart, rotary_write, rotate
from inferometer.kernels.spread_heads import spread_heads
from inferometer.kernels.support import usable
from inferometer.model.spec import ModelSpec
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.invariant_attention import InvariantPages, TokenByToken
from inferometer.nn.numerics import Numerics
from inferometer.nn.paged_attention import PagedPlan, attend_pages, attend_pages_in_parts, plan_pages
from inferometer.nn.parts import Part, Parts
from inferometer.nn.segments import Segment, attend_segments, plan_segments


def _whole(part: Part) -> SweepContext:
    raise ValueError("a sweep whose pages are in place has no parts")


@dataclass(frozen=True, slots=True)
class SweepContext:
    """What every layer of one sweep shares.

    plan: how attention is cut up. rotation: (cos, signed sin) of the sweep's tokens, None without rotary positions.
    cache, rows: where keys and values go, None if they are not kept. spans: tokens, and the places where they go one after another, if
    all of the sweep is in a few such spans (on the CPU, where copying them is several times as fast as scattering tokens).
    parts: what a sweep falls into whose pages come from the host, each part a sweep of its own as far as attention goes; then `plan` is
    empty, and `of` makes the part's. None for a sweep whose pages are in place.
    collective: the ranks that the layers are cut over.
    numbers: int64 (tokens,), 0, 1, 2, ..., where a kernel rotates a sweep that keeps nothing; None where torch does, or nobody.
    """

    plan: PagedPlan | InvariantPages | tuple[Segment, ...] | TokenByToken
    rotation: tuple[Tensor, Tensor] | None
    cache: PagedCache | None
    rows: CachedRows | None
    spans: tuple[tuple[slice, slice], ...] | None = None
    parts: Parts | None = None
    of: Callable[[Part], SweepContext] = field(default=_whole)
    collective: Collective = ALONE
    numbers: Tensor | None = None


def sweep_context(
    batch: RaggedBatch,
    spec: ModelSpec,
    cache: PagedCache | None,
    rotation: tuple[Tensor, Tensor] | None,
    like: Tensor,
    numerics: Numerics = Numerics.FASTEST,
    collective: Collective = ALONE,
) -> SweepContext:
    """The context of a sweep over `batch`. spec: of this rank's part. like: a tensor of the model's device and dtype.

    Invariant numerics hold for causal sweeps over a cache, and on the CPU without one; elsewhere for a batch of one sequence.

    Raises ValueError where either of cache and the batch's rows is there without the other.
    """
    if (cache is None) != (batch.rows is None):
        raise ValueError("a cache and the batch's rows in it come together")
    if batch.rows is not None and batch.rows.brought is not None:

        def of(part: Part) -> SweepContext:
            turned = None if rotation is None else (rotation[0][part.tokens], rotation[1][part.tokens])
            return sweep_context(part.of(batch), spec, cache, turned, like, numerics, collective)

        return SweepContext((), rotation, cache, batch.rows, None, batch.rows.brought, of, collective)
    invariant = numerics is Numerics.INVARIANT
    narrow = cache is not None and cache.key_scales is not None
    if cache is not None and batch.rows is not None and usable(like.device) and not (narrow and invariant):
        pages = InvariantPages.of(batch, spec) if invariant else plan_pages(batch, spec)
        return SweepContext(pages, rotation, cache, batch.rows, collective=collective)
    spans = _spans(batch.rows.places.tolist()) if batch.rows is not None and like.device.type == "cpu" and not narrow else None
    if invariant and like.device.type == "cpu" and not spec.encoder:
        return SweepContext(TokenByToken.of(batch, spec, cache), rotation, cache, batch.rows, spans, collective=collective)
    numbers = None
    if rotation is not None and cache is None and usable(like.device):
        numbers = torch.arange(batch.token_ids.shape[0], device=like.device)
    segments = plan_segments(batch, spec, like.dtype, cache)
    return SweepContext(segments, rotation, cache, batch.rows, spans, collective=collective, numbers=numbers)


def attend(heads: Tensor, kv_heads: int, sweep: SweepContext, layer: int, scale: float) -> Tensor:
    """Attention of the sweep's tokens to each other and to what the cache holds.

    heads: (tokens, queries + 2 * kv_heads, head_size), a token's queries, keys and values, not yet rotated.
    Keys and values go to the cache first, if there is one. Returns (tokens, queries * head_size).
    """
    if sweep.parts is None:
        return _attend(heads, kv_heads, sweep, layer, scale)
    outputs = [_attend(heads[part.tokens], kv_heads, sweep.of(part), layer, scale) for part in sweep.parts.come(layer)]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def attend_in_parts(heads: Tensor, kv_heads: int, sweep: SweepContext, layer: int, scale: float) -> HeadParts | None:
    """As `attend`, heads (tokens, queries + 2 * kv_heads, head_size), in parts that are still to be joined; None, and nothing has
    happened, where no kernel leaves it so.
    """
    cache, rows, plan = sweep.cache, sweep.rows, sweep.plan
    if sweep.parts is not None or not isinstance(plan, PagedPlan) or cache is None or rows is None or not rows.apart:
        return None
    query, key, value = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], 1)
    return attend_pages_in_parts(query, plan, rows, cache, layer, scale, Fresh(key, value, sweep.rotation))


def _attend(heads: Tensor, kv_heads: int, sweep: SweepContext, layer: int, scale: float) -> Tensor:
    cache, rows = sweep.cache, sweep.rows
    queries = heads.shape[1] - 2 * kv_heads
    if isinstance(sweep.plan, PagedPlan | InvariantPages):
        assert cache is not None
        assert rows is not None
        if (scales := cache.scales(layer)) is not None:
            assert isinstance(sweep.plan, PagedPlan)
            (query, key), value = spread_heads(heads, kv_heads, sweep.rotation), heads[:, queries + kv_heads :]
            scaled_write(key, value, cache.keys[layer], cache.values[layer], scales, rows.places, cache.page_size)
            return attend_pages(query, sweep.plan, rows, cache, layer, scale)
        if rows.apart and isinstance(sweep.plan, PagedPlan):
            query, key, value = torch.split(heads, [queries, kv_heads, kv_heads], 1)
            return attend_pages(query, sweep.plan, rows, cache, layer, scale, Fresh(key, value, sweep.rotation))
        if sweep.rotation is not None:
            query = rotary_write(heads, *sweep.rotation, *cache.layer(layer), rows.places)
        else:
            query, key, value = torch.split(heads, [queries, kv_heads, kv_heads], 1)
            kv_write(key, value, *cache.layer(layer), rows.places)
        if isinstance(sweep.plan, InvariantPages):
            return sweep.plan.attend(query, rows, cache, layer, scale)
        return attend_pages(query, sweep.plan, rows, cache, layer, scale)
    rotated, value = heads[:, : queries + kv_heads], heads[:, queries + kv_heads :]
    if cache is not None and cache.key_scales is not None:
        query, key = spread_heads(heads, kv_heads, sweep.rotation)
    elif sweep.rotation is not None and sweep.numbers is not None:
        query, key, value = rotary_apart(heads, kv_heads, *sweep.rotation, sweep.numbers)
    else:
        if sweep.rotation is not None:
            rotated = rotate(rotated, *sweep.rotation)
        query, key = rotated[:, :queries], rotated[:, queries:]
    if sweep.spans is not None:
        assert cache is not None
        keys, values = cache.layer(layer)
        for tokens, places in sweep.spans:
            keys[places], values[places] = key[tokens], value[tokens]
    elif cache is not None and (scales := cache.scales(layer)) is not None:
        assert rows is not None
        scaled_write(key, value, cache.keys[layer], cache.values[layer], scales, rows.places, cache.page_size)
    elif cache is not None:
        assert rows is not None
        kv_write(key, value, *cache.layer(layer), rows.places)
    if isinstance(sweep.plan, TokenByToken):
        return sweep.plan.attend(query, key, value, cache, layer, scale)
    return attend_segments(query, key, value, sweep.plan, cache, layer, scale)


def _spans(places: list[int], most: int = 16) -> tuple[tuple[slice, slice], ...] | None:
    """The sweep's tokens by runs of neighbouring places; None if there are more than `most`."""
    begins = [i for i, place in enumerate(places) if not i or place != places[i - 1] + 1]
    if len(begins) > most:
        return None
    ends = [*begins[1:], len(places)]
    return tuple((slice(i, j), slice(places[i], places[i] + j - i)) for i, j in zip(begins, ends, strict=True))
