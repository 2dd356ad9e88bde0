"""Is a backend right, before its speed is worth printing?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.bench.backends.backend import Backend, Continuation, Prompts, Reference
from inferometer.bench.records.failures import evidence_of
from inferometer.bench.records.record import Checked

# Largest error, as a share of the reference's largest magnitude, that rounding alone explains. The reference computes in float32 on
# the very weights that the backend has, so the error is the backend's own. Each of the 2 x layers residual additions, and the products
# between them, rounds to within half the spacing of the dtype (2^-8 bfloat16, 2^-11 float16, 2^-24 float32), at random: errors grow with
# the square root of the depth. Seen with random weights at 1.3 to 7 billion parameters and 32 to 1000 tokens: at most 18 such roundings
# (0.07 in bfloat16, 0.0095 in float16); 40 leaves room for models several times as deep. In float32 the order of additions differs
# between two right programs by 70 roundings at the worst seen (4e-6); the room left there is for a few large activations that cancel.
# A wrong position, mask or head is off by tens of percent in any dtype; what is smaller than that, float32 has to show.
# Not transformers in 16 bits: it rounds ALiBi's biases to the dtype, and is 0.29 off in bfloat16 by position 1000.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 40 * 2.0**-11, torch.bfloat16: 40 * 2.0**-8}

# Logits at every position are compared on as many tokens as fit this many numbers: 256 MiB in float32, on the device, twice.
_ELEMENTS = 1 << 26
_ROWS = 4


class ReferenceFailedError(Exception):
    """The reference could not run what it was to be compared on; says nothing of the backend in question."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What the backend in question gave: after the last token of the first of `prompts`, everywhere on `some`, and beyond `short`."""

    prompts: Prompts
    some: Prompts
    last: Tensor | None
    everywhere: Tensor | None
    short: Prompts
    continued: Continuation | None
    loss: float | None


def check(
    backend: Backend, reference: Reference | None, prompts: Prompts, *, dtype: torch.dtype, steps: int, loss: bool, together: int = 1
) -> Checked:
    """Compares `backend` with `reference` on `prompts`, or with itself by another path if that is None.

    Against a reference: the output after the last position of every row (of a decoder), and the outputs at every position of as
    many tokens as memory allows. With `steps`: the log-probabilities of that many tokens decoded greedily through the cache, against
    those that one forward gives the same tokens, each of which must be the best to within the tolerance; at least `together` rows are
    decoded side by side, and a few from among them compared. An encoder against itself:
    rows in a batch against the same rows alone. With `loss`: the loss against one computed here from the logits. An infinity or a
    NaN anywhere fails. Raises ReferenceFailedError where the reference raises.
    """
    # The backend goes first: the reference in float32 takes memory that a large batch may need.
    outputs = _outputs(backend, prompts, against_itself=reference is None, steps=steps, loss=loss, together=together)
    if reference is None:
        errors = _errors(outputs, backend)
        if backend.encoder:
            pair = [prompts[0], [*reversed(prompts[0])]]
            alone = torch.cat([backend.logits([row], last_only=False) for row in pair])
            errors["rows of a batch"] = relative_error(backend.logits(pair, last_only=False), alone)
        against = "itself " + ("alone" if backend.encoder else "through a forward without a cache")
    else:
        try:
            with reference.exact():
                errors = _errors(outputs, reference)
        except Exception as error:
            raise ReferenceFailedError(f"{reference.name} could not run: {evidence_of(error)}") from error
        against = f"{reference.name} {reference.stack_version}" + ("" if dtype == torch.float32 else " in float32")
    finite = all(math.isfinite(error) for error in errors.values())
    worst = max(errors.values()) if finite else None
    return Checked(
        method=f"{', '.join(errors)} against {against}",
        max_error=worst,
        tolerance=TOLERANCES[dtype],
        passed=worst is not None and worst <= TOLERANCES[dtype],
    )


