"""The inventory of the work: every op of a step, from the spec alone.

The estimator prices this list, the benchmark prints its bound, and a test holds its FLOPs to what torch's counter finds when the
real module runs. Figures are for one device of `formats.shards`: tensor parallelism cuts the query, key-value and feed-forward
projections by output, the two that lead back to the hidden states by input (an all-reduce follows each), the token table and the
head by vocabulary; norms, positions and what is added to the hidden states are copied to every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inferometer.model.attention_ops import AttentionOps, Causal
from inferometer.model.formats import Formats
from inferometer.model.op_maker import TOKEN_ID_BYTES
from inferometer.model.ops import Op
from inferometer.model.spec import Activation, Experts, LearnedPositions, ModelSpec, Rotary
from inferometer.model.step import Step

LOSS_BYTES = 4
# What devices must tell each other of a row whose logits nobody asked for: of a token to be chosen their best score and whose it is, of a
# loss their part of the sum of exponentials and the target's score.
_TOLD_BYTES = 8

# Vector operations an element, an exponential, a square root or a division counting as one. They decide nothing where memory binds.
_ACTIVATION_FLOPS: dict[Activation, int] = {
    "relu": 1,
    "relu_squared": 2,
    "gelu": 5,
    "gelu_tanh": 8,
    "gelu_quick": 4,
    "silu": 3,
    "tanh": 1,
    "sigmoid": 3,
    "mish": 5,
    "leaky_relu": 2,
    "identity": 0,
}
_ROTARY_FLOPS = 3
_LOSS_FLOPS = 4


def work(spec: ModelSpec, step: Step, formats: Formats, *, causal: Causal = "half") -> tuple[Op, ...]:
    """The ops of `step`, in the order in which they run.

    causal: "half" counts attention only between a token and what it may see, which is all that must be computed; "full" counts
    every pair, as torch's FLOP counter does. An encoder's attention is always full. Traffic does not depend on it.
    Raises UserError where the shards do not divide the model, ValueError for logits of an encoder or the pooler of a model without.
    """
    if step.pooled and not spec.pooler:
        raise ValueError("this model has no pooler")
    if spec.encoder and step.logits != "none":
        raise ValueError("an encoder has no logits")
    builder = _Builder(spec, step, formats, "full" if spec.encoder else causal)
    return (*builder.embedding(), *builder.layer(), *builder.head())


class _Builder(AttentionOps):
    """The ops of one step, in order."""

    def embedding(self) -> Iterator[Op]:
        spec, tokens = self.spec, self.tokens
        rows = min(-(-tokens // self.formats.shards), self.vocabulary)
        # A tied head reads the whole table later in the step: its rows are counted there, once.
        tied = spec.tied_head and not spec.encoder
        table = self.formats.head_bytes(rows, spec.embedding) if tied else rows * spec.embedding * self.item
        if tied and self.step.logit_rows:
            table = 0
        yield self.lookup("token_embedding", table, spec.embedding, ids=True)
        yield from self.all_reduce("token_embedding_all_reduce", spec.embedding, count=1)
        if spec.embedding != spec.hidden:
            yield self.gemm("embedding_projection", tokens, spec.hidden, spec.embedding, biases=0, native=True)
        if isinstance(spec.positions, LearnedPositions):
            yield self.lookup("position_embedding", self.step.distinct_positions * spec.hidden * self.item, spec.hidden, added=True)
        if spec.token_types:
            yield self.lookup("token_type_embedding", spec.hidden * self.item, spec.hidden, added=True)
        if spec.embedding_norm:
            yield self.norm("embedding_norm", count=1)

    def layer(self) -> Iterator[Op]:
        """One layer's ops, each `count` = as often as layers have it."""
        spec, tokens, layers = self.spec, self.tokens, self.spec.layers
        yield self.norm("attention_norm", count=layers)
        if spec.latent is None:
            qkv = self.query + 2 * self.kv
            biases = qkv if spec.qkv_bias else 0
            yield from self.maps("qkv", tokens, qkv, spec.hidden, matrix="attention.qkv", biases=biases, count=layers)
        else:
            yield from self.latent_maps(spec.latent)
        if spec.query_key_norm:
            yield self.norm_of("query_key_norm", self.query + self.kv, 2 * spec.head_size, "rms", count=layers)
        if isinstance(spec.positions, Rotary):
            turned = self.query + self.kv if spec.latent is None else (self.heads + 1) * spec.latent.rotated
            yield self.elementwise("rotary", "rotary", turned, flops=_ROTARY_FLOPS, reads=1)
        if self.step.cached:
            yield self.kv_write()
        yield from self.attention()
        biases = spec.hidden if spec.output_bias else 0
        yield from self.maps("attention_output", tokens, spec.hidden, self.attended, matrix="attention.output", biases=biases, count=layers)
        yield from self.all_reduce("attention_all_reduce", spec.hidden, count=layers)
        if spec.layer_norms == 4:
            yield self.norm("attention_output_norm", count=layers)
        yield self.elementwise("residual", "attention_residual", spec.hidden, flops=1, reads=2)
        if spec.layer_norms > 1:
            yield self.norm("feed_forward_norm", count=layers)
        dense = layers if spec.experts is None else spec.experts.dense_layers
        if dense:
            yield from self._feed_forward("feed_forward", self.inner, count=dense)
        if spec.experts is not None and dense < layers:
            yield from self._experts(spec.experts, count=layers - dense)
        yield from self.all_reduce("feed_forward_all_reduce", spec.hidden, count=layers)
        if spec.layer_norms == 4:
            yield self.norm("feed_forward_output_norm", count=layers)
        yield self.elementwise("residual", "feed_forward_residual", spec.hidden, flops=1, reads=2)

    def _feed_forward(self, name: str, inner: int, *, count: int) -> Iterator[Op]:
        spec, tokens, bias = self.spec, self.tokens, self.spec.feed_forward_bias
        up = inner * (2 if spec.gated else 1)
        ordinary = name == "feed_forward"
        matrix = name if ordinary else f"feed_forward.{name}"
        yield from self.maps(f"{name}_up", tokens, up, spec.hidden, matrix=f"{matrix}.up", biases=up if bias else 0, count=count)
        yield self._activation("activation" if ordinary else f"{name}_activation", inner, tokens, count=count)
        biases = spec.hidden if bias else 0
        yield from self.maps(f"{name}_down", tokens, spec.hidden, inner, matrix=f"{matrix}.down", biases=biases, count=count)

    def _experts(self, experts: Experts, *, count: int) -> Iterator[Op]:
        """The router, the experts that the tokens choose (evenly, on average) and what all tokens share."""
        spec, tokens = self.spec, self.tokens
        inner = experts.feed_forward // self.formats.shards
        up = inner * (2 if spec.gated else 1)
        used = max(1, round(experts.used(tokens)))
        yield self.gemm("router", tokens, experts.count, spec.hidden, biases=0, count=count, native=True)
        yield from self._maps_of_experts("up", up, spec.hidden, used, experts, count=count)
        yield self._activation("experts_activation", inner, tokens * experts.per_token, count=count)
        yield from self._maps_of_experts("down", spec.hidden, inner, used, experts, count=count)
        if experts.shared:
            yield from self._feed_forward("shared", experts.shared // self.formats.shards, count=count)

    def _maps_of_experts(self, name: str, n: int, k: int, used: int, experts: Experts, *, count: int) -> Iterator[Op]:
        rows, biases = self.tokens * experts.per_token, n if self.spec.feed_forward_bias else 0
        for one in self.maps(f"experts_{name}", -(-rows // used), n, k, matrix=f"feed_forward.experts.{name}", biases=biases, count=count):
            yield replace(
                one,
                groups=used,
                flops=2 * rows * n * k,
                bytes_read=used * one.bytes_read,
                weight_bytes=used * one.weight_bytes,
                activation_bytes=rows * (n + k) * self.item,
            )

    def _activation(self, name: str, inner: int, rows: int, *, count: int) -> Op:
        spec = self.spec
        flops = _ACTIVATION_FLOPS[spec.activation] + (1 if spec.gated else 0)
        reads = 2 if spec.gated else 1
        return Op(
            kind="activation",
            name=name,
            shape=(rows, inner),
            unit="vector",
            dtype=self.formats.dtype,
            count=count,
            flops=flops * rows * inner,
            activation_bytes=(reads + 1) * rows * inner * self.item,
        )

    def head(self) -> Iterator[Op]:
        spec, rows = self.spec, self.step.logit_rows
        if spec.final_norm:
            yield self.norm("final_norm", count=1)
        if self.step.pooled:
            yield self.gemm("pooler", self.step.sequences, spec.hidden, spec.hidden, biases=spec.hidden, native=True)
        if not rows:
            return
        if spec.embedding != spec.hidden:
            yield self.gemm("head_projection", rows, spec.embedding, spec.hidden, biases=0, native=True)
        weights = self.formats.head_bytes(self.vocabulary, spec.embedding)
        yield Op(
            kind="logits",
            name="logits",
            shape=(rows, self.vocabulary, spec.embedding),
            unit="tensor",
            dtype=self.formats.dtype,
            flops=2 * rows * self.vocabulary * spec.embedding,
            bytes_read=weights,
            bytes_written=rows * self.vocabulary * self.item,
            weight_bytes=weights,
            activation_bytes=rows * spec.embedding * self.item,
        )
        if self.formats.shards > 1:
            each = self.vocabulary * self.item if self.step.logits == "all" and not self.step.loss else _TOLD_BYTES
            yield self.collective("logits_all_gather", (rows, spec.vocabulary), (self.formats.shards - 1) * rows * each, count=1)
        if self.step.loss:
            yield Op(
                kind="loss",
                name="loss",
                shape=(rows, spec.vocabulary),
                unit="vector",
                dtype="float32",
                flops=_LOSS_FLOPS * rows * spec.vocabulary,
                bytes_read=rows * TOKEN_ID_BYTES,
                bytes_written=LOSS_BYTES,
                activation_bytes=2 * rows * spec.vocabulary * self.item,
            )
