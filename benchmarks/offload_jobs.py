"""The jobs that offloaded generation is held to, by the model that runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """Requests in the orders given. flexgen: what the published package did there, tokens/s. gates: tokens/s by order that are asked for,
    or shares of the bound below 1; None for any. ahead: by how much diagonal is to be faster than zigzag. gpu_memory: as LLM's, GiB."""

    prompts: int
    new: int
    requests: int
    group_size: int
    num_groups: int | None
    gates: dict[str, float | None]
    flexgen: float | None = None
    ahead: float | None = None
    gpu_memory: float | None = None

    @property
    def name(self) -> str:
        """As it is printed."""
        groups = f", {self.num_groups} x {self.group_size} in flight" if self.num_groups else ""
        return f"{self.requests} of {self.prompts} + {self.new}{groups}"


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs of one loaded model. means: what it is, as the results call it. offload, host_memory: as LLM's. seconds: the part's time limit.
    runs: timed ones, of which the median counts."""

    means: str
    model: str
    jobs: tuple[Job, ...]
    offload: str | None = None
    host_memory: float | None = None
    seconds: float = 195.0
    runs: int = 1

    def measured(self, job: Job) -> str:
        """What the results call a record of the job."""
        limit = "" if job.gpu_memory is None else f", {job.gpu_memory:g} GiB of GPU memory"
        return f"{self.model}: {self.means}{limit}"


FLEXGEN = {(4, 512): 455.0, (8, 512): 526.0, (16, 512): 499.0, (32, 512): 471.0, (16, 128): 535.0, (16, 1024): 317.0}
"""Tokens/s of the published package, by groups and prompt tokens, on an H100 with the same jobs; the other cells were not measured."""


def _cell(groups: int, prompts: int) -> Job:
    flexgen = FLEXGEN.get((groups, prompts))
    gate = None if flexgen is None else 10 * flexgen
    return Job(prompts, 32, 8 * groups, 8, groups, {"zigzag": gate, "diagonal": gate}, flexgen, ahead=0.97)


# Groups of one request where memory is short: as many as fit, not a multiple of more.
PARTS = {
    "grid": Part(
        "document 000's grid, all on the GPU",
        "opt-1.3b",
        tuple(_cell(groups, prompts) for prompts in (512, 128, 1024, 256) for groups in (4, 8, 16, 32)),
        runs=3,
    ),
    "streamed": Part(
        "all weights streamed",
        "opt-6.7b",
        (
            Job(512, 32, 128, 8, None, {"zigzag": 430, "diagonal": 430}, 284.0),
            Job(512, 32, 1024, 4, 32, {"zigzag": 430, "diagonal": 480}),
        ),
        "weights",
        seconds=230,
    ),
    "streamed-pages": Part(
        "weights and pages on the host",
        "opt-6.7b",
        (Job(512, 8, 64, 8, None, {"zigzag": 95, "diagonal": 95}, 47.0),),
        "weights,pages",
    ),
    "half": Part("0.4 of the weights streamed", "opt-6.7b", (Job(512, 32, 128, 8, None, {"zigzag": 0.85}),), "weights:0.4"),
    "opt-30b-24": Part(
        "all weights streamed",
        "opt-30b",
        (Job(512, 32, 128, 1, None, {"zigzag": 0.85, "diagonal": 0.85}, ahead=0.98, gpu_memory=24),),
        "weights",
        seconds=560,
    ),
    # The last jobs are there for the limit alone: most memory is taken by prompts and by the first sweeps behind them, and to load the
    # model anew takes longer.
    "opt-30b-76": Part(
        "all weights streamed",
        "opt-30b",
        (
            Job(512, 32, 400, 1, None, {"zigzag": 0.85, "diagonal": 0.85}, ahead=1.04, gpu_memory=76),
            Job(512, 3, 64, 1, None, {"zigzag": None, "diagonal": None}, gpu_memory=24),
        ),
        "weights",
        seconds=560,
    ),
}
