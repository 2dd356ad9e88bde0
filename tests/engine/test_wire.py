"""What ranks send each other, and what they make of anything else."""

from __future__ import annotations

import json
import operator
import socket
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.parallel.lifeline import Neighbour, here
from inferometer.engine.parallel.meeting import Hello, gather, hello, listen, meet, receive_hello
from inferometer.engine.parallel.wire import Answer, Call, End, Forget, Frames, Order, Step, frame, orders
from inferometer.errors import UserError

numbers = st.integers(0, 2**32 - 1)
calls = st.builds(
    Call, numbers, st.just(operator.add), st.tuples(st.lists(st.integers())), answered=st.booleans(), keeps=st.none() | numbers
)
steps = st.builds(Step, numbers, numbers, numbers)
streams = st.lists(st.lists(st.one_of(calls, steps, st.builds(Forget, numbers), st.just(End())), min_size=1), min_size=1, max_size=4)


@given(streams, st.data())
def test_orders_arrive_as_they_were_sent_in_any_pieces(sent: list[list[Order]], data: st.DataObject) -> None:
    near, far = socket.socketpair()
    with near, far:
        rest = b"".join(frame(tuple(each)) for each in sent)
        frames = Frames(far)
        pieces = []
        while rest:
            length = data.draw(st.integers(1, len(rest)))
            pieces.append(rest[:length])
            rest = rest[length:]
        writing = threading.Thread(target=lambda: [near.sendall(piece) for piece in pieces])
        writing.start()
        assert [list(orders(frames.next())) for _ in sent] == sent
        writing.join()
        near.shutdown(socket.SHUT_RDWR)
        with pytest.raises(EOFError):
            frames.next()


def test_a_step_is_few_bytes() -> None:
    assert len(frame((Step(3, 2**32 - 1, 0),))) < 40


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(), None),
        (Answer(2**40), None),
        (Answer(failed="user", message="no such file"), UserError("rank 3: no such file")),
        (Answer(failed="memory", message="no room"), torch.OutOfMemoryError("rank 3: no room")),
    ],
)
def test_answers_say_how_it_went(answer: Answer, error: Exception | None) -> None:
    read = Answer.of(answer.frame()[4:])
    assert read == answer
    found = read.error(3)
    assert (type(found), str(found)) == (type(error), str(error))


@given(st.binary(max_size=200))
def test_whoever_does_not_greet_is_no_rank(said: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.sendall(said)
        near.shutdown(socket.SHUT_WR)
        with pytest.raises((ValueError, OSError)):
            receive_hello(far, 1.0)


@given(st.dictionaries(st.sampled_from(["token", "rank", "channel", "pid", "place"]), st.sampled_from([None, 1, "", "x", []])))
def test_a_greeting_that_lacks_something_is_none(said: dict[str, Any]) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.sendall(json.dumps(said).encode() + b"\n")
        near.shutdown(socket.SHUT_WR)
        try:
            found = receive_hello(far, 1.0)
        except ValueError:
            return
        assert isinstance(found.token, str)
        assert isinstance(found.rank, int)


def test_only_those_who_know_the_word_are_let_in() -> None:
    with listen("127.0.0.1") as listener:
        address = listener.getsockname()[:2]
        strangers = [socket.create_connection(address) for _ in range(4)]
        strangers[0].sendall(hello("guessed", 1, "commands").line())
        strangers[1].sendall(hello("word", 5, "commands").line())
        strangers[2].sendall(b"GET / HTTP/1.1\r\n\r\n\n")
        strangers[3].close()
        coming = threading.Thread(target=lambda: found.extend(meet(address, "word", 1)))
        found: list[Any] = []
        coming.start()
        (peer,) = gather(listener, 2, "word", lambda: None, 20.0)
        coming.join()
        assert peer.rank == 1
        assert peer.process is not None  # it is of this machine, and so is rank 0
        assert isinstance(found[2], Neighbour)
        for end in (*strangers[:3], found[0], found[1]):
            end.close()
        found[2].close()
        peer.close()


def test_ranks_that_do_not_come_are_named() -> None:
    with listen("127.0.0.1") as listener, pytest.raises(TimeoutError, match="rank 1, 2 did not come within 0 s"):
        gather(listener, 3, "word", lambda: None, 0.0)


def test_a_greeting_of_another_machine_names_no_process_here() -> None:
    assert Hello("", 1, "beats", 1, "elsewhere").process is None
    assert here() == here()
