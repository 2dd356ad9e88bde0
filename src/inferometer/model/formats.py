"""How numbers are stored: weights, activations and the KV cache, and over how many devices they are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from inferometer.errors import UserError
from inferometer.model.shard import local_kv_heads
from inferometer.model.spec import ModelSpec

DTYPE_BYTES = MappingProxyType({"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1})
DTYPE_ALIASES = MappingProxyType({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"})
COMPUTE_DTYPES = ("float32", "float16", "bfloat16")
NARROW_KV_DTYPES = ("fp8", "int8")
KV_DTYPES = (*COMPUTE_DTYPES, *NARROW_KV_DTYPES)
KEPT_HEAD = "-kept-head"
"""What ends the name of a format whose head stays in the activations' type."""
HEAD_SCALE_BYTES = 4
"""Of a token's scale, where the head is in int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the matrices of a layer are stored. Embeddings, norms and biases stay in the activations' type, and so does the head unless
    `head` says otherwise.

    head: "int8", the head's matrix in 8 bits with a scale for each token, and the table of tokens with it where the two are one; "kept",
    as it is. bits: of one element. group: how many elements of a row share a scale; None, a whole row does. rows: how many rows share it.
    scale_bits: what a group (or row) keeps beside its elements: its scale, and its zero point if it has one; 0 for a format without scales.
    compute: the operands' type in a matrix product; None, the activations' (the elements are widened on the way).
    element: what is stored: "float" in the activations' type, "int8", "int4", "fp8" (e4m3), or "mxfp4" (e2m1, with scales that are powers
    of two).
    kept: matrices of a layer that stay in the activations' type, by the parameter's name in it, and in how many layers they do.
    """

    name: str
    bits: int
    group: int | None = None
    scale_bits: int = 0
    compute: str | None = None
    element: Literal["float", "int8", "int4", "fp8", "mxfp4"] = "float"
    head: Literal["kept", "int8"] = "kept"
    rows: int = 1
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def asymmetric(self) -> bool:
        """Whether groups have zero points."""
        return self.element == "int4" and self.group is not None and self.scale_bits > 16

    @property
    def widened(self) -> bool:
        """Whether products of any number of rows widen it on its way, and none before, as all do that are known to run it; none of ours."""
        return self.element == "mxfp4"

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a (rows, columns) matrix, each row padded to whole bytes and whole groups."""
        groups = 1 if self.group is None else -(-columns // self.group)
        return rows * -(-columns * self.bits // 8) + -(-rows // self.rows) * -(-groups * self.scale_bits // 8)

    def layers_kept(self, matrix: str, layers: int) -> int:
        """In how many of so many layers a matrix (by the parameter's name in the layer) stays in the activations' type."""
        return min(layers, sum(count for name, count in self.kept if name == matrix))

    def head_bytes(self, rows: int, columns: int, item_bytes: int) -> int:
        """Bytes of the head's (rows, columns) matrix, item_bytes an activation."""
        return rows * (columns + HEAD_SCALE_BYTES if self.head == "int8" else columns * item_bytes)


def native(dtype: str) -> WeightFormat:
    """Weights in the activations' own type."""
    return WeightFormat(name=dtype, bits=8 * DTYPE_BYTES[dtype])


# A row's scale is 32 bits, a group's 16, and so is its zero point: whole numbers in 4 bits would cost accuracy.
_ROUNDED = {
    "int8": WeightFormat(name="int8", bits=8, scale_bits=32, element="int8", head="int8"),
    "w8a8": WeightFormat(name="w8a8", bits=8, scale_bits=32, compute="int8", element="int8", head="int8"),
    "fp8": WeightFormat(name="fp8", bits=8, scale_bits=32, compute="fp8", element="fp8", head="int8"),
} | {
    f"int4-g{group}{suffix}": WeightFormat(
        name=f"int4-g{group}{suffix}", bits=4, group=group, scale_bits=scale_bits, element="int4", head="int8"
    )
    for group in (32, 64, 128)
    for suffix, scale_bits in (("", 32), ("-sym", 16))
}
_OTHERS = {
    "bitsandbytes": WeightFormat(name="bitsandbytes", bits=8, scale_bits=32, element="int8"),
    "gptq": WeightFormat(name="gptq", bits=4, group=128, scale_bits=32, element="int4"),
    "awq": WeightFormat(name="awq", bits=4, group=128, scale_bits=32, element="int4"),
}
_STORED_INT4 = re.compile(r"int4(?:-g([1-9][0-9]{0,9}))?(-sym)?")
ROUNDED_FORMATS = tuple(_ROUNDED)
"""Those that weights are rounded to here; gptq and awq are what a checkpoint has been rounded to."""
KEPT_HEAD_FORMATS = tuple(name + KEPT_HEAD for name in _ROUNDED)
"""The same with the head as it is."""
QUANTIZED_FORMATS = (*ROUNDED_FORMATS, *_OTHERS)
_KEPT = (replace(form, name=form.name + KEPT_HEAD, head="kept") for form in _ROUNDED.values())
_QUANTIZED = _ROUNDED | _OTHERS | {form.name: form for form in _KEPT}


STORED_METHODS = ("gptq", "awq", "compressed-tensors")
"""Programs that have quantised checkpoints. METHOD-LAYOUT names what one of theirs holds: gptq-int4-g32, compressed-tensors-w8a8."""

QUANTIZE_ALIASES = {"int4": "int4-g64"}


def full_name(quantize: str) -> str:
    """The name that an alias stands for; any other as it is."""
    base = quantize.removesuffix(KEPT_HEAD)
    return QUANTIZE_ALIASES.get(base, base) + quantize[len(base) :]


def stored_method(quantize: str | None) -> str | None:
    """Which of STORED_METHODS made the checkpoint that this METHOD-LAYOUT is of; None for any other name."""
    return next((method for method in STORED_METHODS if quantize is not None and quantize.startswith(f"{method}-")), None)


def _stored(name: str) -> WeightFormat | None:
    """The format of a METHOD-LAYOUT, None where there is no such layout. int4 without a group: rows of unknown length, as groups of 128."""
    method = stored_method(name)
    layout = "" if method is None else name[len(method) + 1 :]
    packed = _STORED_INT4.fullmatch(layout)
    if packed is not None:
        return WeightFormat(name=name, bits=4, group=int(packed[1] or 128), scale_bits=16 if packed[2] else 32, element="int4")
    return replace(_ROUNDED[layout], name=name, head="kept") if layout in _ROUNDED else None


def weight_format(quantize: str | None, dtype: str) -> WeightFormat:
    """The format that `--quantize` names, `dtype`'s own for None. Raises UserError for an unknown name."""
    if quantize is None:
        return native(dtype)
    name = full_name(quantize)
    stored = _stored(name)
    if stored is not None:
        return stored
    if name not in _QUANTIZED:
        formats = f"{', '.join(QUANTIZED_FORMATS)}; {KEPT_HEAD} behind one of {', '.join(ROUNDED_FORMATS)} leaves the head as it is"
        raise UserError(f"--quantize {quantize} is unknown; the formats are {formats}")
    return _QUANTIZED[name]


def kv_format(name: str) -> str | None:
    """The format of the cache that `--kv-dtype` names, None for "auto": the activations' own. Raises UserError for any other name."""
    if name == "auto":
        return None
    if name not in NARROW_KV_DTYPES:
        own = ", which is the activations' own (--dtype)" if DTYPE_ALIASES.get(name, name) in COMPUTE_DTYPES else ""
        raise UserError(f"--kv-dtype {name} is no format of a cache; use {' or '.join(NARROW_KV_DTYPES)}, or auto{own}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The number formats of a run and its shard count.

    dtype: of activations, and of all that `weights` leave in their type. kv_dtype: of the cache; None, the activations'.
    shards: devices that tensor parallelism cuts every layer over. Raises ValueError for a type that does not exist.
    """

    dtype: str = "float16"
    weights: WeightFormat | None = None
    kv_dtype: str | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in COMPUTE_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(COMPUTE_DTYPES)}, not {self.dtype!r}")
        if self.kv_dtype is not None and self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype must be one of {', '.join(KV_DTYPES)}, not {self.kv_dtype!r}")
        if self.shards < 1:
            raise ValueError(f"shards must be at least 1, not {self.shards}")

    @property
    def item_bytes(self) -> int:
        """Bytes of one activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_item_bytes(self) -> int:
        """Bytes of one element of the cache."""
        return DTYPE_BYTES[self.kv_dtype or self.dtype]

    @property
    def matrices(self) -> WeightFormat:
        """How the layers' matrices are stored."""
        return self.weights or native(self.dtype)

    def head_bytes(self, rows: int, columns: int) -> int:
        """Bytes of `rows` tokens of the head's matrix, or of a table that is one with it."""
        return self.matrices.head_bytes(rows, columns, self.item_bytes)


def kv_bytes_per_token(spec: ModelSpec, formats: Formats) -> int:
    """Bytes that one token of context takes on each device, over all layers; scales not counted."""
    heads = local_kv_heads(spec, formats.shards)
    return spec.layers * heads * (spec.cached_size // spec.kv_heads) * formats.kv_item_bytes


def kv_scale_bytes_per_page(spec: ModelSpec, shards: int) -> int:
    """Bytes of a page's scales on each device, over all layers, where the cache is in 8 bits: float32, one a head for keys and values, or
    one for the vectors that both are made of."""
    return (2 if spec.latent is None else 1) * spec.layers * local_kv_heads(spec, shards) * 4