def _outputs(backend: Backend, prompts: Prompts, *, against_itself: bool, steps: int, loss: bool, together: int) -> _Outputs:
    some = _within_budget(prompts, backend.output_width)
    short = _within_budget(prompts, backend.output_width, extra=steps)
    last = everywhere = continued = None
    if steps:
        side_by_side = [prompt[: len(short[0])] for prompt in prompts[: max(together, len(short))]]
        continued = backend.continuation(side_by_side, steps)
        # From the first to the last, so that rows of several groups are among them.
        rows = [row * (len(side_by_side) - 1) // max(len(short) - 1, 1) for row in range(len(short))]
        short = [side_by_side[row] for row in rows]
        continued = Continuation(tuple(continued.tokens[row] for row in rows), tuple(continued.log_probabilities[row] for row in rows))
    if not against_itself:
        everywhere = backend.logits(some, last_only=False)
        if not backend.encoder:
            # The whole batch, since its size decides which kernels run; kept are the rows that the reference will have memory for.
            last = backend.logits(prompts, last_only=True)[:_ROWS].clone()
    return _Outputs(
        prompts=prompts,
        some=some,
        last=last,
        everywhere=everywhere,
        short=short,
        continued=continued,
        loss=backend.forward(some, loss=True) if loss else None,
    )


def _errors(outputs: _Outputs, reference: Backend) -> dict[str, float]:
    """The relative error of each output, by what it is called."""
    errors: dict[str, float] = {}
    if outputs.last is not None:
        errors["last-position logits"] = relative_error(outputs.last, reference.logits(outputs.prompts[:_ROWS], last_only=True))
    if outputs.everywhere is not None:
        what = "outputs" if reference.encoder else "all-position logits"
        theirs = reference.logits(outputs.some, last_only=False)
        errors[f"{what} of {len(outputs.some)} x {len(outputs.some[0])} tokens"] = relative_error(outputs.everywhere, theirs)
    if outputs.continued is not None:
        steps = len(outputs.continued.tokens[0])
        errors[f"{steps} cached decode tokens"] = _continuation_error(outputs.continued, outputs.short, reference)
    if outputs.loss is not None:
        errors["loss"] = _loss_error(outputs.loss, outputs.some, reference)
    return errors


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """max|ours - theirs| / max|theirs| of two tensors of one shape; NaN where either holds an infinity or a NaN.

    Raises ValueError for two shapes.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"outputs of shape {tuple(ours.shape)} and {tuple(theirs.shape)} cannot be compared")
    scale = float(theirs.abs().max())
    error = float((ours - theirs).abs().max())
    return error / scale if scale > 0 else error


def _continuation_error(continued: Continuation, prompts: Prompts, reference: Backend) -> float:
    whole = [[*prompt, *tokens[:-1]] for prompt, tokens in zip(prompts, continued.tokens, strict=True)]
    # Logits after the last prompt token and after each generated one but the last.
    logits = reference.logits(whole, last_only=False)[:, len(prompts[0]) - 1 :]
    tokens = torch.tensor(continued.tokens, device=logits.device)
    of_tokens = logits.gather(2, tokens[:, :, None])[:, :, 0]
    ours = torch.tensor(continued.log_probabilities, device=logits.device, dtype=torch.float32)
    theirs = of_tokens - logits.logsumexp(2)
    # Greedy must have taken the best token, or one that rounding may have put in its place.
    shortfall = logits.amax(2) - of_tokens
    error = float(torch.cat([(ours - theirs).abs(), shortfall]).max())
    return error / max(float(logits.abs().max()), 1.0)


def _loss_error(loss: float, prompts: Prompts, reference: Backend) -> float:
    logits = reference.logits(prompts, last_only=False)[:, :-1]
    targets = torch.tensor([list(row[1:]) for row in prompts], device=logits.device)
    wanted = float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    return abs(loss - wanted) / max(abs(wanted), 1.0)


def _within_budget(prompts: Prompts, width: int, extra: int = 0) -> Prompts:
    """The first rows, cut to the tokens whose outputs fit the budget; at least one row, of two tokens if it has them."""
    rows = max(1, min(len(prompts), _ROWS, _ELEMENTS // (width * (2 + extra))))
    length = max(2, _ELEMENTS // (width * rows) - extra)
    return [prompt[:length] for prompt in prompts[:rows]]
