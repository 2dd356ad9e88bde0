"""The sampler: logits in, chosen tokens out, every row by its own parameters.

What a row gets does not depend on the rows beside it: the filters work row by row, and the random number of a token depends on the
row's seed and the token's place in the continuation alone. Nothing here waits for the device, neither a step nor a change of the
batch; the one exception is a watermark, whose permutation is drawn on the host from the token before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferometer.engine.choice import likeliest, take
from inferometer.engine.draws import Draws
from inferometer.engine.history import History
from inferometer.engine.sampled import Sampled
from inferometer.engine.sampling_plan import SamplingPlan, plan
from inferometer.engine.sampling_row import SamplingRow
from inferometer.engine.sampling_table import parameters
from inferometer.engine.watermark import DEFAULT_WATERMARK, Watermark
from inferometer.kernels.token_choice import LOWEST, clean, processed
from inferometer.kernels.token_rows import Places
from inferometer.schedule.sampling import check

__all__ = ["Sampled", "SamplingBatch", "SamplingRow", "check", "sample"]


class SamplingBatch:
    """The sampling side of a batch of sequences: their parameters and what must be remembered of their tokens.

    Every step: `sample(logits, batch)`, then `batch.update(token_ids)`. Sequences leave with `select` and enter with `extend`.
    """

    def __init__(
        self,
        rows: Sequence[SamplingRow],
        generated: Sequence[int],
        parameters: Tensor,
        draws: Draws,
        history: History,
        vocabulary: int,
        device: torch.device,
        watermark: Watermark,
    ) -> None:
        self.vocabulary = vocabulary
        self.device = device
        self._rows = list(rows)
        self._generated = list(generated)
        self._parameters = parameters
        self._draws = draws
        self._history = history
        self._watermark = watermark
        self._plan: SamplingPlan | None = None

    @classmethod
    def build(
        cls, rows: Sequence[SamplingRow], vocabulary: int, device: torch.device, watermark: Watermark = DEFAULT_WATERMARK
    ) -> SamplingBatch:
        """A batch of `rows`. Raises UserError for a parameter that names a token outside the vocabulary."""
        for row in rows:
            check(row.params, vocabulary)
        generated = [len(row.generated_token_ids) for row in rows]
        history, draws = History.build(rows, vocabulary, device), Draws.build([row.seed for row in rows])
        return cls(rows, generated, parameters(rows, vocabulary), draws, history, vocabulary, device, watermark)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def generated(self) -> tuple[int, ...]:
        """Tokens that each row has generated: the position of its next random number."""
        return tuple(self._generated)

    def plan(self) -> SamplingPlan:
        """The work of the coming step. Made anew after the batch has changed, or when the old plan has run out."""
        if self._plan is None:
            self._plan = plan(
                self._rows,
                self._generated,
                self._parameters,
                self._draws,
                self._history,
                self.vocabulary,
                self.device,
                self._watermark,
            )
        return self._plan

    def update(self, token_ids: Tensor) -> None:
        """Takes in the tokens of a step, int64 [rows], on the batch's device."""
        self._history.update(token_ids)
        self._generated = [count + 1 for count in self._generated]
        if self._plan is not None:
            self._plan.advance()
            if self._plan.spent:
                self._plan = None

    def select(self, rows: Sequence[int]) -> SamplingBatch:
        """The batch of the rows at these places, in this order.

        Raises ValueError for a place named twice, IndexError for one that is not there.
        """
        if len(set(rows)) != len(rows):
            raise ValueError(f"a row can be selected only once: {list(rows)}")
        if rows and not 0 <= min(rows) <= max(rows) < len(self):
            raise IndexError(f"rows {list(rows)} of a batch of {len(self)}")
        kept = [self._rows[i] for i in rows]
        index = torch.tensor(rows, dtype=torch.int64)
        history = self._history.select(index, kept)
        generated = [self._generated[i] for i in rows]
        parameters, draws = self._parameters.index_select(0, index), self._draws.select(index)
        return SamplingBatch(kept, generated, parameters, draws, history, self.vocabulary, self.device, self._watermark)

    def extend(self, other: SamplingBatch) -> None:
        """Appends the rows of `other`, a batch for the same vocabulary and device; raises ValueError for one of another model."""
        if (other.vocabulary, other.device, other._watermark) != (self.vocabulary, self.device, self._watermark):
            raise ValueError("batches of different models cannot be joined")
        self._history = self._history.extend(other._history, len(self), len(other))
        self._parameters = torch.cat((self._parameters, other._parameters))
        self._draws = self._draws.extend(other._draws)
        self._rows += other._rows
        self._generated += other._generated
        self._plan = None


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Chooses a token for every row. logits: [rows, vocabulary] of any floating type, left as they are; worked on in float32.

    A greedy row takes the best score, the lowest id among equals; another draws. A NaN logit counts as -inf, +inf as the largest
    float32. A row without any finite score gives token 0 with log-probability -inf. Raises ValueError for logits of another shape.
    """
    if logits.shape != (len(batch), batch.vocabulary):
        raise ValueError(f"logits of shape {tuple(logits.shape)} for {len(batch)} rows and {batch.vocabulary} tokens")
    work = batch.plan()
    scores = work.edited(logits)
    places = Places.on(logits.device, len(batch))
    drawing, left = take(scores, places, work.needs, work.table, work.done)
    count = max(work.top_counts, default=0)
    if not count and work.unprocessed is None:
        return Sampled.at(places, len(batch))
    logprobs = processed(scores, drawing, left).log_softmax(dim=-1)
    told = places.logprobs
    if work.unprocessed is not None:
        logprobs = torch.where(work.unprocessed, clean(logits.to(torch.float32)).log_softmax(dim=-1), logprobs)
        chosen = logprobs.gather(1, places.token_ids[:, None])[:, 0].clamp(min=LOWEST)
        # -inf stays the word for a row of NaN.
        told = torch.where(work.unprocessed[:, 0] & (told > -torch.inf), chosen, told)
        if not count:
            return Sampled(places.token_ids, told, None, None, work.top_counts)
    top_ids, top_logprobs = likeliest(logprobs.nan_to_num_(nan=-torch.inf, neginf=-torch.inf), count)
    # What a kernel has summed up in another order may differ in the last bit; the token's own is told once.
    same = top_logprobs == logprobs.gather(1, places.token_ids[:, None])
    top_logprobs = torch.where(same, told[:, None], top_logprobs)
    return Sampled(places.token_ids, told, top_ids, top_logprobs, work.top_counts)
