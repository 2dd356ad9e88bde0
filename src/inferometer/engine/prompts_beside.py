"""Many prompt tokens beside sequences that decode: a pass each, at once."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.engine.sweep_graphs import PROMPTS, SweepGraphs
from inferometer.kernels.arrivals import counted_apart
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer
from inferometer.schedule.sweep import Share

FIRST: Final = -1
"""Priority of a stream whose launches get processors that become free before those of others."""

ONE_PASS = 1024
"""Prompt tokens up to which they share a pass with those that decode: as fast as two at once (opt-1.3b on an H200, beside 8 to 248 rows:
204 and 206 ms in 31 sweeps), and one graph."""


class PromptsBeside:
    """Prompts keep a GPU's matrix units busy, sequences that decode its memory. In one pass they take turns: kernels of one stream follow
    each other, and a few rows more can cost a product of prompts another wave of tiles. In two passes on two streams each fills what the
    other leaves. The weights are read twice, while the matrix units are what is waited for.

    Neither pass reads what the other writes: pages that a prompt finds in the prefix cache were filled by earlier sweeps, as
    `Batch.publish` goes by the tokens that the host has read.

    stream: of those that decode, whose kernels are short and wait for one another; None elsewhere than on a GPU, where the passes follow
    each other. graphs: of sweeps of prompts alone, which share nothing with those of the others while both run. most_prompt_tokens: of a
    sweep that is recorded. least: prompt tokens up to which a sweep is one pass.
    """

    def __init__(
        self,
        model: Transformer,
        cache: PagedCache,
        tokens: Tensor,
        table: Tensor,
        *,
        most_prompt_tokens: int,
        least: int = ONE_PASS,
    ) -> None:
        self._device, self._least = model.device, least
        self.stream: torch.cuda.Stream | None = None
        pool = None
        if model.device.type == "cuda":
            self.stream, pool = decoding_stream(model.device), torch.cuda.graph_pool_handle()
        self.graphs = SweepGraphs(model, cache, tokens, table, pool, most_prompt_tokens=most_prompt_tokens, rows=PROMPTS)

    def takes(self, prompts: Many[Share]) -> bool:
        """Whether these run in a pass of their own beside those that decode."""
        return sum(share.count for share in prompts) > self._least

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Launches go to the stream of those that decode, behind all that has been launched before."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        except BaseException:
            current.wait_stream(self.stream)  # who goes on after that finds one order again
            raise

    @contextmanager
    def prompts(self) -> Iterator[None]:
        """Launches run beside those of `decoding`; all that comes behind runs when both have ended."""
        try:
            with counted_apart():
                yield
        finally:
            if self.stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self.stream)


@lru_cache
def decoding_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all engines of a device: matrix libraries keep a workspace for every stream that they have seen."""
    stream: Any = torch.cuda.Stream  # untyped in torch
    made: torch.cuda.Stream = stream(device, priority=FIRST)
    return made
