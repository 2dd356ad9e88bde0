from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoints import CONFIGS, checkpoint, saved, spec_of
from torch import Tensor

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.families import family
from inferometer.model.parameters import parameters
from inferometer.model.spec import ModelSpec
from inferometer.nn.dummy import DummySource
from inferometer.nn.export import export, hf_state
from inferometer.nn.load import fill, load, open_checkpoint
from inferometer.nn.safetensors import SafetensorsSource
from inferometer.nn.transformer import Transformer

kinds = pytest.mark.parametrize("kind", CONFIGS)


def loaded(spec: ModelSpec, source: Any, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = Transformer(spec, torch.device("cpu"), dtype)
    for parameter in model.parameters():
        parameter.fill_(torch.nan)
    load(model, source, family(spec.family))
    return dict(model.state_dict())


def refusal(spec: ModelSpec, source: SafetensorsSource) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(spec, source)
    text = str(caught.value)
    assert "\n" not in text
    assert source.where("") in text
    return text


@kinds
def test_every_parameter_is_filled(tmp_path: Path, kind: str) -> None:
    spec = spec_of(kind)
    state = loaded(spec, saved(tmp_path, checkpoint(spec)))
    assert {name: tuple(t.shape) for name, t in state.items()} == {p.name: p.shape for p in parameters(spec)}
    assert all(t.isfinite().all() for t in state.values())


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_loading_and_exporting_gives_the_checkpoint_back(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    spec = spec_of(kind)
    tensors = checkpoint(spec)
    back = dict(export(loaded(spec, saved(tmp_path, tensors), dtype), spec, family(kind)))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name].to(dtype)) for name in tensors)


@kinds
def test_the_prefix_is_optional(tmp_path: Path, kind: str) -> None:
    spec, prefix = spec_of(kind, tie_word_embeddings=True), family(kind).optional_prefix
    tensors = checkpoint(spec)
    bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    carried = {prefix + name: tensor for name, tensor in bare.items()}
    expected = loaded(spec, saved(tmp_path, tensors))
    for number, variant in enumerate((bare, carried)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = loaded(spec, saved(folder, variant))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_layouts_by_hand(tmp_path: Path) -> None:
    spec = spec_of("bloom")
    tensors = checkpoint(spec)
    fused = torch.arange(72.0)
    tensors["transformer.h.1.self_attention.query_key_value.bias"] = fused
    state = loaded(spec, saved(tmp_path, tensors))
    by_head = [fused[18 * head + 6 * part : 18 * head + 6 * part + 6] for part in range(3) for head in range(4)]
    assert torch.equal(state["layers.1.attention.qkv.bias"], torch.cat(by_head))


def test_matrices_stored_by_column_and_stacked_matrices(tmp_path: Path) -> None:
    spec = spec_of("gpt2")
    tensors = checkpoint(spec)
    state = loaded(spec, saved(tmp_path, tensors))
    assert torch.equal(state["layers.0.feed_forward.up.weight"], tensors["transformer.h.0.mlp.c_fc.weight"].t())
    spec = spec_of("llama")
    tensors = checkpoint(spec)
    state = loaded(spec, saved(tmp_path, tensors))
    parts = [tensors[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv"]
    assert torch.equal(state["layers.0.attention.qkv.weight"], torch.cat(parts))


@kinds
def test_missing_tensors_are_named(tmp_path: Path, kind: str) -> None:
    spec = spec_of(kind)
    tensors = checkpoint(spec)
    gone = list(tensors)[3:9]
    text = refusal(spec, saved(tmp_path, {name: t for name, t in tensors.items() if name not in gone}))
    assert "6 tensors missing" in text
    assert "and 3 more" in text
    assert all(name in text for name in gone[:3])


@kinds
def test_unexpected_tensors_are_named(tmp_path: Path, kind: str) -> None:
    spec = spec_of(kind)
    extra = {"adapter.lora_A.weight": torch.ones(2)}
    assert "1 tensor unexpected: adapter.lora_A.weight" in refusal(spec, saved(tmp_path, checkpoint(spec) | extra))


@kinds
def test_misshaped_tensors_are_named_with_both_shapes(tmp_path: Path, kind: str) -> None:
    spec = spec_of(kind)
    tensors = checkpoint(spec)
    name = next(n for n in tensors if tensors[n].dim() == 2)
    rows, columns = tensors[name].shape
    text = refusal(spec, saved(tmp_path, tensors | {name: torch.ones(rows + 1, columns)}))
    assert f"{name} {rows + 1}x{columns} instead of {rows}x{columns}" in text


def test_all_that_is_wrong_is_one_message(tmp_path: Path) -> None:
    spec = spec_of("llama")
    tensors = checkpoint(spec) | {"model.norm.weight": torch.ones(7), "surprise": torch.ones(1)}
    del tensors["model.layers.0.mlp.up_proj.weight"]
    text = refusal(spec, saved(tmp_path, tensors))
    assert "1 tensor missing: model.layers.0.mlp.up_proj.weight" in text
    assert "1 tensor unexpected: surprise" in text
    assert "model.norm.weight 7 instead of 24" in text


def test_a_tensor_under_two_names_is_unexpected_once(tmp_path: Path) -> None:
    spec = spec_of("gpt2")
    tensors = checkpoint(spec)
    text = refusal(spec, saved(tmp_path, tensors | {"wte.weight": tensors["transformer.wte.weight"].clone()}))
    assert "1 tensor unexpected" in text
    assert "wte.weight" in text


def test_buffers_and_a_tied_copy_are_passed_over(tmp_path: Path) -> None:
    spec = spec_of("gpt2")
    tensors = checkpoint(spec)
    more = {
        "lm_head.weight": tensors["transformer.wte.weight"].clone(),
        "transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16, dtype=torch.bool),
        "h.1.attn.masked_bias": torch.tensor(-1e4),
    }
    state = loaded(spec, saved(tmp_path, tensors | more))
    assert torch.equal(state["embedding.token.weight"], tensors["transformer.wte.weight"])


def test_old_norm_names_of_bert(tmp_path: Path) -> None:
    spec = spec_of("bert")
    tensors = checkpoint(spec)
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in tensors.items()}
    expected = loaded(spec, saved(tmp_path, tensors))
    found = loaded(spec, saved(tmp_path, {f"bert.{name}": t for name, t in old.items()} | {"cls.predictions.bias": torch.ones(31)}))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), torch.float32), (float("inf"), torch.float32), (1e5, torch.float16)])
