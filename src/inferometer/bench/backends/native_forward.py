"""One pass of the native engine's model over whole prompts, without a cache. With several ranks a part of every rank's work."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.bench.backends.backend import Prompts
from inferometer.engine.loaded_model import LoadedModel
from inferometer.nn.batch import prompt_batch


@torch.inference_mode()
def forward(loaded: LoadedModel, prompts: Prompts, loss: bool) -> float | None:
    """One pass with logits at every position; with `loss` their mean next-token cross-entropy in nats, else None, as of an encoder."""
    model = loaded.model
    hidden, batch = loaded.text_graphs.states(prompts)
    if loaded.spec.encoder:
        if loaded.spec.pooler:
            model.pooled(hidden, batch)
        return None
    if not loss:
        model.logits(hidden)
        return None
    # Every position is scored, as in the measured forward elsewhere; the last of each row has no next token to be held against.
    following = batch.token_ids.roll(-1)
    last = torch.zeros_like(following, dtype=torch.bool)
    last[batch.last_tokens] = True
    return float(-model.log_probabilities(hidden, following)[~last].mean())


@torch.inference_mode()
def logits(loaded: LoadedModel, prompts: Prompts, last_only: bool) -> Tensor:
    """float32 (prompts, positions, vocabulary), of the last position alone or of all; of an encoder (prompts, positions, hidden), with
    the pooled output, where it has one, as one more position.
    """
    model, spec = loaded.model, loaded.spec
    if not spec.encoder:
        scores: Tensor = model(prompt_batch(prompts, loaded.device), logits="last" if last_only else "all")
        return scores.float().view(len(prompts), -1, spec.vocabulary)
    hidden, batch = loaded.text_graphs.states(prompts)
    states = hidden.view(len(prompts), -1, spec.hidden)
    pooled = [model.pooled(hidden, batch)[:, None]] if spec.pooler else []
    return torch.cat([states, *pooled], 1).float()
