"""Rotary scaling as GGUF states it, in the words of a Hugging Face configuration, or refused by name."""

from __future__ import annotations

import struct
from math import pi
from typing import Any, Final

from inferometer.errors import ModelError
from inferometer.model.gguf_file import GgufFile
from inferometer.model.gguf_keys import Keys, shortest_float

FACTORS: Final = "rope_freqs.weight"
"""The tensor that divides each rotary frequency: how llama.cpp stores Llama 3.1's scaling."""

_LLAMA3_DEFAULTS: Final = (8192.0, 1.0, 4.0)
_TOLERANCE: Final = 1e-5


def rope_scaling(file: GgufFile, keys: Keys, theta: float, head_size: int) -> dict[str, Any] | None:
    """The "rope_scaling" entry for the model in `file`, None if it scales nothing.

    Raises ModelError, naming the key, where the scaling is none that a configuration can state exactly.
    """
    kind = keys.text("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    original = keys.optional_size("rope.scaling.original_context_length")
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if keys.number(key, 1.0) != 1.0:
            raise keys.refused(key)
    if keys.number("rope.scaling.yarn_log_multiplier", 0.0, lowest=0.0):
        raise keys.refused("rope.scaling.yarn_log_multiplier")
    scaled = kind != "none" and not (kind == "linear" and factor == 1.0)
    factors = _factors(file, head_size)
    if factors is not None:
        if scaled:
            raise ModelError(f"{file.path}: rotary scaling both by {FACTORS} and by {keys.name('rope.scaling.type')} is not supported")
        return _llama3(file, factors, theta, head_size, original)
    if not scaled:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original or keys.size("context_length"),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    raise keys.refused("rope.scaling.type")


def _factors(file: GgufFile, head_size: int) -> tuple[float, ...] | None:
    tensor = file.tensors.get(FACTORS)
    if tensor is None:
        return None
    if tensor.block_type is None or tensor.block_type.name != "F32" or tensor.shape != (head_size // 2,):
        raise ModelError(f"{file.path}: the tensor {FACTORS} must hold {head_size // 2} numbers of type F32")
    return struct.unpack(f"<{head_size // 2}f", file.data(FACTORS))


def _llama3(file: GgufFile, factors: tuple[float, ...], theta: float, head_size: int, original: int | None) -> dict[str, Any] | None:
    """The parameters of Llama 3.1's scaling that give `factors`, None if they are all one.

    The wavelengths w between the two thresholds get s = (original / w - low) / (high - low), a line in 1 / w. Only the ratios of
    original, low and high matter, so with `original` given two points of that line tell low and high.
    """
    if all(abs(f - 1) < _TOLERANCE for f in factors):
        return None
    refusal = ModelError(f"{file.path}: the tensor {FACTORS} scales rotary frequencies in a way that is not supported (not Llama 3.1's)")
    largest = shortest_float(max(factors))
    if not all(1 - _TOLERANCE < f <= largest * (1 + _TOLERANCE) for f in factors):  # also false for NaN
        raise refusal
    inverse_wavelengths = [theta ** (-2 * i / head_size) / (2 * pi) for i in range(head_size // 2)]
    # (1 / w, s) of every wavelength strictly between the thresholds, shortest first.
    between = [
        (inverse, (1 / f - 1 / largest) / (1 - 1 / largest))
        for f, inverse in zip(factors, inverse_wavelengths, strict=True)
        if 1 + _TOLERANCE < f < largest * (1 - _TOLERANCE)
    ]
    candidates = [_LLAMA3_DEFAULTS]
    if len(between) > 1 and between[0][1] > between[-1][1]:
        (x0, s0), (x1, s1) = between[0], between[-1]
        slope = (s0 - s1) / (x0 - x1)
        scale = original or _LLAMA3_DEFAULTS[0]
        low, width = (slope * x0 - s0) * scale / slope, scale / slope
        candidates.append((float(scale), float(f"{low:.5g}"), float(f"{low + width:.5g}")))
    for positions, low, high in candidates:
        if 0 < low < high and _matches(factors, inverse_wavelengths, largest, positions, low, high):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": int(positions),
            }
    raise refusal


def _matches(factors: tuple[float, ...], inverse_wavelengths: list[float], factor: float, original: float, low: float, high: float) -> bool:
    for given, inverse in zip(factors, inverse_wavelengths, strict=True):
        smooth = min(1.0, max(0.0, (original * inverse - low) / (high - low)))
        if abs(given * ((1 - smooth) / factor + smooth) - 1) > _TOLERANCE:
            return False
    return True
