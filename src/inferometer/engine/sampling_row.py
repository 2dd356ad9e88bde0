"""One sequence as the sampler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.schedule.sampling import SEEDS, SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """A sequence that enters a sampling batch.

    seed: 0 to 2^64 - 1; with the number of tokens generated so far it decides every draw. generated_token_ids: what was generated
    before the row enters, for a sequence that is taken up again. eos_token_ids: the model's end tokens; those outside the
    vocabulary are ignored. model_logprobs: as a request has it.
    """

    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    generated_token_ids: Sequence[int] = ()
    eos_token_ids: tuple[int, ...] = ()
    model_logprobs: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"a row's seed must be from 0 to 2^64 - 1, not {self.seed}")
        if self.params.watermark and not self.prompt_token_ids and not self.generated_token_ids:
            raise ValueError("a watermark needs a token before the first one")

    @property
    def penalises_repetition(self) -> bool:
        """Whether it matters which tokens the row holds."""
        return self.params.repetition_penalty != 1

    @property
    def penalises_counts(self) -> bool:
        """Whether it matters how often the row has generated each token."""
        return self.params.frequency_penalty != 0 or self.params.presence_penalty != 0

    @property
    def unprocessed_logprobs(self) -> bool:
        """Whether the row wants log-probabilities of the model's own scores, and those that a token is chosen by are others."""
        params = self.params
        shaped = params.samples and (params.temperature != 1 or params.top_k or params.top_p < 1 or params.typical_p < 1)
        return self.model_logprobs and bool(params.edits or shaped)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The tokens that would end the row."""
        eos = () if self.params.ignore_eos else self.eos_token_ids
        return tuple(dict.fromkeys((*eos, *self.params.stop_token_ids)))
