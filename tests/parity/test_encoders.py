"""Encoders against transformers, in float32 on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from configs import ENCODERS, VOCABULARY  # type: ignore[import-not-found]
from models import save  # type: ignore[import-not-found]
from transformers import PreTrainedModel

from inferometer import LLM
from inferometer.engine.pooling import Pooling
from inferometer.errors import UserError
from inferometer.nn.batch import prompt_batch


@pytest.fixture(scope="module", params=sorted(ENCODERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, LLM, Path]:
    kind, options = ENCODERS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    reference = save(kind, options, folder)
    return reference, LLM(folder, dtype="float32", device="cpu"), folder


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in (9, 1, 40, 9, 160)]


@torch.inference_mode()
def test_hidden_states_and_pooled_output(pair: tuple[PreTrainedModel, LLM, Path], texts: list[list[int]]) -> None:
    reference, llm, _ = pair
    batch = prompt_batch(texts, llm.device)
    hidden = llm.model.sweep(batch)
    pooled = llm.model.pooled(hidden, batch)
    for ids, states, vector in zip(texts, hidden.split([len(t) for t in texts]), pooled, strict=True):
        expected = reference(torch.tensor([ids]))
        torch.testing.assert_close(states, expected.last_hidden_state[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(vector, expected.pooler_output[0], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_token_types(pair: tuple[PreTrainedModel, LLM, Path]) -> None:
    reference, llm, _ = pair
    kinds = [i % reference.config.type_vocab_size for i in range(12)]
    ids = list(range(12))
    hidden = llm.model.sweep(prompt_batch([ids], llm.device, token_types=[kinds]))
    expected = reference(torch.tensor([ids]), token_type_ids=torch.tensor([kinds])).last_hidden_state[0]
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"])
def test_declared_pooling(
    pair: tuple[PreTrainedModel, LLM, Path], texts: list[list[int]], mode: str, normalise: bool, tmp_path: Path
) -> None:
    reference, _, folder = pair
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, f"pooling_mode_{mode}": True}))
    vectors = LLM(tmp_path, dtype="float32", device="cpu").encode(texts)
    assert vectors.dtype == numpy.float32
    for ids, vector in zip(texts, vectors, strict=True):
        states = reference(torch.tensor([ids])).last_hidden_state[0]
        expected = {
            "cls_token": states[0],
            "mean_tokens": states.mean(0),
            "max_tokens": states.max(0).values,
            "mean_sqrt_len_tokens": states.sum(0) / len(ids) ** 0.5,
        }[mode]
        expected = torch.nn.functional.normalize(expected, dim=0) if normalise else expected
        numpy.testing.assert_allclose(vector, expected.numpy(), atol=1e-4)


@torch.inference_mode()
def test_without_declaration_the_pooler_pools(pair: tuple[PreTrainedModel, LLM, Path], texts: list[list[int]]) -> None:
    reference, llm, _ = pair
    expected = torch.cat([reference(torch.tensor([ids])).pooler_output for ids in texts])
    numpy.testing.assert_allclose(llm.encode(texts), expected.numpy(), atol=1e-4)
    means = torch.stack([reference(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in texts])
    numpy.testing.assert_allclose(llm.encode(texts, pooling=Pooling("mean")), means.numpy(), atol=1e-4)


def test_an_encoder_does_not_generate(pair: tuple[PreTrainedModel, LLM, Path]) -> None:
    with pytest.raises(UserError, match="is an encoder"):
        pair[1].generate([[1, 2]])


def test_an_unsupported_module_is_refused(pair: tuple[PreTrainedModel, LLM, Path], tmp_path: Path) -> None:
    for file in pair[2].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(UserError, match="Dense"):
        LLM(tmp_path, dtype="float32", device="cpu").encode([[1, 2, 3]])
