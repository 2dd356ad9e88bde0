"""How a GGUF file scales its rotary positions, in metadata or in factors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_configs import config, refusal

from gguf_models import tiny
from inferometer.model.config import read_spec
from inferometer.model.spec import Llama3Scaling, Rotary, YarnScaling


def llama3_factors(theta: float, size: int, factor: float, low: float, high: float, original: float) -> np.ndarray:
    """As llama.cpp's converter writes rope_freqs, in its float32 steps."""
    out = []
    for frequency in 1.0 / (theta ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))):
        wavelength = 2 * math.pi / float(frequency)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


@pytest.mark.parametrize(
    "keys",
    [{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}],
)
def test_linear_scaling(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert config(tmp_path, keys=keys)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize("keys", [{"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope.scaling.type": "linear"}])
def test_no_scaling(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert config(tmp_path, keys=keys)["rope_scaling"] is None


def test_yarn_scaling(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    assert read_spec(config(tmp_path, keys=keys), "m").positions == Rotary(5000.0, YarnScaling(4.0, 16, 0.1 * math.log(4) + 1))
    betas = config(tmp_path, keys=keys | {"rope.scaling.yarn_beta_fast": 24.0, "rope.scaling.yarn_beta_slow": 2.0})["rope_scaling"]
    assert (betas["beta_fast"], betas["beta_slow"]) == (24.0, 2.0)


@pytest.mark.parametrize(
    ("theta", "size", "scaling"),
    [
        (500000.0, 128, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        (500000.0, 64, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        (10000.0, 128, Llama3Scaling(6.0, 1.5, 8.0, 2048)),
        (10000.0, 16, Llama3Scaling(4.0, 1.0, 4.0, 8192)),
    ],
)
def test_llama3_scaling_is_found_from_its_factors(tmp_path: Path, theta: float, size: int, scaling: Llama3Scaling) -> None:
    low, high, original = scaling.low_frequency_factor, scaling.high_frequency_factor, scaling.original_positions
    factors = llama3_factors(theta, size, scaling.factor, low, high, original)
    keys = {
        "rope.freq_base": theta,
        "rope.dimension_count": size,
        "attention.key_length": size,
        "rope.scaling.original_context_length": original,
    }
    found = config(tmp_path, keys=keys, tensors=tiny("llama") | {"rope_freqs.weight": factors})
    assert found["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    assert read_spec(found, "m").positions == Rotary(theta, scaling)


def test_factors_of_one_scale_nothing(tmp_path: Path) -> None:
    assert config(tmp_path, tensors=tiny("llama") | {"rope_freqs.weight": np.ones(8, np.float32)})["rope_scaling"] is None


@pytest.mark.parametrize("factors", [[1, 2, 1, 3, 1, 1, 1, 1], [math.nan] * 8, [0.5] * 8, [math.inf] * 8, [0.0] * 8, [-1.0] * 8])
def test_other_factors_are_refused(tmp_path: Path, factors: list[float]) -> None:
    assert "rope_freqs.weight" in refusal(tmp_path, tensors=tiny("llama") | {"rope_freqs.weight": np.array(factors, np.float32)})
