"""The engine's side of a server whose model is an encoder."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from inferometer.engine.llm import LLM
from inferometer.engine.parallel.ranks import RanksError
from inferometer.errors import ModelError, UserError
from inferometer.server.messages import Abort, Broken, Command, Embed, Embedded, Event, Refused, Stop


class EmbeddingLoop:
    """Embeds what it is sent, in order of arrival. `send` brings an event to the other process."""

    def __init__(self, llm: LLM, commands: SimpleQueue[Command], send: Callable[[Event], None]) -> None:
        self._llm = llm
        self._commands = commands
        self._send = send

    def run(self) -> None:
        """Returns at Stop. Raises RanksError where a rank has failed, RuntimeError for a command that only a generating engine knows."""
        waiting: dict[int, Embed] = {}
        while True:
            try:
                command = self._commands.get(block=not waiting)
            except Empty:
                self._embed(waiting.pop(next(iter(waiting))))
                continue
            match command:
                case Stop():
                    return
                case Abort(request_ids):
                    for request_id in request_ids:
                        waiting.pop(request_id, None)
                case Embed():
                    waiting[command.request_id] = command
                case _:
                    raise RuntimeError(f"an encoder's engine does not know {type(command).__name__}")

    def _embed(self, embed: Embed) -> None:
        try:
            vectors = self._llm.encode([list(row) for row in embed.rows])
        except RanksError:
            raise  # nothing can be served any more
        except ModelError as error:  # is nothing that a client has asked wrongly
            self._send(Broken((embed.request_id,), str(error)))
        except UserError as error:
            self._send(Refused(embed.request_id, str(error)))
        except Exception as error:  # noqa: BLE001  (the next ones are to be served)
            self._send(Broken((embed.request_id,), f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"))
        else:
            self._send(Embedded(embed.request_id, vectors.shape[1], vectors.astype("float32").tobytes()))
