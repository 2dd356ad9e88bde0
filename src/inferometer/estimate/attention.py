"""What attention takes: one kernel that keeps scores on chip, or two products with a softmax between them that goes through memory."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.estimate.machine import Machine
from inferometer.estimate.stack import Stack
from inferometer.model.attention_ops import WINDOWED
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.shard import local_kv_heads
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step

# A fused kernel's blocks begin and end, and half of those on the diagonal is masked: as long as 600 tokens of context take. With 0.58 of
# the tensor rate beyond, that is what 5,457 calls on an A100 show (72 TFLOP/s at 512 tokens, 136 at 2048, 176 at 16384; head size 128, vLLM
# 0.14.0, aiconfigurator's a100_sxm tables).
_FILL_TOKENS = 600.0
# Batched products of heads that are narrow read and write more for each operation than large ones.
_HEAD_FILL = 64.0
# Kernels that an unfused attention takes for each of its three ops: layout, product or softmax, mask, casts.
_UNFUSED_KERNELS = 4
# A fallback kernel for head sizes that the fused one lacks reads keys and values an element at a time, and memory gives 64 bytes for each.
_FETCH_BYTES = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Prices the three ops of attention."""

    spec: ModelSpec
    stack: Stack
    machine: Machine
    formats: Formats

    def op(self, op: Op, step: Step) -> tuple[float, float, float, int]:
        """(tensor seconds, vector seconds, bytes moved, launches) of one of scores, softmax and values."""
        decodes = all(share.queries == 1 and share.before for share in step.shares)
        fused = self.stack.fuses_attention(self.spec) or (decodes and self.stack.fused_decode)
        return self._fused(op, step) if fused else self._through_memory(op, step)

    def _window(self, op: Op) -> int | None:
        """How far back the layers of this op look."""
        return self.spec.sliding_window if op.name.startswith(WINDOWED) else None

    def _scores(self, op: Op, step: Step) -> int:
        """Scores of one layer on one device, all pairs."""
        return step.attended(causal="full", window=self._window(op)) * (self.spec.heads // self.formats.shards)

    def _fused(self, op: Op, step: Step) -> tuple[float, float, float, int]:
        if op.name.endswith("softmax"):
            return 0.0, 0.0, 0.0, 0  # inside the kernel; its arithmetic is in the share that the products reach
        window = self._window(op)
        pairs, full = step.attended(causal="half", window=window), step.attended(causal="full", window=window)
        flops = op.flops if self.stack.skips_masked or self.spec.encoder else op.flops * full / pairs
        span = full / max(1, step.tokens)
        rate = self.machine.matmul_flop_s(op.dtype) * self.stack.attention_share * span / (span + _FILL_TOKENS)
        around = op.activation_bytes - self._scores(op, step) * self.formats.item_bytes
        launches = self.stack.kernels.get("attention", 1) if op.name.endswith("attention_scores") else 0
        moved = op.bytes_moved + around * (1 + self.stack.copies) + self._repeated(step)
        # Half with the scores, half with the values, as the kernel reads half its bytes for each.
        started = self._decoding(step) * local_kv_heads(self.spec, self.formats.shards) * self.stack.query_s / 2
        vector = started / (self.machine.device.multiprocessors or 1)
        return flops / rate, vector, moved + op.bytes_read * (1 / self.stack.gather_share - 1), launches

    def _through_memory(self, op: Op, step: Step) -> tuple[float, float, float, int]:
        scores = self._scores(op, step)
        launches = max(self.stack.kernels.get("attention", 1), _UNFUSED_KERNELS if self.stack.fused_head_sizes else 1)
        if op.name.endswith("softmax"):
            return 0.0, op.flops / self.machine.vector_flop_s("float32"), scores * self.stack.score_bytes, launches
        whole = step.attended(causal="full") / step.attended(causal="half", window=self._window(op))
        flops = op.flops if self.spec.encoder else op.flops * whole
        size = self.spec.head_size
        rate = self.machine.matmul_flop_s(op.dtype) * self.stack.matmul_share * size / (size + _HEAD_FILL)
        around = op.activation_bytes - scores * self.formats.item_bytes
        tensor = max(flops / rate, self.machine.shared_s(self._blocks_s(step)))
        held = op.bytes_moved * (_FETCH_BYTES / self.formats.item_bytes if self.stack.fused_head_sizes else 1.0)
        return tensor, 0.0, held + around * (1 + self.stack.copies) + self._repeated(step), launches

    def _blocks_s(self, step: Step) -> float:
        """Seconds of a multiprocessor at an A100's clock, of products of sequences' queries with their keys in a layer: libraries give each
        a block of threads at least."""
        single = self._decoding(step)
        several = sum(share.count for share in step.shares) - single
        return (single * self.stack.block_s + several * self.stack.product_s) * (self.spec.heads // self.formats.shards)

    def _decoding(self, step: Step) -> int:
        """Sequences that run one token behind others."""
        return sum(share.count for share in step.shares if share.queries == 1 and share.before)

    def _repeated(self, step: Step) -> float:
        """Keys (or values) of grouped heads as wide as the queries: written once and read once more."""
        if not self.stack.repeats_keys or self.spec.kv_heads == self.spec.heads:
            return 0.0
        query = self.spec.query_size // self.formats.shards * self.formats.item_bytes
        return 2.0 * query * (step.tokens + step.context_tokens)
