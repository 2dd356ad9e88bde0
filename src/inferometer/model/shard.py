"""One rank's part of a model that tensor parallelism cuts, from the spec alone.

Query heads, the feed-forward block's inner width and the vocabulary are cut evenly, in their order; key-value heads too, or copied to
every rank that needs one where there are fewer of them than ranks. Maps that lead into the cut widths are cut by output, those that lead
back to the hidden states by input: each rank has a part of their sums. All else is copied to every rank. A vocabulary that the ranks do
not divide is padded: the last ranks then have rows that stand for no token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferometer.errors import UserError
from inferometer.model.spec import Alibi, ModelSpec

_BY_VOCABULARY = ("embedding.token.weight", "head.weight")
_BY_INPUT = ("attention.output", "feed_forward.down")


@dataclass(frozen=True, slots=True)
class Cut:
    """Which numbers of a parameter a rank has.

    rows: runs of its rows, which follow each other on the rank. columns: of a matrix that is cut by input, else None.
    padding: rows behind those, which hold nothing. summed: whether what it adds is summed up over the ranks, so that a vector of which
    there is no part belongs to rank 0 alone.
    """

    rows: tuple[range, ...]
    columns: range | None = None
    padding: int = 0
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """Part number `rank` of a model cut over `count` ranks. Raises ValueError for a rank that is none of them."""

    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.count:
            raise ValueError(f"rank {self.rank} is none of {self.count}")

    def local(self, spec: ModelSpec) -> ModelSpec:
        """What the rank's part is by itself: its own heads, inner width and rows of the vocabulary, padding included.

        `model.parameters` of it are the rank's parameters. Raises UserError where the ranks do not divide the model.
        """
        if self.count == 1:
            return spec
        check_shards(spec, self.count)
        heads, positions, experts = spec.heads // self.count, spec.positions, spec.experts
        if isinstance(positions, Alibi):
            positions = Alibi(first=self.rank * heads, of=spec.heads)
        if experts is not None:
            experts = replace(experts, feed_forward=experts.feed_forward // self.count, shared=experts.shared // self.count)
        # Of a model of experts alone, the width of an ordinary block is that of none.
        inner = spec.feed_forward // self.count if spec.experts is None or spec.experts.dense_layers else spec.feed_forward
        return replace(
            spec,
            heads=heads,
            kv_heads=local_kv_heads(spec, self.count),
            feed_forward=inner,
            vocabulary=self._share(spec),
            positions=positions,
            experts=experts,
        )

    def tokens(self, spec: ModelSpec) -> range:
        """The tokens whose rows the rank has; none where padding is all that is left for it."""
        share = self._share(spec)
        return range(min(self.rank * share, spec.vocabulary), min((self.rank + 1) * share, spec.vocabulary))

    def cut(self, spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Cut:
        """The rank's part of a parameter of the whole model, which has this name and shape. Raises UserError as `local` does.

        Models of experts are priced and not run: their experts' parameters have no cut here, and raise ValueError.
        """
        if self.count == 1:
            return Cut((range(shape[0]),))
        if ".experts." in name or ".shared." in name:
            raise ValueError(f"{name} is not run")
        check_shards(spec, self.count)
        if name in _BY_VOCABULARY:
            tokens = self.tokens(spec)
            return Cut((tokens,), padding=self._share(spec) - len(tokens))
        base = ".".join(name.split(".")[2:4])
        if base == "attention.qkv":
            return Cut(self._heads(spec))
        if base == "feed_forward.up":
            width = spec.feed_forward
            return Cut(tuple(self._part(width, after=width * i) for i in range(2 if spec.gated else 1)))
        if base in _BY_INPUT:
            return Cut((range(shape[0]),), self._part(shape[1]) if len(shape) == 2 else None, summed=True)
        return Cut((range(shape[0]),))

    def _share(self, spec: ModelSpec) -> int:
        return -(-spec.vocabulary // self.count)

    def _part(self, width: int, after: int = 0) -> range:
        size = width // self.count
        return range(after + self.rank * size, after + (self.rank + 1) * size)

    def _heads(self, spec: ModelSpec) -> tuple[range, ...]:
        """Rows of the fused projection: the rank's queries, keys and values."""
        size, own = spec.head_size, local_kv_heads(spec, self.count)
        first = self.rank * spec.kv_heads // self.count
        keys = range(spec.query_size + first * size, spec.query_size + (first + own) * size)
        return self._part(spec.query_size), keys, range(keys.start + spec.kv_size, keys.stop + spec.kv_size)


WHOLE = Shard()
"""A model that is not cut."""


def local_kv_heads(spec: ModelSpec, shards: int) -> int:
    """Key heads on each device: where there are fewer than devices, each device keeps a copy of the one it needs."""
    return max(1, spec.kv_heads // shards)


def check_shards(spec: ModelSpec, shards: int) -> None:
    """Raises UserError where the model cannot be cut evenly over so many devices."""
    widths = _cut_widths(spec)
    even = spec.heads % shards == 0 and all(width % shards == 0 for width in widths)
    if not even or (spec.kv_heads % shards and shards % spec.kv_heads):
        counts = [n for n in range(1, spec.heads + 1) if spec.heads % n == 0 and all(width % n == 0 for width in widths)]
        counts = [n for n in counts if spec.kv_heads % n == 0 or n % spec.kv_heads == 0]
        raise UserError(
            f"--tensor-parallel {shards} does not divide {spec.name} ({spec.heads} heads, {spec.kv_heads} key-value heads, "
            f"{', '.join(map(str, widths))} feed-forward); use one of {', '.join(map(str, counts))}"
        )


def _cut_widths(spec: ModelSpec) -> tuple[int, ...]:
    """The widths of feed-forward blocks that shards cut."""
    if spec.experts is None:
        return (spec.feed_forward,)
    found = dict.fromkeys((spec.experts.feed_forward, spec.experts.shared, spec.feed_forward if spec.experts.dense_layers else 0))
    return tuple(width for width in found if width)
