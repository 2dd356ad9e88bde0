"""The residual stream between two parts of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.support import usable
from inferometer.nn.collective import ALONE, Collective


@dataclass(frozen=True, slots=True)
class Stream:
    """x, or x + delta, each (tokens, hidden), left in two parts where the norm that follows adds them in its own launch.

    collective: the ranks of which each has a part of delta, which is the sum of theirs. x is the same on all of them.
    function: what makes delta, row by row, of the tensor that stands in its place: not yet computed, so that its first rows can be on
    their way to other ranks while it computes the last.
    """

    x: Tensor
    delta: Tensor | None = None
    collective: Collective = ALONE
    function: Callable[[Tensor], Tensor] | None = None

    @property
    def carried(self) -> Stream:
        """The same, in two parts on a GPU alone: elsewhere no norm adds, and both parts need not live on."""
        return self if self.delta is None or usable(self.x.device) else Stream(self.whole)

    @property
    def whole(self) -> Tensor:
        """x + delta, (tokens, hidden)."""
        if self.delta is None:
            return self.x
        x = self.collective.completed(self.x)
        return x + self.collective.all_reduce(self.delta if self.function is None else self.function(self.delta))

    @property
    def summed(self) -> Stream:
        """The same in one part, where ranks add up so few rows in less time than they norm them as well: x is then the whole."""
        if self.delta is None or self.collective.size == 1:
            return self
        delta = self.delta if self.function is None else self.function(self.delta)
        x = self.collective.all_reduce_add(delta, self.x)
        return Stream(self.x, delta, self.collective) if x is None else Stream(x)

    def normed(self, norm: NormWeights) -> Tensor:
        """The norm of the whole, (tokens, hidden), which x then is; it may lie where delta did."""
        if self.delta is None:
            return norm.of(self.x)
        if self.function is not None:
            return self.collective.sum_of(self.function, self.delta, self.x, norm)
        return self.collective.all_reduce_norm(self.delta, self.x, norm)
