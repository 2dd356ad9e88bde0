"""The sum over ranks in one launch, with the residual stream and the norm behind it: rows go straight into the other ranks' memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.mailbox import WORD_BYTES, Mailbox, collect, numbers, post, post_pairs, warps, width
from inferometer.kernels.norm import NormWeights, norm_torch, standardised
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, tl

CHUNK_WORDS = 1024
"""Of a sum without a norm, what a program takes at once."""
FEW_WORDS = 64
"""The same for few rows, which are spread over processors: what a program takes longer for more words."""
WIDEST_WORDS = 4096
"""Of a row, from all ranks together: what the registers of a program hold is four times as much."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def rank_sum_torch(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """The reference: float32 sums in the order of the ranks, rounded once to the type of the parts, (ranks, ...) or one for each."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def rank_sum_norm_torch(parts: list[Tensor], residual: Tensor, norm: NormWeights) -> Tensor:
    """The reference: residual becomes residual + the sum over ranks, as a launch of its own would round it; returns the norm of that."""
    delta = rank_sum_torch(parts)
    return norm_torch(residual, delta, kind=norm.kind, epsilon=norm.epsilon, weight=norm.weight, bias=norm.bias)


def sums(x: Tensor, box: Mailbox) -> bool:
    """Whether `rank_sum` takes x, of any shape."""
    words, rest = divmod(x.numel() * x.element_size(), WORD_BYTES)
    fits = box.holds(-(-words // CHUNK_WORDS), min(CHUNK_WORDS, words))
    return x.dtype in DTYPES and not rest and x.is_contiguous() and fits


def sums_rows(x: Tensor, box: Mailbox) -> bool:
    """Whether `rank_sum_norm` takes x, (tokens, hidden)."""
    words, rest = divmod(x.shape[1] * x.element_size(), WORD_BYTES)
    wide = words * power_of_two(box.size) > 4 * WIDEST_WORDS
    return x.dtype in DTYPES and not rest and not wide and x.is_contiguous() and x.shape[0] > 0 and box.holds(x.shape[0], words)


def pairs(x: Tensor, words: int) -> bool:
    """Whether x, of any shape, goes in pairs of words, cut into so many."""
    return words % 2 == 0 and x.nbytes % (2 * WORD_BYTES) == 0 and x.data_ptr() % (2 * WORD_BYTES) == 0


def rank_sum(x: Tensor, box: Mailbox, *, paired: bool = False) -> Tensor:
    """x becomes its sum over the ranks, bit by bit the same on all of them: float32 sums in the order of ranks, rounded once.

    x: any shape, contiguous, a whole number of words, as `sums` says. paired: in stores of 16 bytes where `pairs` lets it, to the ranks
    behind this one first.

    Sends (size - 1) * x.nbytes and receives as much, at once: for small x what it takes is one way over the link.
    """
    assert sums(x, box)
    words = x.numel() * x.element_size() // WORD_BYTES
    _launch(x, None, None, box, -(-words // CHUNK_WORDS), min(CHUNK_WORDS, words), words, paired)
    return x


def rank_sum_add(x: Tensor, residual: Tensor, box: Mailbox, *, chunk: int = FEW_WORDS, paired: bool = False) -> Tensor:
    """residual becomes residual + the sum of x over the ranks, both rounded to their type, and is returned.

    x, residual: contiguous, of one shape and type, as `adds` says. chunk: words that a program takes, a power of two. As `rank_sum_norm`
    without the norm, which the launch behind may take by itself: a row is then not one program's.
    """
    assert adds(x, box, chunk)
    assert residual.shape == x.shape
    assert residual.is_contiguous()
    words = x.numel() * x.element_size() // WORD_BYTES
    _launch(x, residual, None, box, -(-words // chunk), min(chunk, words), words, paired)
    return residual


def adds(x: Tensor, box: Mailbox, chunk: int = FEW_WORDS) -> bool:
    """Whether `rank_sum_add` takes x, in as many programs as run at once."""
    words, rest = divmod(x.numel() * x.element_size(), WORD_BYTES)
    fits = 0 < words <= box.programs * chunk and chunk <= box.room
    return x.dtype in DTYPES and not rest and x.is_contiguous() and fits


def rank_sum_norm(x: Tensor, residual: Tensor, norm: NormWeights, box: Mailbox, *, paired: bool = False) -> Tensor:
    """residual becomes residual + the sum of x over the ranks, both rounded to their type; returns the norm of that, where x was.

    x, residual: (tokens, hidden), contiguous, of one type, as `sums_rows` says. All ranks end with the same bits. Sends what `rank_sum`
    does; reads and writes the residual beside it.
    """
    assert sums_rows(x, box)
    assert residual.shape == x.shape
    assert residual.is_contiguous()
    words = x.shape[1] * x.element_size() // WORD_BYTES
    _launch(x, residual, norm, box, x.shape[0], words, x.shape[0] * words, paired)
    return x


def _launch(
    x: Tensor, residual: Tensor | None, norm: NormWeights | None, box: Mailbox, rows: int, words: int, total: int, paired: bool
) -> None:
    members = power_of_two(box.size)
    weight = None if norm is None else norm.weight
    bias = None if norm is None else norm.bias
    _rank_sum.launch(
        (min(rows, box.programs),), x, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias,
        box.words, box.addresses, box.uses, 0.0 if norm is None else norm.epsilon, rows, total, box.room, box.rank, words=words,
        width=width(words), size=box.size, members=members, added=residual is not None and norm is None,
        normed=None if norm is None else norm.kind, weighted=weight is not None,
        biased=bias is not None, paired=paired and pairs(x, words), relaxed=capability(x.device) >= (7, 0),
        num_warps=warps(words, members), **box.launch,
    )  # fmt: skip


@kernel("rows", "total", "rank")
def _rank_sum(
    x: Any, residual: Any, weight: Any, bias: Any, mine: Any, boxes: Any, uses: Any, epsilon: Any, rows: Any, total: Any, room: Any,
    rank: Any, words: constexpr, width: constexpr, size: constexpr, members: constexpr, added: constexpr, normed: constexpr,
    weighted: constexpr, biased: constexpr, paired: constexpr, relaxed: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Some rows: all are sent before the first is waited for. Every rank gives a row to the same program.

    Programs wait for the same program of other ranks alone, and all of them run at once: none waits for one that has yet to begin.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    each: tl.constexpr = 64 // dtype.primitive_bitwidth
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    program, programs = tl.program_id(0), tl.num_programs(0)
    word = tl.arange(0, width)
    i = tl.arange(0, width * each)
    inside = i < words * each
    # What no launch writes is read before the one ahead has ended.
    if weighted:
        factor = tl.load(weight + i, mask=inside, other=0).to(tl.float32)
    if biased:
        shift = tl.load(bias + i, mask=inside, other=0).to(tl.float32)
    if early:
        tl.extra.cuda.gdc_wait()
    # Two words end together where they go together: the compiler then knows that it may read and write both at once.
    ends = word // 2 * 2 if paired else word
    numbers_end = i // (2 * each) * (2 * each) if paired else i
    use = tl.load(uses + program)
    box = (program * 2 + use % 2) * size * room
    base = 0
    for row in range(program, rows, programs):
        real = (word < words) & (row * words + ends < total)
        own = tl.load(x.to(tl.pointer_type(tl.int64)) + row * words + word, mask=real, other=0)
        if paired:
            two = tl.arange(0, width // 2) * 2
            both = (two < words) & (row * words + two < total)
            even, odd = tl.split(tl.reshape(own, [width // 2, 2]))
            for step in tl.static_range(size):
                post_pairs(tl.load(boxes + (rank + 1 + step) % size), box + rank * room + base + two, even, odd, both, relaxed)
        else:
            for peer in tl.static_range(size):
                post(tl.load(boxes + peer), box + rank * room + base + word, own, real, relaxed)
        base += words
    source = tl.arange(0, members)
    base = 0
    for row in range(program, rows, programs):
        at = row * (words * each) + i
        filled = inside & (row * (words * each) + numbers_end < total * each)
        if added or normed is not None:
            before = tl.load(residual + at, mask=filled, other=0).to(tl.float32)
        real = ((word < words) & (row * words + ends < total))[:, None] & (source < size)[None, :]
        # Zeros with a sign change no sum.
        blank: tl.constexpr = -0x7FFFFFFF80000000 if each == 2 else -0x7FFF7FFF7FFF8000
        came = collect(mine + box + source[None, :] * room + base + word[:, None], real, blank)
        base += words
        # One thread has a place of all ranks: they are added in their order.
        value = tl.reshape(tl.sum(numbers(came, dtype), 1), [width * each]).to(dtype)
        if added or normed is not None:
            stream = (before + value.to(tl.float32)).to(dtype)
            tl.store(residual + at, stream, mask=filled)
        if normed is None:
            if not added:
                tl.store(x + at, value, mask=filled)
        else:
            value = standardised(stream.to(tl.float32), inside, words * each, epsilon, normed == "layer")
            if weighted:
                value = value * factor
            if biased:
                value = value + shift
            tl.store(x + at, value, mask=filled)
    tl.store(uses + program, use + 1)
