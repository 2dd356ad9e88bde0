"""What `benchmarks/server.py` asks of a model: which one, how it is served, and the prompts of every measurement."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferometer.server.settings import ServerSettings

TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 300, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. Lengths are tokens; a prompt's text has one character for each."""

    folder: str
    dtype: str
    device: str
    gpu_memory: float | None
    requests: int
    prompt_mean: int
    new_mean: int
    single_prompt: int
    single_new: int
    repeats: int
    long_prompt: int
    beside_new: int

    @property
    def settings(self) -> ServerSettings:
        """The server's settings, as its command line gives them."""
        limits = {"max_input_length": 2040, "max_total_tokens": 2048, "max_concurrent_requests": max(1024, self.requests)}
        return ServerSettings(
            model_id=self.folder, weights="dummy", dtype=self.dtype, device=self.device, gpu_memory=self.gpu_memory, **limits
        )

    @property
    def flags(self) -> list[str]:
        """The command line."""
        limits = ["--max-input-length", "2040", "--max-total-tokens", "2048", "--max-concurrent-requests", str(max(1024, self.requests))]
        memory = [] if self.gpu_memory is None else ["--gpu-memory", str(self.gpu_memory)]
        return ["--model-id", self.folder, "--weights", "dummy", "--dtype", self.dtype, "--device", self.device, *limits, *memory]

    def mix(self) -> list[tuple[str, int]]:
        """(prompt, new tokens) of the requests for the throughput: lognormal lengths."""
        generator = random.Random(0)
        lengths = [lognormal(generator, mean, self.requests) for mean in (self.prompt_mean, self.new_mean)]
        return [(text(generator, prompt), new) for prompt, new in zip(*lengths, strict=True)]

    def singles(self) -> list[str]:
        """Prompts for one client at a time, no two of which begin alike."""
        generator = random.Random(1)
        return [text(generator, self.single_prompt) for _ in range(self.repeats)]


def text(generator: random.Random, length: int) -> str:
    return "".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=length))


def lognormal(generator: random.Random, mean: float, count: int) -> list[int]:
    """`count` lengths of the given mean before they are clipped to 8..1000; sigma 0.8."""
    mu = math.log(mean) - 0.8**2 / 2
    return [min(1000, max(8, round(generator.lognormvariate(mu, 0.8)))) for _ in range(count)]


def write_model(folder: Path, config: dict[str, Any]) -> str:
    """A folder with a model's configuration, without an end token: every request has the length that it asks for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return str(folder)