def test_norms_that_are_not_finite_are_refused(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    spec = spec_of("llama")
    tensors = checkpoint(spec)
    tensors["model.layers.1.input_layernorm.weight"][5] = value
    source = saved(tmp_path, tensors)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.input_layernorm\.weight holds numbers that are not finite in float(16|32)"):
        loaded(spec, source, dtype)


def test_a_model_on_the_meta_device_is_created_as_it_is_filled(tmp_path: Path) -> None:
    spec = spec_of("gpt2")
    source = saved(tmp_path, checkpoint(spec))
    model = Transformer(spec, torch.device("meta"), torch.bfloat16)
    load(model, source, family("gpt2"))
    expected = loaded(spec, source, torch.bfloat16)
    assert all(p.device.type == "cpu" and not p.requires_grad and torch.equal(p, expected[n]) for n, p in model.named_parameters())


def test_some_parameters_alone(tmp_path: Path) -> None:
    spec = spec_of("llama")
    source = saved(tmp_path, checkpoint(spec))
    wanted = {p.name: torch.empty(p.shape) for p in parameters(spec) if p.name.startswith("layers.1.")}
    fill(wanted, spec, source, family("llama"))
    expected = loaded(spec, source)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in wanted.items())


def test_shards_are_read_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("llama")
    tensors = checkpoint(spec)
    weight_map = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    for file in sorted(set(weight_map.values())):
        torch.save({n: t for n, t in tensors.items() if weight_map[n] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = open_checkpoint(tmp_path)
    opened: list[str] = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: opened.append(path.name) or real(path, **options))
    expected = loaded(spec, saved(tmp_path, tensors))
    found = loaded(spec, source)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert len(opened) <= 2
    list(hf_state(source, spec, family("llama")))
    assert len(opened) <= 4


def test_host_memory_stays_near_the_model(tmp_path: Path) -> None:
    """A child process, whose peak is its own: the model is 50 MiB, converted from 100 MiB of float32 in one file."""
    config = {"model_type": "gpt2", "vocab_size": 1024, "n_embd": 1024, "n_layer": 2, "n_head": 8, "n_positions": 64}
    spec = read_spec(config, "m")
    source = DummySource(spec, family("gpt2"), seed=0)
    torch.save({name: source.read(name, "cpu", torch.float32) for name in source.tensors()}, tmp_path / "pytorch_model.bin")
    code = f"""
import resource, torch
from pathlib import Path
from inferometer.model.config import read_spec
from inferometer.model.families import family
from inferometer.nn.load import load, open_checkpoint
from inferometer.nn.transformer import Transformer
spec = read_spec({config!r}, "m")
model = Transformer(spec, torch.device("cpu"), torch.bfloat16)
def anonymous():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1])
before, peak = anonymous(), 0
source = open_checkpoint(Path({str(tmp_path)!r}))
read = source.read
def watched(*args):
    global peak
    tensor = read(*args)
    peak = max(peak, anonymous())
    return tensor
source.read = watched
load(model, source, family("gpt2"))
print(max(peak, anonymous()) - before)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc")
    # Blocks that were freed go back at once: else glibc may keep up to 32 MiB of them, or not, as threads happen to take turns.
    returned = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=returned).stdout) / 1024
    model = sum(p.size for p in parameters(spec)) * 2 / 2**20
    assert model > 48
    assert grown < model + 24  # the largest tensor is 8 MiB in bfloat16
