"""Parts of a checkpoint's tensors, whatever it is stored in: the numbers of the whole, and no more read than is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from stored_checkpoints import SIZES, Stored, matrices, plain
from stored_checkpoints import write as write_stored
from torch import Tensor

from gguf_models import tiny, write
from inferometer.kernels.quant_launch import quant_candidates
from inferometer.model.config import read_spec
from inferometer.model.description import describe
from inferometer.model.families import family, family_for
from inferometer.model.gguf import gguf_config
from inferometer.model.parameters import parameters
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.collective import ALONE, Unlinked
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.cutting import cut_inputs, whole_groups
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import rounded
from inferometer.nn.formats.stored import QuantisedSource, stored_layouts
from inferometer.nn.gguf import GgufSource
from inferometer.nn.load import load, open_source
from inferometer.nn.names import fitted
from inferometer.nn.safetensors import SafetensorsSource
from inferometer.nn.source import CheckpointSource, Extent, part_of
from inferometer.nn.torch_bin import TorchBinSource
from inferometer.nn.transformer import Transformer
from tiny_models import tiny_model

CPU = torch.device("cpu")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "bloom": {"hidden_size": 32, "n_head": 4},
    "opt": {},
    "gpt2": {},
    "gpt_bigcode": {},
    "bert": {},
}


class Counting:
    """A source that adds up what is read of each tensor."""

    def __init__(self, source: CheckpointSource) -> None:
        self._source = source
        self.read_numbers: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, name: str, device: Any, dtype: torch.dtype) -> Tensor:
        return self._count(name, self._source.read(name, device, dtype))

    def read_part(self, name: str, extent: Extent, device: Any, dtype: torch.dtype) -> Tensor:
        return self._count(name, self._source.read_part(name, extent, device, dtype))

    def _count(self, name: str, tensor: Tensor) -> Tensor:
        self.read_numbers[name] = self.read_numbers.get(name, 0) + tensor.numel()
        return tensor


def checkpoint(folder: Path, kind: str, form: str = "safetensors", **changes: Any) -> tuple[ModelSpec, Path]:
    """The dummy model of a family as a file."""
    path = tiny_model(folder, kind, vocab_size=301, **FAMILIES[kind], **changes)
    spec = describe(str(path), config_only=True).spec
    source = DummySource(spec, family(kind), seed=4)
    tensors = {name: source.read(name, "cpu", torch.float32) for name in source.tensors()}
    if form == "safetensors":
        save_file(tensors, path / "model.safetensors")
        return spec, path / "model.safetensors"
    torch.save(tensors, path / "pytorch_model.bin")
    return spec, path / "pytorch_model.bin"


def extents(shape: tuple[int, ...], steps: int = 4) -> Iterable[Extent]:
    """Quarters and halves of each dimension, and all of it."""
    sides = []
    for size in shape:
        step = max(1, size // steps)
        sides.append([(0, size), (0, step), (size - step, size), (step, min(3 * step, size))])
    return product(*sides)


def check_parts(source: CheckpointSource, names: Iterable[str] | None = None) -> None:
    for name in names or source.tensors():
        whole = source.read(name, "cpu", torch.float32)
        for extent in extents(source.tensors()[name]):
            assert torch.equal(source.read_part(name, extent, "cpu", torch.float32), part_of(whole, extent)), (name, extent)


def check_loaded(spec: ModelSpec, source: Any, kind: str, ranks: int, dtype: torch.dtype = torch.float32) -> None:
    """Each rank holds its part of what one rank alone holds, to the bit, and has read little else."""
    held = Transformer(spec, CPU, dtype)
    load(held, source, family(kind))
    whole = dict(held.named_parameters())
    for rank in range(ranks):
        counting, shard = Counting(source), Shard(rank, ranks)
        model = Transformer(spec, CPU, dtype, collective=Unlinked(rank, ranks))
        load(model, counting, family(kind))
        for name, parameter in model.named_parameters():
            cut = shard.cut(spec, name, tuple(whole[name].shape))
            wanted = torch.cat([whole[name][run.start : run.stop] for run in cut.rows])
            wanted = wanted if cut.columns is None else wanted[:, cut.columns.start : cut.columns.stop]
            if cut.summed and wanted.ndim == 1 and rank:
                wanted = torch.zeros_like(wanted)
            assert torch.equal(parameter[: len(wanted)], wanted), name
            assert not parameter[len(wanted) :].any()
        if not isinstance(source, DummySource):  # which draws all and keeps a part
            assert sum(counting.read_numbers.values()) <= sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", FAMILIES)
def test_ranks_hold_and_read_their_parts_alone(tmp_path: Path, kind: str) -> None:
    spec, path = checkpoint(tmp_path, kind)
    for ranks in (2, 4):
        check_loaded(spec, SafetensorsSource(path), kind, ranks)
    check_loaded(spec, DummySource(spec, family(kind), seed=1), kind, 4)


def test_a_pickled_checkpoint(tmp_path: Path) -> None:
    spec, path = checkpoint(tmp_path, "gpt2", "bin")
    check_parts(TorchBinSource(path))
    check_loaded(spec, TorchBinSource(path), "gpt2", 4)


def test_safetensors_and_dummy_weights_by_parts(tmp_path: Path) -> None:
    spec, path = checkpoint(tmp_path, "llama")
    check_parts(SafetensorsSource(path))
    check_parts(DummySource(spec, family("llama"), seed=1))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "bloom"])
@pytest.mark.parametrize("block_type", ["F32", "F16", "Q8_0"])
def test_gguf(tmp_path: Path, architecture: str, block_type: str) -> None:
    path = write(tmp_path / "m.gguf", architecture, tiny(architecture), block_type=block_type)
    source, config = GgufSource(path), gguf_config(path)
    check_parts(source)
    check_loaded(read_spec(config, "m"), source, family_for(config).name, 4)
    source.close()


def test_blocks_of_a_gguf_file_that_hold_no_part_are_not_dequantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GgufSource(write(tmp_path / "m.gguf", "llama", tiny("llama"), block_type="Q8_0"))
    seen = []
    dequantize = __import__("gguf.quants", fromlist=["dequantize"]).dequantize
    monkeypatch.setattr("gguf.quants.dequantize", lambda data, kind: seen.append(data.shape) or dequantize(data, kind))
    source.read_part("model.layers.0.mlp.up_proj.weight", ((24, 48), (32, 64)), "cpu", torch.float32)
    assert seen == [(24, 34)]
    source.close()


def stored_checkpoint(folder: Path, how: str) -> QuantisedSource:
    tensors: dict[str, Tensor] = plain(folder, **SIZES)
    scheme = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, "targets": ["Linear"]}
    configs: dict[str, dict[str, Any]] = {
        "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
        "gptq-one-group": {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False},
        "gptq-act-order": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        "compressed": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": scheme}},
    }
    orders: dict[int, Tensor] = {}
    for base in matrices(tensors):
        outputs, inputs = tensors.pop(f"{base}.weight").shape
        size = inputs if how == "gptq-one-group" else 32
        groups = None
        if how == "gptq-act-order":
            groups = orders.setdefault(inputs, torch.arange(inputs)[torch.randperm(inputs)] // size)
        stored = Stored(outputs, inputs, size, groups=groups)
        if how == "awq":
            tensors |= stored.awq(base)
        elif how == "compressed":
            tensors |= stored.compressed(base, g_idx=False)
        else:
            tensors |= stored.gptq(base, offset=1, g_idx=True)
    path = write_stored(folder, tensors, configs[how], **SIZES)
    source = open_source(describe(str(path)))
    assert isinstance(source, QuantisedSource)
    return source


@pytest.mark.parametrize("how", ["gptq", "gptq-one-group", "gptq-act-order", "awq", "compressed"])
def test_matrices_in_few_bits_by_parts(tmp_path: Path, how: str) -> None:
    source = stored_checkpoint(tmp_path, how)
    check_parts(source, [name for name in source.tensors() if "layers.0" in name])
    spec = describe(str(tmp_path / "tiny-llama")).spec
    whole = Transformer(spec, CPU, torch.float32, quantised=stored_layouts(spec, source, family("llama"), CPU))
    load(whole, source, family("llama"))
    for ranks in (2, 4):
        for rank in range(ranks):
            shard = Shard(rank, ranks)
            kept = stored_layouts(spec, source, family("llama"), CPU, shard)
            model = Transformer(spec, CPU, torch.float32, quantised=kept, collective=Unlinked(rank, ranks))
            load(model, source, family("llama"))
            # No rank has whole groups of what is cut by input and not in the order of its groups.
            assert len(model.quantised) == (4 if how == "gptq-act-order" else 8)
            for parameter in parameters(spec):
                held, all_of_it = (_wide(each, parameter.name) for each in (model, whole))
                cut = shard.cut(spec, parameter.name, parameter.shape)
                wanted = torch.cat([all_of_it[run.start : run.stop] for run in cut.rows])
                wanted = wanted if cut.columns is None else wanted[:, cut.columns.start : cut.columns.stop]
                torch.testing.assert_close(held[: len(wanted)], wanted, rtol=1e-6, atol=1e-8)


def _wide(model: Transformer, name: str) -> Tensor:
    return model.quantised[name].dequantised() if name in model.quantised else model.get_parameter(name)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_cut_within_a_group_keeps_its_numbers(group: int, symmetric: bool) -> None:
    matrix, layout = torch.randn(6, 168), QuantLayout("int4", group, zero=not symmetric, scale=torch.float16)
    whole = rounded(matrix, layout)
    for ranks in (2, 3, 4):
        size = 168 // ranks
        part = layout.part(168, size)
        for rank in range(ranks):
            inputs = range(rank * size, (rank + 1) * size)
            assert set(inputs) <= set(whole_groups(inputs, group, 168))
            assert torch.equal(cut_inputs(whole, inputs, part.group).dequantised(), whole.dequantised()[:, inputs.start : inputs.stop])


def test_a_layout_that_is_not_cut_stays() -> None:
    layout = QuantLayout("int4", 64)
    assert layout.part(96, 96) is layout
    assert QuantLayout("int8").part(96, 48).group is None
    assert (layout.part(96, 48).group, layout.part(128, 32).group, layout.part(256, 128).group) == (16, 32, 64)
    assert QuantLayout("int4", 128).part(100, 50).group == 64


def test_kernels_leave_groups_that_begin_within_their_words_to_others() -> None:
    layout = QuantLayout("int4", 64)
    assert quant_candidates(1, layout.part(128, 64).empty(8, 64, CPU))
    assert not quant_candidates(1, layout.part(96, 48).empty(8, 48, CPU))


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_beside_the_embedding_is_compared_part_by_part(tmp_path: Path, equal: bool) -> None:
    spec, path = checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    tensors = dict(__import__("safetensors.torch", fromlist=["load_file"]).load_file(path))
    head = tensors["model.embed_tokens.weight"].clone()
    head[-1, 0] += 0 if equal else 1
    save_file(tensors | {"lm_head.weight": head}, path)
    source = Counting(SafetensorsSource(path))
    found = [fitted(spec, source, family("llama"), Unlinked(rank, 2)).tied_head for rank in range(2)]  # type: ignore[arg-type]
    # The rank that has the last token sees it; together they take the least of what they see.
    assert found == [True, equal]
    assert sum(source.read_numbers.values()) == 2 * head.numel()
    assert fitted(spec, SafetensorsSource(path), family("llama"), ALONE) == replace(spec, tied_head=equal)
