"""The step that launches are chosen by: what a model computes, of as many layers as it takes. Without a GPU, by torch's operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from configs import DECODERS, config

from inferometer.engine import decode_chain
from inferometer.engine.decode_chain import FEWEST_LAYERS, DecodeChain, layers_to_time
from inferometer.model.config import read_spec
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

CPU = torch.device("cpu")


def model_of(key: str, layers: int | None = None) -> Transformer:
    kind, options = DECODERS[key]
    spec = read_spec(config(kind, options).to_dict(), key)
    model = Transformer(spec if layers is None else replace(spec, layers=layers), CPU, torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


@pytest.mark.parametrize("key", DECODERS)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_step_ends_in_a_token_for_every_row(monkeypatch: pytest.MonkeyPatch, key: str, rows: int) -> None:
    monkeypatch.setattr(decode_chain, "CONTEXT", 20)
    model = model_of(key)
    with torch.inference_mode():
        chain = DecodeChain(model, rows, 0)
        chain.run()
        tokens, logprobs = chain._places.token_ids.clone(), chain._places.logprobs
        assert bool(((tokens >= 0) & (tokens < model.spec.vocabulary)).all())
        assert bool((logprobs < 0).all())
        chain.run()
        assert torch.equal(chain._places.token_ids, tokens)


def test_no_position_is_beyond_the_table() -> None:
    model = model_of(next(key for key in DECODERS if "gpt2" in key))
    with torch.inference_mode():
        DecodeChain(model, 2, 0).run()


def test_as_many_layers_as_outgrow_the_cache() -> None:
    model = model_of(next(key for key in DECODERS if "gpt2" in key), layers=20)
    layer = sum(linear.weight_bytes for linear in model.layers[0].modules() if isinstance(linear, Linear))
    assert layers_to_time(model, 0) == FEWEST_LAYERS
    assert layers_to_time(model, 4 * layer) == 12
    assert layers_to_time(model, 100 * layer) == 20
    assert layers_to_time(model_of(next(iter(DECODERS)), layers=1), 100 * layer) == 1
