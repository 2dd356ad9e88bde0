"""The residual stream between two parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inferometer.kernels.support import usable


@dataclass(frozen=True, slots=True)
class Stream:
    """x, or x + delta, each (tokens, hidden), left in two parts where the norm that follows adds them in its own launch."""

    x: Tensor
    delta: Tensor | None = None

    @property
    def carried(self) -> Stream:
        """The same, in two parts on a GPU alone: elsewhere no norm adds, and both parts need not live on."""
        return self if self.delta is None or usable(self.x.device) else Stream(self.x + self.delta)

    @property
    def parts(self) -> tuple[Tensor, Tensor | None]:
        """What a norm takes."""
        return self.x, self.delta

    @property
    def whole(self) -> Tensor:
        """x + delta."""
        return self.x if self.delta is None else self.x + self.delta
