"""Rotary positions from a configuration, in the old spelling (rope_theta, rope_scaling) and the new (rope_parameters).

Semantics are those of modeling_rope_utils.py in transformers 5; what the two spellings leave out falls back as it does there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferometer.errors import shown
from inferometer.model.families.options import LARGEST_SIZE, Options
from inferometer.model.spec import DynamicScaling, LinearScaling, Llama3Scaling, Rotary, RotaryScaling, YarnScaling

DEFAULT_THETA = 10_000.0


def read_rotary(options: Options, *, positions: int, head_size: int) -> tuple[Rotary, int | None]:
    """The rotation and the longest sequence it is made for (None: any length).

    `positions` is max_position_embeddings. Raises ModelError for a kind of scaling that is not run or is incomplete.
    """
    rope = _parameters(options)
    kind = rope.raw("rope_type", rope.raw("type", "default"))
    theta = rope.number("rope_theta", DEFAULT_THETA)
    if kind == "default":
        return Rotary(theta), positions
    if kind == "linear":
        factor = rope.number("factor")
        return Rotary(theta, LinearScaling(factor)), _length(rope, positions * factor)
    if kind == "dynamic":
        if head_size <= 2:
            raise rope.error(f"dynamic scaling is not defined for heads of size {head_size}")
        return Rotary(theta, DynamicScaling(rope.number("factor"), positions)), None
    if kind == "llama3":
        return Rotary(theta, _llama3(rope, positions)), positions
    if kind == "yarn":
        scaling = _yarn(rope, positions, theta)
        return Rotary(theta, scaling), _length(rope, max(positions, scaling.original_positions * scaling.factor))
    raise rope.error(f"rope_type {shown(kind)} is not supported: the kinds are default, linear, dynamic, llama3, yarn")


def _parameters(options: Options) -> Options:
    option = "rope_scaling" if options.raw("rope_scaling") else "rope_parameters"
    given = options.raw(option)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise options.malformed(option, "an object")
    merged: dict[str, Any] = dict(given)
    nested = [key for key, value in merged.items() if isinstance(value, Mapping)]
    if nested:
        raise options.unsupported(option, f"rotary parameters that differ by kind of layer ({nested[0]}) are not run")
    for outer in ("rope_theta", "partial_rotary_factor"):
        if outer in options:
            merged.setdefault(outer, options.raw(outer))
    # The length before scaling counts at the top level first, then inside; without either it is the model's length.
    if "original_max_position_embeddings" in options:
        merged["original_max_position_embeddings"] = options.raw("original_max_position_embeddings")
    rope = Options(merged, options.name)
    if merged.get("partial_rotary_factor") not in (None, 1):
        raise rope.unsupported("partial_rotary_factor", "every dimension of a head is rotated")
    return rope


def _llama3(rope: Options, positions: int) -> RotaryScaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error(f"high_freq_factor ({high:g}) must be greater than low_freq_factor ({low:g})")
    return Llama3Scaling(rope.number("factor"), low, high, rope.size("original_max_position_embeddings", positions))


def _yarn(rope: Options, positions: int, theta: float) -> YarnScaling:
    if theta == 1:
        raise rope.error("yarn scaling is not defined for rope_theta = 1")
    original = rope.size("original_max_position_embeddings", positions)
    if "factor" not in rope:
        raise rope.malformed("factor", "a positive number")
    factor = positions / original if rope.raw("factor") is None else rope.number("factor")
    truncate = rope.raw("truncate", True)
    if not isinstance(truncate, bool | None):
        raise rope.malformed("truncate", "true or false")
    return YarnScaling(
        factor=factor,
        original_positions=original,
        attention_factor=_attention_factor(rope, factor),
        beta_fast=_rotations(rope, "beta_fast", 32.0),
        beta_slow=_rotations(rope, "beta_slow", 1.0),
        truncate=bool(truncate),
    )


def _rotations(rope: Options, option: str, default: float) -> float:
    """A bound of yarn's ramp in rotations over the original length; zero means the default, as does null."""
    rotations = _optional(rope, option) or default
    if not 1e-30 <= rotations <= 1e30:  # beyond, its logarithm is out of range
        raise rope.malformed(option, "a number from 1e-30 to 1e30")
    return rotations


def _attention_factor(rope: Options, factor: float) -> float:
    given = _optional(rope, "attention_factor")
    if given is not None:
        return given
    scale, scale_all = _optional(rope, "mscale"), _optional(rope, "mscale_all_dim")
    if scale and scale_all:
        return _magnitude(factor, scale) / _magnitude(factor, scale_all)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    """Peng et al. 2023, equation 22: the temperature of attention after stretching by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _optional(rope: Options, option: str) -> float | None:
    return None if rope.raw(option) is None else rope.number(option, positive=False)


def _length(rope: Options, length: float) -> int:
    if not 1 <= length <= LARGEST_SIZE:
        raise rope.error(f"scaling gives a context of {length:g} tokens, which must be from 1 to {LARGEST_SIZE}")
    return int(length)
