"""Peak memory: what stays (weights, KV cache) and the most that passes through at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from inferometer.estimate.layout import FLATTENS, Layout
from inferometer.estimate.stack import Stack, loss_item_bytes
from inferometer.estimate.workload import Workload
from inferometer.hardware.device import DeviceSpec
from inferometer.model.footprint import weight_bytes_by_layer, weight_bytes_by_part
from inferometer.model.formats import NARROW_KV_DTYPES, Formats, kv_bytes_per_token, kv_scale_bytes_per_page
from inferometer.model.parameters import parameters
from inferometer.model.placement import Placement, share
from inferometer.model.scored_rows import scored_rows
from inferometer.model.shard import local_kv_heads
from inferometer.model.spec import Alibi, ModelSpec, Rotary

# What a process holds on a GPU before its first tensor: the CUDA context and the libraries' kernels and workspaces. PyTorch with
# CUDA 12 takes 0.4 to 0.6 GiB on data-centre and workstation cards, as the driver's per-process figure shows.
GPU_CONTEXT_BYTES = 512 << 20
# The same for the interpreter and torch's libraries on a CPU.
CPU_PROCESS_BYTES = 400 << 20
# Slices in which a chunked loss or log-probability meets its logits (nn.transformer.Transformer.log_probabilities); on a GPU a slice of
# `scored_rows` stands beside the one before it, in 16 bits alone.
_LOSS_CHUNK_CPU = 256
_FLOAT = 4
_BLOCK_BYTES = 512
# NCCL's channels and what engines keep for their own all-reduces, where several devices work.
COMMUNICATION_BYTES = 384 << 20
# Document 001's CLM rows on 8 GPUs: 0.43 to 0.49 of the feed-forward blocks' bytes are gone, of the 7/8 that could be.
_FREED_SHARE = 7 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on each device. Activations (the layers' largest moment) and logits never meet at their largest: the peak has the larger.

    rounding: what the allocator adds to weights in whole blocks. workspace: what libraries take from it whatever the batch.
    context: what the process takes outside its tensors, communication: the buffers of collectives; allocators do not count these two,
    the device does.
    """

    weights: int
    kv: int
    activations: int
    logits: int
    context: int
    rounding: int = 0
    communication: int = 0
    workspace: int = 0

    @property
    def peak_bytes(self) -> int:
        """Tensors at their peak, which is what an allocator reports."""
        return self.weights + self.rounding + self.workspace + self.kv + max(self.activations, self.logits)

    @property
    def device_bytes(self) -> int:
        """What the device must have."""
        return self.peak_bytes + self.context + self.communication


def memory(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, *, cpu: bool, layout: Layout | None = None) -> Memory:
    """Where the peak of `workload` comes from; layout: how devices share the model, None for tensor parallelism over `formats.shards`.

    Raises UserError where the shards do not divide the model.
    """
    layout = layout or Layout(devices=formats.shards)
    return Memory(
        weights=weight_bytes(spec, formats, stack, layout) - _away_bytes(spec, formats, workload),
        rounding=rounding_bytes(spec, formats),
        kv=_held_kv(spec, kv_bytes(spec, formats, stack, workload, layout), workload),
        activations=activation_bytes(spec, formats, stack, workload, cpu=cpu),
        logits=logit_bytes(spec, formats, stack, workload, cpu=cpu) + _gathered_logits(spec, formats, workload, layout),
        context=CPU_PROCESS_BYTES if cpu else GPU_CONTEXT_BYTES,
        workspace=0 if cpu else round(stack.workspace_bytes),
        communication=COMMUNICATION_BYTES if layout.devices > 1 and not cpu else 0,
    )


