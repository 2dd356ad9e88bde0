"""What number formats cost the embedded model: perplexity on a long English text beside that of the float32 of its GGUF file.

    python benchmarks/quality.py [--only FORMAT ...] [--output FILE]

The text is 4,096 tokens of the Python language reference (pydoc_data.topics), in windows of 1,024; activations are float32. int4-g64 is
also held to a float64 evaluation of the same rounding (768 tokens), and calibrated on the 4,096 tokens that follow. Each takes one to five
minutes on two cores. A gate is the most that the perplexity may grow, or what is said of it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer import LLM
from inferometer.bench.machine.environment import environment
from inferometer.cli.main import main as inferometer
from inferometer.engine.quality import CHUNK, Quality, quality
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.gate import gate_torch
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import Activation
from inferometer.nn.formats.product import multiply
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

TOKENS, WINDOW = 4096, 1024
TOPICS = ("execmodel", "import", "naming", "objects", "types")
CPU = torch.device("cpu")


class Remembered:
    """A model whose distributions over the windows of a text are computed once."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.spec = llm, llm.spec
        self._held: dict[tuple[int, ...], Tensor] = {}
        self._window: tuple[int, ...] = ()

    def hidden_states(self, tokens: Sequence[int]) -> None:
        self._window = tuple(tokens)
        if self._window not in self._held:
            self.llm.hidden_states(tokens)
            count = len(tokens) - 1
            parts = [self.llm.log_probabilities(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
            self._held[self._window] = torch.cat(parts)

    def log_probabilities(self, start: int, stop: int) -> Tensor:
        return self._held[self._window][start:stop]


def made(**options: Any) -> LLM:
    return LLM(options.pop("model", None), dtype="float32", device="cpu", **options)


def as_on_a_gpu() -> LLM:
    """fp8 with activations rounded too, as where the GPU multiplies e4m3."""
    llm = made(quantize="fp8")
    for module in llm.model.modules():
        if isinstance(module, Linear) and module.quant is not None:
            module.quant = replace(module.quant, activations="fp8")
    return llm


BLOCK = 256
"""Inputs whose rounded activations share a scale where a GPU multiplies several rows."""


@dataclass(frozen=True, slots=True)
class ByBlocks:
    """A product with e4m3 whose activations are rounded as `kernels/quant_bytes.py` does: by rows and blocks of inputs, a power of two
    each."""

    weight: QuantWeight
    bias: Tensor | None

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        blocks = functional.pad(x.float(), (0, -x.shape[1] % BLOCK)).view(x.shape[0], -1, BLOCK)
        scale = blocks.abs().amax(2, keepdim=True).clamp(min=1e-30).log2().floor().sub(7).exp2()
        levels = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
        return finish_torch(multiply(levels.flatten(1)[:, : x.shape[1]].to(x.dtype), self.weight, self.bias), activation, residual)

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        return gate_torch(inner, activation)


def as_few_rows_on_hopper() -> LLM:
    """fp8 as five rows and more of a decode step there."""
    llm = made(quantize="fp8")
    for module in llm.model.modules():
        if isinstance(module, Linear) and module.quant is not None:
            module.product = ByBlocks(module.quant, module.bias)
    return llm


FORMATS: dict[str, tuple[Callable[[], LLM], float | None]] = {
    "int8": (lambda: made(quantize="int8"), 0.5),
    "w8a8": (lambda: made(quantize="w8a8"), 4.0),
    "fp8 weights": (lambda: made(quantize="fp8"), 2.5),
    "fp8 W8A8": (as_on_a_gpu, 3.5),
    "fp8 W8A8, by 256 inputs": (as_few_rows_on_hopper, 3.5),
    "KV int8": (lambda: made(kv_dtype="int8"), 0.3),
    "KV fp8": (lambda: made(kv_dtype="fp8"), 0.7),
    "int4-g64": (lambda: made(quantize="int4-g64"), None),
}
"""How each is made, and the most by which perplexity may grow, in percent."""
CALIBRATED, EXACT = "int4-g64 calibrated", "int4-g64 against float64"


def widened(llm: LLM) -> LLM:
    """A model in float64 with the same rounded weights."""
    wide = Transformer(llm.spec, CPU, torch.float64)
    quantised = llm.model.quantised
    for name, parameter in llm.model.named_parameters():
        held = quantised[name].dequantised(torch.float64) if name in quantised else parameter.double()
        wide.get_parameter(name).copy_(held)
    exact = made()
    exact.model = wide
    exact.dtype = exact.kv_dtype = torch.float64
    return exact


def calibrated(text: str, folder: Path) -> LLM:
    """Rounded to what a text asks for."""
    (folder / "text.txt").write_text(text)
    arguments = ["quantize", "--quantize", "int4-g64", "--calibrate", str(folder / "text.txt"), "--device", "cpu", "--windows", "8"]
    assert inferometer([*arguments, "-o", str(folder / "out")]) == 0
    return made(model=folder / "out")


def record(name: str, found: Quality, gate: float | None) -> dict[str, Any]:
    grown = 100 * (found.perplexity / found.reference_perplexity - 1)
    return {
        "measured": "what number formats cost the embedded model", "format": name, "tokens": found.tokens, "perplexity": found.perplexity,
        "reference": found.reference_perplexity, "grown_percent": grown, "gate_percent": gate,
        "kept": None if gate is None else abs(grown) <= gate if name == EXACT else grown <= gate,
        "kl_divergence_nats": found.kl_divergence, "same_likeliest_token": found.top1_agreement,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*FORMATS, EXACT, CALIBRATED]
    parser.add_argument("--only", action="append", choices=names, help="this format; repeatable")
    parser.add_argument("--output", help="file to append records to")
    options = parser.parse_args()
    with closing(LLM(None, dtype="float32", device="cpu", gpu_memory=0.5)) as plain:
        assert plain.tokenizer is not None
        tokens = plain.tokenizer.encode("\n".join(topics[name] for name in TOPICS))
        reference: Any = Remembered(plain)
        for name in options.only or names:
            with tempfile.TemporaryDirectory() as folder:
                if name == EXACT:
                    llm = made(quantize="int4-g64")
                    found, gate = quality(widened(llm), llm, tokens[:768], 256), 1.0
                elif name == CALIBRATED:
                    llm = calibrated(plain.tokenizer.decode(tokens[TOKENS : 2 * TOKENS]), Path(folder))
                    found, gate = quality(reference, llm, tokens[:TOKENS], WINDOW), None
                else:
                    make, gate = FORMATS[name]
                    llm = make()
                    found = quality(reference, llm, tokens[:TOKENS], WINDOW)
                llm.close()
            line = record(name, found, gate) | {"device_name": environment(CPU)["cpu"], "environment": environment(CPU)}
            print({key: value for key, value in line.items() if key != "environment"}, flush=True)
            if options.output:
                with open(options.output, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
