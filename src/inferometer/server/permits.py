"""Permits: how many sequences may be in flight, of which a request may ask for several. Nobody waits for one."""

from __future__ import annotations

import asyncio
from typing import Self

from inferometer.server.failures import overloaded


class Permits:
    """`total` permits. Not thread-safe: one event loop's."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, count: int = 1) -> Permit:
        """So many permits, at once or not at all. Raises ApiError (429) where there are not so many left."""
        permit = Permit(self)
        permit.grow(count)
        return permit

    async def all_back(self) -> None:
        """Waits until no permit is taken."""
        await self._idle.wait()

    def change(self, count: int) -> None:
        """Takes `count` more, or gives back as many if negative. For Permit alone. Raises ApiError (429) where there are not so many."""
        if self.taken + count > self.total:
            raise overloaded()
        self.taken += count
        if self.taken:
            self._idle.clear()
        else:
            self._idle.set()


class Permit:
    """Permits that were taken together. Give them back with `release`, which may be called twice, or by leaving its `with`."""

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self.count = 0

    def grow(self, count: int) -> None:
        """Takes so many more. Raises ApiError (429); what was held before is then still held."""
        self._permits.change(count)
        self.count += count

    def release(self) -> None:
        """Gives all of them back."""
        self._permits.change(-self.count)
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
