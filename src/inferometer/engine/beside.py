"""Prompts of a sweep and those that decode, at once."""

from __future__ import annotations

from typing import Any

import torch

from inferometer.engine.sweep_graphs import PROMPTS, SweepGraphs


class Beside:
    def __init__(self, runner: Any, device: torch.device, decoding: torch.cuda.Stream | None, prompts: torch.cuda.Stream | None,
                 recording: torch.cuda.Stream, most: int, least: int = 512) -> None:
        self.decoding, self.prompts, self.least = decoding, prompts, least
        self.graphs = SweepGraphs(
            runner.model, runner.cache, runner._tokens, runner._table, torch.cuda.graph_pool_handle(),
            most_prompt_tokens=most, patience=0, rows=PROMPTS, stream=recording,
        )

    def takes(self, pieces: Any) -> bool:
        return sum(piece.count for piece in pieces) > self.least and not any(piece.start for piece in pieces)
