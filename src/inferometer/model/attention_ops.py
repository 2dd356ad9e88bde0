"""The ops of a layer's attention beside its ordinary maps: the cache, scores and values, and maps by way of one vector a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from inferometer.model.formats import Formats
from inferometer.model.op_maker import OpMaker
from inferometer.model.ops import Op
from inferometer.model.spec import Latent, ModelSpec
from inferometer.model.step import Step

Causal = Literal["full", "half"]

WINDOWED = "windowed_"
"""What the names of attention's ops begin with in layers that look back at a window of tokens."""
_SOFTMAX_FLOPS = 5


class AttentionOps(OpMaker):
    """Attention of one step. causal: whether pairs of a token and a later one are counted, "full", or not, "half"."""

    def __init__(self, spec: ModelSpec, step: Step, formats: Formats, causal: Causal) -> None:
        super().__init__(spec, step, formats)
        self.causal = causal

    def latent_maps(self, latent: Latent) -> Iterator[Op]:
        """Queries, and keys and values by way of one vector.

        So much is multiplied in whichever order: behind a context queries and results are multiplied by the matrix, in place of what is
        cached.
        """
        spec, tokens = self.spec, self.tokens
        maps = [("latent_down", latent.cached, spec.hidden, latent.rank)]
        maps.append(("latent_up", self.heads * (latent.unrotated + latent.values), latent.rank, 0))
        if latent.query_rank is None:
            maps.append(("query", self.query, spec.hidden, 0))
        else:
            maps.append(("query_down", latent.query_rank, spec.hidden, latent.query_rank))
            maps.append(("query_up", self.query, latent.query_rank, 0))
        for name, outputs, inputs, normed in maps:
            yield from self.maps(name, tokens, outputs, inputs, matrix=f"attention.{name}", biases=0, count=spec.layers)
            if normed:
                yield self.norm_of(f"{name}_norm", normed, normed, "rms", count=spec.layers)

    def attention(self) -> Iterator[Op]:
        """Scores, softmax, values. Keys and values of earlier tokens come from the cache; this step's own are activations."""
        window, windowed = self.spec.sliding_window, self.spec.windowed_layers
        if windowed < self.spec.layers:
            yield from self._ops("", self.step.context_tokens, None, count=self.spec.layers - windowed)
        if window is not None and windowed:
            yield from self._ops(WINDOWED, self.step.remembered(window), window, count=windowed)

    def _ops(self, prefix: str, context_tokens: int, window: int | None, *, count: int) -> Iterator[Op]:
        size = self.spec.head_size
        pairs, all_pairs = (self.step.attended(causal=causal, window=window) for causal in (self.causal, "full"))
        scores = all_pairs * self.heads * self.item
        multiplied, read = self._multiplied(pairs, window), self._read()
        for name, width in (("attention_scores", self.query), ("softmax", 0), ("attention_values", self.attended)):
            soft = name == "softmax"
            around = scores if soft else self.tokens * width * self.item
            held = context_tokens * read.get(name, 0) * self.formats.kv_item_bytes
            own = self.tokens * read.get(name, 0) * self.item
            yield Op(
                kind="attention",
                name=prefix + name,
                shape=(self.tokens, pairs, size),
                unit="vector" if soft else "tensor",
                dtype=self.formats.dtype,
                count=count,
                flops=_SOFTMAX_FLOPS * pairs * self.heads if soft else 2 * multiplied[name],
                bytes_read=held,
                kv_bytes=held,
                activation_bytes=scores + around + own,
            )

    def _read(self) -> dict[str, int]:
        """Elements of a token that scores and values read in a layer. One vector that both are made of is read once."""
        if self.spec.latent is None:
            return {"attention_scores": self.kv, "attention_values": self.kv}
        return {"attention_scores": self.cached, "attention_values": 0}

    def _multiplied(self, pairs: int, window: int | None) -> dict[str, int]:
        """Multiply-adds of scores and of values: of each pair, as wide as its heads are.

        Where keys and values are made of a vector, those of a sequence's own tokens are made of theirs, and queries behind a context are
        multiplied with the vectors themselves, for which each head of them is as wide.
        """
        latent = self.spec.latent
        if latent is None:
            return {"attention_scores": pairs * self.query, "attention_values": pairs * self.attended}
        behind = tuple(share for share in self.step.shares if share.before)
        far = Step(shares=behind).attended(causal=self.causal, window=window) if behind else 0
        return {
            "attention_scores": (pairs - far) * self.query + far * self.heads * latent.cached,
            "attention_values": (pairs - far) * self.attended + far * self.heads * latent.rank,
        }

    def kv_write(self) -> Op:
        written = self.tokens * self.cached * self.formats.kv_item_bytes
        return Op(
            kind="kv_write",
            name="kv_write",
            shape=(self.tokens, self.cached),
            unit="vector",
            dtype=self.formats.dtype,
            count=self.spec.layers,
            bytes_written=written,
            kv_bytes=written,
            activation_bytes=self.tokens * self.cached * self.item,
        )
