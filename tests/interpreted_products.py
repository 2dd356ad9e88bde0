"""Products of Triton's interpreter whose bits are those of their rows and columns alone, as they are on a card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import DTypeLike, NDArray


def added_in_order(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What the function returns where products are added up in the order of their inputs.

    The interpreter's are numpy's, whose library adds a row up in an order that depends on where the row stands (on processors without
    AVX-512 groups of six, and the rest another way).
    """
    with patch.object(np, "matmul", _matmul):
        return function(*arguments, **named)


def _matmul(left: NDArray[Any], right: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    left, right = left.astype(dtype), right.astype(dtype)
    total = np.zeros((*left.shape[:-1], right.shape[-1]), dtype)
    for each in range(left.shape[-1]):
        total += left[..., each, None] * right[..., each, None, :]
    return total
