"""The compiled sweep over weights in few bits against the torch modules, which are its reference."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from compiled_sweeps import CONTEXTS, SPECS, batch_of, cache_of, compiled_of, swept

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.formats import ROUNDED_FORMATS, weight_format
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.layout import QuantLayout, layouts
from inferometer.nn.formats.rounding import round_into
from inferometer.nn.transformer import Transformer

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

CPU = torch.device("cpu")
LAYOUTS = {name: QuantLayout.of(weight_format(name, "float32"), CPU) for name in ROUNDED_FORMATS}
LAYOUTS |= {
    "int4 in one group": QuantLayout("int4", 512, zero=True, scale=torch.float16),
    "int4, float32 scales": QuantLayout("int4", 32, zero=True, scale=torch.float32),
    "int4, bfloat16 scales": QuantLayout("int4", 32, scale=torch.bfloat16),
}


def model_of(spec: ModelSpec, layout: QuantLayout, dtype: torch.dtype, *, ordered: bool = False) -> Transformer:
    model = Transformer(spec, CPU, dtype, quantised=layouts(spec, layout))
    generator = torch.Generator().manual_seed(spec.hidden)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = torch.randn(parameter.shape, generator=generator) * 0.2
            if name in model.quantised:
                round_into(model.quantised[name], matrix)
            else:
                parameter.copy_(matrix + (1.0 if name.endswith("norm.weight") else 0.0))
    if ordered:
        for name, weight in model.quantised.items():
            order = torch.randperm(weight.inputs, generator=generator).to(torch.int32)
            model.get_submodule(name.removesuffix(".weight")).quant = replace(weight, order=order)
    return model


def compare(model: Transformer, contexts: list[tuple[int, int]], tolerance: float) -> None:
    batch = batch_of(contexts, model.spec.vocabulary, 256)
    wanted, found = swept(model, None, batch, 256), swept(model, compiled_of(model), batch, 256)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.float() - theirs.float()).abs().max() <= tolerance * theirs.float().abs().max()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", SPECS)
def test_the_sweep_is_that_of_the_modules(kind: str, name: str) -> None:
    model = model_of(SPECS[kind], LAYOUTS[name], torch.float32)
    # A rounded activation may fall to the other side of a tie.
    tolerance = 2e-2 if name == "w8a8" else 1e-4
    for contexts in (CONTEXTS["one"], CONTEXTS["pieces of prompts"], CONTEXTS["more than a tile"]):
        compare(model, contexts, tolerance)


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4-g32", "int4-g64-sym", "fp8"])
def test_it_is_in_bfloat16_too(name: str) -> None:
    compare(model_of(SPECS["wide"], LAYOUTS[name], torch.bfloat16), CONTEXTS["pieces of prompts"], 0.05)


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4-g32"])
def test_it_takes_a_prompt_of_32_tokens_beside_others_and_leaves_longer_ones_to_the_modules(name: str) -> None:
    model = model_of(SPECS["llama"], LAYOUTS[name], torch.float32)
    compare(model, CONTEXTS["a prompt beside some"], 2e-2 if name == "w8a8" else 1e-4)
    cache = cache_of(model.spec, torch.float32, 16)
    assert compiled_of(model).serves(batch_of([(64, 64)], 97, 16), cache)
    assert not compiled_of(model).serves(batch_of([(65, 65)], 97, 16), cache)


@pytest.mark.parametrize("kind", ["llama", "sizes that fit nothing"])
def test_inputs_in_another_order(kind: str) -> None:
    compare(model_of(SPECS[kind], LAYOUTS["int4-g32"], torch.float32, ordered=True), CONTEXTS["some"], 1e-4)


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4-g32", "fp8"])
def test_no_token_depends_on_its_company(name: str) -> None:
    model = model_of(SPECS["wide"], LAYOUTS[name], torch.float32)
    compiled = compiled_of(model)
    contexts = CONTEXTS["more than a tile"]
    together = swept(model, compiled, batch_of(contexts, model.spec.vocabulary, 256), 256)[0]
    batch = batch_of(contexts, model.spec.vocabulary, 256)
    assert batch.rows is not None
    for i in (0, 7, 19):
        alone = replace(
            batch,
            token_ids=batch.token_ids[i : i + 1],
            positions=batch.positions[i : i + 1],
            query_lengths=(1,),
            context_lengths=batch.context_lengths[i : i + 1],
            rotary_lengths=batch.rotary_lengths[i : i + 1],
            rows=replace(
                batch.rows,
                seats=batch.rows.seats[i : i + 1],
                contexts=batch.rows.contexts[i : i + 1],
                starts=torch.tensor([0, 1], dtype=torch.int32),
                places=batch.rows.places[i : i + 1],
            ),
        )
        assert torch.equal(swept(model, compiled, alone, 256)[0][0], together[i])


def test_activations_in_fp8_are_left_to_the_modules() -> None:
    from inferometer.nn.compiled_model import CompiledModel

    assert CompiledModel.of(model_of(SPECS["llama"], QuantLayout("fp8", activations="fp8"), torch.float32)) is None


def test_every_level_of_every_kind_is_read_right() -> None:
    """All 256 bytes: the widening of e4m3, its smallest numbers included, and both nibbles."""
    spec = replace(SPECS["wide"], hidden=256, embedding=256, heads=2, kv_heads=2, head_size=16)
    for name in ("int8", "fp8", "int4-g64"):
        model = model_of(spec, LAYOUTS[name], torch.float32)
        for weight in model.quantised.values():
            levels = torch.arange(weight.data.numel()) % 256
            if weight.kind == "fp8":
                levels[levels & 127 == 127] = 0  # not a number
            if weight.kind == "int8":
                levels = levels - 128
            raw = levels.to(torch.int8 if weight.kind == "int8" else torch.uint8)
            weight.data.copy_(
                raw.view(torch.float8_e4m3fn).view(weight.data.shape) if weight.kind == "fp8" else raw.view(weight.data.shape)
            )
            weight.scale.fill_(0.01 if weight.kind != "int8" else 0.001)
        compare(model, CONTEXTS["one"], 1e-4)


def test_a_weight_is_not_copied() -> None:
    model = model_of(SPECS["llama"], LAYOUTS["int4-g64"], torch.float32)
    held = {tensor.data_ptr() for tensor in compiled_of(model)._held}
    assert all(tensor.data_ptr() in held for weight in model.quantised.values() for tensor in weight.tensors)
    assert all(isinstance(weight, QuantWeight) for weight in model.quantised.values())
