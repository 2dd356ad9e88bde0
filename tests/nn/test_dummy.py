from __future__ import annotations

import subprocess
import sys
from math import prod

import pytest
import torch

from inferometer.model.config import read_spec
from inferometer.model.families import FAMILIES, family
from inferometer.model.spec import ModelSpec
from inferometer.nn.dummy import DummySource


def small(kind: str) -> ModelSpec:
    sizes = {
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
        "opt": {"hidden_size": 32, "word_embed_proj_dim": 16, "num_hidden_layers": 2, "ffn_dim": 48, "num_attention_heads": 4},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
        "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4},
        "llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
        "bert": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    }[kind]
    return read_spec({"model_type": kind, "vocab_size": 500, **sizes}, kind)


def source(kind: str = "llama", seed: int = 0) -> DummySource:
    return DummySource(small(kind), family(kind), seed=seed)


@pytest.mark.parametrize("kind", [f.name for f in FAMILIES])
def test_presents_the_checkpoint_names_of_the_family(kind: str) -> None:
    pieces = [piece for group in family(kind).pieces(small(kind)).values() for piece in group]
    assert dict(source(kind).tensors()) == {piece.tensor: piece.shape for piece in pieces}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_same_whatever_the_order(dtype: torch.dtype) -> None:
    names = list(source().tensors())
    first, second = source(), source()
    forwards = {name: first.read(name, "cpu", dtype) for name in names}
    backwards = {name: second.read(name, "cpu", dtype) for name in reversed(names)}
    assert all(torch.equal(forwards[name], backwards[name]) for name in names)
    assert all(tensor.dtype is dtype and tensor.isfinite().all() for tensor in forwards.values())


def test_torch_s_own_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    source().read("model.norm.weight", "cpu", torch.float32)
    assert torch.equal(torch.rand(3), expected)


def test_the_same_in_another_process() -> None:
    code = (
        "import torch\n"
        "from inferometer.model.config import read_spec\n"
        "from inferometer.model.families import family\n"
        "from inferometer.nn.dummy import DummySource\n"
        "spec = read_spec({'model_type': 'gpt2', 'vocab_size': 500, 'n_embd': 32, 'n_layer': 2, 'n_head': 4}, 'gpt2')\n"
        "print(DummySource(spec, family('gpt2'), seed=5).read('transformer.ln_f.weight', 'cpu', torch.float32).tolist())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(source("gpt2", seed=5).read("transformer.ln_f.weight", "cpu", torch.float32).tolist())


def test_seeds_and_names_tell_tensors_apart() -> None:
    keys = [("llama", 0, f"model.layers.{i}.self_attn.{p}_proj.weight") for i in (0, 1) for p in "qo"]
    keys.append(("llama", 1, "model.layers.0.self_attn.q_proj.weight"))
    tensors = [source(kind, seed).read(name, "cpu", torch.float32) for kind, seed, name in keys]
    for i, one in enumerate(tensors):
        for other in tensors[:i]:
            assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.2


@pytest.mark.parametrize("kind", [f.name for f in FAMILIES])
def test_norms_are_near_one_and_the_rest_near_zero(kind: str) -> None:
    norms = {p.tensor for name, group in family(kind).pieces(small(kind)).items() if name.endswith("norm.weight") for p in group}
    for name, shape in source(kind).tensors().items():
        tensor = source(kind).read(name, "cpu", torch.float32)
        tolerance = 0.02 * 6 / prod(shape) ** 0.5
        assert abs(tensor.mean() - (1 if name in norms else 0)) < tolerance, name
        assert 0.012 < tensor.std() < 0.028, name


def test_messages_say_what_it_is() -> None:
    assert source().where("model.norm.weight") == "the dummy weights of llama"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_created_on_the_gpu() -> None:
    one, other = (source().read("model.embed_tokens.weight", "cuda", torch.bfloat16) for _ in range(2))
    assert one.device.type == "cuda"
    assert torch.equal(one, other)
