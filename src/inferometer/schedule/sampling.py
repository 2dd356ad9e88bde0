"""How a continuation is chosen: the parameters of one request, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Self

from inferometer.errors import UserError, shown

SEEDS = 2**64


class NamedError(UserError):
    """A refusal that names parameters, as Python has them.

    pieces: its words and the parameters' names by turns; words are first.
    """

    pieces: tuple[str, ...] = ()

    @classmethod
    def of(cls, *pieces: str) -> Self:
        """Of such pieces."""
        error = cls("".join(pieces))
        error.pieces = pieces
        return error

    def told(self, name: Callable[[str], str]) -> str:
        """The same with the parameters named as whoever reads it gives them."""
        pieces = self.pieces or (str(self),)
        return "".join(name(piece) if place % 2 else piece for place, piece in enumerate(pieces))


class ParameterError(NamedError):
    """A value that a parameter may not have. rule: the message without the value, which is told as Python writes it; value: that."""

    rule = ""
    value: object = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue one prompt.

    The scores of the next token pass, in this order: watermark, repetition penalty (over prompt and continuation), frequency
    and presence penalties (over the continuation), `logit_bias`, `min_new_tokens`; then, only if the request samples:
    temperature, top-k, top-p, typical-p. `top_k=0`, `top_p=1` and `typical_p=1` are off.

    max_new_tokens: most tokens to generate. min_new_tokens: no end token before so many; it bans the model's end tokens
    (unless `ignore_eos`) and `stop_token_ids`. stop: texts that end the continuation; one string stands for a tuple of it.
    seed: None lets the engine choose. logit_bias: token id -> what is added to its score. top_logprobs: how many of the
    likeliest tokens to report beside each chosen one. truncate: keep only the last so many tokens of the prompt.

    Raises UserError, one line with the field, its value and what is allowed. Whole numbers of other libraries are accepted and
    kept as int, real numbers as float; a bool is neither.
    """

    max_new_tokens: int = 20
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    # Left out of the hash, which a dict has none of; equality still compares it.
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    prompt_logprobs: bool = False
    top_logprobs: int = 0
    watermark: bool = False
    truncate: int | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "max_new_tokens": _whole("max_new_tokens", self.max_new_tokens, minimum=1),
            "temperature": _real("temperature", self.temperature, "a finite number of at least 0", lambda x: x >= 0),
            "top_k": _whole("top_k", self.top_k, minimum=0),
            "top_p": _share("top_p", self.top_p),
            "typical_p": _share("typical_p", self.typical_p),
            "repetition_penalty": _real("repetition_penalty", self.repetition_penalty, "a finite number above 0", lambda x: x > 0),
            "frequency_penalty": _real("frequency_penalty", self.frequency_penalty, "a finite number"),
            "presence_penalty": _real("presence_penalty", self.presence_penalty, "a finite number"),
            "logit_bias": None if self.logit_bias is None else _bias(self.logit_bias),
            "seed": None if self.seed is None else _whole("seed", self.seed, minimum=0, maximum=SEEDS - 1),
            "stop": _stops(self.stop),
            "stop_token_ids": _token_ids(self.stop_token_ids),
            "min_new_tokens": _whole("min_new_tokens", self.min_new_tokens, minimum=0),
            "top_logprobs": _whole("top_logprobs", self.top_logprobs, minimum=0),
            "truncate": None if self.truncate is None else _whole("truncate", self.truncate, minimum=1),
        }
        for name in ("do_sample", "ignore_eos", "prompt_logprobs", "watermark"):
            if not isinstance(getattr(self, name), bool):
                raise _refusal(name, getattr(self, name), "true or false")
        if checked["min_new_tokens"] > checked["max_new_tokens"]:
            most = f" ({shown(checked['max_new_tokens'])})"
            raise _refusal("min_new_tokens", self.min_new_tokens, "at most ", "max_new_tokens", most)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random: do_sample, a temperature other than 1 or a filter; never at temperature 0."""
        if self.temperature == 0:
            return False
        filtered = self.top_k > 0 or self.top_p < 1 or self.typical_p < 1
        return self.do_sample or self.temperature != 1 or filtered

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken; temperature and filters then play no part."""
        return not self.samples

    @property
    def edits(self) -> bool:
        """Whether a score may be changed before a token is chosen by it, drawn or not."""
        counted = self.frequency_penalty != 0 or self.presence_penalty != 0
        return bool(counted or self.repetition_penalty != 1 or self.logit_bias or self.min_new_tokens or self.watermark)

    @property
    def plain(self) -> bool:
        """Whether it is the model's best token each time, and no other is to be reported."""
        return self.greedy and not self.edits and not self.top_logprobs


def check(params: SamplingParams, vocabulary: int, eos_token_ids: Sequence[int] = ()) -> None:
    """Raises UserError if `params` name a token that a model of `vocabulary` tokens does not have, or ban all that it has.

    eos_token_ids: the model's end tokens; those outside the vocabulary are ignored.
    """
    for name, ids in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_token_ids)):
        for token_id in ids:
            if token_id >= vocabulary:
                raise UserError(f"{name} names token {shown(token_id)}, but the model has tokens 0 to {vocabulary - 1}")
    ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
    if params.min_new_tokens and len(ends) >= vocabulary and vocabulary == len({end for end in ends if 0 <= end < vocabulary}):
        raise UserError("min_new_tokens bans what would end the text, and with stop_token_ids that is every token of the model; name fewer")


def _whole(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    allowed = f"a whole number of at least {minimum}" if maximum is None else f"a whole number from {minimum} to {maximum}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _refusal(name, value, allowed)
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        raise _refusal(name, value, allowed)
    return number


def _real(name: str, value: object, allowed: str, accepts: Callable[[float], bool] = math.isfinite) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refusal(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not accepts(number):
        raise _refusal(name, value, allowed)
    return number


def _share(name: str, value: object) -> float:
    return _real(name, value, "a number above 0 and at most 1", lambda x: 0 < x <= 1)


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _refusal("logit_bias", value, "a mapping from token ids to numbers")
    return {
        _whole("a token id of logit_bias", token_id, minimum=0): _real(f"logit_bias[{shown(token_id)}]", bias, "a finite number")
        for token_id, bias in value.items()
    }


def _stops(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else _items("stop", value, "a string or a list of strings")
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise _refusal(f"stop[{i}]", stop, "a string that is not empty")
    return tuple(stops)


def _token_ids(value: object) -> tuple[int, ...]:
    ids = _items("stop_token_ids", value, "a list of token ids")
    return tuple(_whole(f"stop_token_ids[{i}]", token_id, minimum=0) for i, token_id in enumerate(ids))


def _items(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise _refusal(name, value, allowed)
    return tuple(value)


def _refusal(name: str, value: object, allowed: str, *more: str) -> ParameterError:
    """more: what is allowed goes on with a parameter, and words behind it."""
    rule = ("", name, f" must be {allowed}", *more)
    error = ParameterError.of(*rule[:-1], f"{rule[-1]}, not {shown(value)}")
    error.rule, error.value = "".join(rule), value
    return error
