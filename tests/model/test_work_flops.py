"""The inventory's FLOPs against torch's counter on the real module, for every family and variant."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from configs import DECODERS, ENCODERS, config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from inferometer.model.config import read_spec
from inferometer.model.formats import Formats
from inferometer.model.ops import tensor_flops
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step, decode, encode, forward, mixed, prefill
from inferometer.model.work import work
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer

FORMATS = Formats(dtype="float32")
PAGE = 16  # tokens: more than any context here


def _spec(key: str) -> ModelSpec:
    kind, options = (DECODERS | ENCODERS)[key]
    return read_spec(config(kind, options).to_dict(), key)


def _batch(step: Step, pages: int) -> RaggedBatch:
    """Sequence i lies in page i, of which there are `pages`; 0 for a sweep without a cache."""
    queries = [share.queries for share in step.shares for _ in range(share.count)]
    before = [share.before for share in step.shares for _ in range(share.count)]
    lengths = torch.tensor(queries)
    positions = torch.cat([torch.arange(start, start + count) for count, start in zip(queries, before, strict=True)])
    contexts = tuple(count + start for count, start in zip(queries, before, strict=True))
    seats = torch.arange(len(queries), dtype=torch.int32)
    rows = CachedRows(
        table=seats[:, None],
        seats=seats,
        contexts=torch.tensor(contexts, dtype=torch.int32),
        starts=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(torch.int32),
        places=seats.long().repeat_interleave(lengths) * PAGE + positions,
    )
    return RaggedBatch(
        token_ids=torch.ones(sum(queries), dtype=torch.int64),
        positions=positions,
        query_lengths=tuple(queries),
        context_lengths=contexts,
        rotary_lengths=positions + 1,
        rows=rows if pages else None,
    )


@cache
def _model(spec: ModelSpec) -> Transformer:
    """Of numbers that do not matter, as every step of a family counts it."""
    model = Transformer(spec, torch.device("cpu"), torch.float32)
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    return model


def _counted(spec: ModelSpec, step: Step) -> int:
    """What the counter finds. The plain-math attention is a pair of matrix products, which it knows on every device."""
    cpu, model = torch.device("cpu"), _model(spec)
    pages = step.sequences if step.cached else 0
    cache = PagedCache(spec, pages, PAGE, cpu, torch.float32) if pages else None
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        if step.logits == "none":
            batch = _batch(step, pages)
            hidden = model.sweep(batch, cache)
            if step.pooled:
                model.pooled(hidden, batch)
        else:
            scores = model(_batch(step, pages), cache, logits=step.logits)
            if step.loss:
                torch.nn.functional.cross_entropy(scores, torch.zeros(scores.shape[0], dtype=torch.int64))
    return counter.get_total_flops()


STEPS = {
    "forward": forward(2, 7),
    "forward-with-loss": forward(1, 9, loss=True),
    "prefill": prefill(3, 5),
    "decode-equal": decode([6, 6, 6]),
    "decode-ragged": decode([3, 9, 1]),
    "chunk-after-context": mixed([(4, 3)], []),
    "mixed": mixed([(5, 0), (3, 2)], [7, 4, 2]),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("key", DECODERS)
def test_flops_equal_the_counters(key: str, step: Step) -> None:
    spec = _spec(key)
    # Neighbours that decode share one call, masked to the longest context: padded() says so, and only then are pairs equal.
    assert tensor_flops(work(spec, step.padded(), FORMATS, causal="full")) == _counted(spec, step)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("key", ENCODERS)
def test_an_encoders_flops_equal_the_counters(key: str, pooled: bool) -> None:
    spec = _spec(key)
    step = encode(2, 7, pooled=pooled)
    assert tensor_flops(work(spec, step, FORMATS, causal="full")) == _counted(spec, step)
    assert work(spec, step, FORMATS, causal="half") == work(spec, step, FORMATS, causal="full")


def test_ragged_decode_counts_each_context_alone() -> None:
    spec = _spec("llama-gqa")
    together = tensor_flops(work(spec, decode([3, 9, 1]), FORMATS))
    assert together == sum(tensor_flops(work(spec, decode([context]), FORMATS)) for context in (3, 9, 1))
    assert together < tensor_flops(work(spec, decode([3, 9, 1]).padded(), FORMATS))


def test_causal_half_is_the_exact_triangle() -> None:
    spec = _spec("gpt2")

    def attention(step: Step, causal: str) -> int:
        ops = work(spec, step, FORMATS, causal="half" if causal == "half" else "full")
        return sum(op.count * op.flops for op in ops if op.kind == "attention" and op.unit == "tensor")

    assert attention(forward(1, 8), "half") * 64 == attention(forward(1, 8), "full") * 36
    assert attention(decode([5]), "half") == attention(decode([5]), "full")
    # A prompt costs the same whether it runs at once or token by token.
    one_by_one = sum(attention(mixed([(1, before)], []), "half") for before in range(8))
    assert one_by_one == attention(prefill(1, 8), "half")
