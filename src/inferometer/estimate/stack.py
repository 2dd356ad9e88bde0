"""The software stacks that an estimate can be for: what each adds to the work that must be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

from inferometer.errors import UserError
from inferometer.model.ops import OpKind
from inferometer.model.spec import Alibi, ModelSpec

LossPath = Literal["chunked", "matrices", "widened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a stack does beside the work itself.

    passes: traffic of an element-wise kind as a multiple of one fused kernel's (its inputs read and outputs written once), by kind;
    1 where absent. rms_passes, gated_passes: the same for RMS norms and gated activations.
    kernels: launches an op of the kind takes, by kind; 1 where absent. copies: how often attention's queries, keys, values and
    result are written anew for layout's sake. repeats_keys: keys of grouped heads are copied to every query head in prefill.
    fused_alibi: attention with ALiBi stays one kernel; else scores go through memory.
    dispatch_s: what the host spends on a launch, interpreter included. step_s: on a step besides (scheduling, sampling, reading tokens).
    seam_s: for a stack whose decode steps on a GPU are recorded graphs, scheduled while the one before runs: the time between two of
    them in which the GPU stands still; the host costs nothing else. None for one that launches every kernel.
    counts_host: whether the stack's published times include waiting for the host.
    loss: "matrices", logits and their log-probabilities of all positions at once; "widened", the same from a float32 copy of the
    logits; "chunked", a slice at a time.
    page_size: tokens of a page of the KV cache, which grows page by page; None for a cache that is one piece a layer and grows by copies.
    sweep_tokens: most tokens of one pass through the layers while it generates, None for no limit.
    """

    name: str
    about: str
    passes: Mapping[OpKind, float]
    rms_passes: float
    gated_passes: float
    kernels: Mapping[OpKind, int]
    rms_kernels: int
    copies: float
    repeats_keys: bool
    fused_alibi: bool
    dispatch_s: float
    step_s: float
    seam_s: float | None
    counts_host: bool
    loss: LossPath
    page_size: int | None
    sweep_tokens: int | None

    def fuses_attention(self, spec: ModelSpec) -> bool:
        """Whether scores stay on chip."""
        return self.fused_alibi or not isinstance(spec.positions, Alibi)


# Passes are counted from the operations that each stack runs, one kernel each. transformers' RMS norm widens to float32 and takes six
# kernels: 36 bytes an element against 4. Its rotation takes five kernels a tensor: 20 bytes against 4. A gated activation is two kernels.
# This product's rotation is three: a roll, a product, a fused multiply-add, 16 bytes against 4.
# A launch from eager torch costs the host some 5 to 10 us in C++ (calibration measures it); with the Python around it about 25 here:
# opt-1.3b's 290 launches of a decode step took 7.2 to 8.9 ms, bloomz-7b1's 360 took 8.8 to 11 on an H100's host (benchmarks/foundation.sh).
# Recorded, doc004-1.3b's steps have 6 to 7 us between them (benchmarks/engine.py).
# transformers launches more, about as dearly: Llama-7B's 32 layers of some 30 launches decode at 23-28 ms a token on any large GPU, and
# document 004's BLOOM layers, on a host of 2023, take 0.8-1.0 ms.
_NATIVE = Stack(
    name="native",
    about="this product's engine",
    passes=MappingProxyType({"rotary": 4.0}),
    rms_passes=1.0,
    gated_passes=5 / 3,
    kernels=MappingProxyType({"rotary": 3, "kv_write": 1}),
    rms_kernels=1,
    copies=1.0,
    repeats_keys=True,
    fused_alibi=True,
    dispatch_s=25e-6,
    step_s=500e-6,
    seam_s=7e-6,
    counts_host=True,
    loss="chunked",
    page_size=16,
    sweep_tokens=8192,
)
_HF_EAGER = Stack(
    name="hf-eager",
    about="transformers with sdpa attention, run eagerly",
    passes=MappingProxyType({"rotary": 5.0}),
    rms_passes=9.0,
    gated_passes=5 / 3,
    kernels=MappingProxyType({"gemm": 2, "rotary": 8, "kv_write": 2, "attention": 2, "activation": 2}),
    rms_kernels=6,
    copies=2.0,
    repeats_keys=True,
    fused_alibi=False,
    dispatch_s=25e-6,
    step_s=2e-3,
    seam_s=None,
    counts_host=True,
    loss="widened",
    page_size=None,
    sweep_tokens=None,
)
_TORCH_EAGER_FORWARD = Stack(
    name="torch-eager-forward",
    about="one forward of transformers' module, as the sum of its kernels' times (document 001)",
    passes=_HF_EAGER.passes,
    rms_passes=_HF_EAGER.rms_passes,
    gated_passes=_HF_EAGER.gated_passes,
    kernels=_HF_EAGER.kernels,
    rms_kernels=_HF_EAGER.rms_kernels,
    copies=4.0,
    repeats_keys=True,
    fused_alibi=False,
    dispatch_s=_HF_EAGER.dispatch_s,
    step_s=0.0,
    seam_s=None,
    counts_host=False,
    loss="matrices",
    page_size=None,
    sweep_tokens=None,
)

STACKS: Mapping[str, Stack] = MappingProxyType({stack.name: stack for stack in (_NATIVE, _HF_EAGER, _TORCH_EAGER_FORWARD)})


def find_stack(name: str) -> Stack:
    """The stack of this name. Raises UserError with close names."""
    stack = STACKS.get(name.strip().lower())
    if stack is None:
        near = get_close_matches(name.lower(), STACKS, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(f"--stack {name} is unknown; {hint}the stacks are {', '.join(STACKS)}")
    return stack


def loss_item_bytes(stack: Stack, spec: ModelSpec, item_bytes: int) -> int:
    """Bytes of one logit in the two matrices that a loss over all positions keeps.

    transformers of document 001's time widens Llama models' to float32 and OPT's not, as the peak memory there shows. Of today's, 5.17
    and later, all are: opt-1.3b in float16 holds 10 bytes a logit at its peak (benchmarks/foundation.sh on an H100).
    """
    widens = stack.loss == "widened" or (stack.loss == "matrices" and spec.family == "llama")
    return 4 if widens else item_bytes
