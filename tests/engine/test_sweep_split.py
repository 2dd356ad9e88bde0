"""One pass or two: measured once a size, the second time that it comes."""

from __future__ import annotations

from inferometer.engine.sweep_graphs import FEW_TOKENS, PROMPT_TOKENS, worth_recording
from inferometer.engine.sweep_split import MOST_KNOWN, SweepSplit


class Clock:
    """Waves of 128 rows."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def seconds(self, rows: int) -> float:
        self.asked.append(rows)
        return -(-rows // 128) if rows > 64 else 0.2


def test_nothing_is_measured_for_sizes_that_come_once() -> None:
    clock = Clock()
    split = SweepSplit(clock.seconds)
    assert not any(split.divides(tokens, 8) for tokens in range(600, 700))
    assert clock.asked == []


def test_what_takes_less_time_is_done_from_the_second_time_on() -> None:
    clock = Clock()
    split = SweepSplit(clock.seconds)
    assert [split.divides(1024, 8) for _ in range(3)] == [False, True, True]
    assert clock.asked == [1024, 8, 1032]
    assert split.divides(1024, 7)  # the same, nearly
    assert len(clock.asked) == 3
    assert [split.divides(1000, 8) for _ in range(3)] == [False, False, False]  # 1008 rows are in the same wave


def test_few_prompt_tokens_and_prompts_alone_are_one_pass() -> None:
    clock = Clock()
    split = SweepSplit(clock.seconds)
    assert not any([split.divides(FEW_TOKENS, 8), split.divides(FEW_TOKENS, 8), split.divides(1024, 0), split.divides(1024, 0)])
    assert clock.asked == []


def test_what_is_known_is_bounded() -> None:
    split = SweepSplit(Clock().seconds, 0)
    for tokens in range(1, MOST_KNOWN + 1):
        split.divides(tokens, 1)
    assert len(split._known) == MOST_KNOWN
    assert not split.divides(MOST_KNOWN + 1, 1)
    assert len(split._known) == 1


def test_larger_models_have_fewer_recorded_sizes() -> None:
    """Of opt-125m, opt-1.3b, opt-6.7b and opt-30b: the GPU is busy for longer with each token."""
    assert [worth_recording(12 * hidden**2) for hidden in (768, 2048, 4096, 7168)] == [PROMPT_TOKENS[-1], 2560, 640, FEW_TOKENS]
