"""Linear maps whose weight is in few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.arrivals import MOST_ARRIVALS, arrivals
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import Peaks
from inferometer.kernels.quant_bytes import quant_bytes_product, split_rows
from inferometer.kernels.quant_few import quant_few_product
from inferometer.kernels.quant_groups import order_rows, quant_groups_product
from inferometer.kernels.quant_launch import WORD_INPUTS, in_groups, quant_tiling, words_of
from inferometer.kernels.quant_rows import quant_rows_product
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny_choice import DTYPES
from inferometer.kernels.skinny_launch import Tiling, members
from inferometer.kernels.support import FP8_CONVERSION, capability, power_of_two, processors, wide
from inferometer.model.spec import Activation

FEWEST_ROUNDED = 4
"""Rows up to which activations are as they are whatever a weight's `activations` say: the weight alone counts there."""


def quant_linear_torch(
    x: Tensor, weight: QuantWeight, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """The reference: activation(x weight^T + bias) + residual, rounded to the type of x after each step. x is taken as it is.

    x: (rows, inputs); bias: (outputs,); residual: (rows, outputs). Returns (rows, outputs). The matrix is made anew, in the type of x.
    """
    return finish_torch(functional.linear(x, weight.dequantised(x.dtype), bias), activation, residual)


def quant_linear_triton(
    x: Tensor,
    weight: QuantWeight,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    norm: NormWeights | None = None,
    launch: Tiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The same of few rows, in one launch.

    x and residual with a contiguous last dimension. launch: instead of the table's first. norm: x is normed first (and rounded as a launch
    of its own would, unless the launch holds whole rows); only where it holds them or has them readied, and the weight's columns are in the
    order of the inputs. out: where the result goes, (rows, outputs) with a contiguous last dimension.

    Moves the bytes of the weight once, and rows * (inputs + outputs) elements of x and the result (as many again of a residual). x is
    rounded as the weight's `activations` say by launches in bytes of more than FEWEST_ROUNDED rows alone: of fewer that buys nothing.
    Launches that hold whole rows take it in fixed point, for int8 and int4 (see `fixed_point`), and sums in integers for 16 or 32 inputs,
    then in float32; e4m3 is multiplied in float32. Others widen the weight, int4 to numbers that are rounded to the type of x, take rows in
    bytes (see `eight_bits`), or multiply nibbles as whole numbers. Sums are taken in an order that depends on the launch alone.
    Raises ValueError where rows of the weight are no whole words of 32 bits: those are for `widened`.
    """
    (rows, inputs), outputs = x.shape, weight.outputs
    assert inputs == weight.inputs
    if out is None:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    assert out.stride(1) == 1
    if rows == 0 or outputs == 0:
        return out
    if weight.order is not None:
        assert norm is None
        x = x.index_select(1, weight.order)
    added = out if residual is None else residual
    assert added.stride(1) == 1
    options = {"biased": bias is not None, "added": residual is not None, "activation": activation}
    chosen = launch or quant_tiling(rows, weight)
    if chosen is None:
        raise ValueError(f"no launch serves rows of {inputs} inputs in {weight.kind}")
    _product(x, weight, x if bias is None else bias, added, out, None, chosen, norm, options)
    return out


def quant_linear_joined(parts: HeadParts, weight: QuantWeight, bias: Tensor | None, residual: Tensor, launch: Tiling) -> Tensor:
    """The same of one row of attention that is still in parts, which every program joins. launch: one that holds whole rows.

    residual: (1, outputs), contiguous. Heads and their size are powers of two; the weight's columns are in the order of the inputs.
    """
    assert launch.whole
    assert parts.rows == 1
    assert weight.order is None
    assert residual.is_contiguous()
    out = torch.empty_like(residual)
    options = {"biased": bias is not None, "added": True, "activation": None}
    _product(parts.partial[:, 0].flatten(1), weight, out if bias is None else bias, residual, out, None, launch, None, options, parts)
    return out


def quant_peaks(x: Tensor, weight: QuantWeight, launch: Tiling, norm: NormWeights | None = None) -> Peaks:
    """As `skinny_peaks`, of x (rows, inputs) and a weight in 8 bits without an order. norm: as in `quant_linear_triton`."""
    assert weight.group is None
    each = launch.span(weight.outputs, processors(x.device)) if launch.whole else launch.outputs
    peaks = Peaks.of(x.shape[0], -(-weight.outputs // each), x.device)
    _product(x, weight, x, x, x, peaks, launch, norm, {"biased": False, "added": False, "activation": None})
    return peaks


def _product(
    x: Tensor,
    weight: QuantWeight,
    bias: Tensor,
    added: Tensor,
    out: Tensor,
    peaks: Peaks | None,
    chosen: Tiling,
    norm: NormWeights | None,
    options: dict[str, Any],
    parted: HeadParts | None = None,
) -> None:
    """Launches the kernel for so many rows, which writes either `out` or `peaks`."""
    (rows, inputs), outputs = x.shape, weight.outputs
    assert x.stride(1) == 1
    tiles = -(-outputs // chosen.outputs)
    device = x.device
    early = chosen.early and capability(device) >= (9, 0)
    options = options | {
        "tile": chosen.outputs, "kind": weight.kind, "group": weight.group, "zeroed": weight.zero is not None,
        "early": early, "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    if early:
        options["launch_pdl"] = True
    marks = (out, out, out) if peaks is None else (peaks.tops, peaks.ids, peaks.sums)
    zero = weight.scale if weight.zero is None else weight.zero
    if chosen.whole:
        span = chosen.span(outputs, processors(device))
        gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
        joined = {"parts": 0, "keys": 0, "head_size": 0}
        if parted is not None:
            joined = {"parts": parted.parts, "keys": parted.keys, "head_size": parted.head_size}
        quant_rows_product.launch(
            (-(-outputs // span),), x, words_of(weight), weight.scale, zero, bias, added, out, *marks, x if gamma is None else gamma,
            x if beta is None else beta, x if parted is None else parted.mass, x if parted is None else parted.contexts,
            0.0 if norm is None else norm.epsilon, rows, outputs, span, x.stride(0), added.stride(0), out.stride(0), inputs=inputs,
            width=chosen.block // WORD_INPUTS[weight.kind], members=power_of_two(rows),
            normed=None if norm is None else norm.kind, weighted=gamma is not None, shifted=beta is not None,
            assembled=capability(device) >= (FP8_CONVERSION if weight.kind == "fp8" else (6, 1)), stages=chosen.stages,
            peaked=peaks is not None, **joined, **options,
        )  # fmt: skip
        return
    assert norm is None or chosen.readied
    parts = chosen.parts(outputs, inputs, processors(device)) if tiles <= MOST_ARRIVALS else 1
    padded = members(rows)
    partial, arrived = out, out
    if parts > 1:
        partial = torch.empty((tiles, parts, chosen.outputs, padded), dtype=torch.float32, device=device)
        arrived = arrivals(device)
    groups = 1 if weight.group is None else weight.scale.shape[1]
    assembled = capability(device) >= (8, 0) and x.dtype != torch.float32
    words = words_of(weight)
    # So many registers that as many programs as were asked for run on a processor at a time.
    options |= {"maxnreg": min(255, 65536 // (32 * chosen.warps * max(1, chosen.programs)) // 8 * 8)}
    if chosen.in_bytes or chosen.readied:
        width = -(-inputs // chosen.block) * chosen.block
        norming, readying = _readying(x, norm, padded, early=early)
    if chosen.in_bytes:
        del options["group"], options["zeroed"]
        options["assembled"] = capability(device) >= (9, 0)
        numbers = numbers_of(weight, x.dtype, rows)
        given, worths, x_row = x, weight.scale, x.stride(0)
        if chosen.readied:
            given = torch.empty((numbers, padded, width), dtype=weight.data.dtype, device=device)
            worths = torch.empty((width // chosen.block, padded), dtype=torch.float32, device=device)
            split_rows.launch(
                (padded, width // chosen.block), x, given, worths, *norming, rows, inputs, width, x_row, kind=weight.kind,
                numbers=numbers, block=chosen.block, assembled=options["assembled"], **readying,
            )  # fmt: skip
        quant_bytes_product.launch(
            (tiles, parts), given, weight.data, worths, weight.scale, bias, added, out, *marks, partial, arrived, rows, outputs, inputs,
            width, x_row, added.stride(0), out.stride(0), numbers=numbers, members=padded, parts=parts, block=chosen.block,
            stages=chosen.stages, even=inputs % chosen.block == 0, readied=chosen.readied, peaked=peaks is not None, **options,
        )  # fmt: skip
        return
    neighbours = 2 if _grouped_warps(chosen, device) else 4
    if chosen.readied:
        assert weight.group is not None
        assert peaks is None
        assert in_groups(weight)
        ordered = torch.empty((padded, width), dtype=x.dtype, device=device)
        sums = torch.empty((width // weight.group, padded), dtype=torch.float32, device=device)
        order_rows.launch(
            (padded, width // chosen.block), x, ordered, sums, *norming, rows, inputs, width, x.stride(0), chunk=chosen.block,
            group=weight.group, neighbours=neighbours, **readying,
        )  # fmt: skip
        del options["kind"]
        # Groups of an iteration are then four, all there, and begin at 8 bytes.
        together = chosen.block == 4 * weight.group and inputs % chosen.block == 0 and weight.scale.dtype in DTYPES
        quant_groups_product.launch(
            (tiles, parts), ordered, sums, words, weight.scale, zero, bias, added, out, partial, arrived, rows, outputs, words.shape[1],
            groups, width, added.stride(0), out.stride(0), members=padded, parts=parts, block=chosen.block, warps=chosen.warps,
            stages=chosen.stages, even=inputs % chosen.block == 0, together=together, grouped_warps=neighbours == 2,
            wide=wide(x.dtype, device), assembled=assembled, **options,
        )  # fmt: skip
        return
    # Where rows begin at 16 bytes, four words are read at a time.
    aligned = 4 if words.shape[1] % 4 == 0 else 1
    quant_few_product.launch(
        (tiles, parts), x, words, weight.scale, zero, bias, added, out, *marks, partial, arrived, rows, outputs,
        words.shape[1] // aligned, groups, x.stride(0), added.stride(0), out.stride(0), members=padded, parts=parts,
        block=chosen.block // WORD_INPUTS[weight.kind], aligned=aligned, warps=chosen.warps, neighbours=neighbours, stages=chosen.stages,
        even=inputs % chosen.block == 0, peaked=peaks is not None, wide=wide(x.dtype, device), assembled=assembled, **options,
    )  # fmt: skip


def numbers_of(weight: QuantWeight, dtype: torch.dtype, rows: int) -> int:
    """How many numbers of 8 bits stand for one of x in `quant_bytes_product`: one where activations are rounded to 8 bits anyway, and the
    rows are so many that this saves something; else as many as hold its bits."""
    if weight.activations == weight.kind and rows > FEWEST_ROUNDED:
        return 1
    return 3 if weight.kind == "fp8" and dtype == torch.float16 else 2


def _readying(x: Tensor, norm: NormWeights | None, padded: int, *, early: bool) -> tuple[tuple[Tensor, Tensor, float], dict[str, Any]]:
    """What a launch that readies rows of x takes of a norm, and by name."""
    gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
    options: dict[str, Any] = {
        "members": padded, "width": power_of_two(x.shape[1]), "normed": None if norm is None else norm.kind, "weighted": gamma is not None,
        "shifted": beta is not None, "early": early, "num_warps": 1 if norm is None else 4,
    }  # fmt: skip
    if early:
        options["launch_pdl"] = True
    return (x if gamma is None else gamma, x if beta is None else beta, 0.0 if norm is None else norm.epsilon), options


def _grouped_warps(chosen: Tiling, device: torch.device) -> bool:
    """Whether the compiler takes Hopper's matrix instructions, which four warps give together: those hold their inputs in another way."""
    return chosen.warps % 4 == 0 and chosen.outputs >= 64 and (9, 0) <= capability(device) < (10, 0)
