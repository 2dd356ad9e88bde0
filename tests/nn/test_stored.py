"""Checkpoints in few bits: what others have written, and this package's own folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferometer import LLM, SamplingParams
from inferometer.errors import ModelError, UserError
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import ROUNDED_FORMATS, weight_format
from inferometer.model.parameters import head_matrix
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.folder import QuantisedFolder, matrices_to_nearest
from inferometer.nn.formats.layout import layer_matrices
from inferometer.nn.formats.unpacking import AWQ_ORDER, nibbles_along
from inferometer.nn.load import open_source
from tiny_models import CONFIGS, tiny_model

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


def quantised_folder(tmp_path: Path, kind: str, name: str) -> tuple[Path, Path]:
    """A tiny model with weights, and the same in few bits."""
    path = tiny_model(tmp_path, kind)
    spec = describe(str(path), config_only=True).spec
    source = DummySource(spec, family(kind), seed=2)
    stored = {name: source.read(name, "cpu", torch.float32).bfloat16().contiguous() for name in source.tensors()}
    save_file(stored, path / "model.safetensors")
    description = describe(str(path))
    read, out = open_source(description), tmp_path / "out"
    form = weight_format(name, "float32")
    QuantisedFolder(description, read, spec, family(kind), form).write(out, matrices_to_nearest(read, spec, family(kind), form))
    return path, out


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", ROUNDED_FORMATS)
def test_a_folder_holds_what_loading_rounds_to(tmp_path: Path, kind: str, name: str) -> None:
    path, out = quantised_folder(tmp_path, kind, name)
    assert json.loads((out / "config.json").read_text())["quantization_config"]["format"] == name
    wanted, found = LLM(path, device="cpu", dtype="float32", quantize=name).model, LLM(out, device="cpu", dtype="float32").model
    assert wanted.quantised.keys() == found.quantised.keys()
    for parameter, weight in wanted.quantised.items():
        theirs = found.quantised[parameter]
        assert (weight.kind, weight.group, weight.activations) == (theirs.kind, theirs.group, theirs.activations)
        for ours, other in zip(weight.tensors, theirs.tensors, strict=True):
            assert ours.dtype == other.dtype
            assert torch.equal(ours.view(torch.uint8), other.view(torch.uint8))
    plain_ones = set(dict(wanted.named_parameters())) - wanted.quantised.keys()
    assert all(torch.equal(wanted.get_parameter(each), found.get_parameter(each)) for each in plain_ones)


@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2"])
def test_a_head_that_is_kept_is_plain(tmp_path: Path, kind: str) -> None:
    path, out = quantised_folder(tmp_path, kind, "int4-g64-kept-head")
    model = LLM(out, device="cpu", dtype="float32").model
    assert set(model.quantised) == set(layer_matrices(model.spec))
    ours = LLM(path, device="cpu", dtype="float32", quantize="int4-g64").model
    assert set(ours.quantised) == {*layer_matrices(model.spec), head_matrix(model.spec)}
    assert ours.weight_bytes < model.weight_bytes
    with pytest.raises(UserError, match="int4-g64-kept-head already"):
        LLM(out, device="cpu", quantize="int4-g64")
    assert set(LLM(out, device="cpu", dtype="float32", quantize="int4-kept-head").model.quantised) == set(model.quantised)


def test_a_folder_of_before_heads_were_rounded_is_read(tmp_path: Path) -> None:
    """Version 1 says of an int4 folder what version 2 calls int4 with a head that is kept."""
    _, out = quantised_folder(tmp_path, "opt", "int4-g64-kept-head")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] |= {"version": 1, "format": "int4-g64"}
    (out / "config.json").write_text(json.dumps(config))
    llm = LLM(out, device="cpu", dtype="float32")
    assert llm.weight_format is not None
    assert llm.weight_format.name == "int4-g64-kept-head"
    assert set(llm.model.quantised) == set(layer_matrices(llm.model.spec))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t, name: t.update({name: t[name].to(torch.float32)}), "type"),
        (lambda t, name: t.update({name: t[name][:, 0].contiguous()}), "dimensions"),
        (lambda t, name: t.update({f"{name}_row_scale": t[f"{name}_row_scale"][:3].contiguous()}), "scales"),
        (lambda t, name: t.update({f"{name}_row_scale": t[f"{name}_row_scale"] * torch.inf}), "not finite"),
        (lambda t, name: t.pop(f"{name}_row_scale"), "embed_tokens|lm_head"),
    ],
)
def test_a_damaged_head_is_one_clear_error(tmp_path: Path, damage: Any, said: str) -> None:
    _, out = quantised_folder(tmp_path, "llama", "int4-g64")
    tensors = load_file(out / "model.safetensors")
    name = next(name for name in tensors if name.endswith("_row_scale")).removesuffix("_row_scale")
    damage(tensors, name)
    save_file(tensors, out / "model.safetensors")
    with pytest.raises(ModelError, match=said) as caught:
        LLM(out, device="cpu", dtype="float32")
    assert "\n" not in str(caught.value)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, "llama")
    spec = describe(str(path), config_only=True).spec
    source, kind = DummySource(spec, family("llama"), seed=2), family("llama")
    form = weight_format("int8", "float32")
    folder = QuantisedFolder(describe(str(path), config_only=True), source, spec, kind, form)
    steps = []

    def full() -> None:
        steps.append(None)
        if len(steps) == 5:
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left") as caught:
        folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form), full)
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt):
        folder.write(tmp_path / "out", lambda name: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tiny-llama"]
    (tmp_path / "out").mkdir()
    folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form))
    with pytest.raises(UserError, match="is there already"):
        folder.write(tmp_path / "out", matrices_to_nearest(source, spec, kind, form))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "tiny-llama"]


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
