"""Words that other ranks raise once what they have copied here is in place, and launches that wait for them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, tl, usable


@dataclass(frozen=True, slots=True)
class Flags:
    """What a launch waits for.

    words: int32 (count, size), contiguous; the word of each rank for each of the things that it copies here, in this rank's memory.
    time: int32 (1,), how often these ranks have done this before, which counts on at each: a word has come when it is not behind it.
    What a rank copies to itself is nothing, and its words are not looked at. A count may turn over.
    """

    words: Tensor
    time: Tensor
    rank: int

    @property
    def size(self) -> int:
        """Ranks."""
        return self.words.shape[-1]

    def of(self, index: int) -> Flags:
        """For one of the things."""
        return Flags(self.words[index : index + 1], self.time, self.rank)


def wait(flags: Flags, *, ends: bool) -> None:
    """Goes on once all words have come. ends: `time` is one more from then on.

    What has been copied before a word was raised can be read by launches behind this one.
    """
    if usable(flags.words.device):
        wait_triton(flags, ends=ends)
    else:
        wait_torch(flags, ends=ends)


def wait_torch(flags: Flags, *, ends: bool) -> None:
    """The reference, on the host."""
    others = [rank for rank in range(flags.size) if rank != flags.rank]
    while others and bool((flags.words[:, others] - flags.time < 0).any()):
        time.sleep(0)  # whoever raises them may be a thread of this process
    if ends:
        flags.time.add_(1)


def wait_triton(flags: Flags, *, ends: bool) -> None:
    """The kernel."""
    words = flags.words
    assert words.is_contiguous()
    _wait.launch(
        (1,), words, flags.time, flags.rank, words.numel(), size=flags.size, width=power_of_two(words.numel()), ends=ends,
        strict=capability(words.device) >= (7, 0), num_warps=1,
    )  # fmt: skip


@kernel("rank", "total")
def _wait(words: Any, clock: Any, rank: Any, total: Any, size: constexpr, width: constexpr, ends: constexpr, strict: constexpr) -> None:
    i = tl.arange(0, width)
    now = tl.load(clock)
    until(words + i, (i < total) & (i % size != rank), now, strict)
    if ends:
        tl.store(clock, now + 1)


@kernel()
def until(places: Any, real: Any, now: Any, strict: constexpr) -> None:
    """Waits for all of these words. strict: nothing that was written before they were is then read as it was."""
    missing = behind(places, real, now)
    while missing != 0:
        missing = behind(places, real, now)
    if strict:
        tl.inline_asm_elementwise("fence.acq_rel.sys; mov.u32 $0, 0;", "=r,r", [now], dtype=tl.int32, is_pure=False, pack=1)
    # No thread reads what was copied before one has seen that it is there.
    tl.debug_barrier()


@kernel()
def behind(places: Any, real: Any, now: Any) -> Any:
    """Whether one of the words has not come."""
    return tl.max((real & (tl.load(places, mask=real, other=0, volatile=True) - now < 0)).to(tl.int32))
