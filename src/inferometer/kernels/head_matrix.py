"""The head's matrix, plain or in 8 bits: one way to launch its product with few rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import Peaks
from inferometer.kernels.quant_choice import quant_launch_for
from inferometer.kernels.quant_launch import quant_tiling
from inferometer.kernels.quant_linear import quant_linear_torch, quant_linear_triton, quant_peaks
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny import skinny_peaks, skinny_triton, standard
from inferometer.kernels.skinny_choice import Launches, launch_for
from inferometer.kernels.skinny_launch import Tiling

Matrix = Tensor | QuantWeight
"""(tokens, inputs), a scale for each token where it is in 8 bits."""


def head_launch_for(x: Tensor, matrix: Matrix, launches: Launches) -> Tiling | None:
    """How the kernel of few rows is launched for x (rows, inputs); None where it does not serve. Reads no device."""
    return launch_for(x, matrix, launches) if isinstance(matrix, Tensor) else quant_launch_for(x, matrix, launches)


def head_product_torch(x: Tensor, matrix: Matrix) -> Tensor:
    """The reference: x matrix^T, (rows, tokens)."""
    return functional.linear(x, matrix) if isinstance(matrix, Tensor) else quant_linear_torch(x, matrix)


def head_product(x: Tensor, matrix: Matrix, launch: Tiling | None, norm: NormWeights | None = None, out: Tensor | None = None) -> Tensor:
    """x matrix^T, (rows, tokens), in `out` if that is given. launch: the table's if None. norm: rows are normed first.

    That is in the same launch where it holds whole rows, or in one that readies them; else in one of its own.
    """
    chosen = launch or standard_launch(x, matrix)
    x, norm = _unnormed(x, norm, chosen)
    if isinstance(matrix, Tensor):
        return skinny_triton(x, matrix, norm=norm, launch=chosen, out=out)
    return quant_linear_triton(x, matrix, norm=norm, launch=chosen, out=out)


def head_peaks(x: Tensor, matrix: Matrix, launch: Tiling | None, norm: NormWeights | None = None) -> Peaks:
    """The peaks of that product, of x (rows, inputs) of up to MOST_ROWS rows, which is not in memory then."""
    chosen = launch or standard_launch(x, matrix)
    x, norm = _unnormed(x, norm, chosen)
    return skinny_peaks(x, matrix, chosen, norm) if isinstance(matrix, Tensor) else quant_peaks(x, matrix, chosen, norm)


def standard_launch(x: Tensor, matrix: Matrix) -> Tiling:
    """What the table says of x (rows, inputs). Raises ValueError where no launch serves."""
    if isinstance(matrix, Tensor):
        return standard(x.shape[0], matrix, x.dtype)
    found = quant_tiling(x.shape[0], matrix)
    if found is None:
        raise ValueError(f"no launch serves rows of {matrix.inputs} inputs in {matrix.kind}")
    return found


def _unnormed(x: Tensor, norm: NormWeights | None, launch: Tiling) -> tuple[Tensor, NormWeights | None]:
    """The rows, and the norm that the launch sees to."""
    return (x, norm) if norm is None or launch.whole or launch.readied else (norm.of(x), None)
