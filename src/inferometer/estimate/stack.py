"""The software stacks that an estimate can be for: what each adds to the work that must be done. The figures are in stacks.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from inferometer.errors import UserError
from inferometer.model.formats import WeightFormat, weight_format
from inferometer.model.ops import OpKind
from inferometer.model.spec import Alibi, ModelSpec

LossPath = Literal["chunked", "matrices", "widened"]
CachePath = Literal["pages", "appended", "returned", "reserved"]

EPILOGUES = ("relu", "gelu_tanh")
"""Activations that cuBLASLt applies as it writes a product's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a stack does beside the work itself.

    Constants, each a number with one meaning:
    - matmul_share, attention_share, memory_share, link_share: of the rates that a device sustains, what large matrix products, fused
      attention, kernels that only move bytes, and collectives reach. gather_share: of memory_share, what reading keys and values of
      many sequences reaches.
    - kernel_s: what a kernel takes on the device besides, start and end included. lone_share: of that, what is left in a step of one token,
      whose kernels may hold the first of what they read before the one ahead has ended. lone_reading: what a product of one row
      reaches, times memory_share.
    - launch_s, layer_s, step_s: what the host spends on a launch, on a layer besides, on a step besides (scheduling, reading tokens).
    - scheduled_s: on a recorded decode step, while the device runs the one before.
    - sequence_s, prompt_token_s: on each sequence of a step, and on each prompt token (its log-probability and text on the host).
    - replayed_s: around a recorded step with prompts: its rows of the block table, its inputs, its start, reading its tokens.
      told_s: besides, where other ranks are to run it too.
    - text_s, text_token_s: around a recorded pass over whole texts without a cache, of no more FLOPs of a layer's products than
      recorded_layer_flops, and on each of its tokens; 0 where such passes are not recorded.
    - unhidden_s, unhidden_sequence_s: on a step of a generation, and on each of its sequences, where the host is the device as well. A GPU
      runs on meanwhile.
    - decomposed_s: on a product whose outliers it looks for first (bitsandbytes), waiting for the device.
    - block_s: what a multiprocessor at an A100's clock takes on a product of one query with its keys, or values, where attention is such
      products. product_s: on one of several queries, at least.
      strided_s: on one element of a cache that is copied as it grows, where what is appended is strided: torch's kernel for that finds the
      element's place in both by six divisions of whole numbers, and each thread has one element at a time, so that neither is memory's.
      query_s: on one query of a head of keys where attention is one kernel, reading the keys meanwhile; 0 where that is not known.
    - prompt_s: what the host spends on a prompt before the device begins: queueing, scheduling, its pages. recorded_prompt_s: of a recorded
      step, which begins before the sampler's rows are made.
    - request_s: on a batch as a whole, once. turn_s: on each layer when it turns from one group of a block to the next.
    - sampler_bytes, sorting_bytes: traffic a logit of choosing a token, the likeliest or by one draw, and where top-p sorts them.
      sampler_live_bytes: what stands beside a logit meanwhile.

    Structure:
    - passes: traffic of an element-wise kind as a multiple of one fused kernel's (its inputs read and outputs written once), by kind;
      1 where absent. rms_passes, gated_passes: the same for RMS norms and gated activations. tanh_passes, tanh_kernels: passes and launches
      of the tanh form of GELU where models of a family spell it out in elementary operations, by family.
    - kernels: launches an op of the kind takes, by kind; 1 where absent, 0 where another kernel does it. rms_kernels, gated_kernels alike.
    - fused_rotation: in steps of single tokens positions are turned, and keys written, by attention's kernel.
    - normed_rows: the most rows of a step whose norms are part of the launch of the product that follows.
    - widened_rows: the most rows whose products widen a weight of fewer bits on its way to the matrix units; of more the weight is widened
      as a whole first. 0 for a stack that never does that.
    - epilogues: the matrix library applies an activation that is not gated as it writes its result.
    - copies: how often attention's queries, keys, values and result are written anew for layout's sake. repeats_keys: keys of grouped
      heads are copied to every query head in prefill. lets_go: what an op has read is freed then, not when its block ends.
    - fused_attention, fused_alibi: attention (with ALiBi) is one kernel, which keeps scores on chip; else they go through memory,
      score_bytes for each. fused_decode: steps of single tokens have a fused kernel though prompts have none. fused_head_sizes: the only
      head sizes of the fused kernels; empty for all. skips_masked: kernels skip what the causal mask hides.
    - recorded: decode steps are recorded graphs, scheduled while the one before runs: the host adds step_s, and where
      that takes longer than the device, scheduled_s decides.
      recorded_prefill: prompts too; recorded_prompts, recorded_tokens: or steps of so many prompts (recorded_prompts_alone where no
      sequence decodes) with so many tokens at most, or with recorded_most_tokens and no more FLOPs of a layer's products than
      recorded_layer_flops.
      synchronous: the host waits for the device in every layer, so that their times add up. counts_host: whether the stack's published
      times include waiting for the host.
    - ahead: nobody reads a decode step's tokens before the last one's: step_s goes by beside the device, as launches do.
      groups_apart: groups of a block run one after another through each layer; else as one batch.
    - one_shot: small sums over devices have kernels of their own. peer_sums: devices that reach each other write sums into each other's
      memory, with residual and norm in the same launch, and large ones while products run; the likeliest token is chosen without
      gathering logits.
    - prompt_logits: a prefill makes logits of all positions. log_probability_passes: how often they are read and written for
      log-probabilities.
    - loss: "matrices", logits and their log-probabilities of all positions at once; "widened", the same from a float32 copy of the
      logits; "chunked", a slice at a time.
    - cache: "pages" of page_size tokens; "appended", one piece a layer that grows by copies, which read and write it append_passes times
      in all, each step; "returned", a new one from every step, beside which the old one is held until it ends; "reserved", for the longest
      length at once. strided: by family, from how many sequences on a new token's keys, and its values, come to that copy as views of a
      wider product's result, whose rows lie apart; a family that is not named has them in one piece.
    - unties_head: a head that shares the embedding's matrix gets one of its own. score_live_bytes: of a score in 16 bits and what is
      made of it. workspace_bytes: what libraries take from the allocator whatever the batch.
    - sweep_tokens: most tokens of one pass through the layers while it generates, None for no limit.
    - formats: which format it means by a name, where that is another's here. int8_head: a head in 8 bits where the format has one; else it
      stays as it is. Neither is taken over from the stack that it is `like`.
    - verify: the command that measures it, with {model} (or its file's name, {gguf}), {batch}, {prompt}, {new},
      {dtype} and {gpus} to be filled in.
    """

    name: str
    about: str
    matmul_share: float
    attention_share: float
    memory_share: float
    link_share: float
    gather_share: float
    kernel_s: float
    lone_share: float
    lone_reading: float
    launch_s: float
    layer_s: float
    step_s: float
    scheduled_s: float
    sequence_s: float
    prompt_token_s: float
    replayed_s: float
    told_s: float
    text_s: float
    text_token_s: float
    unhidden_s: float
    unhidden_sequence_s: float
    decomposed_s: float
    block_s: float
    product_s: float
    strided_s: float
    query_s: float
    prompt_s: float
    recorded_prompt_s: float
    request_s: float
    turn_s: float
    passes: Mapping[OpKind, float]
    rms_passes: float
    gated_passes: float
    tanh_passes: Mapping[str, float]
    kernels: Mapping[OpKind, int]
    rms_kernels: int
    gated_kernels: int
    tanh_kernels: Mapping[str, int]
    fused_rotation: bool
    normed_rows: int
    widened_rows: int
    epilogues: bool
    copies: float
    repeats_keys: bool
    lets_go: bool
    fused_attention: bool
    fused_alibi: bool
    fused_head_sizes: tuple[int, ...]
    fused_decode: bool
    skips_masked: bool
    score_bytes: float
    recorded: bool
    recorded_prefill: bool
    recorded_prompts: int
    recorded_prompts_alone: int
    recorded_tokens: int
    recorded_most_tokens: int
    recorded_layer_flops: float
    ahead: bool
    groups_apart: bool
    counts_host: bool
    synchronous: bool
    one_shot: bool
    peer_sums: bool
    prompt_logits: bool
    log_probability_passes: float
    sampler_bytes: float
    sampler_live_bytes: float
    sorting_bytes: float
    loss: LossPath
    cache: CachePath
    append_passes: float
    strided: Mapping[str, Sequence[float]]
    unties_head: bool
    score_live_bytes: float
    workspace_bytes: float
    formats: Mapping[str, str]
    int8_head: bool
    verify: str
    page_size: int | None
    sweep_tokens: int | None

    def fuses_attention(self, spec: ModelSpec) -> bool:
        """Whether scores stay on chip."""
        if self.fused_head_sizes and spec.head_size not in self.fused_head_sizes:
            return False
        return self.fused_alibi if isinstance(spec.positions, Alibi) else self.fused_attention

    def writes_activated(self, spec: ModelSpec) -> bool:
        """Whether the product before an activation applies it, as it writes its result."""
        return self.epilogues and not spec.gated and spec.activation in EPILOGUES

    def spells_out(self, spec: ModelSpec) -> bool:
        """Whether the activation is elementary operations, each a launch."""
        return spec.activation == "gelu_tanh" and not spec.gated and spec.family in self.tanh_passes

    def weights(self, quantize: str, dtype: str) -> WeightFormat:
        """What it stores weights in under that name of a format. Raises UserError for an unknown one."""
        form = weight_format(self.formats.get(quantize, quantize), dtype)
        return form if self.int8_head else replace(form, head="kept")

    def with_constants(self, constants: Mapping[str, float]) -> Stack:
        """The stack with other constants. Raises KeyError for a name that is none."""
        for name in constants:
            if name not in CONSTANTS:
                raise KeyError(name)
        changes: dict[str, Any] = dict(constants)
        return replace(self, **changes) if changes else self


CONSTANTS = tuple(item.name for item in fields(Stack) if item.type == "float" and item.name.endswith(("_share", "_s", "_bytes")))


_OWN = ("formats", "int8_head", "tanh_passes", "tanh_kernels", "strided", "ahead")
"""What a stack like another does not take over from it: whose kernels its formats run in is its own, what its modules do in more
than a kernel, and whether its loop waits."""


class _Stacks(Mapping[str, Stack]):
    def __getitem__(self, name: str) -> Stack:
        return _read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_read())

    def __len__(self) -> int:
        return len(_read())


STACKS: Mapping[str, Stack] = _Stacks()
"""Every stack by name, in the file's order. The file is read on first use."""


@cache
def _read() -> Mapping[str, Stack]:
    document = tomllib.loads(files("inferometer.estimate").joinpath("stacks.toml").read_text("utf-8"))
    tables: dict[str, dict[str, Any]] = {}
    for name, values in document.items():
        base = values.get("like")
        taken = {key: value for key, value in (tables[base] if base else {}).items() if key not in _OWN}
        tables[name] = taken | {key: value for key, value in values.items() if key not in ("like", "sources")}
    return MappingProxyType({name: _stack(name, values) for name, values in tables.items()})


def _stack(name: str, values: Mapping[str, Any]) -> Stack:
    optional: dict[str, Any] = {
        "page_size": None,
        "sweep_tokens": None,
        "formats": {},
        "int8_head": False,
        "tanh_passes": {},
        "tanh_kernels": {},
        "strided": {},
        "ahead": False,
    }
    if values["cache"] != "pages":
        values = {key: value for key, value in values.items() if key != "page_size"}
    frozen = {key: MappingProxyType(value) if isinstance(value, dict) else value for key, value in values.items()}
    return Stack(name=name, **(optional | frozen | {"fused_head_sizes": tuple(values["fused_head_sizes"])}))


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
