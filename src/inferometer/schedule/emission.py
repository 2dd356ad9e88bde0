"""What a step of the engine yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from inferometer.schedule.completion import FinishReason


class Emission(NamedTuple):
    """One generated token of one request.

    logprob: natural logarithm, under the distribution it was chosen from. top: (token, logprob) of the likeliest, as many as
    asked. prompt_logprobs: with the first token only, if asked: None for the first prompt token, then one float a token.
    finish_reason: set with the last token.
    """

    request_id: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    finish_reason: FinishReason | None = None


class Emissions(Sequence[Emission]):
    """What one step yields: a sequence of Emission, equal to a list of the same ones.

    It holds columns, in which every field of Emission but its name is in the plural, and makes an Emission when one is asked for. A list
    of a thousand objects at every step would set off the garbage collector, which then looks at all objects of the process once in some
    hundred steps: for as long as ten or twenty steps of a GPU.
    """

    __slots__ = ("finish_reasons", "logprobs", "prompt_logprobs", "request_ids", "token_ids", "tops")

    def __init__(
        self,
        request_ids: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        tops: Sequence[tuple[tuple[int, float], ...]] = (),
        prompt_logprobs: Sequence[tuple[float | None, ...] | None] = (),
        finish_reasons: Sequence[FinishReason | None] = (),
    ) -> None:
        self.request_ids = request_ids
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.tops = tops
        self.prompt_logprobs = prompt_logprobs
        self.finish_reasons = finish_reasons

    def __len__(self) -> int:
        return len(self.request_ids)

    def __iter__(self) -> Iterator[Emission]:
        return map(Emission._make, zip(*self._columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> Emission: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Emission]: ...

    def __getitem__(self, index: int | slice) -> Emission | Sequence[Emission]:
        if isinstance(index, slice):
            return list(self)[index]
        return Emission._make(column[index] for column in self._columns)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | Emissions) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def _columns(self) -> tuple[Sequence[object], ...]:
        return self.request_ids, self.token_ids, self.logprobs, self.tops, self.prompt_logprobs, self.finish_reasons
