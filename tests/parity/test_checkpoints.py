"""Checkpoints that say one thing in their configuration and hold another: what transformers makes of them counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from configs import DECODERS, VOCABULARY  # type: ignore[import-not-found]
from models import all_logits, save  # type: ignore[import-not-found]
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from inferometer import LLM
from inferometer.bench.backends.hf import HFBackend
from inferometer.errors import ModelError
from inferometer.nn.batch import prompt_batch
from inferometer.nn.load import open_checkpoint

EMBEDDINGS = {
    "bloom": "transformer.word_embeddings.weight",
    "opt-350m-wiring": "model.decoder.embed_tokens.weight",
    "gpt2": "transformer.wte.weight",
    "gpt_bigcode-mqa": "transformer.wte.weight",
    "llama-mqa-tied": "model.embed_tokens.weight",
}
IDS = list(range(0, VOCABULARY, 7))


def rewrite(name: str, folder: Path, held: str) -> None:
    """Saves the model of this name, its configuration tied, with the matrices that `held` says."""
    kind, options = DECODERS[name]
    save(kind, options, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("lm_head.weight", None)
    embedding = tensors[EMBEDDINGS[name]]
    if held == "head alone":
        tensors["lm_head.weight"] = tensors.pop(EMBEDDINGS[name])
    else:
        tensors["lm_head.weight"] = embedding.clone() if held == "equal" else embedding.flip(0).contiguous()
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize("held", ["head alone", "equal", "different"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_a_tied_head_is_what_the_checkpoint_holds(name: str, held: str, tmp_path: Path) -> None:
    rewrite(name, tmp_path, held)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    llm = LLM(tmp_path, dtype="float32", device="cpu")
    assert llm.spec.tied_head is (held != "different")
    expected = all_logits(reference, IDS)
    with torch.inference_mode():
        torch.testing.assert_close(llm.model(prompt_batch([IDS], llm.device), logits="all"), expected, atol=1e-4, rtol=0)
    hf = HFBackend(llm.description.config, llm.spec, open_checkpoint(tmp_path), llm.device, llm.dtype)
    torch.testing.assert_close(hf.logits([IDS], last_only=False)[0], expected, atol=1e-4, rtol=0)


def test_without_embedding_and_head_the_embedding_is_missing(tmp_path: Path) -> None:
    rewrite("gpt2", tmp_path, "head alone")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensor missing: transformer\.wte\.weight$"):
        LLM(tmp_path, dtype="float32", device="cpu")


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    rewrite("gpt2", tmp_path, "equal")
    tensors: dict[str, Any] = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][1:].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lm_head\.weight 130x48 instead of 131x48"):
        LLM(tmp_path, dtype="float32", device="cpu")
