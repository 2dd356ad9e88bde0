"""How far a model in few bits is from the same model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.damage import damaged
from inferometer.engine.llm import LLM
from inferometer.errors import UserError

CHUNK = 128
"""Positions whose distributions over the vocabulary exist at once, of both models."""


@dataclass(frozen=True, slots=True)
class Quality:
    """tokens: how many were predicted. perplexity, reference_perplexity: e to the mean of -ln p(token), of the model in question and of
    the reference. kl_divergence: mean over positions of the sum of p ln(p / q), p the reference's distribution over the next token and q
    the other's, in nats. top1_agreement: share of positions where both hold the same token for the likeliest.
    """

    tokens: int
    perplexity: float
    reference_perplexity: float
    kl_divergence: float
    top1_agreement: float


def must_predict(model: LLM) -> None:
    """Raises UserError for an encoder."""
    if model.spec.encoder:
        raise UserError(f"{model.spec.name} is an encoder and predicts no tokens; use a decoder")


@torch.inference_mode()
def quality(reference: LLM, other: LLM, tokens: Sequence[int], window: int, advance: Callable[[int], None] = lambda count: None) -> Quality:
    """Both models predict every token of a text but the first of each window of so many tokens, from the window's tokens before it.

    Hidden states of a window and distributions at CHUNK positions are all that is held at a time. advance: told the tokens that are done,
    in pieces of a window: one third of them when either model has read it, and one as its distributions are compared.
    Raises UserError where one predicts no tokens, the two are not of one vocabulary or a text has fewer than two tokens; ModelError where
    one gives no token a finite score.
    """
    must_predict(other)
    must_predict(reference)
    if reference.spec.vocabulary != other.spec.vocabulary:
        raise UserError(
            f"{other.spec.name} has {other.spec.vocabulary} tokens and {reference.spec.name} {reference.spec.vocabulary}: "
            "compare a model with what it was made from"
        )
    if len(tokens) < 2 or window < 2:
        raise UserError("quality needs a text of at least 2 tokens, in windows of at least 2")
    sums = torch.zeros(4, dtype=torch.float64)
    count = 0
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        if len(part) > 1:
            targets = torch.tensor(part[1:], device=other.device)
            third, left = len(part) // 3, len(part)
            for model in (other, reference):
                model.hidden_states(part)
                advance(third)
                left -= third
            for ours, theirs, wanted in _distributions(other, reference, targets):
                sums += _compared(ours, theirs, wanted)
                count += len(wanted)
                advance(len(wanted) // 3)
                left -= len(wanted) // 3
            advance(left)
            for loss, model in zip(sums, (other, reference), strict=False):
                if loss.isnan():
                    raise damaged(model.spec.name, model.dtype, "gives no token a finite score")
        else:
            advance(len(part))
    own, their, divergence, agreed = (sums / count).tolist()
    return Quality(count, _exp(own), _exp(their), max(0.0, divergence), agreed)


def _distributions(other: LLM, reference: LLM, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """float32 log-probabilities (positions, vocabulary) by both, of the window that they have read, and the tokens that came."""
    for start in range(0, len(targets), CHUNK):
        stop = min(start + CHUNK, len(targets))
        yield other.log_probabilities(start, stop), reference.log_probabilities(start, stop), targets[start:stop]


def _compared(ours: Tensor, theirs: Tensor, wanted: Tensor) -> Tensor:
    """float64 (4,): sums over positions of -ln q(token), -ln p(token), the divergence, and agreements."""
    own, their = (-each.gather(1, wanted[:, None]).double().sum() for each in (ours, theirs))
    divergence = (theirs.exp() * (theirs - ours)).sum(1, dtype=torch.float64).sum()
    agreed = (ours.argmax(1) == theirs.argmax(1)).sum().double()
    return torch.stack((own, their, divergence, agreed)).cpu()


def _exp(loss: float) -> float:
    """e to the loss; infinity beyond what a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
