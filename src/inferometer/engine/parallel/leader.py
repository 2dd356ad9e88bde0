"""Rank 0: it leads the ranks of a model, from the process of whoever uses them."""

from __future__ import annotations

import atexit
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeVar, cast

import torch

from inferometer.engine.owner import Owner
from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.groups import collective
from inferometer.engine.parallel.health import Watch, may_be_anothers
from inferometer.engine.parallel.launch import Launch
from inferometer.engine.parallel.meeting import gather, listen
from inferometer.engine.parallel.peer import Peer
from inferometer.engine.parallel.ranks import RanksError
from inferometer.engine.parallel.store import Store, host_store
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.engine.parallel.wire import RANKS, Answer, Call, End, Forget, Frames, Order, Step, frame
from inferometer.errors import UserError
from inferometer.nn.collective import Collective

_BLAME_S: Final = 3.0
"""After an error that another rank may have caused, how long rank 0 waits to hear of that."""

_SHORT_SPINS: Final = 200
"""Looks at the device without a pause, some tenths of a millisecond. Pauses let other threads of this process on."""

_PAUSE_S: Final = 0.00005

END_S: Final = 2.0
"""How long ranks that were told to end may take before they are killed."""

T = TypeVar("T")


class Leader:
    """Rank 0 of several.

    What is to be done on every rank it tells the others first, in one stream; then it does its own part. After UserError all go on, as
    every rank raises it at the same point; after any other error in the midst of a common call nobody can know how far the others are:
    all ranks are ended, and so is the use of this object, which raises RanksError from then on. `close` ends them in order.
    peers: the others, in their order. launch: who started them, where that was us. local_size: ranks on this machine. address: of this
    machine, as the others reach it.
    """

    rank = local_rank = 0
    leads = True

    def __init__(self, peers: Sequence[Peer], store: Store, address: str, local_size: int, launch: Launch | None) -> None:
        self.size = 1 + len(peers)
        self.local_size = local_size
        self._peers = peers
        self._answers = [Frames(peer.commands) for peer in peers]
        self._store = store
        self._address = address
        self._launch = launch
        self._told: list[Order] = []
        self._names = RANKS
        self._refused = 0
        self._waits = 0
        self._closed = False
        self._owner = Owner()
        self._collectives: dict[tuple[str, bool], Collective] = {}
        self._watch = Watch(peers, launch)
        self._watch.start()

    @property
    def owned(self) -> bool:
        """Whether the other ranks were started by this process, and end with the use of them."""
        return self._launch is not None

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the other ranks' processes, each on its machine."""
        return tuple(peer.pid for peer in self._peers)

    @property
    def well(self) -> bool:
        """Whether the ranks are there."""
        return self._watch.failure is None and not self._closed

    def check(self) -> None:
        """Raises RanksError if the ranks have ended, or are not this process's."""
        if self._owner.forked:
            raise RanksError("the ranks are those of the process that started them, of which this is a fork; make an LLM in each process")
        if self._watch.failure is not None:
            raise RanksError(self._watch.failure)
        if self._closed:
            raise RanksError("the ranks were closed")

    def wait_for_failure(self) -> str:
        """Returns when a rank has failed: which, and why."""
        self._watch.failed.wait()
        return self._watch.failure or ""

    def name(self) -> int:
        """A new one, for something that ranks hold."""
        self._names += 1
        return self._names

    def collective(self, device: torch.device, *, invariant: bool) -> Collective:
        """Made when it is first asked for."""
        kind = device.type, invariant
        if kind not in self._collectives:
            made = collective(device, self._store, self.rank, self.size, self._address, invariant=invariant)
            if isinstance(made, GpuCollective):
                self._watch.releases.append(made.let_go)
            self._collectives[kind] = made
        return self._collectives[kind]

    def tell(self, order: Order) -> None:
        """Puts an order into the stream. It goes out before whatever is run next. Nobody takes it once the ranks have ended."""
        self._told.append(order)

    def flush(self) -> None:
        """Sends what is in the stream."""
        if self._told:
            self._send(*self._told)

    def run(self, order: Order, own: Callable[[], T]) -> T:
        """On every rank: `order` on the others, `own` here."""
        self.check()
        self._send(*self._told, order)
        try:
            with self._waiting():
                return own()
        except UserError:
            self._refused += 1
            raise
        except BaseException as error:
            self._break(error)
            raise

    def step(self, target: int, seen: int, own: Callable[[], T]) -> T:
        """A step of the engine held as `target`."""
        return self.run(Step(target, seen, self._refused), own)

    def ask(self, call: Call, own: Callable[[], T], *, last: bool = False) -> tuple[T, list[Any]]:
        """As `run`, and waits for the others: what came of it here, and on each of them.

        Where it is refused or has no memory, here or there, that is raised and ranks hold nothing new. last: whether they are closed
        then, so that nobody need wait for what comes of it elsewhere.
        """
        self.check()
        self._send(*self._told, call)
        failure: Exception | None = None
        self._watch.asking = True
        try:
            with self._waiting():
                mine = own()
        except (UserError, MemoryError, torch.OutOfMemoryError) as error:
            failure = error
            if last:
                raise
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._watch.asking = False
        try:
            with self._waiting():
                answers = [Answer.of(frames.next()) for frames in self._answers]
        except BaseException as error:
            self._break(error)
            raise
        refusals = [answer.error(peer.rank) for peer, answer in zip(self._peers, answers, strict=True)]
        wrong = [refusal for refusal in refusals if refusal is not None]
        if failure is not None or wrong:
            if call.keeps is not None:
                self.tell(Forget(call.keeps))
                self.flush()
            raise failure or wrong[0]
        return mine, [answer.value for answer in answers]

    def wait(self, arrived: torch.cuda.Event) -> None:
        """Until the device has got there. A collective on a device that waits for a rank that is gone never ends by itself, and neither
        would a wait for it that does not look up. Raises RanksError."""
        spins, event = 0, cast(Any, arrived)  # torch declares no types for it
        while not event.query():
            self.check()
            spins += 1
            if spins > _SHORT_SPINS:
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Ends the other ranks. Does nothing the second time."""
        if self._closed or self._owner.forked:
            return
        self._send(*self._told, End())
        self._closed = True
        well = self._watch.failure is None
        self._watch.close()
        if well:
            for peer in self._peers:
                peer.dismiss()
        if self._launch is not None:
            deadline = time.monotonic() + (END_S if well else 0.0)
            for peer in self._peers:
                if peer.process is not None:
                    peer.process.wait(deadline - time.monotonic())
                peer.cut()
            self._launch.kill()
        for peer in self._peers:
            peer.close()
        self._collectives.clear()

    def _send(self, *orders: Order) -> None:
        """Sends the stream with what is behind it, and begins it anew. Nobody is told anything of what cannot be sent."""
        if self._watch.failure is None and not self._closed and not self._owner.forked:
            data = frame(orders)
            with self._waiting():
                for peer in self._peers:
                    try:
                        peer.commands.sendall(data)
                    except OSError:
                        self._watch.failed.wait(_BLAME_S)  # it finds out why
                        self._watch.fail(f"{peer} takes no orders")
        self._told = []

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """While it lasts, this thread may wait for another rank."""
        self._waits += 1
        self._watch.busy = True
        try:
            yield
        finally:
            self._waits -= 1
            self._watch.busy = self._waits > 0

    def _break(self, error: BaseException) -> None:
        """After an error in the midst of a common call. Raises RanksError where another rank is to blame."""
        if isinstance(error, RanksError):
            raise error
        if may_be_anothers(error):
            self._watch.failed.wait(_BLAME_S)
        if self._watch.failure is not None:
            refusal = self._watch.refusal
            said = None if refusal is None else refusal[1].error(refusal[0])
            raise said or RanksError(self._watch.failure) from error
        if isinstance(error, Exception):
            self._watch.fail(f"rank 0: {type(error).__name__}: {error}")
        else:
            self._watch.fail(f"rank 0 was stopped in the midst of a call ({type(error).__name__})")


def start(size: int, *, address: str = "127.0.0.1", port: int = 0) -> Leader:
    """Ranks 1 to size - 1 as new processes on this machine, led by this one. The ranks' store listens at `address` and `port`, 0 for any.

    Raises UserError where that address cannot be had, RanksError where the ranks do not come up.
    """
    try:
        door = listen(address, port)
        listener = listen(address)
    except OSError as error:
        raise UserError(
            f"--master-addr {address} --master-port {port} cannot be used: {error.strerror or error}; use another one"
        ) from None
    with listener:
        host, found = door.getsockname()[:2]
        store = host_store(door)
        token = secrets.token_hex(16)
        launch = Launch(size, listener.getsockname()[:2], found, token, max(1, torch.get_num_threads() // size))

        def check() -> None:
            if launch.process.poll() is not None:
                raise RanksError("the launcher of the ranks has ended before they came; what it said is on standard error")

        try:
            peers = gather(listener, size, token, check)
        except BaseException:
            launch.kill()
            raise
    return Leader(peers, store, host, size, launch)


@cache
def lead(here: Torchrun) -> Leader:
    """The ranks that torchrun has started, led by this process, which is number 0 of them. They stay until it ends."""
    store = here.store()
    token = secrets.token_hex(16)
    listener = listen("")
    with listener:
        here.lead(store, listener.getsockname()[1], token)
        peers = gather(listener, here.size, token, lambda: None)
    # As others see this machine: where they are on another one, by the way to there.
    outward = next((peer for peer in peers if peer.process is None), peers[0])
    address = outward.commands.getsockname()[0]
    leader = Leader(peers, store, address.removeprefix("::ffff:"), here.local_size, None)
    atexit.register(leader.close)
    return leader
