"""Linear maps whose every row has the same bits whatever rows are beside it, and however many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.cancelling import cancelling, same_bits
from inferometer.kernels.finish import finish, linear_torch
from inferometer.kernels.support import capability, constexpr, early, kernel, processors, tl, usable, wait_for_inputs, wide
from inferometer.model.spec import Activation

UNIT = 128
"""Inputs: parts of a sum begin at multiples of it, and the blocks of every form divide it."""
MOST_PARTS = 16
MOST_TILES = 1 << 16
"""Tiles of outputs whose sums may be cut into parts; beyond, they fill every card by themselves."""


@dataclass(frozen=True, slots=True)
class Form:
    """A launch for up to `rows` rows at a time, or for any number of strips of as many where the parts of a sum are not apart.

    outputs: of a program. block: inputs an iteration. warps: a program. stages: iterations whose loads overlap. apart: each part of a
    sum has a program of its own, so that few rows fill a card too; else one program takes them one after another.

    Every form takes the same sums in the same order: the products of a part by ascending inputs, then the parts by ascending inputs.
    Whether a card's matrix instructions agree on that for tiles of different sizes, `agreeing_forms` finds out.
    """

    rows: int
    outputs: int
    block: int
    warps: int
    stages: int
    apart: bool


# 64 outputs are the rows of Hopper's matrix instructions, in every form: the weight is their left side, and reads only once per form.
_TENSOR_CORES = (Form(16, 64, 128, 4, 4, True), Form(128, 64, 64, 4, 4, True), Form(128, 128, 64, 8, 4, False))
# 99 KiB of shared memory a block: capabilities 8.6, 8.9 and 12.
_SMALLER = (Form(16, 64, 128, 4, 3, True), Form(128, 64, 64, 4, 3, True), Form(128, 128, 64, 8, 2, False))
# Products without tensor cores take many registers.
_PLAIN = (Form(16, 64, 32, 4, 2, True), Form(64, 64, 32, 8, 2, False))


def forms(dtype: torch.dtype, device: torch.device) -> tuple[Form, ...]:
    """The forms for a device, few rows first."""
    if dtype == torch.float32 or capability(device) < (8, 0):
        return _PLAIN
    return _TENSOR_CORES if capability(device) in ((8, 0), (9, 0), (10, 0)) else _SMALLER


def parts_of(outputs: int, inputs: int, processors: int) -> int:
    """Into how many parts each sum is cut: what fills a card of so many processors where rows are few. Rows do not enter."""
    tiles = -(-outputs // 64)
    if tiles > MOST_TILES:
        return 1
    most = max(1, min(2 * processors // tiles, _units(inputs) // 2, MOST_PARTS))
    return 1 << (most.bit_length() - 1)


def _units(inputs: int) -> int:
    return -(-inputs // UNIT)


def invariant_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias) + residual, each rounded to the type of x as separate operations would.

    x: (rows, inputs); residual: (rows, outputs), contiguous. weight: (outputs, inputs), contiguous. bias: (outputs,). All of one type.
    Returns (rows, outputs), contiguous. On a GPU a row's bits depend on that row alone, as long as the device's forms agree.

    Moves outputs * inputs elements of the weight once (beyond 128 rows as often as the L2 cache does not hold it between their
    strips), and rows * (inputs + outputs) of x and the result. Launches on one device must follow each other, as they do in a stream.
    """
    if usable(x.device):
        return invariant_linear_triton(x, weight, bias, activation=activation, residual=residual)
    return linear_torch(x, weight, bias, activation=activation, residual=residual)


def invariant_linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    among: tuple[Form, ...] | None = None,
    parts: int | None = None,
) -> Tensor:
    """The kernel. among: the forms to choose from, few rows first. parts: instead of `parts_of`."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0 or outputs == 0:
        return out
    assert weight.is_contiguous()
    assert residual is None or residual.is_contiguous()
    x = x.contiguous()
    if x.data_ptr() % 16:  # another address would be another kernel
        x = x.clone()
    choice = among or forms(x.dtype, x.device)
    form = next((form for form in choice if rows <= form.rows), choice[-1])
    cut = parts_of(outputs, inputs, processors(x.device)) if parts is None else parts
    step = form.rows if form.apart else rows
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        _launch(x[part], weight, bias, activation, None if residual is None else residual[part], out[part], form, cut)
    return out


def agreeing_forms(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> tuple[Form, ...]:
    """The forms that give the bits of the second one, on this device and for weights of this shape.

    The second serves any number of rows well enough, if it should be alone. Tried launch by launch on sums that show their order; waits
    for the device. Raises RuntimeError if a row's place within a tile counts, which no GPU is known for.
    """
    cut = parts_of(outputs, inputs, processors(device))
    choice = forms(dtype, device)
    # As many rows as fill every place of a tile, each one of few. Of the outputs some tiles are enough: the sums are cut as for all.
    most = max(form.rows for form in choice)
    few, weight = (t.to(device) for t in cancelling(16, min(outputs, 256), inputs, dtype))
    x = few.repeat(most // 16, 1)

    def tried(form: Form) -> Tensor:
        return invariant_linear_triton(x[: form.rows], weight, among=(form,), parts=cut)

    wanted = tried(choice[1])
    if not same_bits(wanted, wanted[:16].repeat(choice[1].rows // 16, 1)):
        raise RuntimeError("matrix products on this device depend on a row's place: it cannot be deterministic")
    return tuple(form for form in choice if same_bits(tried(form), wanted[:16].repeat(form.rows // 16, 1)))


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation | None,
    residual: Tensor | None,
    out: Tensor,
    form: Form,
    parts: int,
) -> None:
    (rows, inputs), outputs = x.shape, weight.shape[0]
    tiles, strips = -(-outputs // form.outputs), -(-rows // form.rows)
    span = -(-_units(inputs) // parts) * UNIT
    apart = form.apart and parts > 1
    partial, arrived = out, out
    if apart:
        partial = torch.empty((tiles, parts, form.rows, form.outputs), dtype=torch.float32, device=x.device)
        arrived = _counters(x.device)
    _product.launch(
        (tiles, parts) if apart else (tiles * strips, 1), x, weight, x if bias is None else bias, out if residual is None else residual,
        out, partial, arrived, rows, outputs, inputs, span, members=form.rows, parts=parts,
        tile=form.outputs, block=form.block, stages=form.stages, even=inputs % form.block == 0, apart=apart, activation=activation,
        biased=bias is not None, added=residual is not None, wide=wide(x.dtype, x.device), num_warps=form.warps, num_stages=form.stages,
        **early(x.device),
    )  # fmt: skip


@lru_cache
def _counters(device: torch.device) -> Tensor:
    """int32 (MOST_TILES,), zeros between launches: how many parts of each tile have been summed up in this one."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


