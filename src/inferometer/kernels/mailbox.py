"""Memory into which other ranks write: words that say by themselves whether they have come, so that data needs no signal beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl

WORD_BYTES: Final = 8
"""What a GPU writes to another in one piece, whatever else is under way."""
ABSENT: Final = -1
"""A word that has not come. As numbers it would be NaNs only: where a sender has such a word, it sends other NaNs."""
PROGRAMS: Final = 128
"""The most programs of a launch. All of them have to run at once, since each waits for others: as many as any GPU of today holds."""
ROOM_WORDS: Final = 4096
"""Of a program, for sums: 32 KiB, the widest row of a model in 16 bits; 4 MiB of all programs."""
LANE_WORDS: Final = 2
"""Words that a thread reads at once: 16 bytes."""
SLOTS: Final = 2
"""Of each program, used in turn. Whoever writes into one anew has had an answer to the launch between: its reader is done with it."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """What a launch that talks to other ranks needs to know of them.

    words: int64 (programs, SLOTS, size, room), memory of this rank that all ranks write to; ABSENT between launches. addresses: int64
    (size,), where each rank's words lie, as this rank sees them. uses: int32 (programs,), how often each program has run. Every rank must
    launch the same, in the same order, one launch behind the other. overlaps: whether a launch may begin before the one ahead of it in
    its stream has ended; not where the streams of a device wait for each other.
    """

    rank: int
    words: Tensor
    addresses: Tensor
    uses: Tensor
    overlaps: bool = True

    def __post_init__(self) -> None:
        assert self.words.dtype == self.addresses.dtype == torch.int64
        assert self.words.shape[:3] == (self.uses.numel(), SLOTS, self.size)
        assert 0 <= self.rank < self.size

    @property
    def size(self) -> int:
        """Ranks."""
        return self.addresses.numel()

    @property
    def programs(self) -> int:
        """The most of a launch."""
        return self.uses.numel()

    @property
    def room(self) -> int:
        """Words that a program can take from each rank in one launch."""
        return self.words.shape[3]

    def holds(self, rows: int, words: int) -> bool:
        """Whether one launch exchanges so many rows of so many words each."""
        return words > 0 and -(-rows // self.programs) * words <= self.room

    @classmethod
    def shape(cls, size: int, room: int, programs: int = PROGRAMS) -> tuple[int, int, int, int]:
        """Of `words`."""
        return programs, SLOTS, size, room

    @classmethod
    def over(cls, rank: int, words: Tensor, addresses: list[int], *, overlaps: bool = True) -> Mailbox:
        """With memory of this shape that ranks share. It is emptied here; nobody may write before all ranks have done so."""
        words.fill_(ABSENT)
        table = torch.tensor(addresses, dtype=torch.int64, device=words.device)
        return cls(rank, words, table, torch.zeros(words.shape[0], dtype=torch.int32, device=words.device), overlaps)

    @property
    def launch(self) -> dict[str, bool]:
        """Arguments of a launch."""
        return early(self.words.device) if self.overlaps else {"early": False}


def width(words: int) -> int:
    """Of what a program holds of a row: a power of two, a word for each thread at least."""
    return max(32, power_of_two(words))


def warps(words: int, members: int) -> int:
    """Of a program for rows of so many words from so many ranks: each thread has the same places of all ranks, and adds by itself."""
    held = width(words) // (32 * LANE_WORDS)
    return max(1, min(32, held if members <= 8 else 2 * held))


@kernel()
def post(boxes: Any, at: Any, words: Any, real: Any, relaxed: constexpr) -> None:
    """Writes words to the same place of a mailbox. boxes: its address. relaxed: as a store that other devices may read meanwhile."""
    # A word must not look as if it had not come.
    words = tl.where(words == -1, 0x7FFF7FFF7FFF7FFF, words)
    places = boxes.to(tl.pointer_type(tl.int64)) + at
    if relaxed:
        tl.inline_asm_elementwise(
            "{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.relaxed.sys.global.b64 [$1], $2; mov.u32 $0, 0;}",
            "=r,l,l,r", [places.to(tl.int64), words, real.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(places, words, mask=real)


@kernel()
def post_pairs(boxes: Any, at: Any, words: Any, others: Any, real: Any, relaxed: constexpr) -> None:
    """As `post`, of `words` at even places and `others` behind them, both in one store of 16 bytes: half as many packets go over a link,
    none half empty. Each word is still written in one piece."""
    words = tl.where(words == -1, 0x7FFF7FFF7FFF7FFF, words)
    others = tl.where(others == -1, 0x7FFF7FFF7FFF7FFF, others)
    places = boxes.to(tl.pointer_type(tl.int64)) + at
    if relaxed:
        tl.inline_asm_elementwise(
            "{.reg .pred p; setp.ne.s32 p, $4, 0; @p st.relaxed.sys.global.v2.b64 [$1], {$2, $3}; mov.u32 $0, 0;}",
            "=r,l,l,l,r", [places.to(tl.int64), words, others, real.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(places, words, mask=real)
        tl.store(places + 1, others, mask=real)


@kernel()
def collect(places: Any, real: Any, blank: constexpr) -> Any:
    """The words at these places of this rank's mailbox, once all have come, which are then absent again. blank: of those that are none."""
    words = tl.load(places, mask=real, other=blank, volatile=True)
    while tl.max((words == -1).to(tl.int32)) != 0:
        words = tl.load(places, mask=real, other=blank, volatile=True)
    # No thread waits any more for what is taken away here.
    tl.debug_barrier()
    tl.store(places, tl.full(places.shape, -1, tl.int64), mask=real)
    return words


@kernel()
def numbers(words: Any, dtype: constexpr) -> Any:
    """float32: the numbers of a type in words, one dimension or two more behind, in the order of memory."""
    if dtype.primitive_bitwidth == 32:
        parts = tl.join(words.to(tl.int32), (words >> 32).to(tl.int32))
    else:
        even = tl.join(words.to(tl.int16), (words >> 32).to(tl.int16))
        parts = tl.join(even, tl.join((words >> 16).to(tl.int16), (words >> 48).to(tl.int16)))
    return parts.to(dtype, bitcast=True).to(tl.float32)
