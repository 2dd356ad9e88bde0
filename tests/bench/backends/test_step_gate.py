"""A program that runs from its first token to its last, driven step by step."""

from __future__ import annotations

import threading

import pytest

from inferometer.bench.backends.step_gate import StepGate


class Program:
    """Three steps, noting where it is; raises at step `fails`."""

    def __init__(self, fails: int | None = None) -> None:
        self.seen: list[str] = []
        self._fails = fails
        self.gate = StepGate(self.run)

    def run(self) -> None:
        self.seen.append("begins")
        for step in range(3):
            self.gate.start()
            if step == self._fails:
                raise MemoryError(f"step {step}")
            self.seen.append(f"step {step}")
            self.gate.stop()
        self.seen.append("ends")


def test_each_call_runs_to_where_the_next_step_begins() -> None:
    program = Program()
    program.gate.begin()
    assert program.seen == ["begins"]
    program.gate.step()
    assert program.seen == ["begins", "step 0"]
    program.gate.step()
    program.gate.step()
    program.gate.finish()
    assert program.seen == ["begins", "step 0", "step 1", "step 2", "ends"]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_it_can_be_ended_anywhere_and_leaves_no_thread(steps: int) -> None:
    before = threading.active_count()
    program = Program()
    program.gate.begin()
    for _ in range(steps):
        program.gate.step()
    program.gate.close()
    assert threading.active_count() == before
    assert ("ends" in program.seen) == (steps == 3)


@pytest.mark.parametrize("fails", [0, 2])
def test_what_it_raises_is_raised_where_it_is_waited_for(fails: int) -> None:
    program = Program(fails)
    program.gate.begin()
    for _ in range(fails):
        program.gate.step()
    with pytest.raises(MemoryError, match=f"step {fails}"):
        program.gate.step()
    program.gate.close()


def test_it_knows_whether_it_is_the_program_that_asks() -> None:
    found: list[bool] = []
    gate = StepGate(lambda: found.append(gate.runs_here))
    gate.begin()
    gate.finish()
    assert (found, gate.runs_here) == ([True], False)


def test_one_that_was_never_begun_can_be_closed() -> None:
    Program().gate.close()
