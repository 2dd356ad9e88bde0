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
    """A linear bias on attention scores by distance, one slope a head (Press et al., 2021); no positions are embedded."""


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
class ModelSpec:
    """A transformer's shape and wiring.

    Sizes are counts of elements. `feed_forward` is the inner width of the feed-forward block (one of the two halves if `gated`).
    `embedding` is the width of the token table; where it differs from `hidden`, projections without bias lead in and out.
    `context_limit` is the largest number of tokens a sequence may have, None if the scheme sets none.
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

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (values are as wide)."""
        return self.kv_heads * self.head_size

    def scale(self, layer: int) -> float:
        """The factor on query-key products in `layer` (from 0)."""
        return self.attention_scale / (layer + 1) if self.scale_by_inverse_layer else self.attention_scale
