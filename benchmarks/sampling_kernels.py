"""How long choosing tokens takes, beside torch's operations: python benchmarks/sampling_kernels.py [--only TEXT] [--rows 1,64].

From logits: the best token, one drawn at a temperature, one drawn behind top-k, top-p and typical-p. Their rate stands beside that of a
copy, measured here, counting every logit once. From hidden states: the head's product that ends in tokens, for few rows beside the
same product with logits and the choice from them, for many rows cuBLAS with rows of logits as they come and with rows that begin at
multiples of 128 bytes. Every case is checked before it is timed. Times are of CUDA graphs in which as many launches on memory of their
own follow each other as it takes that none finds its input in the L2 cache, 64 at most.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from gpu_clock import CACHE_BYTES, begin, milliseconds
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.head_choice import choose_best_triton
from inferometer.kernels.skinny import skinny
from inferometer.kernels.skinny_launch import MOST_ROWS
from inferometer.kernels.token_bounds import bounds
from inferometer.kernels.token_choice import choose, draw
from inferometer.kernels.token_filters import Filters, bounds_torch
from inferometer.kernels.token_rows import Drawing, Places

DTYPE = torch.bfloat16
ROWS = (1, 16, 64, 256, 1024)
VOCABULARIES = (50_272, 250_880)
HEADS = ((50_258, 2048), (50_272, 4096), (250_880, 4096))
"""Vocabulary and width of doc004-1.3b, opt-6.7b and bloomz-7b1."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """ours, theirs: launches on memory of their own. bytes: moved by one of ours."""

    name: str
    bytes: int
    ours: Sequence[Run]
    theirs: Sequence[Run]


def copies(size: int) -> int:
    return max(2, min(64, 1 + CACHE_BYTES // size))


def logits_of(rows: int, vocabulary: int) -> list[Tensor]:
    """As spread as those of a trained model: a few likely tokens, a long tail."""
    return [torch.randn(rows, vocabulary, dtype=DTYPE, device="cuda") * 3 for _ in range(copies(2 * rows * vocabulary))]


def same(got: Places, token_ids: Tensor, logprobs: Tensor, *, most: float = 0.0) -> None:
    """most: the share of rows in which another rounding may decide otherwise."""
    equal = got.token_ids == token_ids
    assert (~equal).float().mean().item() <= most, f"{(~equal).sum().item()} of {len(equal)} tokens differ"
    torch.testing.assert_close(got.logprobs[equal], logprobs[equal], atol=1e-4, rtol=1e-4)


def torch_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = logits.float().log_softmax(-1)
    token_ids = logprobs.argmax(-1)
    return token_ids, logprobs.gather(1, token_ids[:, None]).squeeze(1)


def torch_drawn(logits: Tensor, drawing: Drawing, filters: Filters | None = None) -> tuple[Tensor, Tensor]:
    """With filters, as a sampler does that sorts."""
    scores = logits.float()
    if filters is not None:
        scores = scores.masked_fill(~bounds_torch(logits, filters).keep(scores), -torch.inf)
    scores = (scores - scores.amax(1, keepdim=True)) / drawing.temperatures[:, None]
    token_ids = draw(scores, drawing.uniforms)
    return token_ids, scores.log_softmax(1).gather(1, token_ids[:, None]).squeeze(1)


def from_logits(rows: int, vocabulary: int) -> Iterator[Case]:
    logits = logits_of(rows, vocabulary)
    places = Places.on(logits[0].device, rows)
    ones = torch.ones(rows, device="cuda")
    drawing = Drawing(ones.long(), ones * 0.8, torch.rand(rows, 1, dtype=torch.float64, device="cuda"))
    size = logits[0].nbytes
    choose(logits[0], places)
    same(places, *torch_greedy(logits[0]))
    yield Case("greedy", size, [lambda x=x: choose(x, places) for x in logits], [lambda x=x: torch_greedy(x) for x in logits])
    choose(logits[0], places, drawing)
    same(places, *torch_drawn(logits[0], drawing), most=0.02)
    yield Case(
        "drawn", size, [lambda x=x: choose(x, places, drawing) for x in logits], [lambda x=x: torch_drawn(x, drawing) for x in logits]
    )
    asked = {
        "top-k 50": Filters(drawing.temperatures, (ones * 50).long(), 50),
        "top-p 0.9": Filters(drawing.temperatures, tails=ones * 0.1),
        "typical-p 0.9": Filters(drawing.temperatures, masses=ones * 0.9),
        "top-k 50, top-p 0.9": Filters(drawing.temperatures, (ones * 50).long(), 50, ones * 0.1),
    }
    for name, filters in asked.items():
        choose(logits[0], places, drawing, bounds(logits[0], filters))
        same(places, *torch_drawn(logits[0], drawing, filters), most=0.02)
        few = logits[: max(1, 2**26 // logits[0].numel())]  # sorting takes long
        yield Case(
            name, size, [lambda x=x, f=filters: choose(x, places, drawing, bounds(x, f)) for x in few],
            [lambda x=x, f=filters: torch_drawn(x, drawing, f) for x in few[:4]],
        )  # fmt: skip


def from_states(rows: int, vocabulary: int, width: int) -> Iterator[Case]:
    size = 2 * vocabulary * width
    weights = [torch.randn(vocabulary, width, dtype=DTYPE, device="cuda") * width**-0.5 for _ in range(min(4, copies(size)))]
    x = torch.randn(rows, width, dtype=DTYPE, device="cuda")
    places = Places.on(x.device, rows)
    if rows <= MOST_ROWS:
        choose_best_triton(x, weights[0], places)
        same(places, *torch_greedy(skinny(x, weights[0])))
        yield Case(
            "head to tokens", size, [lambda w=w: choose_best_triton(x, w, places) for w in weights],
            [lambda w=w: choose(skinny(x, w), places) for w in weights],
        )  # fmt: skip
        return
    room = torch.empty(rows, -(-vocabulary // 64) * 64, dtype=DTYPE, device="cuda")[:, :vocabulary]
    choose(torch.mm(x, weights[0].t(), out=room), places)
    same(places, *torch_greedy(functional.linear(x, weights[0])), most=0.02)
    yield Case(
        "head, rows aligned", size, [lambda w=w: torch.mm(x, w.t(), out=room) for w in weights],
        [lambda w=w: functional.linear(x, w) for w in weights],
    )  # fmt: skip
    yield Case(
        "the same and choice", size, [lambda w=w: choose(torch.mm(x, w.t(), out=room), places) for w in weights],
        [lambda w=w: torch_greedy(functional.linear(x, w)) for w in weights],
    )  # fmt: skip


def report(case: Case, rows: int, vocabulary: int, copy: float) -> None:
    ours, theirs = (1000 * milliseconds(runs, 20) for runs in (case.ours, case.theirs))
    rate = case.bytes / ours / 1e3
    print(
        f"{case.name:20} {rows:5} x {vocabulary:6} {ours:9.2f} us {rate:6.0f} GB/s {rate / copy:6.1%} of copy"
        f"   beside {theirs:9.2f} us, {theirs / ours:5.2f} times as long",
        flush=True,
    )


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="numbers of rows, comma between (%(default)s)")
    options = parser.parse_args()
    copy = begin(DTYPE).copy_gb_s
    for rows in [int(part) for part in options.rows.split(",")]:
        for vocabulary in VOCABULARIES:
            for case in from_logits(rows, vocabulary):
                if options.only in case.name:
                    report(case, rows, vocabulary, copy)
        for vocabulary, width in HEADS:
            for case in from_states(rows, vocabulary, width):
                if options.only in case.name:
                    report(case, rows, vocabulary, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
