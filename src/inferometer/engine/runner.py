"""The runner: launches the sweeps that the scheduler decides on, and waits for nothing.

Tokens stay on the device: every seat's newest one feeds the next sweep, and the host learns of it later, from the flight.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from inferometer.engine.captured_sampler import CapturedSampler, SamplerGraphs
from inferometer.engine.cohort_rows import CohortRows
from inferometer.engine.facts import Facts
from inferometer.engine.flight import Flight
from inferometer.engine.graph import Graph
from inferometer.engine.prompt_scores import Scores, fetch_scores
from inferometer.engine.prompts_beside import PromptsBeside
from inferometer.engine.residency.brought_pages import BroughtPages, PageTraffic
from inferometer.engine.sampled import Sampled
from inferometer.engine.sampler import SamplingBatch, sample
from inferometer.engine.sampling_plan import GREEDY
from inferometer.engine.sampling_state import SamplingState
from inferometer.engine.staging import Staged, pack, table_entries
from inferometer.engine.sweep_graphs import FEW_TOKENS, PATIENCE, SweepGraphs, worth_recording
from inferometer.engine.watermark import Watermark
from inferometer.kernels.support import usable
from inferometer.kernels.token_rows import Places
from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.formats import Formats
from inferometer.nn.cache import PagedCache
from inferometer.nn.chunk import Reach, chunks
from inferometer.nn.transformer import Transformer
from inferometer.nn.upload import upload
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import NOBODY, Cohort, Share, Sweep


class Runner:
    """Runs sweeps of one model over one cache.

    seats: most sequences that run together. stride: most pages of one sequence. graphs: whether decode sweeps and their sampling are
    recorded as CUDA graphs, where the device can. watermark: of the requests that ask for one.
    traffic: of the cache, if it has pages on the host. grouped: whether requests come in groups of equal size, so that sweeps with many
    prompt tokens are of few sizes, which come again: those are recorded too, and where sequences decode beside them both run at once.
    """

    def __init__(
        self,
        model: Transformer,
        cache: PagedCache,
        *,
        seats: int,
        stride: int,
        graphs: bool,
        watermark: Watermark,
        traffic: PageTraffic | None = None,
        grouped: bool = False,
    ) -> None:
        self.model = model
        self.traffic = traffic
        self.cache = cache
        # One seat more than sequences: rows that only fill up a batch sit there.
        self._tokens = torch.zeros(seats + 1, dtype=torch.int64, device=model.device)
        self._table = torch.zeros(seats + 1, stride, dtype=torch.int32, device=model.device)
        self._sampling = SamplingState(model.spec.vocabulary, model.device, watermark)
        self._decoding = self._rows(NOBODY)
        self._graphs: SweepGraphs | None = None
        self._samplers: SamplerGraphs | None = None
        self._beside: PromptsBeside | None = None
        self._pool: Any = None
        if graphs and usable(model.device) and model.collective.recordable:
            self._pool = torch.cuda.graph_pool_handle()
            most, patience = FEW_TOKENS, 0
            if grouped:
                weights = layer_weight_bytes(model.local, Formats(dtype="float32")) // 4
                most, patience = worth_recording(weights), PATIENCE
                # Else weights would come in twice, or ranks add up in two streams at once.
                if model.resident and model.collective.size == 1:
                    both = worth_recording(weights // 2)  # the host launches two passes while the GPU is busy with the prompts
                    self._beside = PromptsBeside(model, cache, self._tokens, self._table, most_prompt_tokens=both)
            self._graphs = SweepGraphs(
                model,
                cache,
                self._tokens,
                self._table,
                self._pool,
                most_prompt_tokens=most,
                patience=patience,
                recording=None if self._beside is None else self._beside.stream,
            )
            self._samplers = SamplerGraphs(model.device)

    @property
    def recorded(self) -> int:
        """Graphs of sweeps that there are."""
        beside = 0 if self._beside is None else self._beside.graphs.recorded
        return beside + (0 if self._graphs is None else self._graphs.recorded)

    @property
    def preparations(self) -> int:
        """Sizes of sweeps and kinds of sampling that were met, and graphs of them, all together."""
        beside = None if self._beside is None else self._beside.graphs
        return sum(each.preparations for each in (self._graphs, self._samplers, beside) if each is not None)

    def close(self) -> None:
        """Waits for copies that are under way: the memory of the cache may go then."""
        if self.traffic is not None:
            self.traffic.close()
            self.traffic.cache.close()

    def clear(self) -> None:
        """Forgets all sequences."""
        self._sampling.clear()
        self._decoding = self._rows(NOBODY)

    @torch.inference_mode()
    def launch(self, sweep: Sweep) -> Flight:
        """Queues a sweep and the sampling of its tokens on the device."""
        if sweep.cohort is not self._decoding.cohort:
            self._decoding = self._rows(sweep.cohort)
        decoding = self._decoding.facts(sweep.turn)
        # Single tokens before the rest: each kind is one launch of attention a layer.
        pieces = sorted(sweep.pieces, key=lambda share: share.count > 1)
        prompts = Facts.of(pieces, self.cache.page_size)
        brought = None if self.traffic is None else self._brought(decoding, pieces, self.traffic)
        if brought is None and self._graphs is not None:
            if self._beside is not None and len(decoding) and self._beside.takes(pieces):
                return self._at_once(decoding, prompts, pieces, self._graphs, self._beside)
            if self._graphs.serves(len(decoding), pieces):
                return self._replay(decoding, prompts, pieces, self._graphs)
        staged, hidden = self._sweep(decoding.followed_by(prompts), apart=not pieces, brought=brought)
        scores = tuple(self._scores(pieces, hidden[len(decoding) :]))
        sequences, sampling = self._align(pieces)
        if sampling is None:
            return Flight((), (), scores, _arrival(scores))
        sampled = self._choose(hidden.index_select(0, staged.last), sampling)
        return self._finish(sequences, sampling, sampled, staged.sampled_seats, scores)

    def _brought(self, decoding: Facts, pieces: Many[Share], traffic: PageTraffic) -> BroughtPages | None:
        """The sweep's pages that come from the host; None if all are on the device."""
        cache, size = traffic.cache, self.cache.page_size
        reaches = [
            Reach(sequence.pages[: -(-(start + 1) // size)], start, 1)
            for sequence, start in zip(self._decoding.sequences, decoding.starts.tolist(), strict=True)
        ]
        reaches += [Reach(one.sequence.pages[: -(-(one.start + one.count) // size)], one.start, one.count) for one in pieces]
        cut = chunks(reaches, resident=cache.resident, page_size=size, slot_pages=cache.slot_pages)
        return traffic.begin(cut) if cut else None

    def _sweep(self, facts: Facts, *, apart: bool, brought: BroughtPages | None = None) -> tuple[Staged, Tensor]:
        """Launches a sweep kernel by kernel: what it was given, and hidden states (tokens, hidden)."""
        packed, shape = pack(facts, self.cache.page_size)
        staged = Staged.of(upload(packed, torch.uint8, self.model.device), shape)
        staged.entries(self._table).write()
        queries, contexts = tuple(facts.counts.tolist()), tuple(facts.contexts.tolist())
        batch = staged.batch(self._tokens, self._table, queries, contexts, apart=apart, brought=brought)
        return staged, self.model.sweep(batch, self.cache)

    def _at_once(self, decoding: Facts, prompts: Facts, pieces: Many[Share], graphs: SweepGraphs, beside: PromptsBeside) -> Flight:
        """Those that decode as a graph, the prompts beside them."""
        nobody = Facts.of((), self.cache.page_size)
        sequences, batch = self._align(pieces)
        assert batch is not None
        entering = int(prompts.samples.sum())
        if batch.plan().signature != GREEDY:
            with beside.decoding():
                logits, seats = graphs.run(decoding, nobody)
            with beside.prompts():
                staged, hidden = self._sweep(prompts, apart=False)
            logits, seats = logits[: len(decoding)], seats[: len(decoding)]
            if entering:
                logits = torch.cat((logits, self.model.logits(hidden.index_select(0, staged.last))))
                seats = torch.cat((seats, staged.sampled_seats))
            return self._finish(sequences, batch, sample(logits, batch), seats, tuple(self._scores(pieces, hidden)))
        with beside.decoding():
            chosen = [graphs.choose(decoding, nobody)]
        scores: tuple[Scores, ...] = ()
        if entering and beside.graphs.serves(0, pieces):
            with beside.prompts():
                self._enter_table(prompts)
                chosen.append(beside.graphs.choose(nobody, prompts))
        else:
            with beside.prompts():
                staged, hidden = self._sweep(prompts, apart=False)
            scores = tuple(self._scores(pieces, hidden))
            if entering:
                chosen.append(self._choose(hidden.index_select(0, staged.last), batch))
                self._tokens.index_copy_(0, staged.sampled_seats, chosen[-1].token_ids)
        fetched = tuple(each.fetch() for each in chosen)
        batch.update(torch.cat([each.token_ids for each in chosen]))
        return Flight(sequences, fetched, scores, _arrival(scores))

    def _enter_table(self, facts: Facts) -> None:
        """Writes what the block table may not hold yet."""
        seats, columns, pages = upload(table_entries(facts), torch.int64, self.model.device)
        self._table[seats, columns] = pages.to(torch.int32)

    def _replay(self, decoding: Facts, prompts: Facts, pieces: Many[Share], graphs: SweepGraphs) -> Flight:
        if pieces:
            self._enter_table(decoding.followed_by(prompts))
        if not len(decoding) and _plain(pieces):
            # The device has begun when their rows of the sampler are made, of which it needs none.
            chosen = graphs.choose(decoding, prompts)
            sequences, batch = self._align(pieces)
            assert batch is not None
            return self._finish(sequences, batch, chosen, None, ())
        sequences, batch = self._align(pieces)
        if batch is not None and batch.plan().signature == GREEDY:
            return self._finish(sequences, batch, graphs.choose(decoding, prompts), None, ())
        logits, seats = graphs.run(decoding, prompts)
        if batch is None:
            return Flight((), (), (), None)
        captured = None
        if not pieces and self._samplers is not None:
            captured = self._samplers.sampler_for(logits.shape[0], batch.plan())
        if captured is None:
            return self._finish(sequences, batch, sample(logits[: len(sequences)], batch), seats[: len(sequences)], ())
        captured.load(batch.plan())
        self._run(captured, logits, seats)
        return self._finish(sequences, batch, captured.sampled(len(sequences)), None, ())

    def _choose(self, hidden: Tensor, batch: SamplingBatch) -> Sampled:
        """A token after each hidden state, of all rows of the batch or, where all are greedy, of some; without logits, or this rank's
        alone, where nobody needs them."""
        work, compiled = batch.plan(), self.model.compiled
        alone, rows = self.model.collective.size == 1, hidden.shape[0]
        if work.signature == GREEDY and compiled is not None and alone:
            return Sampled(*compiled.greedy(self.model.logits(hidden)), None, None, (0,) * rows)
        if work.signature != GREEDY or (alone and not (usable(self.model.device) or rows < len(batch))):
            return sample(self.model.logits(hidden), batch)
        places = Places.on(self.model.device, rows)
        self.model.choose(hidden, places)
        return Sampled.at(places, rows)

    def _rows(self, cohort: Cohort) -> CohortRows:
        return CohortRows(cohort, self.cache.page_size, self._sampling.place)

    def _align(self, pieces: Many[Share]) -> tuple[tuple[Sequence, ...], SamplingBatch | None]:
        """The sequences that sample in the sweep, and their sampling; None if there are none."""
        continuing = self._decoding.sequences
        entering = [share.sequence for share in pieces if share.samples]
        sequences = (*continuing, *entering) if entering else continuing
        return sequences, self._sampling.align(continuing, entering) if sequences else None

    def _run(self, sampler: CapturedSampler, logits: Tensor, seats: Tensor) -> None:
        if sampler.replay is not None:
            sampler.replay()
            return
        sampler.seat(seats, self._tokens)
        sampler.run(logits)  # this step's sampling, after which everything it needs is compiled
        sampler.replay = Graph(lambda: sampler.run(logits), self.model.device, self._pool)

    def _finish(
        self, sequences: tuple[Sequence, ...], batch: SamplingBatch, sampled: Sampled, seats: Tensor | None, scores: tuple[Scores, ...]
    ) -> Flight:
        """seats: where the tokens go, None if they are there."""
        fetched = sampled.fetch()
        if seats is not None:
            self._tokens.index_copy_(0, seats, sampled.token_ids)
        batch.update(sampled.token_ids)
        return Flight(sequences, (fetched,), scores, None)

    def _scores(self, shares: Many[Share], hidden: Tensor) -> list[Scores]:
        """Starts what requests want to know of their prompts: at each position, how likely the next prompt token was.

        hidden: (tokens, hidden), of all tokens of the shares.
        """
        found = []
        token = 0
        for share in shares:
            sequence = share.sequence
            first = token + max(share.scored_before - share.start, 0)
            last = token + min(share.start + share.count, sequence.prompt - 1) - share.start
            if sequence.request.params.prompt_logprobs and first < last:
                position = share.start + first - token
                targets = upload(sequence.tokens[position + 1 : position + 1 + last - first], torch.int64, hidden.device)
                found.append(fetch_scores(sequence, self.model.log_probabilities(hidden[first:last], targets)))
            token += share.count
        return found


def _plain(pieces: Many[Share]) -> bool:
    """Whether some sample, and those are plainly greedy."""
    params = {id(share.sequence.request.params): share.sequence.request.params for share in pieces if share.samples}
    return bool(params) and all(each.plain for each in params.values())


def _arrival(scores: tuple[Scores, ...]) -> torch.cuda.Event | None:
    if not scores or not scores[0].logprobs.is_pinned():
        return None
    event: Any = torch.cuda.Event
    arrived: torch.cuda.Event = event()
    arrived.record()
    return arrived
