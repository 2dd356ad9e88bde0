"""What follows a matrix product in the same launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS, activate
from inferometer.kernels.arrivals import last_to_arrive
from inferometer.kernels.peaks import peak
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.model.spec import Activation


def finish_torch(out: Tensor, activation: Activation | None, residual: Tensor | None) -> Tensor:
    """activation(out) + residual: torch's operations, one after another."""
    if activation is not None:
        out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out


def linear_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """The reference of launches that end so: x (rows, inputs), weight (outputs, inputs), residual and result (rows, outputs)."""
    return finish_torch(functional.linear(x, weight, bias), activation, residual)


@kernel()
def finish(
    value: Any, bias: Any, residual: Any, real: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """What follows the product, rounded after each step as separate operations would. bias, residual: addresses like `value`."""
    shift, beside = value, value
    if biased:
        shift = tl.load(bias, mask=real, other=0)
    if added:
        beside = tl.load(residual, mask=real, other=0)
    return finished(value, shift, beside, activation, biased, added, dtype)


@kernel()
def finished(
    value: Any, bias: Any, residual: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """As `finish`, of numbers that have been loaded."""
    if biased:
        value += bias.to(tl.float32)
    value = value.to(dtype)
    if activation is not None:
        value = activate(value.to(tl.float32), activation, dtype).to(dtype)
    if added:
        value = (residual.to(tl.float32) + value.to(tl.float32)).to(dtype)
    return value


@kernel()
def beside_product(
    residual: Any, residual_row: Any, rows: Any, outputs: Any, column: Any, members: constexpr, tile: constexpr, added: constexpr,
) -> Any:  # fmt: skip
    """The residual (members, tile) of a tile of outputs, where there is one: loaded ahead of what it is added to."""
    m = tl.arange(0, members)[:, None]
    n = column * tile + tl.arange(0, tile)[None, :]
    beside = 0.0
    if added:
        beside = tl.load(residual + m * residual_row + n, mask=(m < rows) & (n < outputs), other=0)
    return beside


@kernel()
def put_product(
    products: Any, shift: Any, beside: Any, out: Any, tops: Any, ids: Any, sums: Any, partial: Any, arrived: Any, rows: Any, outputs: Any,
    out_row: Any, column: Any, part: Any, members: constexpr, tile: constexpr, parts: constexpr, activation: constexpr, biased: constexpr,
    added: constexpr, peaked: constexpr,
) -> None:  # fmt: skip
    """Finishes float32 (members, tile), of which rows and outputs are real up to `rows` and `outputs`, and stores it, or its peaks alone.

    shift: the bias (1, tile), loaded; beside: the residual (members, tile), loaded.
    Where the inputs are cut into parts, the program that is the last to arrive at a tile adds them up, in their order.
    """
    m = tl.arange(0, members)
    n = column * tile + tl.arange(0, tile)[None, :]
    real = (m < rows)[:, None] & (n < outputs)
    last = True
    if parts > 1:
        here = partial + column.to(tl.int64) * (parts * tile * members) + m[:, None] * tile + tl.arange(0, tile)[None, :]
        wanted = tl.broadcast_to((m < rows)[:, None], (members, tile))
        tl.store(here + part * (tile * members), products, mask=wanted)
        last = last_to_arrive(arrived + column, parts)
    if last:
        if parts > 1:
            products = tl.zeros([members, tile], tl.float32)
            for other in tl.static_range(parts):
                # Not from the L1 cache: other processors have written them.
                products += tl.load(here + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
        rounded = finished(products, shift, beside, activation, biased, added, out.dtype.element_ty)
        if peaked:
            peak(rounded, n, real, m * tl.num_programs(0) + column, m < rows, tops, ids, sums)
        else:
            tl.store(out + m[:, None] * out_row + n, rounded, mask=real)
