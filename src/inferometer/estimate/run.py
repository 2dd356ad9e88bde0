"""What a run costs from its first prompt token to its last generated one: steps put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferometer.estimate.cost import Cost, mean_cost
from inferometer.estimate.deployment import Deployment
from inferometer.model.step import Share, Step, decode_equal, encode, forward, prefill


@dataclass(frozen=True, slots=True)
class Total:
    """Seconds of a run, joules of all its devices (None without a stated power limit) and the tokens it generates."""

    seconds: float
    joules: float | None
    tokens: float

    @property
    def watts(self) -> float | None:
        """The mean draw of all devices."""
        return None if self.joules is None else self.joules / self.seconds

    @property
    def j_per_token(self) -> float | None:
        """Of all devices, a generated token."""
        return None if self.joules is None else self.joules / self.tokens


def forward_step(deployment: Deployment, batch: int, length: int, *, loss: bool = False) -> Step:
    """One pass over whole sequences: logits of all positions, or an encoder's hidden states."""
    spec = deployment.spec
    return encode(batch, length, pooled=spec.pooler) if spec.encoder else forward(batch, length, loss=loss)


def prefill_step(deployment: Deployment, batch: int, length: int) -> Step:
    """The prompts of a batch. A stack that makes logits of all positions does so here."""
    step = prefill(batch, length)
    return replace(step, logits="all") if deployment.stack.prompt_logits else step


def decode_cost(deployment: Deployment, batch: int, length: int, generated: int) -> Cost:
    """The mean step after the first token: costs grow evenly with the context, so the run's middle (two steps, if it has none) is it."""
    twice = 2 * length + generated - 2
    middle = dict.fromkeys((twice // 2, -(-twice // 2)))
    return mean_cost([deployment.cost(decode_equal(batch, max(1, context))) for context in middle])


def generate(deployment: Deployment, batch: int, length: int, generated: int) -> Total:
    """A batch of prompts, and `generated` tokens of each."""
    first = deployment.cost(prefill_step(deployment, batch, length))
    seconds, joules = deployment.stack.request_s + first.ms / 1e3, first.joules(deployment.devices)
    if generated > 1:
        later = decode_cost(deployment, batch, length, generated)
        seconds += (generated - 1) * later.ms / 1e3
        each = later.joules(deployment.devices)
        joules = None if joules is None or each is None else joules + (generated - 1) * each
    return Total(seconds, joules, batch * generated)


def serve(deployment: Deployment, batch: int, length: int, generated: int) -> Total:
    """One step of a steady state in which `batch` requests run and each that ends after `generated` tokens is replaced at once.

    Prompts run in the steps of those that decode: on average batch x length / generated prompt tokens a step. What they add is their
    part of a step that holds a whole prompt more than the others.
    """
    context = length + generated // 2
    alone = deployment.cost(decode_equal(batch, context))
    joined = deployment.cost(Step(shares=(Share(length), Share(1, context, max(1, batch - 1)))))
    entering = batch / generated
    seconds = alone.ms + entering * max(0.0, joined.ms - alone.ms)
    apart, together = alone.joules(deployment.devices), joined.joules(deployment.devices)
    joules = None if apart is None or together is None else apart + entering * max(0.0, together - apart)
    return Total(seconds / 1e3, joules, batch)
