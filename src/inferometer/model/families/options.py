"""A Hugging Face configuration read option by option, with types, ranges and defaults checked.

Defaults are those of the family's configuration class in transformers 5: an option that a config.json leaves out means that value. But the
sizes that make a model the one that it is have none here: what lacks them is a mistake, and not the model that the class describes.
Whatever is wrong is a `ModelError` of one line that names the model, the option and its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inferometer.errors import ModelError, shown
from inferometer.model.spec import Activation, ModelSpec

LARGEST_SIZE = 2**31 - 1
_TAKE_THE_WHOLE = "take the whole file that was published with the weights, or add what it lacks"
MOST_LAYERS = 65_536

# Names of transformers' activations. Those that compute the same function by another route share one of ours.
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "leaky_relu": "leaky_relu",
    "linear": "identity",
}


class UnstatedError(ModelError):
    """A configuration that lacks `sizes` without which it describes no model."""

    sizes: tuple[str, ...] = ()

    @classmethod
    def of(cls, where: str, sizes: Sequence[str]) -> UnstatedError:
        """That it is so of the configuration at `where`."""
        error = cls(
            f"{where} lacks {', '.join(sizes)}: without {'that' if len(sizes) == 1 else 'those'} it describes no model; {_TAKE_THE_WHOLE}"
        )
        error.sizes = tuple(sizes)
        return error


class Options:
    """The options of one configuration.

    `spellings` gives, for an option, its other names; where a config holds several, the other name counts, as in transformers.
    """

    __slots__ = ("_config", "_spellings", "name")

    def __init__(self, config: Mapping[str, Any], name: str, spellings: Mapping[str, str] | None = None) -> None:
        self._config = config
        self._spellings = spellings or {}
        self.name = name

    def __contains__(self, option: str) -> bool:
        return self._spelling(option) in self._config

    def raw(self, option: str, default: Any = None) -> Any:
        """The value as it stands, unchecked."""
        return self._config.get(self._spelling(option), default)

    def error(self, message: str) -> ModelError:
        """A complaint about this model, on one line."""
        return ModelError(" ".join(f"{self.name}: {message}".split()))

    def malformed(self, option: str, wanted: str) -> ModelError:
        """The complaint that `option` holds something else than `wanted`."""
        return self.error(f"{self._spelling(option)} must be {wanted}, not {shown(self.raw(option))}")

    def unsupported(self, option: str, reason: str) -> ModelError:
        """The complaint that `option` asks for what is not run."""
        return self.error(f"{self._spelling(option)} = {shown(self.raw(option))} is not supported: {reason}")

    def require(self, *sizes: str) -> None:
        """Raises UnstatedError where any of them is not there."""
        lacking = [size for size in sizes if size not in self]
        if lacking:
            raise UnstatedError.of(f"{self.name}: the configuration", lacking)

    def size(self, option: str, default: int | None = None, *, largest: int = LARGEST_SIZE) -> int:
        """A whole number from 1 to `largest`. Without a default the option must be there."""
        value = self.raw(option, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise self.malformed(option, f"a whole number from 1 to {largest}")
        return value

    def optional_size(self, option: str, default: int | None = None) -> int | None:
        """As `size`, but null is a value too."""
        return None if self.raw(option, default) is None else self.size(option, default)

    def number(self, option: str, default: float | None = None, *, positive: bool = True) -> float:
        """A finite number, above zero unless `positive` is false (then zero is allowed too)."""
        value = self.raw(option, default)
        wanted = "a positive number" if positive else "a number that is not negative"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.malformed(option, wanted)
        try:
            number = float(value)
        except OverflowError:
            raise self.malformed(option, wanted) from None
        if not math.isfinite(number) or number < 0 or (positive and number == 0):
            raise self.malformed(option, wanted)
        return number

    def flag(self, option: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(option, default)
        if not isinstance(value, bool):
            raise self.malformed(option, "true or false")
        return value

    def layers(self, option: str) -> int:
        """A number of layers, which must be there."""
        return self.size(option, largest=MOST_LAYERS)

    def activation(self, option: str, default: str) -> Activation:
        """The activation that transformers knows by this name."""
        value = self.raw(option, default)
        if not isinstance(value, str):
            raise self.malformed(option, "the name of an activation")
        if value not in _ACTIVATIONS:
            raise self.unsupported(option, f"the activations are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def head_size(self, hidden: int, heads: int, heads_option: str) -> int:
        """`hidden` split evenly over `heads`."""
        if hidden % heads:
            raise self.error(f"the hidden size ({hidden}) must be a multiple of {self._spelling(heads_option)} ({heads})")
        return hidden // heads

    def check_kv_heads(self, heads: int, kv_heads: int, option: str = "num_key_value_heads") -> None:
        """Raises ModelError where the file leaves `option` to its class's default, `kv_heads`, and that does not divide the heads."""
        if option not in self and heads % kv_heads:
            raise self.unfitting(option, kv_heads, f"{heads} heads")

    def unfitting(self, option: str, default: int, what: str) -> ModelError:
        """The complaint that the file lacks `option`, whose default does not go with what it says."""
        return self.error(
            f"the configuration lacks {self._spelling(option)}, and {default}, which is meant without it, does not go with {what}; "
            f"{_TAKE_THE_WHOLE}"
        )

    def require_runnable(self, architectures: Sequence[str]) -> None:
        """Refuses what changes the result in any family and is not run: foreign heads, custom code, encoder-decoders."""
        named = self.raw("architectures")
        if named is not None:
            if not isinstance(named, list) or not all(isinstance(entry, str) for entry in named):
                raise self.malformed("architectures", "a list of names")
            for entry in named:
                if entry not in architectures:
                    raise self.error(f"architecture {shown(entry)} is not supported: this family runs {', '.join(architectures)}")
        reasons = {
            "auto_map": "the model brings its own code",
            "is_encoder_decoder": "encoder-decoder models are not run",
            "add_cross_attention": "cross-attention is not run",
            "per_layer_config": "layers of different shapes are not run",
            "pruned_heads": "layers of different shapes are not run",
        }
        for option, reason in reasons.items():
            if self.raw(option):
                raise self.unsupported(option, reason)

    def spec(self, **fields: Any) -> ModelSpec:
        """The finished spec; what contradicts itself is a `ModelError`."""
        try:
            return ModelSpec(name=self.name, **fields)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _spelling(self, option: str) -> str:
        other = self._spellings.get(option)
        return other if other is not None and self._config.get(other) is not None else option
