"""Models whose matrices are rounded as they are read."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer import LLM, SamplingParams
from inferometer.errors import UserError
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import ROUNDED_FORMATS, Formats, weight_format
from inferometer.model.parameters import head_matrix
from inferometer.model.presets import PRESETS
from inferometer.nn.batch import prompt_batch
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.layout import format_layouts, layer_matrices
from inferometer.nn.load import load
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from tiny_models import CONFIGS, tiny_model

CPU = torch.device("cpu")
families = pytest.mark.parametrize("kind", CONFIGS)
formats = pytest.mark.parametrize("name", ROUNDED_FORMATS)


def quantised(folder: Path, name: str, dtype: torch.dtype = torch.float32, numerics: Numerics = Numerics.FASTEST) -> Transformer:
    spec = describe(str(folder), config_only=True).spec
    kinds = format_layouts(spec, weight_format(name, "float32"), CPU)
    model = Transformer(spec, CPU, dtype, numerics, kinds)
    load(model, DummySource(spec, family(spec.family), seed=1), family(spec.family))
    return model


def widened(folder: Path, model: Transformer) -> Transformer:
    """A plain model that holds what the quantised one's matrices mean."""
    plain = Transformer(model.spec, CPU, model.dtype)
    load(plain, DummySource(model.spec, family(model.spec.family), seed=1, dtype=model.dtype), family(model.spec.family))
    for name, weight in model.quantised.items():
        plain.get_parameter(name).copy_(weight.dequantised())
    return plain


def outputs(model: Transformer) -> Tensor:
    with torch.inference_mode():
        return model.sweep(prompt_batch([[5, 1, 2, 250, 7], [9], [4, 4]], CPU))


@families
@formats
def test_every_family_computes_what_its_rounded_matrices_say(tmp_path: Path, kind: str, name: str) -> None:
    folder = tiny_model(tmp_path, kind)
    model = quantised(folder, name)
    head = head_matrix(model.spec)
    assert set(model.quantised) == {*layer_matrices(model.spec), *(() if head is None else (head,))}
    wanted, found = outputs(widened(folder, model)), outputs(model)
    # Rounded activations are another model; the tolerance is what they are seen to differ by, far below a wrong row or scale.
    close = 0.1 if name == "w8a8" else 1e-4
    assert (found - wanted).abs().max() <= close * wanted.abs().max()


@families
@formats
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_the_inventory(tmp_path: Path, kind: str, name: str, dtype: str) -> None:
    model = quantised(tiny_model(tmp_path, kind), name, getattr(torch, dtype))
    wanted = resident_weight_bytes(model.spec, Formats(dtype=dtype, weights=weight_format(name, dtype)))
    assert model.weight_bytes == wanted
    # Shapes without numbers apart, nothing else is held.
    assert sum(p.nbytes for p in model.parameters() if not p.is_meta) + sum(w.nbytes for w in model.quantised.values()) == wanted


@pytest.mark.parametrize(("name", "share"), [("int8", 0.52), ("w8a8", 0.52), ("fp8", 0.52), ("int4-g64", 0.31)])
def test_weights_of_a_large_model_shrink(name: str, share: float) -> None:
    spec = PRESETS["opt-6.7b"].spec()
    plain = resident_weight_bytes(spec, Formats(dtype="bfloat16"))
    assert resident_weight_bytes(spec, Formats(dtype="bfloat16", weights=weight_format(name, "bfloat16"))) <= share * plain


class Watched(DummySource):
    """Notes how many bytes of tensors are alive at every eighth tensor that is read: what stays is seen then as well."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.most = self._reads = 0

    def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        self._reads += 1
        if self._reads % 8 != 1:
            return super().read(name, device, dtype)
        held: dict[int, int] = {}
        for found in gc.get_objects():
            # Not isinstance, which asks every object that has ways of its own to answer.
            if type(found) in (Tensor, torch.nn.Parameter) and not found.is_meta:
                storage = found.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
        self.most = max(self.most, sum(held.values()))
        return super().read(name, device, dtype)


@pytest.mark.parametrize("name", ["int4-g64", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int8", "fp8"))])
def test_the_whole_model_is_never_there_in_sixteen_bits(tmp_path: Path, name: str) -> None:
    folder = tiny_model(tmp_path, "llama", num_hidden_layers=24, hidden_size=64, intermediate_size=256, vocab_size=40)
    spec = describe(str(folder), config_only=True).spec
    source = Watched(spec, family("llama"), seed=0)
    gc.collect()
    before = Watched(spec, family("llama"), seed=0)
    before.read("model.norm.weight", "cpu", torch.float32)
    model = Transformer(spec, CPU, torch.bfloat16, quantised=format_layouts(spec, weight_format(name, "bfloat16"), CPU))
    load(model, source, family("llama"))
    largest = max(p.numel() for p in model.parameters())
    assert source.most - before.most <= model.weight_bytes + 4 * 4 * largest
    whole = 2 * sum(p.numel() for p in model.parameters())
    assert model.weight_bytes + 4 * 4 * largest < 0.75 * whole


@families
@pytest.mark.parametrize("name", ["int8", "w8a8", "int4-g32", "fp8"])
def test_invariant_numerics_hold(tmp_path: Path, kind: str, name: str) -> None:
    if CONFIGS[kind]["model_type"] == "bert":
        folder, params = tiny_model(tmp_path, kind), None
        llm = LLM(folder, weights="dummy", dtype="float32", device="cpu", quantize=name, deterministic=True)
        texts = [[5, 6, 7], [9, 8]]
        together = llm.encode(texts)
        assert all((llm.encode([text]) == together[i]).all() for i, text in enumerate(texts))
        return
    folder = tiny_model(tmp_path, kind)
    llm = LLM(folder, weights="dummy", dtype="float32", device="cpu", quantize=name, deterministic=True, gpu_memory=0.1)
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]]
    together = llm.generate(prompts, params)
    for prompt, wanted in zip(prompts, together, strict=True):
        alone = llm.generate([prompt], params)[0]
        assert (alone.token_ids, alone.logprobs) == (wanted.token_ids, wanted.logprobs)


def test_the_source_is_rounded_from_its_own_numbers(tmp_path: Path) -> None:
    """Not from numbers that the model's 16 bits have rounded before, unless they are drawn in these."""
    folder = tiny_model(tmp_path, "llama")
    narrow, wide = quantised(folder, "int8", torch.bfloat16), quantised(folder, "int8", torch.float32)
    source = DummySource(narrow.spec, family("llama"), seed=1)
    drawn = source.read("model.layers.0.mlp.down_proj.weight", "cpu", torch.bfloat16).float()
    held = narrow.quantised["layers.0.feed_forward.down.weight"]
    assert torch.equal(held.scale, drawn.abs().amax(1) / 127)
    assert not torch.equal(held.scale, wide.quantised["layers.0.feed_forward.down.weight"].scale)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"quantize": "int3"}, "--quantize int3"),
        ({"quantize": "gptq"}, "--quantize gptq"),
        ({"kv_dtype": "int4"}, "--kv-dtype int4"),
        ({"kv_dtype": "fp8", "deterministic": True}, "--deterministic"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, option: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as caught:
        LLM(tiny_model(tmp_path, "llama"), weights="dummy", device="cpu", **option)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
