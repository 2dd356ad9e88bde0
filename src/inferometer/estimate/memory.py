"""Peak memory: what stays (weights, KV cache) and the most that passes through at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from inferometer.estimate.stack import Stack, loss_item_bytes
from inferometer.hardware.device import DeviceSpec
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats, kv_bytes_per_token, local_kv_heads
from inferometer.model.spec import Alibi, ModelSpec, Rotary

# What a process holds on a GPU before its first tensor: the CUDA context and the libraries' kernels and workspaces. PyTorch with
# CUDA 12 takes 0.4 to 0.6 GiB on data-centre and workstation cards, as the driver's per-process figure shows.
GPU_CONTEXT_BYTES = 512 << 20
# The same for the interpreter and torch's libraries on a CPU.
CPU_PROCESS_BYTES = 400 << 20
# Slices in which a chunked loss or log-probability meets its logits (nn.transformer.Transformer.log_probabilities).
_LOSS_CHUNK = 256
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A batch of `batch` sequences of `length` tokens, each continued by `generated` tokens (0: a forward alone)."""

    batch: int
    length: int
    generated: int = 0
    loss: bool = False

    def held_tokens(self, page_size: int | None) -> int:
        """Tokens of KV cache over all sequences, none for a forward alone.

        page_size: tokens of a page, of which each sequence holds whole ones, its last token's keys not being written; None for a
        cache that has no pages.
        """
        if not self.generated:
            return 0
        if page_size is None:
            return self.batch * (self.length + self.generated)
        return self.batch * -(-(self.length + self.generated - 1) // page_size) * page_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on each device. Activations (the layers' largest moment) and logits never meet at their largest: the peak has the larger.

    context: what the process takes outside its tensors; allocators do not count it, the device does.
    """

    weights: int
    kv: int
    activations: int
    logits: int
    context: int

    @property
    def peak_bytes(self) -> int:
        """Tensors at their peak, which is what an allocator reports."""
        return self.weights + self.kv + max(self.activations, self.logits)

    @property
    def device_bytes(self) -> int:
        """What the device must have."""
        return self.peak_bytes + self.context


def memory(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, *, cpu: bool) -> Memory:
    """Where the peak of `workload` comes from. Raises UserError where the shards do not divide the model."""
    return Memory(
        weights=resident_weight_bytes(spec, formats),
        kv=kv_bytes(spec, formats, stack, workload),
        activations=activation_bytes(spec, formats, stack, workload, cpu=cpu),
        logits=logit_bytes(spec, formats, stack, workload),
        context=CPU_PROCESS_BYTES if cpu else GPU_CONTEXT_BYTES,
    )


def kv_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload) -> int:
    """The KV cache at its largest."""
    kv = workload.held_tokens(stack.page_size) * kv_bytes_per_token(spec, formats)
    # Appending copies one layer's keys while the old ones are still held.
    return kv if stack.page_size is not None else kv + kv // (2 * spec.layers)


def activation_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, *, cpu: bool = False) -> int:
    """The most that one layer holds at once in the pass over the prompts, op by op, with the residual stream beside it."""
    tokens, item = workload.batch * workload.length, formats.item_bytes
    if workload.generated and stack.sweep_tokens is not None:
        # Every sequence decodes in one pass, however many there are.
        tokens = min(tokens, max(stack.sweep_tokens, workload.batch))
    layer = tokens * max(_live_widths(spec, formats, stack)) * item
    scores = (spec.heads // formats.shards) * workload.length**2
    if not stack.fuses_attention(spec):
        # Scores of all sequences and their float32 softmax stand side by side.
        return layer + workload.batch * scores * (item + _FLOAT)
    # The kernels that read a GPU's pages make the bias as they go.
    if isinstance(spec.positions, Alibi) and (cpu or stack.page_size is None or not workload.generated):
        # One bias for all sequences of one length; before the layers run it is made in float32, its masked copy beside it.
        return max(layer + scores * item, scores * 2 * _FLOAT)
    return layer


def logit_bytes(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload) -> int:
    """Logits and what is made of them: log-probabilities for the sampler or the loss."""
    if spec.encoder:
        return 0
    item, tokens = formats.item_bytes, workload.batch * workload.length
    if workload.generated:
        # The sampler widens the last position's logits and keeps their log-probabilities.
        return workload.batch * spec.vocabulary * (item + 2 * _FLOAT)
    if not workload.loss:
        return tokens * spec.vocabulary * item
    if stack.loss == "chunked":
        return min(tokens, _LOSS_CHUNK) * spec.vocabulary * (item + 2 * _FLOAT)
    if stack.loss == "widened":
        return tokens * spec.vocabulary * (item + 2 * _FLOAT)
    # Logits of all positions and one more matrix like them: log-probabilities, or a shifted copy.
    return 2 * tokens * spec.vocabulary * loss_item_bytes(stack, spec, item)


def largest_batch(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, device: DeviceSpec) -> int:
    """The most sequences of the workload's lengths that fit on the device; 0 if not even one does."""

    one = memory(spec, formats, stack, replace(workload, batch=1), cpu=is_cpu(device))
    room = device.usable_memory_bytes - one.weights - one.context

    def fits(batch: int) -> bool:
        asked = replace(workload, batch=batch)
        activations = activation_bytes(spec, formats, stack, asked, cpu=is_cpu(device))
        passing = max(activations, logit_bytes(spec, formats, stack, asked))
        return kv_bytes(spec, formats, stack, asked) + passing <= room

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def is_cpu(device: DeviceSpec) -> bool:
    """Whether the device is the host itself."""
    return device.slug == "cpu"


def _live_widths(spec: ModelSpec, formats: Formats, stack: Stack) -> Iterator[int]:
    """Elements a token that are alive while each op of a layer runs: its inputs, its output, and what its block still holds.

    The order and what is held are nn.layers' own (a test runs it and watches its tensors): a norm's output until its block ends,
    the fused projection until the output projection is done, and the layer's input until the layer is.
    """
    shards, hidden = formats.shards, spec.hidden
    query, kv = spec.query_size // shards, local_kv_heads(spec, shards) * spec.head_size
    inner = spec.feed_forward // shards
    rotary = isinstance(spec.positions, Rotary)
    # The rotation's cosines and sines serve all layers.
    x = hidden + (2 * spec.head_size if rotary else 0)
    normed = hidden if spec.norm_placement == "pre" else 0

    held = x + normed + query + 2 * kv
    yield held
    if rotary:
        # Product, half-swapped copy and result, each as wide as queries and keys.
        yield held + 3 * (query + kv)
        held += query + kv
    repeated = 2 * query if stack.repeats_keys and spec.kv_heads < spec.heads else 0
    yield held + repeated + query
    yield held + query + hidden
    yield x + normed + 2 * hidden

    held = x + hidden + normed
    if spec.gated:
        yield held + 4 * inner
        yield held + 3 * inner + hidden
    else:
        yield held + 2 * inner
        yield held + inner + hidden
    yield held + 2 * hidden
