"""What follows a matrix product in the same launch."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.activation import activate
from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def finish(
    value: Any, bias: Any, residual: Any, real: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """What follows the product, rounded after each step as separate operations would. bias, residual: addresses like `value`."""
    if biased:
        value += tl.load(bias, mask=real, other=0).to(tl.float32)
    value = value.to(dtype)
    if activation is not None:
        value = activate(value.to(tl.float32), activation, dtype).to(dtype)
    if added:
        value = (tl.load(residual, mask=real, other=0).to(tl.float32) + value.to(tl.float32)).to(dtype)
    return value
