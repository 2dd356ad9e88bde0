"""The engine's process: loads the model, warms it up, and runs its loop until the server's process tells it to end or is gone.

Started as `python -m inferometer.server.engine_process FD PARENT`: the socket to talk through, and the process that it must not outlive.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal, cast

from inferometer.engine.parallel.lifeline import die_with
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError, warn_in_one_line
from inferometer.server.frames import FrameReader, frame, receive
from inferometer.server.messages import Begin, Command, Event, Failed, Lost, Ping, Pong, Ready

if TYPE_CHECKING:
    from inferometer.engine.engine import Engine
    from inferometer.engine.llm import LLM
    from inferometer.engine.parallel.leader import Leader
    from inferometer.engine.parallel.ranks import Ranks
    from inferometer.server.settings import ServerSettings


def main(arguments: list[str]) -> int:
    """The process's exit code: 0 once it was told to end, 1 where the model could not be started."""
    end, parent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    die_with(parent)
    warn_in_one_line()
    # A terminal's interrupt and a supervisor's signal go to the whole group; when this process ends is the other one's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = _Link(end)
    begin = link.commands.get()
    assert isinstance(begin, Begin)
    try:
        loop = _start(begin.settings, link)
    except UserError as error:
        link.send(Failed(str(error).replace("--tensor-parallel", "--num-shard"), user=True))
        return 1
    except Exception as error:  # noqa: BLE001  (whatever it is, the other process tells it in one line)
        link.send(Failed(f"{type(error).__name__}: {' '.join(str(error).split())}", user=False))
        return 1
    from inferometer.engine.parallel.ranks import RanksError

    try:
        loop()
    except RanksError as error:
        link.send(Lost(str(error)))
        return 1
    return 0


class _Link:
    """The socket: a thread reads commands, whoever has something to tell writes it."""

    def __init__(self, end: socket.socket) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._end = end
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def send(self, event: Event) -> None:
        data = frame(event)
        with self._lock:
            try:
                self._end.sendall(data)
            except OSError:
                os._exit(1)  # nobody is left to serve

    def _read(self) -> None:
        reader = FrameReader()
        with suppress(EOFError, OSError):
            while True:
                for command in receive(self._end, reader):
                    if isinstance(command, Ping):
                        self.send(Pong())
                    else:
                        self.commands.put(cast(Command, command))
        # The server's process is gone, however it ended. A sweep under way is not worth waiting for.
        os._exit(1)


def _start(settings: ServerSettings, link: _Link) -> Callable[[], None]:
    """Loads, warms up, reports Ready; the loop that serves."""
    from inferometer.engine.llm import LLM
    from inferometer.engine.parallel.leader import Leader
    from inferometer.server.embedding_loop import EmbeddingLoop
    from inferometer.server.engine_loop import EngineLoop
    from inferometer.server.warm_up import settle, warm_up

    llm = LLM(
        settings.model_path,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        weights=cast(Literal["auto", "dummy"], settings.weights),
        tokenizer=settings.tokenizer,
        quantize=settings.quantize,
        kv_dtype=settings.kv_dtype,
        tensor_parallel=_ranks(settings),
        gpu_memory=settings.gpu_memory,
        offload=settings.offload,
        host_memory=settings.host_memory,
        disk=settings.disk,
        seed=settings.seed,
    )
    if isinstance(llm.ranks, Leader):
        threading.Thread(target=_tell_failure, args=(llm.ranks, link), name="failure", daemon=True).start()
    if llm.spec.encoder:
        llm.encode([[0]])
        settle(llm)
        link.send(_ready(llm, None, settings))
        return EmbeddingLoop(llm, link.commands, link.send).run
    engine = serving_engine(llm, settings)
    warm_up(engine, settings.total_tokens)
    settle(llm)
    link.send(_ready(llm, engine, settings))
    return EngineLoop(engine, link.commands, link.send).run


def _ranks(settings: ServerSettings) -> int | Ranks:
    """One, those that torchrun has started, or ranks of our own, which meet where the settings say."""
    from inferometer.engine.parallel.leader import start
    from inferometer.engine.parallel.placement import rank_device

    shards = settings.num_shard or 1
    if shards == 1 or Torchrun.of() is not None:
        return shards
    rank_device(settings.device, 0, shards)  # what there is not enough of is told before anything is started
    return start(shards, address=settings.master_addr, port=settings.meeting_port)


def _tell_failure(ranks: Leader, link: _Link) -> None:
    """Once a rank has failed, whatever this process waits for."""
    link.send(Lost(ranks.wait_for_failure()))
    os._exit(1)


def serving_engine(llm: LLM, settings: ServerSettings) -> Engine:
    """The engine for `settings`. Raises UserError where a request of the greatest permitted length could never run."""
    from inferometer.engine.sizes import PAGE_SIZE, SEATS
    from inferometer.engine.watermark import Watermark
    from inferometer.kernels.skinny_choice import buckets_to
    from inferometer.server.server_sweeps import ServerSweeps

    seats = min(SEATS, settings.max_concurrent_requests, settings.max_batch_size or SEATS)
    llm.tune(buckets_to(seats))
    sweeps = ServerSweeps.of(llm, seats)
    pages = llm.room(seats=seats, sweep_tokens=sweeps.tokens)
    budget = settings.batch_total_tokens
    if budget is not None:
        wanted = -(-budget // PAGE_SIZE)
        if wanted > pages and budget == settings.max_batch_total_tokens:
            raise UserError(
                f"--max-batch-total-tokens {budget} needs {wanted} pages of KV cache, there is memory for {pages} "
                f"({pages * PAGE_SIZE} tokens); lower it, or leave it out to have what the memory holds"
            )
        pages = min(pages, wanted)  # --max-batch-size asks for no memory: as many run together as there is room for
    longest = settings.total_tokens
    if pages * PAGE_SIZE < longest:
        raise UserError(
            f"--max-total-tokens {longest} is more than the {pages * PAGE_SIZE} tokens of KV cache that there is memory for; "
            "lower it, or raise --gpu-memory"
        )
    return llm.make_engine(
        pages=pages,
        seats=seats,
        sweep_tokens=sweeps.tokens,
        admission=sweeps.admission,
        watermark=Watermark(settings.watermark_gamma, settings.watermark_delta),
        graphs=not settings.disable_custom_kernels,
    )


def _ready(llm: LLM, engine: Engine | None, settings: ServerSettings) -> Ready:
    from inferometer.bench.machine.environment import device_name, device_slug

    return Ready(
        pages=0 if engine is None else engine.pages,
        page_size=0 if engine is None else engine.page_size,
        page_bytes=0 if engine is None else engine.page_bytes,
        seats=0 if engine is None else engine.seats,
        dtype=str(llm.dtype).removeprefix("torch."),
        weights=llm.weight_format,
        kv_dtype=None if settings.kv_dtype == "auto" else settings.kv_dtype,
        device=str(llm.device),
        device_name=device_name(llm.device),
        device_slug=device_slug(llm.device),
        text_limit=llm.text_limit if llm.spec.encoder else None,
        shards=llm.ranks.size,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
