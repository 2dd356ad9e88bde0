"""A measured figure that somebody published, or that this product measured: what ran, on what, and what came out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Quantity = Literal["time_ms", "peak_gib", "j_per_token", "power_w"]
Mode = Literal["forward", "prefill", "decode", "generate", "groups", "serve"]
Parallel = Literal["none", "tensor", "mlp-tensor", "layers"]
Admission = Literal["zigzag", "diagonal"]

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
MODES: tuple[Mode, ...] = get_args(Mode)
PARALLELS: tuple[Parallel, ...] = get_args(Parallel)
ADMISSIONS: tuple[Admission, ...] = get_args(Admission)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured figure.

    id: unique within the regime. stack: the software, by the estimator's name for it. device: a slug. gpus: devices that work on it.
    link: as `--link`, None for the card's best. parallel: how they share the work: every layer cut (tensor), only the feed-forward
    blocks cut (mlp-tensor), or each device with its own layers (layers). model: a preset.
    mode says what `value` is of: forward, one pass with logits of all positions; prefill, the prompts until their first tokens are
    there; decode, ONE step of the batch, the mean over `new_tokens` steps after a prompt of `prompt_tokens`; generate, prompts and
    new tokens as a whole; groups, a whole run of `groups` groups of `group_size`; serve, a steady state in which `batch` requests run
    and a finished one is replaced at once, `new_tokens` being their mean length.
    batch: sequences (of all groups, for groups). quantity: what `value` is, its unit in its name. tok_s: generated tokens a second
    that were measured beside it, if they were.
    session: what the source says of how this table was run, where it ran another one of the same stack otherwise.
    published_estimate: what the source's own estimator says. revision: the engine's, of this product's own runs. calibration: the
    name of what was measured on that very card (load_calibration), if it was.
    note: a known defect. counted: False where the row is shown but enters no error.
    """

    regime: str
    id: str
    stack: str
    device: str
    gpus: int
    link: str | None
    parallel: Parallel
    model: str
    dtype: str
    quantize: str | None
    mode: Mode
    admission: Admission | None
    group_size: int | None
    groups: int | None
    batch: int
    prompt_tokens: int
    new_tokens: int
    loss: bool
    quantity: Quantity
    value: float
    tok_s: float | None
    session: str | None
    published_estimate: float | None
    revision: str | None
    calibration: str | None
    source: str
    note: str | None
    counted: bool

    def __post_init__(self) -> None:
        for name in ("value", "published_estimate", "tok_s"):
            figure = getattr(self, name)
            if figure is not None and not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"{name} must be a positive number, not {figure!r}")
        if (self.parallel == "none") != (self.gpus == 1):
            raise ValueError(f"{self.gpus} GPUs and parallel {self.parallel!r} contradict each other")
        if (self.mode == "groups") != (self.admission is not None and self.group_size is not None and self.groups is not None):
            raise ValueError("admission, group_size and groups go with mode groups, all three or none")
        if self.group_size is not None and self.groups is not None and self.batch != self.group_size * self.groups:
            raise ValueError(f"{self.groups} groups of {self.group_size} are not a batch of {self.batch}")
        generates = self.mode not in ("forward", "prefill")
        if generates != (self.new_tokens > 0):
            raise ValueError(f"new_tokens is {self.new_tokens} with mode {self.mode}")
        if self.loss and self.mode != "forward":
            raise ValueError("a loss goes with mode forward")

    @property
    def mean_context(self) -> int:
        """Tokens before a decode step, at the middle of the run."""
        return self.prompt_tokens + (self.new_tokens - 1) // 2
