"""What the filters and the draw need of each row, as one table: it goes to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.draws import DRAWS, Draws
from inferometer.engine.edits import positive
from inferometer.engine.sampling_row import SamplingRow
from inferometer.kernels.token_filters import Filters
from inferometer.kernels.token_rows import Drawing
from inferometer.nn.upload import upload

PARAMETERS = 4
"""Words of a row before its random numbers: two whole numbers, then three float32 and a gap."""

_GREEDY = ((0, 0), (1.0, -1.0, 2.0))
"""Parameters under which no filter changes anything and nothing is drawn."""


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """words: int64 [rows, PARAMETERS + DRAWS], the bits of numbers of several types. A row that leaves a filter alone has the
    parameter that makes the filter keep everything.
    """

    words: Tensor

    @classmethod
    def build(cls, parameters: Tensor, draws: Draws, positions: Sequence[int]) -> SamplingTable:
        """The table, on the CPU, of rows with these `parameters`, int64 [rows, PARAMETERS], whose next random numbers are those at
        `positions`.
        """
        numbers = draws.window(torch.tensor(positions, dtype=torch.int64), parameters[:, 0] != 0)
        return cls(torch.cat((parameters, numbers.view(torch.int64)), dim=1))

    @classmethod
    def neutral(cls, rows: int, device: torch.device) -> SamplingTable:
        """Rows that take the best token."""
        words = torch.zeros(1, PARAMETERS + DRAWS, dtype=torch.int64)
        words[0, :PARAMETERS] = _words([_GREEDY])[0]
        return cls(upload(words.expand(rows, -1).contiguous(), torch.int64, device))

    def to(self, device: torch.device) -> SamplingTable:
        """The table on `device`; nothing waits."""
        return SamplingTable(upload(self.words, torch.int64, device))

    @property
    def samples(self) -> Tensor:
        """1 where a row draws its token, 0 where it takes the best; int64 [rows]."""
        return self.words[:, 0]

    @property
    def top_k(self) -> Tensor:
        """int64 [rows, 1], 0 for all."""
        return self.words[:, 1:2]

    @property
    def temperatures(self) -> Tensor:
        """float32 [rows, 1], like the two that follow; 1 where none applies."""
        return self._float(0)

    @property
    def tails(self) -> Tensor:
        """1 - top_p; -1, less than any probability, where top-p is off."""
        return self._float(1)

    @property
    def masses(self) -> Tensor:
        """typical_p; 2, more than all probability, where it is off."""
        return self._float(2)

    @property
    def uniforms(self) -> Tensor:
        """float64 [rows, DRAWS], one column a step."""
        return self.words.view(torch.float64)[:, PARAMETERS:]

    def drawing(self, step: Tensor | int) -> Drawing:
        """How the rows draw at a step: the column of their random numbers, on the device (int64 [1]) or known to the host."""
        temperatures = self.temperatures.squeeze(1)
        if isinstance(step, int):
            return Drawing(self.samples, temperatures, self.uniforms[:, step : step + 1])
        return Drawing(self.samples, temperatures, self.uniforms, step)

    def filters(self, largest_k: int, *, top_p: bool, typical_p: bool) -> Filters:
        """What the rows ask of the filters that are named; top-k is where largest_k, its greatest, is not 0."""
        return Filters(
            self.temperatures.squeeze(1),
            self.top_k.squeeze(1) if largest_k else None,
            largest_k,
            self.tails.squeeze(1) if top_p else None,
            self.masses.squeeze(1) if typical_p else None,
        )

    def _float(self, column: int) -> Tensor:
        return self.words.view(torch.float32)[:, 4 + column : 5 + column]


def parameters(rows: Sequence[SamplingRow], vocabulary: int) -> Tensor:
    """The parameters of `rows`, int64 [rows, PARAMETERS] on the CPU. A top-k of the whole vocabulary or more is none."""
    return _words([_parameters(row, vocabulary) if row.params.samples else _GREEDY for row in rows])


def _parameters(row: SamplingRow, vocabulary: int) -> tuple[tuple[int, int], tuple[float, float, float]]:
    params = row.params
    tail = 1 - params.top_p if params.top_p < 1 else -1.0
    mass = params.typical_p if params.typical_p < 1 else 2.0
    return (1, params.top_k if params.top_k < vocabulary else 0), (positive(params.temperature), tail, mass)


def _words(values: Sequence[tuple[tuple[int, int], tuple[float, float, float]]]) -> Tensor:
    whole = torch.tensor([whole for whole, _ in values], dtype=torch.int64).reshape(-1, 2)
    real = torch.tensor([(*real, 0.0) for _, real in values], dtype=torch.float32).reshape(-1, 4)
    return torch.cat((whole, real.view(torch.int64)), dim=1)