@kernel("rows")
def _product(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, partial: Any, arrived: Any, rows: Any, outputs: Any, inputs: Any, span: Any,
    members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, stages: constexpr, even: constexpr, apart: constexpr,
    activation: constexpr, biased: constexpr, added: constexpr, wide: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """A tile of outputs for a strip of rows. span: inputs of a part."""
    wait_for_inputs(early)
    column = tl.program_id(0)
    strip = 0
    if not apart:
        # Eight strips share what of the weight is in the L2 cache.
        columns = tl.cdiv(outputs, tile)
        strips = tl.cdiv(rows, members)
        first = column // (8 * columns) * 8
        height = tl.minimum(strips - first, 8)
        within = column - first * columns
        strip = first + within % height
        column = within // height
    n = column * tile + tl.arange(0, tile)
    m = strip * members + tl.arange(0, members)
    # Behind the last output the last one is read again: a mask would be asked for every load.
    weights = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs
    states = x + m.to(tl.int64)[None, :] * inputs
    here = (m < rows)[None, :]
    if apart:
        start = tl.program_id(1) * span
        stop = tl.minimum(start + span, inputs)
        value = tl.trans(_sum(weights, states, here, start, stop, inputs, members, tile, block, stages, even, wide))
    elif parts == 1:
        value = tl.trans(_sum(weights, states, here, 0, inputs, inputs, members, tile, block, stages, even, wide))
    else:
        total = tl.zeros([tile, members], tl.float32)
        for part in range(parts):
            start = part * span
            stop = tl.minimum(start + span, inputs)
            total += _sum(weights, states, here, start, stop, inputs, members, tile, block, stages, even, wide)
        value = tl.trans(total)
    # Outputs side by side, as the result is stored.
    n = column * tile + tl.arange(0, tile)[None, :]
    real = (m < rows)[:, None] & (n < outputs)
    last = True
    if apart:
        own = partial + column.to(tl.int64) * (parts * tile * members) + tl.arange(0, members)[:, None] * tile + tl.arange(0, tile)[None, :]
        wanted = tl.broadcast_to((m < rows)[:, None], (members, tile))
        tl.store(own + tl.program_id(1) * (tile * members), value, mask=wanted)
        # All threads have written before one says so.
        tl.debug_barrier()
        last = tl.atomic_add(arrived + column, 1, sem="acq_rel", scope="gpu") == parts - 1
    if last:
        if apart:
            tl.store(arrived + column, 0)
            value = tl.zeros([members, tile], tl.float32)
            for other in tl.static_range(parts):
                # Not from the L1 cache: other processors have written them.
                value += tl.load(own + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
        at = m.to(tl.int64)[:, None] * outputs + n
        bias_at = bias + tl.broadcast_to(n, (members, tile))
        tl.store(out + at, finish(value, bias_at, residual + at, real, activation, biased, added, out.dtype.element_ty), mask=real)


@kernel()
def _sum(
    weights: Any, states: Any, here: Any, start: Any, stop: Any, inputs: Any, members: constexpr, tile: constexpr, block: constexpr,
    stages: constexpr, even: constexpr, wide: constexpr,
) -> Any:  # fmt: skip
    """The products of the inputs from start to stop, (tile, members). here: which rows there are."""
    lane = tl.arange(0, block)
    sums = tl.zeros([tile, members], tl.float32)
    for base in tl.range(start, stop, block, num_stages=stages):
        k = base + lane
        if even:
            w = tl.load(weights + k[None, :])
            a = tl.load(states + k[:, None], mask=here, other=0)
        else:
            w = tl.load(weights + k[None, :], mask=(k < inputs)[None, :], other=0)
            a = tl.load(states + k[:, None], mask=(k < inputs)[:, None] & here, other=0)
        if wide:
            w = w.to(tl.float32)
            a = a.to(tl.float32)
        sums = tl.dot(w, a, sums, input_precision="ieee")
    return sums
