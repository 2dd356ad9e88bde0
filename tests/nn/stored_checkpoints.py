"""Checkpoints in few bits as other programs write them, of tiny models with random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.unpacking import AWQ_ORDER
from tiny_models import tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def packed_along(levels: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """int32 as checkpoints pack them, the inverse of `nibbles_along`; `dim` must be a multiple of 8 long."""
    rows = levels.t() if dim == 0 else levels
    parts = rows.reshape(rows.shape[0], -1, 8).to(torch.int64)
    shifts = torch.tensor([4 * order.index(i) for i in range(8)], device=levels.device)
    words = (parts << shifts).sum(-1)
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return signed.t().contiguous() if dim == 0 else signed


def plain(folder: Path, kind: str = "llama", **changes: Any) -> dict[str, Tensor]:
    """The tensors of a tiny model, float16."""
    spec = describe(str(tiny_model(folder, kind, **changes)), config_only=True).spec
    source = DummySource(spec, family(kind), seed=4)
    return {name: source.read(name, "cpu", torch.float32).half() for name in source.tensors()}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], kind: str = "llama", **changes: Any) -> Path:
    """A folder of such a model that holds these tensors, quantised as `config` says."""
    path = tiny_model(folder, kind, **changes, quantization_config=config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


class Stored:
    """A matrix of random levels, scales and zero points, and what they mean, in float64."""

    def __init__(self, outputs: int, inputs: int, group: int, *, groups: Tensor | None = None) -> None:
        count = -(-inputs // group)
        self.groups = torch.arange(inputs) // group if groups is None else groups
        self.levels = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
        self.scale = (torch.rand(outputs, count) * 0.01 + 0.002).half()
        self.zero = torch.randint(1, 16, (outputs, count), dtype=torch.uint8)
        zero = self.zero[:, self.groups].double()
        self.matrix = (self.levels.double() - zero) * self.scale[:, self.groups].double()

    def gptq(self, base: str, *, offset: int, g_idx: bool) -> dict[str, Tensor]:
        parts = {
            f"{base}.qweight": packed_along(self.levels.t(), 0),
            f"{base}.qzeros": packed_along(self.zero.t() - offset, 1),
            f"{base}.scales": self.scale.t(),
        }
        return parts | ({f"{base}.g_idx": self.groups.int()} if g_idx else {})

    def awq(self, base: str) -> dict[str, Tensor]:
        return {
            f"{base}.qweight": packed_along(self.levels.t(), 1, AWQ_ORDER),
            f"{base}.qzeros": packed_along(self.zero.t(), 1, AWQ_ORDER),
            f"{base}.scales": self.scale.t(),
        }

    def compressed(self, base: str, *, g_idx: bool) -> dict[str, Tensor]:
        parts = {
            f"{base}.weight_packed": packed_along(self.levels, 1),
            f"{base}.weight_zero_point": packed_along(self.zero, 0),
            f"{base}.weight_scale": self.scale,
            f"{base}.weight_shape": torch.tensor(self.levels.shape),
        }
        return parts | ({f"{base}.weight_g_idx": self.groups.int()} if g_idx else {})


def matrices(tensors: dict[str, Tensor]) -> list[str]:
    """The names of linear maps, without .weight."""
    return [name.removesuffix(".weight") for name in tensors if name.split(".")[-2] in LINEAR]
