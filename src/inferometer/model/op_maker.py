"""Single ops, by what they do: what each computes and moves for the tokens of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec, NormKind
from inferometer.model.step import Step

TOKEN_ID_BYTES: Final = 8
# Vector operations an element, an exponential, a square root or a division counting as one. They decide nothing where memory binds.
NORM_FLOPS: Final[dict[NormKind, int]] = {"layer": 7, "rms": 4}


class OpMaker:
    """Single ops of one step, with the sizes they share: every width is one device's."""

    def __init__(self, spec: ModelSpec, step: Step, formats: Formats) -> None:
        self.spec, self.step, self.formats = spec, step, formats
        self.tokens = step.tokens
        self.item = formats.item_bytes
        local = Shard(count=formats.shards).local(spec)
        self.heads = local.heads
        self.query = local.query_size
        self.kv = local.kv_size
        self.attended = local.attended_size
        self.cached = local.cached_size
        self.inner = local.feed_forward
        self.vocabulary = local.vocabulary

    def lookup(self, name: str, table_bytes: int, width: int, *, ids: bool = False, added: bool = False) -> Op:
        """Rows of a table, or a vector that is added, as an embedding takes them."""
        elements = self.tokens * width
        return Op(
            kind="embedding",
            name=name,
            shape=(self.tokens, width),
            unit="vector",
            dtype=self.formats.dtype,
            flops=elements if added else 0,
            bytes_read=table_bytes + (self.tokens * TOKEN_ID_BYTES if ids else 0),
            weight_bytes=table_bytes,
            activation_bytes=elements * self.item * (2 if added else 1),
        )

    def gemm(self, name: str, m: int, n: int, k: int, *, biases: int, count: int = 1, native: bool = False) -> Op:
        """A product of (m, k) and a matrix (n, k) with `biases`; native: of the activations' type whatever the format of matrices."""
        stored = self.formats.matrices
        weights = (n * k * self.item if native else stored.matrix_bytes(n, k)) + biases * self.item
        return Op(
            kind="gemm",
            name=name,
            shape=(m, n, k),
            unit="tensor",
            dtype=self.formats.dtype if native else stored.compute or self.formats.dtype,
            count=count,
            flops=2 * m * n * k,
            bytes_read=weights,
            weight_bytes=weights,
            activation_bytes=m * (n + k) * self.item,
        )

    def maps(self, name: str, m: int, n: int, k: int, *, matrix: str, biases: int, count: int) -> Iterator[Op]:
        """The product of `count` layers, with the matrix of that name in each: apart where some layers keep it in the activations' type."""
        for native, layers in self.stored_and_kept(matrix, count):
            yield self.gemm(name + "_kept" * (native and layers < count), m, n, k, biases=biases, count=layers, native=native)

    def stored_and_kept(self, matrix: str, count: int) -> Iterator[tuple[bool, int]]:
        """(False, the layers that have it in the format of matrices) and (True, those that keep it as it is), where there are such."""
        kept = self.formats.matrices.layers_kept(matrix, count)
        yield from ((native, layers) for native, layers in ((False, count - kept), (True, kept)) if layers)

    def norm(self, name: str, *, count: int) -> Op:
        """A norm over the hidden states."""
        spec = self.spec
        vectors = 0 if not spec.norm_affine else 2 if spec.norm == "layer" else 1
        return self.norm_of(name, spec.hidden, vectors * spec.hidden, spec.norm, count=count)

    def norm_of(self, name: str, width: int, weights: int, kind: NormKind, *, count: int) -> Op:
        """A norm of `width` elements of each token, by so many weights."""
        elements = self.tokens * width
        return Op(
            kind="norm",
            name=name,
            shape=(self.tokens, width),
            unit="vector",
            dtype=self.formats.dtype,
            count=count,
            flops=NORM_FLOPS[kind] * elements,
            bytes_read=weights * self.item,
            weight_bytes=weights * self.item,
            activation_bytes=2 * elements * self.item,
        )

    def elementwise(self, kind: Literal["rotary", "residual"], name: str, width: int, *, flops: int, reads: int) -> Op:
        """An op of `reads` inputs and one output, each `width` wide."""
        elements = self.tokens * width
        return Op(
            kind=kind,
            name=name,
            shape=(self.tokens, width),
            unit="vector",
            dtype=self.formats.dtype,
            count=self.spec.layers,
            flops=flops * elements,
            activation_bytes=(reads + 1) * elements * self.item,
        )

    def all_reduce(self, name: str, width: int, *, count: int) -> Iterator[Op]:
        """A sum over the devices, where there are several."""
        shards = self.formats.shards
        if shards > 1:
            # Every device must send its part of every sum and pass on the sums it made.
            payload = self.tokens * width * self.item
            yield self.collective(name, (self.tokens, width), -(-2 * (shards - 1) * payload // shards), count=count)

    def collective(self, name: str, shape: tuple[int, ...], sent: int, *, count: int) -> Op:
        """What each device sends to others, in bytes."""
        return Op(kind="collective", name=name, shape=shape, unit="vector", dtype=self.formats.dtype, count=count, collective_bytes=sent)
