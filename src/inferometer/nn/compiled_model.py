"""Sweeps on a CPU: all layers in one call of the compiled kernels, which read every weight once for hundreds of tokens.

The modules of `nn/layers.py` are the reference. There a sweep is some 25 torch operations a layer, the products of matrices with few rows
come to two thirds of the memory's bandwidth, and each token of a prompt attends by itself or among copies of all keys.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import torch
from torch import Tensor

from inferometer.kernels.cpu_library import CpuLibrary, cpu_library
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import Activation, Alibi, ModelSpec
from inferometer.nn.alibi import slopes_of
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.residency import AllResident

if TYPE_CHECKING:
    from inferometer.nn.layers import Layer, Norm
    from inferometer.nn.linear import Linear
    from inferometer.nn.transformer import Transformer

DTYPES: Final = (torch.float32, torch.bfloat16)
# Numbered as in cpu/widened.h.
_KINDS: Final = ("plain", "int8", "int4", "fp8")
_SCALES: Final = (torch.float32, torch.float16, torch.bfloat16)
_FEW_TOKENS: Final = 64
"""Of a sweep of weights in few bits, which the kernels widen for every eight tokens and which are better widened once for more, and of
bfloat16 where a processor multiplies whole matrices of it. So many that 32 sequences decode in one beside 32 tokens of a prompt."""
_SCRATCH_BYTES: Final = 64 << 20
"""Of a call: the parts of long contexts take as much room as hundreds of tokens have. Down to _FEW_TOKENS tokens."""


class _Norm(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("zero", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("kind", "scale_type", "rounded")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", _Norm),
        ("feed_forward_norm", _Norm),
        ("qkv", _Linear),
        ("output", _Linear),
        ("up", _Linear),
        ("down", _Linear),
        ("scale", ctypes.c_float),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_size", "feed_forward")),
        *((name, ctypes.c_int32) for name in ("bfloat16", "rms", "post", "residual_after_norm", "gated", "activation")),
        ("epsilon", ctypes.c_float),
        ("slopes", ctypes.c_void_p),
        ("layer", ctypes.c_void_p),
        ("final_norm", _Norm),
        ("has_final_norm", ctypes.c_int32),
    )


class _Sweep(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "cos", "sin", "positions", "places", "seats", "table")),
        ("table_stride", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    )


def product(library: CpuLibrary, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """x (rows, inputs) times weight (outputs, inputs), transposed, to out (rows, outputs), by the compiled kernels: no more rows than the
    library takes at once, all of one of DTYPES and contiguous. Raises ValueError else."""
    if not 0 < x.shape[0] <= library.most_tokens or x.dtype not in DTYPES or not x.dtype == weight.dtype == out.dtype:
        raise ValueError(f"1 to {library.most_tokens} rows of float32 or bfloat16, not {tuple(x.shape)} of {x.dtype}")
    if (x.shape[1], x.shape[0], weight.shape[0]) != (weight.shape[1], *out.shape) or not all(t.is_contiguous() for t in (x, weight, out)):
        raise ValueError(f"contiguous matrices that fit, not {tuple(x.shape)}, {tuple(weight.shape)} and {tuple(out.shape)}")
    return _multiply(library, _Linear(weight.data_ptr(), None, *weight.shape, weight.shape[1], 0), x, out)


def _multiply(library: CpuLibrary, linear: _Linear, x: Tensor, out: Tensor) -> Tensor:
    where = (x.data_ptr(), out.data_ptr())
    library.run_linear(ctypes.byref(linear), x.dtype == torch.bfloat16, x.shape[0], *where, ctypes.byref(library.openmp()))
    return out


class CompiledModel:
    """The kernels' view of a model whose weights are loaded and packed; what it points to is kept alive."""

    def __init__(self, model: Transformer, library: CpuLibrary) -> None:
        """Raises ValueError where a weight lies in a way that the kernels cannot read."""
        spec = model.local
        self._library = library
        self._held: list[Tensor] = []
        self._bfloat16 = model.dtype == torch.bfloat16
        self._layers = (_Layer * spec.layers)(*(self._layer(cast("Layer", layer), spec) for layer in model.layers))
        table = torch.tensor(slopes_of(spec.positions, spec.heads)) if isinstance(spec.positions, Alibi) else None
        final = model.final_norm
        self._model = _Model(
            spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_size, spec.feed_forward,
            self._bfloat16, spec.norm == "rms", spec.norm_placement == "post", spec.residual_after_norm, spec.gated,
            get_args(Activation).index(spec.activation), spec.norm_epsilon, self._hold(table), ctypes.addressof(self._layers),
            _Norm() if final is None else self._norm(final), final is not None,
        )  # fmt: skip
        tokens = model.embedding.token.matrix
        head = tokens if model.head is None else model.head.matrix(tokens)
        if isinstance(head, QuantWeight):
            self._head = self._few_bits(head, None)
        else:
            self._head = _Linear(self._hold(head.detach()), None, *head.shape, head.shape[1], 0)
        plain = all(each.kind == 0 for layer in self._layers for each in (layer.qkv, layer.output, layer.up, layer.down))
        few = not plain or self._head.kind != 0 or (self._bfloat16 and library.matrix_units)
        self._at_once = min(library.most_tokens, _FEW_TOKENS) if few else library.most_tokens
        self._any_number = not few  # of tokens, in as many calls

    @classmethod
    def of(cls, model: Transformer) -> CompiledModel | None:
        """The kernels for `model`; None where they cannot serve it, or there are none on this machine."""
        if model.spec.encoder or model.device.type != "cpu" or model.dtype not in DTYPES or not isinstance(model.residency, AllResident):
            return None
        library = cpu_library()
        if library is None:
            return None
        try:
            return cls(model, library)
        except ValueError:
            return None

    def serves(self, batch: RaggedBatch, cache: PagedCache | None) -> bool:
        """Whether `sweep` can run the batch."""
        if cache is None or cache.key_scales is not None:
            return False
        if batch.rows is None or batch.rows.brought is not None:
            return False
        return self._any_number or batch.token_ids.shape[0] <= self._at_once

    def sweep(
        self, x: Tensor, batch: RaggedBatch, cache: PagedCache, rotation: tuple[Tensor, Tensor] | None, ranks: Collective = ALONE
    ) -> Tensor:
        """x (tokens, hidden), embedded, through all layers and the final norm: the hidden states, where x was.

        rotation: (cos, signed sin), each (tokens, 1, head_size). Keys and values are written to the cache. ranks: that share the layers.
        """
        rows = batch.rows
        assert rows is not None
        seats = rows.seats
        if batch.token_ids.shape[0] != len(batch.query_lengths):
            seats = seats.repeat_interleave(torch.tensor(batch.query_lengths), output_size=batch.token_ids.shape[0])
        cos, sin = (None, None) if rotation is None else (part.float().contiguous() for part in rotation)
        x = x.contiguous()
        parts = (x, cos, sin, batch.positions, rows.places, seats.contiguous())
        first = 0
        while first < x.shape[0]:
            # A token's keys are in the cache by the time that one after it attends.
            left = parts if first == 0 else tuple(None if part is None else part[first:] for part in parts)
            first += self._call(left, rows.table, cache, ranks)
        return x

    def _call(self, parts: tuple[Tensor | None, ...], table: Tensor, cache: PagedCache, ranks: Collective) -> int:
        """Runs as many of the tokens as one call takes: how many. parts: x, which the states replace, to seats, as _Sweep has them."""
        x = cast("Tensor", parts[0])
        sweep = _Sweep(
            min(x.shape[0], self._at_once), *(None if part is None else part.data_ptr() for part in (*parts, table)), table.stride(0),
            cache.page_size, cache.keys.data_ptr(), cache.values.data_ptr(), cache.keys.stride(0),
        )  # fmt: skip
        while (needed := self._library.scratch_bytes(ctypes.byref(self._model), ctypes.byref(sweep))) > _SCRATCH_BYTES:
            if sweep.tokens <= _FEW_TOKENS:
                break
            sweep.tokens = max(_FEW_TOKENS, sweep.tokens // 2)
        # Zeros are not needed; the allocator hands the same memory out again, so that this costs next to nothing.
        scratch = torch.empty(needed + 64, dtype=torch.uint8)
        sweep.scratch = -(-scratch.data_ptr() // 64) * 64
        count: int = sweep.tokens
        if ranks.size == 1:
            self._library.run_sweep(ctypes.byref(self._model), ctypes.byref(sweep), ctypes.byref(self._library.openmp()))
            return count
        sums = torch.empty((count, x.shape[1]), dtype=torch.float32)
        sweep.sums = sums.data_ptr()
        halves = 2 * len(self._layers)
        for part in range(halves + 1):
            self._library.run_part(ctypes.byref(self._model), ctypes.byref(sweep), part, ctypes.byref(self._library.openmp()))
            if part < halves:
                total = ranks.all_reduce(sums)
                if total is not sums:
                    sums.copy_(total)
        return count

    def projects(self, hidden: Tensor) -> bool:
        """Whether `project` takes these rows, (rows, embedding)."""
        return hidden.shape[0] <= self._at_once and hidden.shape[1] == self._head.inputs and self._head.outputs > 0

    def project(self, hidden: Tensor) -> Tensor:
        """(rows, embedding) -> (rows, tokens), by the rows of the head's matrix that this rank has."""
        out = hidden.new_empty(hidden.shape[0], self._head.outputs)
        return _multiply(self._library, self._head, hidden.contiguous(), out)

    def greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best tokens (int64 (rows,), the lowest id among equals) of logits (rows, vocabulary) and their log-probabilities (float32).

        A NaN counts as -inf, +inf as the largest float32; a row without any finite score gives token 0 with log-probability -inf.
        """
        logits = logits.contiguous()
        rows, vocabulary = logits.shape
        tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
        self._library.run_greedy(
            self._bfloat16,
            rows,
            vocabulary,
            logits.data_ptr(),
            tokens.data_ptr(),
            logprobs.data_ptr(),
            ctypes.byref(self._library.openmp()),
        )
        return tokens, logprobs

    def _layer(self, layer: Layer, spec: ModelSpec) -> _Layer:
        attention, feed_forward = layer.attention, layer.feed_forward
        return _Layer(
            self._norm(layer.attention_norm), self._norm(layer.feed_forward_norm), self._linear(attention.qkv),
            self._linear(attention.output), self._linear(feed_forward.up), self._linear(feed_forward.down), attention.scale,
        )  # fmt: skip

    def _norm(self, norm: Norm) -> _Norm:
        return _Norm(self._hold(_wide(norm.weight)), self._hold(_wide(norm.bias)))

    def _linear(self, linear: Linear) -> _Linear:
        outputs, inputs = linear.weight.shape
        bias = self._hold(_wide(linear.bias))
        if linear.quant is not None:
            return self._few_bits(linear.quant, bias)
        if linear.packed is None:
            if not linear.weight.is_contiguous():
                raise ValueError("a weight whose rows do not follow each other")
            return _Linear(self._hold(linear.weight.detach()), bias, outputs, inputs, inputs, 0)
        layout = linear.packed.layout
        if layout is None:
            raise ValueError("a packed weight whose layout is not known")
        return _Linear(layout.address, bias, outputs, inputs, layout.inputs, layout.block)

    def _few_bits(self, weight: QuantWeight, bias: int | None) -> _Linear:
        if weight.activations == "fp8":
            raise ValueError("activations in fp8")
        if weight.group is not None and weight.group % 32:
            raise ValueError("groups that begin within a vector")
        return _Linear(
            self._hold(weight.data), bias, *weight.shape, 0, 0, self._hold(weight.scale), self._hold(weight.zero), self._hold(weight.order),
            weight.group or 0, _KINDS.index(weight.kind), _SCALES.index(weight.scale.dtype), weight.activations == "int8",
        )  # fmt: skip

    def _hold(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._held.append(tensor)
        return tensor.data_ptr()


def _wide(values: Any) -> Tensor | None:
    """A vector of weights as float32."""
    return None if values is None else values.detach().float().contiguous()
