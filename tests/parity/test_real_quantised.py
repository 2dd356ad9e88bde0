"""What number formats cost the embedded model, in perplexity on a long English text; float32 of the GGUF file is the reference."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from inferometer import LLM
from inferometer.cli.main import main
from inferometer.engine.quality import Quality, quality
from inferometer.model import store
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(store.locate("smollm2-135m") is None, reason="the embedded model is not in the cache"),
]
TOKENS, WINDOW = 4096, 1024


@functools.cache
def reference() -> LLM:
    return LLM(None, dtype="float32", device="cpu", gpu_memory=0.5)


@functools.cache
def text() -> str:
    """English prose that every Python brings: the reference of its language."""
    return "\n".join(topics[name] for name in ("execmodel", "import", "naming", "objects", "types"))


def tokens(start: int = 0, count: int = TOKENS) -> list[int]:
    tokenizer = reference().tokenizer
    assert tokenizer is not None
    return tokenizer.encode(text())[start : start + count]


def measured(llm: LLM) -> Quality:
    return quality(reference(), llm, tokens(), WINDOW)


def increase(found: Quality) -> float:
    return found.perplexity / found.reference_perplexity - 1


@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.005), ("w8a8", 0.04), ("fp8", 0.025)])
def test_eight_bits(quantize: str, most: float) -> None:
    assert increase(measured(LLM(None, dtype="float32", device="cpu", quantize=quantize))) <= most


def test_fp8_with_rounded_activations() -> None:
    """As on a GPU that multiplies e4m3."""
    llm = LLM(None, dtype="float32", device="cpu", quantize="fp8")
    for module in llm.model.modules():
        if isinstance(module, Linear) and module.quant is not None:
            module.quant = replace(module.quant, activations="fp8")
    assert increase(measured(llm)) <= 0.035


@pytest.mark.parametrize(("kv_dtype", "most"), [("int8", 0.003), ("fp8", 0.007)])
def test_a_cache_in_eight_bits(kv_dtype: str, most: float) -> None:
    assert increase(measured(LLM(None, dtype="float32", device="cpu", kv_dtype=kv_dtype))) <= most


def test_int4_is_that_of_a_float64_evaluation_of_the_same_rounding() -> None:
    llm = LLM(None, dtype="float32", device="cpu", quantize="int4-g64")
    part = tokens(count=768)
    wide = Transformer(llm.spec, torch.device("cpu"), torch.float64)
    quantised = llm.model.quantised
    for name, parameter in llm.model.named_parameters():
        held = quantised[name].dequantised(torch.float64) if name in quantised else parameter.double()
        wide.get_parameter(name).copy_(held)
    exact = LLM(None, dtype="float32", device="cpu")
    exact.model = wide
    exact.dtype = exact.kv_dtype = torch.float64
    found = quality(exact, llm, part, 256)
    assert abs(increase(found)) <= 0.01
    assert found.kl_divergence <= 1e-4


def test_calibration_beats_rounding_to_nearest(tmp_path: Path) -> None:
    """On a part of the text that calibration has not seen."""
    tokenizer = reference().tokenizer
    assert tokenizer is not None
    (tmp_path / "text.txt").write_text(tokenizer.decode(tokens(TOKENS, 4096)))
    arguments = ["quantize", "--quantize", "int4-g64", "--calibrate", str(tmp_path / "text.txt"), "--device", "cpu"]
    assert main([*arguments, "--windows", "8", "-o", str(tmp_path / "out")]) == 0
    nearest = measured(LLM(None, dtype="float32", device="cpu", quantize="int4-g64"))
    found = measured(LLM(tmp_path / "out", dtype="float32", device="cpu"))
    assert found.perplexity < nearest.perplexity
    assert found.kl_divergence < nearest.kl_divergence
