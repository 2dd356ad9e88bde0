"""bitsandbytes' LLM.int8 in place of a transformers model's linear maps, as from_pretrained puts it there."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any, Final

import torch
from torch import nn

# Activations beyond this are multiplied in 16 bits: the paper's and the package's own default.
_THRESHOLD: Final = 6.0


@torch.no_grad()
def quantize_int8(model: Any) -> str:
    """Turns every linear map but the head into eight bits, one after another; returns what did it, for the record.

    A map's 16-bit weights go when its eight bits are there, so that the peak is that of loading in 16 bits.
    Raises ImportError without the package.
    """
    library: Any = import_module("bitsandbytes")
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if module is head or not _is_linear(module):
            continue
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, _quantized(library, module))
    return f"bitsandbytes {metadata.version('bitsandbytes')} LLM.int8"


def _is_linear(module: nn.Module) -> bool:
    # GPT-2's linear maps are a class of transformers' own, with the matrix lying the other way.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _quantized(library: Any, module: Any) -> nn.Module:
    weight = module.weight.data if isinstance(module, nn.Linear) else module.weight.data.T.contiguous()
    rows, columns = weight.shape
    made: Any = library.nn.Linear8bitLt(
        columns, rows, bias=module.bias is not None, has_fp16_weights=False, threshold=_THRESHOLD, device="meta"
    )
    made.weight = library.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
    made.bias = module.bias
    # The move to the device is what quantizes.
    made.weight = made.weight.to(weight.device)
    module.weight = None
    linear: nn.Module = made
    return linear
