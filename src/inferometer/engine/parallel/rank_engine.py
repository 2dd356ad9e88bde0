"""The engine of a model that several ranks share: rank 0's does what it is asked, and every other rank's does the same.

All ranks have a scheduler that is told the same and decides the same, and choose the same tokens from collectives that give the same bits.
Rank 0 tells the others once a step what has happened since the one before; nobody answers.
"""

from __future__ import annotations

import weakref
import zlib
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from inferometer.engine.engine import Engine
from inferometer.engine.flight import Flight
from inferometer.engine.parallel.leader import Leader
from inferometer.engine.parallel.wire import Call, Forget
from inferometer.engine.sampled import Tokens
from inferometer.nn.transformer import Transformer
from inferometer.schedule.emission import Emission, Emissions
from inferometer.schedule.request import Request
from inferometer.schedule.sequence import Sequence

T = TypeVar("T")


class RankEngine(Engine):
    """A rank's engine. seen: a checksum of all tokens read so far, by which ranks know that they have come to the same."""

    def __init__(self, model: Transformer, **settings: Any) -> None:
        self.seen = 0
        super().__init__(model, **settings)

    def _land(self, flight: Flight) -> Emissions:
        emissions = super()._land(flight)
        self.seen = zlib.crc32(array("q", emissions.token_ids).tobytes(), self.seen)
        return emissions


class LeadingEngine(RankEngine):
    """Rank 0's. owner: under what name the ranks hold the LLM that the engine belongs to.

    Raises RanksError, as every method does once a rank has failed, and what Engine raises, for this rank or another.
    """

    def __init__(self, ranks: Leader, owner: int, model: Transformer, **settings: Any) -> None:
        self._ranks = ranks
        self._name = name = ranks.name()
        make = Call(owner, followed, (settings,), answered=True, keeps=name)
        ranks.ask(make, lambda: super(LeadingEngine, self).__init__(model, **settings))
        weakref.finalize(self, partial(ranks.tell, Forget(name)))

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        self._ranks.tell(Call(self._name, Engine.add, (request,)))
        return sequence

    def abort(self, request_id: int) -> None:
        if not self._stepping:  # else it is dropped, and told, at the step's end
            self._ranks.tell(Call(self._name, Engine.abort, (request_id,)))
        super().abort(request_id)

    def clear(self) -> None:
        self._ranks.tell(Call(self._name, Engine.clear))
        self._ranks.flush()
        super().clear()

    def close(self) -> None:
        self._ranks.tell(Call(self._name, Engine.close))
        self._ranks.flush()
        super().close()

    def step(self) -> Emissions:
        return self._ranks.step(self._name, self.seen, super().step)

    def relaunch(self) -> None:
        self._ranks.run(Call(self._name, Engine.relaunch), super().relaunch)

    def drain(self) -> list[Emission]:
        return self._ranks.run(Call(self._name, Engine.drain), super().drain)

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._ranks.run(Call(self._name, function, arguments), lambda: function(self, *arguments))

    def _read(self, flight: Flight) -> Tokens:
        for event in flight.arrivals:
            self._ranks.wait(event)
        return super()._read(flight)


def followed(llm: Any, settings: dict[str, Any]) -> RankEngine:
    """The engine of another rank's LLM."""
    return RankEngine(llm.model, **settings)
