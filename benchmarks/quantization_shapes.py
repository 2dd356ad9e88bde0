"""Products of many rows and a weight in few bits: how fast they are, and whether they are right.

    python benchmarks/quantization_shapes.py [--rows 16384] [--maps qkv,output,up,down]

opt-6.7b's maps; every result is compared with float32 first. Exits with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from gpu_clock import begin, milliseconds
from quantization_launches import MAPS, off, quantised
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.eight_bit_matmul import blocks, eight_bit_matmul
from inferometer.kernels.quant_choice import multiplies, quant_many
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.rounded_rows import Rounded, round_rows


@dataclass
class Many:
    """Products of many rows with one map of a layer."""

    x: Tensor
    bias: Tensor
    outputs: int
    wrong: int = 0

    def told(self, label: str, run: Callable[[], Tensor], want: Tensor | None = None, most: float = 0.0) -> None:
        """Checked by the first rows, timed and printed."""
        try:
            error = 0.0 if want is None else off(run()[: len(want)], want)
            ms = milliseconds([run], 60)
        except Exception as problem:
            if isinstance(problem, torch.AcceleratorError):
                raise
            print(f"    {label:48} {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)
            return
        self.wrong += error > most
        says = "" if want is None else f"  WRONG BY {error:.1e}" if error > most else f"  off {error:.1e}"
        rate = 2 * self.x.numel() * self.outputs / ms / 1e9
        print(f"    {label:48} {ms:7.3f} ms {rate:7.0f} TFLOP/s{says}", flush=True)

    def want(self, weight: QuantWeight) -> Tensor:
        return functional.linear(self.x[:256].float(), weight.dequantised(), self.bias.float())

    def through_wide(self, weight: QuantWeight) -> Tensor:
        return functional.linear(self.x, widened(weight, torch.bfloat16), self.bias)

    def widened_formats(self) -> None:
        for part in ("int4-g64", "int8"):
            weight = quantised(part, self.outputs, self.x.shape[1])
            self.told(f"{part} widened alone", partial(widened, weight, torch.bfloat16))
            self.told(f"{part} widened, then bf16", partial(self.through_wide, weight), self.want(weight), 1e-2)

    def eight_bit_formats(self) -> None:
        for part in ("w8a8", "fp8"):
            weight = quantised(part, self.outputs, self.x.shape[1])
            if not multiplies(weight.activations, self.x.device) or weight.activations == "wide":
                continue
            want, (levels, scale) = self.want(weight), round_rows(self.x, weight.activations)
            self.told(f"{part} rows rounded alone", partial(_levels, self.x, weight.activations))
            self.told(f"{part} all", partial(quant_many, self.x, weight, self.bias), want, 6e-2)
            for chosen in blocks(self.x.device):
                label = f"{part} {chosen.rows} x {chosen.outputs} x {chosen.inputs}, {chosen.warps} warps, {chosen.stages} stages"
                self.told(label, partial(eight_bit_matmul, levels, scale, weight, torch.bfloat16, self.bias, chosen=chosen), want, 6e-2)
            if part == "w8a8":
                self.told("torch._int_mm, unscaled", partial(torch._int_mm, levels, weight.data.t()))
                continue
            for fast in (True, False):
                scaled = partial(
                    torch._scaled_mm, levels, weight.data.t(), scale[:, None], weight.scale[None, :], bias=self.bias,
                    out_dtype=torch.bfloat16, use_fast_accum=fast,
                )  # fmt: skip
                self.told(f"torch._scaled_mm, fast accumulation {fast}", scaled, want, 6e-2)


def _levels(x: Tensor, kind: Rounded) -> Tensor:
    return round_rows(x, kind)[0]


@torch.inference_mode()
def shapes(rows: int, maps: list[str]) -> int:
    begin(torch.bfloat16)
    wrong = 0
    for name in maps:
        outputs, inputs = MAPS[name]
        print(f"{name} {outputs} x {inputs}, {rows} rows")
        sizes = (rows, inputs), (outputs,), (outputs, inputs)
        x, bias, plain = (torch.randn(size, dtype=torch.bfloat16, device="cuda") for size in sizes)
        many = Many(x, bias, outputs)
        many.told("bf16", partial(functional.linear, x, plain, bias))
        many.widened_formats()
        many.eight_bit_formats()
        wrong += many.wrong
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384, help="(%(default)s)")
    parser.add_argument("--maps", default="qkv,output,up,down", help="which maps of a layer (%(default)s)")
    options = parser.parse_args()
    return shapes(options.rows, options.maps.split(","))


if __name__ == "__main__":
    sys.exit(main())
