"""Random transformers models on disk, and what transformers makes of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from configs import config  # type: ignore[import-not-found]
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel


def save(kind: str, options: dict[str, Any], folder: Path) -> PreTrainedModel:
    """A model with lively random weights (norms and biases too), saved as safetensors, in float32."""
    torch.manual_seed(sum(map(ord, folder.name)))
    make = AutoModel if kind == "bert" else AutoModelForCausalLM
    model = make.from_config(config(kind, options)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], steps: int) -> list[int]:
    """transformers' own greedy continuation."""
    ids = torch.tensor([prompt])
    # A copy: transformers' dynamic rotary scaling remembers the longest sequence that the model object has seen.
    out = copy.deepcopy(model).generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=steps, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def all_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """float32 (tokens, vocabulary), from one whole forward."""
    return copy.deepcopy(model)(torch.tensor([ids])).logits[0].float()
