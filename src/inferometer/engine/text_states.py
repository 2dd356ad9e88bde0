"""What a model makes of a text that is read and not continued: vectors, hidden states, the distribution of each next token.

Each function runs on every rank of a model (`LoadedModel.everywhere`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from inferometer.engine.pooling import Pooling, pool
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.nn.batch import paged_prompt, prompt_batch
from inferometer.nn.cache import PagedCache
from inferometer.nn.numerics import Numerics

if TYPE_CHECKING:
    from inferometer.engine.loaded_model import LoadedModel

_TOGETHER: Final = 32
"""Texts of one forward."""


@torch.inference_mode()
def vectors(loaded: LoadedModel, rows: Sequence[Sequence[int]], how: Pooling) -> torch.Tensor:
    """float32 (rows, hidden) on the host: one vector for each text's token ids."""
    model = loaded.model
    out = torch.empty(len(rows), loaded.spec.hidden)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # equal lengths side by side share one attention call
    # Attention without a cache is torch's, whose order of additions may differ with the batch.
    together = 1 if model.numerics is Numerics.INVARIANT else _TOGETHER
    for start in range(0, len(order), together):
        part = order[start : start + together]
        out[part] = pool(model, *loaded.text_graphs.states([rows[i] for i in part]), how).cpu()
    return out


@torch.inference_mode()
def hidden_states(loaded: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """(tokens, hidden) on the device. Each rank keeps its own, for `log_probabilities`."""
    if loaded.kv_dtype == loaded.dtype:
        states = loaded.model.sweep(prompt_batch([token_ids], loaded.device))
    else:
        pages = -(-len(token_ids) // PAGE_SIZE)
        cache = PagedCache(loaded.model.local, pages, PAGE_SIZE, loaded.device, loaded.kv_dtype)
        states = loaded.model.sweep(paged_prompt(token_ids, PAGE_SIZE, loaded.device), cache)
    loaded.last_states = states
    return states


@torch.inference_mode()
def log_probabilities(loaded: LoadedModel, start: int, stop: int) -> torch.Tensor:
    """float32 (positions, vocabulary), after tokens start to stop of the text that was read last. Raises RuntimeError if none was."""
    if loaded.last_states is None:
        raise RuntimeError("no text has been read whose next tokens could be likely")
    return torch.log_softmax(loaded.model.logits(loaded.last_states[start:stop]).float(), -1)
