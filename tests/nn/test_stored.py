"""Checkpoints in few bits that other programs have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stored_checkpoints import SIZES, Stored, matrices, packed_along, plain, write
from torch import Tensor

from inferometer import LLM, SamplingParams
from inferometer.errors import ModelError, UserError
from inferometer.model.families import family
from inferometer.nn.formats.unpacking import AWQ_ORDER, nibbles_along


def held(llm: LLM) -> dict[str, Tensor]:
    """The parameters of a model as they count, by name; float64."""
    quantised = llm.model.quantised
    wide = {name: weight.dequantised(torch.float64) for name, weight in quantised.items()}
    return wide | {name: p.double() for name, p in llm.model.named_parameters() if name not in quantised}


def check(path: Path, tensors: dict[str, Tensor], meant: dict[str, Tensor], few: int) -> LLM:
    """The folder loads as a model whose plain weights these are, `few` of its matrices in few bits."""
    llm = LLM(path, dtype="float32", device="cpu", gpu_memory=0.1)
    found, pieces = held(llm), family(llm.spec.family).pieces(llm.spec)
    for parameter, parts in pieces.items():
        wanted = torch.cat([meant.get(piece.tensor, tensors.get(piece.tensor, torch.empty(0))).double() for piece in parts])
        torch.testing.assert_close(found[parameter], wanted, rtol=1e-6, atol=1e-9)
    assert len(llm.model.quantised) == few
    llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=3, ignore_eos=True))
    return llm


def test_nibbles_by_hand() -> None:
    words = torch.tensor([[0x76543210], [-0x01234568]], dtype=torch.int32)
    assert nibbles_along(words, 1).tolist() == [list(range(8)), list(range(8, 16))]
    assert nibbles_along(words[:1], 0)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    # AutoAWQ: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest nibble.
    assert nibbles_along(words[:1], 1, AWQ_ORDER).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    levels = torch.randint(0, 16, (16, 24), dtype=torch.uint8)
    for dim in (0, 1):
        for order in (tuple(range(8)), AWQ_ORDER):
            assert torch.equal(nibbles_along(packed_along(levels, dim, order), dim, order), levels)


@pytest.mark.parametrize("version", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("order", ["none", "written out", "act-order"])
def test_gptq(tmp_path: Path, version: str | None, group: int, order: str) -> None:
    tensors, meant = plain(tmp_path, **SIZES), {}
    orders: dict[int, Tensor] = {}
    for base in matrices(tensors):
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        size = inputs if group == -1 else group
        # Maps that read the same x were ordered by the same statistics.
        groups = orders.setdefault(inputs, torch.arange(inputs)[torch.randperm(inputs)] // size) if order == "act-order" else None
        stored = Stored(outputs, inputs, size, groups=groups)
        meant[f"{base}.weight"] = stored.matrix
        tensors |= stored.gptq(base, offset=0 if version == "gptq_v2" else 1, g_idx=order != "none")
    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": order == "act-order"}
    path = write(tmp_path, tensors, config | ({"checkpoint_format": version} if version else {}), **SIZES)
    llm = check(path, tensors, meant, 8)
    if order == "act-order" and group > 0:
        assert all(weight.order is not None for weight in llm.model.quantised.values())
    with pytest.raises(UserError, match="quantize int8"):
        LLM(path, device="cpu", quantize="int8")
    assert LLM(path, device="cpu", quantize="gptq", dtype="float32").model.quantised


def test_maps_of_different_orders_become_plain(tmp_path: Path) -> None:
    tensors, meant = plain(tmp_path, **SIZES), {}
    for base in matrices(tensors):
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        stored = Stored(outputs, inputs, 32, groups=torch.randperm(inputs) // 32)
        meant[f"{base}.weight"] = stored.matrix
        tensors |= stored.gptq(base, offset=1, g_idx=True)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    check(write(tmp_path, tensors, config, **SIZES), tensors, meant, 4)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_head_in_four_bits_is_plain(tmp_path: Path, method: str) -> None:
    """Launches that choose tokens take a head in int8 alone, by rows."""
    sizes = {**SIZES, "tie_word_embeddings": False, "vocab_size": 304}
    tensors, meant = plain(tmp_path, **sizes), {}
    for base in [*matrices(tensors), "lm_head"]:
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        stored = Stored(outputs, inputs, 32)
        meant[f"{base}.weight"] = stored.matrix
        tensors |= stored.gptq(base, offset=1, g_idx=False) if method == "gptq" else stored.awq(base)
    config = {"quant_method": method, "bits": 4, "group_size": 32, "lm_head": True}
    config |= {"version": "gemm", "zero_point": True} if method == "awq" else {}
    llm = check(write(tmp_path, tensors, config, **sizes), tensors, meant, 8)
    assert "head.weight" not in llm.model.quantised


def test_awq_with_a_map_left_plain(tmp_path: Path) -> None:
    tensors, meant = plain(tmp_path, **SIZES), {}
    for base in matrices(tensors):
        if "layers.1.mlp.down_proj" not in base:
            outputs, inputs = tensors.pop(f"{base}.weight").shape
            stored = Stored(outputs, inputs, 32)
            meant[f"{base}.weight"] = stored.matrix
            tensors |= stored.awq(base)
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    path = write(tmp_path, tensors, config | {"modules_to_not_convert": ["layers.1.mlp.down_proj"]}, **SIZES)
    check(path, tensors, meant, 7)


@pytest.mark.parametrize("ordered", [False, True])
def test_compressed_tensors_in_four_bits(tmp_path: Path, ordered: bool) -> None:
    tensors, meant, orders = plain(tmp_path, **SIZES), {}, dict[int, Tensor]()
    for base in matrices(tensors):
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        groups = orders.setdefault(inputs, torch.randperm(inputs) // 32) if ordered else None
        stored = Stored(outputs, inputs, 32, groups=groups)
        meant[f"{base}.weight"] = stored.matrix
        tensors |= stored.compressed(base, g_idx=ordered)
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    weights |= {"actorder": "group"} if ordered else {}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": scheme}}
    check(write(tmp_path, tensors, config, **SIZES), tensors, meant, 8)


@pytest.mark.parametrize("element", ["int8", "fp8"])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_compressed_tensors_in_eight_bits(tmp_path: Path, element: str, strategy: str) -> None:
    tensors, meant = plain(tmp_path, **SIZES), {}
    for base in matrices(tensors):
        matrix = tensors[f"{base}.weight"].float()
        peak = matrix.abs().amax(1, keepdim=True) if strategy == "channel" else matrix.abs().amax()[None]
        scale = (peak / (127 if element == "int8" else 448)).half().float()
        data = (matrix / scale).round().clamp(-127, 127).to(torch.int8) if element == "int8" else (matrix / scale).to(torch.float8_e4m3fn)
        tensors |= {f"{base}.weight": data, f"{base}.weight_scale": scale.half()}
        meant[f"{base}.weight"] = data.double() * scale.double()
    kind = {"num_bits": 8, "type": "int" if element == "int8" else "float", "symmetric": True}
    activations = kind | {"dynamic": True, "strategy": "token"}
    scheme = {"targets": ["Linear"], "weights": kind | {"strategy": strategy}, "input_activations": activations}
    form = "int-quantized" if element == "int8" else "float-quantized"
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": scheme}}
    llm = check(write(tmp_path, tensors, config, **SIZES), tensors, meant, 8)
    rounds = {weight.activations for weight in llm.model.quantised.values()}
    assert rounds == ({"int8"} if element == "int8" else {"wide"})


def test_gptq_of_matrices_stored_by_column(tmp_path: Path) -> None:
    tensors, meant = plain(tmp_path, "gpt2"), {}
    for name in [name for name in tensors if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))]:
        inputs, outputs = tensors.pop(name).shape
        stored = Stored(outputs, inputs, 32)
        meant[name] = stored.matrix
        tensors |= stored.gptq(name.removesuffix(".weight"), offset=1, g_idx=False)
    path = write(tmp_path, tensors, {"quant_method": "gptq", "bits": 4, "group_size": 32}, "gpt2")
    check(path, tensors, meant, 8)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t.pop("model.layers.0.mlp.up_proj.scales"), "up_proj.scales"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.scales": torch.zeros(3, 96)}), "up_proj"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.qzeros": torch.zeros(2, 1, dtype=torch.int32)}), "up_proj"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.qweight": torch.zeros(8, 96)}), "up_proj"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.qweight": torch.zeros(8, 5, dtype=torch.int32)}), "up_proj"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.qweight": torch.zeros(8, dtype=torch.int32)}), "up_proj"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.g_idx": torch.zeros(64, dtype=torch.int32)}), "g_idx"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.g_idx": torch.zeros(6, dtype=torch.int32)}), "g_idx"),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.more": torch.zeros(6)}), "up_proj.more"),
        (lambda t: [t.pop(name) for name in list(t) if "qweight" in name], "no matrices"),
    ],
)
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path, damage: Any, said: str) -> None:
    tensors = plain(tmp_path, **SIZES)
    for base in matrices(tensors):
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        tensors |= Stored(outputs, inputs, 32).gptq(base, offset=1, g_idx=False)
    damage(tensors)
    with pytest.raises(ModelError) as caught:
        LLM(write(tmp_path, tensors, GPTQ, **SIZES), device="cpu", dtype="float32")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