def weight_parts(spec: ModelSpec, formats: Formats, stack: Stack) -> Mapping[str, int]:
    """What `weight_bytes_by_part` says, with the head of its own that some stacks give a model whose head is the embedding's."""
    parts = weight_bytes_by_part(spec, formats)
    if not (stack.unties_head and spec.tied_head):
        return parts
    return {**parts, "head": -(-spec.vocabulary // formats.shards) * spec.embedding * formats.item_bytes}


def weight_bytes(spec: ModelSpec, formats: Formats, stack: Stack, layout: Layout) -> int:
    """The weights that one device holds."""
    whole = sum(weight_parts(spec, formats, stack).values())
    if layout.devices == 1 or layout.parallel == "tensor":
        return whole
    if layout.parallel == "layers":
        layers = weight_bytes_by_layer(spec, formats)
        kept = -(-spec.layers // layout.devices)
        # The first device has the embedding, the last the head: the larger of the two is what the fullest holds.
        ends = (whole - sum(layers)) // (1 if spec.tied_head else 2)
        return kept * max(layers) + ends
    # torch's DTensor cuts a feed-forward block's matrices and keeps about half of the whole ones; OPT's, which it has to gather, it keeps.
    if spec.family == FLATTENS:
        return whole
    cut = 3 if spec.gated else 2
    return whole - round(_FREED_SHARE * cut * spec.layers * spec.hidden * spec.feed_forward * formats.item_bytes)


def _held_kv(spec: ModelSpec, kv: int, workload: Workload) -> int:
    """Of pages whose home is the host, two layers' worth: one that is read and one that comes."""
    return kv - round(workload.hosted * kv * max(0, spec.layers - 2) / spec.layers)


def _away_bytes(spec: ModelSpec, formats: Formats, workload: Workload) -> int:
    """Weights that come when they are needed, less the ring that they come to."""
    if not workload.streamed:
        return 0
    layers = weight_bytes_by_layer(spec, formats)
    return sum(layers) - Placement.of(layers, streamed_bytes=share(sum(layers), workload.streamed)).device_bytes


@lru_cache(maxsize=256)
def rounding_bytes(spec: ModelSpec, formats: Formats) -> int:
    """What the allocator adds to weights: whole blocks of 512 bytes."""
    ends = (-p.size * formats.item_bytes % _BLOCK_BYTES for p in parameters(replace(spec, layers=1, experts=None, unwindowed_layers=0)))
    return sum(ends) * spec.layers


def kv_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, layout: Layout | None = None) -> int:
    """The KV cache at its largest. Layers that look back at a window keep no more than that."""
    sequences, each = workload.holding(stack.sweep_tokens), kv_bytes_per_token(spec, formats)
    tokens = workload.held_tokens(stack.page_size, stack.sweep_tokens)
    kv = tokens * each
    if formats.kv_dtype in NARROW_KV_DTYPES and stack.page_size is not None:
        kv += tokens // stack.page_size * kv_scale_bytes_per_page(spec, formats.shards)
    if spec.sliding_window is not None and spec.windowed_layers:
        page = stack.page_size or 1
        kept = sequences * min(workload.tokens_each(stack.page_size), -(-spec.sliding_window // page) * page)
        kv -= (tokens - kept) * each * spec.windowed_layers // spec.layers
    if layout is not None and layout.parallel == "layers" and layout.devices > 1:
        kv = -(-kv * -(-spec.layers // layout.devices) // spec.layers)
    if stack.cache == "returned":
        return 2 * kv
    # Appending copies one layer's keys while the old ones are still held.
    return kv + kv // (2 * spec.layers) if stack.cache == "appended" else kv


def activation_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, *, cpu: bool = False) -> int:
    """The most that one layer holds at once in the pass over the prompts, op by op, with the residual stream beside it."""
    tokens, item = workload.together * workload.length, formats.item_bytes
    if workload.generated and stack.sweep_tokens is not None:
        # Every sequence decodes in one pass, however many there are.
        tokens = min(tokens, max(stack.sweep_tokens, workload.batch))
    if workload.staggered is not None:
        tokens += workload.batch - workload.together  # those that decode beside the prompts
    # Kernels over pages read grouped keys where they are; a pass without a cache has no pages.
    repeats = stack.repeats_keys or (stack.cache == "pages" and not workload.generated)
    layer = tokens * max(_live_widths(spec, formats, repeats, stack, cpu=cpu)) * item
    if workload.group is not None and stack.groups_apart:
        # Hidden states of the groups that wait for their turn.
        layer += (workload.batch - workload.together) * workload.length * spec.hidden * item
    scores = (spec.heads // formats.shards) * workload.length**2
    if not stack.fuses_attention(spec):
        # Scores of all sequences stand beside what the softmax makes of them.
        return layer + round(workload.together * scores * stack.score_live_bytes * item / 2)
    # The kernels that read a GPU's pages make the bias as they go.
    if isinstance(spec.positions, Alibi) and (cpu or stack.page_size is None or not workload.generated):
        # One bias for all sequences of one length; before the layers run it is made in float32, its masked copy beside it.
        return max(layer + scores * item, scores * 2 * _FLOAT)
    return layer


def logit_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, *, cpu: bool) -> int:
    """Logits and what is made of them: log-probabilities for the sampler or the loss."""
    if spec.encoder:
        return 0
    item, tokens = formats.item_bytes, workload.batch * workload.length
    if workload.generated:
        if stack.prompt_logits:
            return workload.together * workload.length * spec.vocabulary * 2 * item
        # A GPU's recorded sweeps have room for every sequence, whether or not it comes to decode; else a sweep has logits of those that
        # end in it.
        rows = min(workload.together, workload.holding(stack.sweep_tokens)) if cpu else workload.together
        return round(rows * spec.vocabulary * (item + stack.sampler_live_bytes))
    if not workload.loss:
        return tokens * spec.vocabulary * item
    if stack.loss == "chunked":
        if cpu:
            return min(tokens, _LOSS_CHUNK_CPU) * spec.vocabulary * (item + 2 * _FLOAT)
        return min(tokens, 2 * scored_rows(spec.vocabulary)) * spec.vocabulary * item
    if stack.loss == "widened":
        return tokens * spec.vocabulary * (item + 2 * _FLOAT)
    # Logits of all positions and one more matrix like them: log-probabilities, or a shifted copy.
    return 2 * tokens * spec.vocabulary * loss_item_bytes(stack, spec, item)


def _gathered_logits(spec: ModelSpec, formats: Formats, workload: Workload, layout: Layout) -> int:
    """DTensor keeps the logits that it was given beside their widened copy."""
    if layout.parallel != "mlp-tensor" or layout.devices == 1 or not workload.loss or spec.family == FLATTENS:
        return 0
    return workload.batch * workload.length * spec.vocabulary * formats.item_bytes


def is_cpu(device: DeviceSpec) -> bool:
    """Whether the device is the host itself."""
    return device.slug == "cpu"


def _live_widths(spec: ModelSpec, formats: Formats, repeats_keys: bool, stack: Stack, *, cpu: bool) -> Iterator[int]:
    """Elements a token that are alive while each op of a layer runs: its inputs, its output, and what its block still holds.

    A norm's output is held until its block ends, the fused projection until the output projection is done, and the layer's input
    until the layer is; where the stack `lets_go`, as in nn.layers (a test runs it and watches its tensors), the first only until the
    product that reads it is done with its activation, and the second until attention is.
    """
    shards, hidden, lets_go = formats.shards, spec.hidden, stack.lets_go
    query, kv = spec.query_size // shards, local_kv_heads(spec, shards) * spec.head_size
    if spec.latent is not None:
        # Of a prompt's own tokens all heads have keys and values.
        kv = spec.heads // shards * (spec.latent.unrotated + spec.latent.values) // 2
    inner = spec.feed_forward // shards
    rotary = isinstance(spec.positions, Rotary)
    # The rotation's cosines and sines serve all layers.
    x = hidden + (2 * spec.head_size if rotary else 0)
    normed = hidden if spec.norm_placement == "pre" else 0

    held = x + normed + query + 2 * kv
    yield held
    kept = normed if spec.residual_after_norm else 0
    if lets_go:
        held -= normed - kept
    if rotary:
        # Product, half-swapped copy and result, each as wide as queries and keys.
        yield held + 3 * (query + kv)
        held += query + kv
    repeated = 2 * query if repeats_keys and spec.kv_heads < spec.heads else 0
    yield held + repeated + query
    yield (x + kept if lets_go else held) + query + hidden
    yield x + (kept if lets_go else normed) + 2 * hidden

    if lets_go:
        # What is added to is the norm's output itself, or stands beside it.
        normed -= kept
    held = x + hidden + normed
    if lets_go and spec.gated:
        yield held + 2 * inner
        held -= normed
        yield held + 4 * inner
        yield held + inner + hidden
    elif lets_go and stack.writes_activated(spec) and not cpu:
        # No inner states before the activation.
        yield held + inner
        yield held + inner + hidden
    elif lets_go:
        yield held + 2 * inner
        held -= normed
        yield held + inner + hidden
    elif spec.gated:
        yield held + 4 * inner
        yield held + 3 * inner + hidden
    else:
        yield held + 2 * inner
        yield held + inner + hidden
    yield held + 2 * hidden
