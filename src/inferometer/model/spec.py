"""What a transformer is, as data: one frozen description that every floor above reads.

A family file turns a checkpoint's configuration into a `ModelSpec`; nothing else in the product asks which family a model is of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["layer", "rms"]
NormPlacement = Literal["pre", "post"]
Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "gelu_quick", "silu", "tanh", "sigmoid", "mish", "leaky_relu", "identity"]


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A trained vector for each position. The table holds `count + offset` rows; position p reads row p + offset."""

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Alibi:
    """A linear bias on attention scores by distance, one slope a head (Press et al., 2021); no positions are embedded.

    of, first: where the spec's heads are some of another model's, how many that has, and which of them is the first here.
    """

    of: int | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware base that grows with the sequence once it is longer than `original_positions`."""

    factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's piecewise scaling by wavelength."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023). `attention_factor` multiplies cosine and sine and is already resolved (mscale included)."""

    factor: float
    original_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


RotaryScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation of query and key by position, halves layout (dimension i pairs with i + head_size / 2)."""

    theta: float
    scaling: RotaryScaling | None = None


PositionScheme = LearnedPositions | Alibi | Rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A feed-forward block that is a mixture of experts: each token goes through `per_token` of `count`, chosen by a router.

    feed_forward: the inner width of one expert. shared: the inner width of what every token goes through beside, 0 for nothing.
    dense_layers: so many of the layers have an ordinary block instead, of the model's own `feed_forward`.
    Raises ValueError where sizes contradict each other.
    """

    count: int
    per_token: int
    feed_forward: int
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(f"per_token must be from 1 to the {self.count} experts, not {self.per_token}")
        if self.feed_forward < 1 or self.shared < 0 or self.dense_layers < 0:
            raise ValueError("the width of an expert is positive, that of shared experts and the dense layers not negative")

    def used(self, tokens: int) -> float:
        """How many experts so many tokens use, if the router chooses evenly."""
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention whose keys and values are made of one vector a token, which is all that the cache keeps (DeepSeek-AI 2024, MLA).

    rank: the width of that vector. rotated: of the part of a key that positions turn, which is one for all heads and kept beside it.
    unrotated, values: of the other part of a head's keys (and queries), and of its values, which are made of the vector.
    query_rank: the width of the vector that a token's queries are made of, None where they are made of the hidden state.
    Raises ValueError for a width that is none.
    """

    rank: int
    rotated: int
    unrotated: int
    values: int
    query_rank: int | None = None

    def __post_init__(self) -> None:
        if min(self.rank, self.rotated, self.unrotated, self.values, self.query_rank or 1) < 1:
            raise ValueError("the widths of latent attention are positive")

    @property
    def cached(self) -> int:
        """What the cache keeps of a token in a layer."""
        return self.rank + self.rotated


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A transformer's shape and wiring.

    Sizes are counts of elements. `feed_forward` is the inner width of the feed-forward block (one of the two halves if `gated`).
    `embedding` is the width of the token table; where it differs from `hidden`, projections without bias lead in and out.
    `context_limit` is the largest number of tokens a sequence may have, None if the scheme sets none.
    `sliding_window` is how many tokens most layers look back at, `unwindowed_layers` how many of them look at all.
    `latent` attention has one head of keys, as wide as a query's, and caches what that says. It,
    `experts`, `query_key_norm` (a norm of every query and key head) and `layer_norms` other than 2 (one for a block whose two halves
    run side by side, four for one that also normalises what they add) are known to estimates and not run: see `unrun`. An `outline` says
    what a model costs and not all of what it computes.
    `attention_scale` multiplies query-key products; with `scale_by_inverse_layer`, layer i (from 0) also divides by i + 1.
    Raises ValueError at construction where sizes contradict each other.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    positions: PositionScheme
    norm: NormKind
    norm_epsilon: float
    activation: Activation
    context_limit: int | None
    embedding: int
    attention_scale: float
    gated: bool = False
    norm_placement: NormPlacement = "pre"
    norm_affine: bool = True
    residual_after_norm: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    scale_by_inverse_layer: bool = False
    qkv_bias: bool = True
    output_bias: bool = True
    feed_forward_bias: bool = True
    tied_head: bool = True
    encoder: bool = False
    token_types: int = 0
    pooler: bool = False
    sliding_window: int | None = None
    unwindowed_layers: int = 0
    experts: Experts | None = None
    query_key_norm: bool = False
    layer_norms: Literal[1, 2, 4] = 2
    outline: bool = False
    latent: Latent | None = None

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_size", "feed_forward", "vocabulary", "embedding")
        for field in sizes:
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a positive whole number, not {value!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if isinstance(self.positions, Rotary) and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.head_size}")
        if self.context_limit is not None and self.context_limit < 1:
            raise ValueError(f"context_limit must be positive, not {self.context_limit}")
        if self.norm_epsilon < 0:
            raise ValueError(f"norm_epsilon must not be negative, not {self.norm_epsilon}")
        if self.latent is not None and (self.kv_heads != 1 or self.head_size != self.latent.unrotated + self.latent.rotated):
            raise ValueError(f"latent attention has one head of keys, of both their parts, not {self.kv_heads} of {self.head_size}")
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise ValueError(f"dense_layers ({self.experts.dense_layers}) must be at most layers ({self.layers})")
        if not 0 <= self.unwindowed_layers <= self.layers:
            raise ValueError(f"unwindowed_layers must be from 0 to {self.layers}, not {self.unwindowed_layers}")

    @property
    def unrun(self) -> str | None:
        """What the model has that no engine of this product runs, None if nothing."""
        if self.experts is not None:
            return "mixtures of experts"
        if self.latent is not None:
            return "latent attention"
        if self.query_key_norm:
            return "norms of queries and keys"
        if self.layer_norms != 2:
            return f"layers of {self.layer_norms} norms"
        return f"all of what {self.family} computes" if self.outline else None

    @property
    def full_context_limit(self) -> int | None:
        """Most tokens of a sequence that every layer sees whole: `context_limit`, or the window if that is shorter. None: any number."""
        return min((limit for limit in (self.context_limit, self.sliding_window) if limit is not None), default=None)

    @property
    def windowed_layers(self) -> int:
        """Layers that look back at `sliding_window` tokens."""
        return 0 if self.sliding_window is None else self.layers - self.unwindowed_layers

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (values are as wide)."""
        return self.kv_heads * self.head_size

    @property
    def attended_size(self) -> int:
        """Width of what attention gives, all heads together."""
        return self.heads * (self.head_size if self.latent is None else self.latent.values)

    @property
    def cached_size(self) -> int:
        """Elements of a token that the cache keeps in a layer."""
        return 2 * self.kv_size if self.latent is None else self.latent.cached

    def scale(self, layer: int) -> float:
        """The factor on query-key products in `layer` (from 0)."""
        return self.attention_scale / (layer + 1) if self.scale_by_inverse_layer else self.attention_scale
