"""The engine's side of a server: obeys commands, steps, and tells after every step all that came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from inferometer.engine.engine import Engine
from inferometer.engine.parallel.ranks import RanksError
from inferometer.errors import UserError
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import check
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Sweep
from inferometer.server.messages import Abort, Add, Broken, Command, Event, Extra, Load, Refused, Step, Stop


class EngineLoop:
    """Runs one engine for as long as it is told to. `send` brings an event to the other process."""

    def __init__(self, engine: Engine, commands: SimpleQueue[Command], send: Callable[[Event], None]) -> None:
        self._engine = engine
        self._commands = commands
        self._send = send
        self._alive: set[int] = set()
        self._waiting: dict[int, Sequence] = {}  # whose turn has not come yet
        self._since: float | None = None  # when the step before was over, unless there was nothing to do since

    def run(self) -> None:
        """Returns at Stop."""
        while self._obey_all():
            if self._engine.has_work:
                self._step()

    def _obey_all(self) -> bool:
        """Obeys every command that has come; waits for one if there is nothing to do. False at Stop."""
        wait = not self._engine.has_work
        if wait:
            self._since = None
        aborted = False
        while True:
            try:
                command = self._commands.get(block=wait)
            except Empty:
                if aborted and not self._engine.has_work:
                    # No step will follow to say that seats and pages are free again.
                    self._send(Step((), (), (), (), {}, self._load(None, 0.0)))
                return True
            wait = False
            match command:
                case Stop():
                    return False
                case Add(requests):
                    for request in requests:
                        self._add(request)
                case Abort(request_ids):
                    for request_id in request_ids:
                        self._engine.abort(request_id)
                        self._alive.discard(request_id)
                        self._waiting.pop(request_id, None)
                    aborted = True
                case _:
                    raise RuntimeError(f"an engine that generates does not know {type(command).__name__}")

    def _add(self, request: Request) -> None:
        vocabulary = self._engine.model.spec.vocabulary
        try:
            # The other process has looked at this as well; here one bad number would take all that run with it.
            check(request.params, vocabulary, request.eos_token_ids)
            if not 0 <= min(request.prompt_token_ids) <= max(request.prompt_token_ids) < vocabulary:
                raise UserError(f"the prompt has a token outside the model's vocabulary, 0 to {vocabulary - 1}")
            self._waiting[request.id] = self._engine.add(request)
        except UserError as error:
            self._send(Refused(request.id, str(error)))
        else:
            self._alive.add(request.id)

    def _step(self) -> None:
        began = self._since or time.perf_counter()
        try:
            emissions = self._engine.step()
        except RanksError:
            raise  # nothing can be served any more
        except Exception as error:  # noqa: BLE001  (the engine has dropped all requests; the next ones are to be served)
            lost = tuple(self._alive)
            self._alive.clear()
            self._waiting.clear()
            self._since = None
            self._send(Broken(lost, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"))
            return
        self._since = now = time.perf_counter()
        extras = {}
        rare = zip(emissions.tops, emissions.prompt_logprobs, emissions.finish_reasons, strict=True)
        for place, (top, prompt_logprobs, reason) in enumerate(rare):
            if top or prompt_logprobs is not None or reason is not None:
                extras[place] = Extra(top, prompt_logprobs, reason)
            if reason is not None:
                self._alive.discard(emissions.request_ids[place])
        self._send(
            Step(
                started=self._started(),
                request_ids=tuple(emissions.request_ids),
                token_ids=tuple(emissions.token_ids),
                logprobs=tuple(emissions.logprobs),
                extras=extras,
                load=self._load(self._engine.sweep, (now - began) * 1e3),
            )
        )

    def _started(self) -> tuple[tuple[int, int], ...]:
        """Who has got a seat since the last step; one that has had it and lost it again counts as well."""
        if not self._waiting:
            return ()
        started = [(key, sequence.cached) for key, sequence in self._waiting.items() if sequence.seat is not None or sequence.reached]
        for key, _ in started:
            del self._waiting[key]
        return tuple(started)

    def _load(self, sweep: Sweep | None, sweep_ms: float) -> Load:
        scheduler = self._engine.scheduler
        pieces, offsets, turn = ((), (), 0) if sweep is None else (sweep.pieces, sweep.cohort.offsets, sweep.turn)
        return Load(
            waiting=scheduler.waiting,
            running=scheduler.running,
            pages_in_use=scheduler.pool.in_use,
            preemptions=scheduler.preemptions,
            hit_tokens=scheduler.hit_tokens,
            sweep_ms=sweep_ms,
            prompt_tokens=sum([share.count for share in pieces]),
            decode_tokens=len(offsets),
            context_tokens=sum(offsets) + len(offsets) * (turn + 1),
            pieces=len(pieces),
            piece_context_tokens=sum([share.start for share in pieces]),
        )
