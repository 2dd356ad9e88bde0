"""A record: what one case gave, with its status and the evidence, refused at construction where its own arithmetic is off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from inferometer.bench.records.record_check import check, check_time
from inferometer.bench.records.statistics import Summary, mean, rates

SCHEMA_VERSION = 1
Status = Literal["ok", "oom", "error", "timeout", "skipped"]
TIMES: Final = ("prefill_ms", "decode_token_ms", "decode_total_ms", "first_tokens_ms", "total_ms", "forward_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens per second, each figure the mean of the rates of the single runs (not tokens over mean latency).

    prefill_first_tok_s counts one first token a sequence, prefill_prompt_tok_s the prompt tokens, decode_tok_s the tokens of the
    decode steps, total_tok_s all generated tokens over prefill and decode, forward_tok_s the tokens of a forward-only pass.
    """

    prefill_first_tok_s: float | None = None
    prefill_prompt_tok_s: float | None = None
    decode_tok_s: float | None = None
    total_tok_s: float | None = None
    forward_tok_s: float | None = None
    basis: str = "mean of the runs' rates"
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Peak bytes during the case: tensors of this backend, what the allocator held for them, and what the driver counts as the process's,
    which is also its context, the libraries' kernels and recorded graphs.

    Where the driver does not know the process (in a container, it goes by another number), `device` is what the whole device had in use.
    """

    allocated: int | None = None
    reserved: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time that the hardware needs. `binds` says for each of the times what limits it, by the time's name.

    total_ms: of a run whose prefill and decode share sweeps, and have no bounds of their own.
    """

    forward_ms: float | None = None
    prefill_ms: float | None = None
    decode_token_ms: float | None = None
    total_ms: float | None = None
    binds: Mapping[str, str] | None = None
    basis: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the estimator expected. `interval` holds (low, high) by the predicted figure's name. total_ms: as in the bound.

    faster_unquantized: of a case with weights in few bits, the times that are expected to be shorter with weights in the activations' type.
    """

    forward_ms: float | None = None
    prefill_ms: float | None = None
    decode_token_ms: float | None = None
    total_ms: float | None = None
    peak_memory_bytes: int | None = None
    j_per_token: float | None = None
    basis: str | None = None
    interval: Mapping[str, tuple[float, float]] | None = None
    faster_unquantized: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The correctness check before a case's speed. Errors are relative to the reference's largest value; None if not finite."""

    method: str
    max_error: float | None
    tolerance: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The answer to a case. Unknown is None. Times in milliseconds, one sample a run.

    Under an admission that lets some rows decode while others still prefill, total_ms alone is a time of one thing; first_tokens_ms is
    then the part of it after which every row had its first token, and first_tokens the tokens of all rows by then. pages_peak: the most
    pages of KV cache in use at once, page_size: the tokens of each. sizes: bytes of the weights, of the cache when all is generated and of
    the hidden states of as many tokens. link_gb_s: of what came from the host, over all measured runs; link_bound: the rate of plain
    copies there, measured in the same process, and the share of it. decode_only: there was no prompt but a cache filled at random, and the
    first of decode_length steps attended over sequence_length tokens. warmups: runs that were not counted, with those in which something
    was still compiled or recorded. launches: of the sizes that linear maps have in a decode step on a GPU, how many there are ("maps") and
    of how many the launch had been measured there ("measured"; for the others a table decides). study, part, column: where a study asked,
    None outside of one.

    Raises ValueError where started_at is no time in ISO 8601, where decode_total differs
    from steps x decode_token, where throughput x latency differs from the tokens of a
    run (or of all requests to a server, whose times are in `serving`), where an "ok" case has no times, a failed check or evidence of a
    failure, or where any other has times or no evidence.
    """

    case_id: str
    started_at: str
    study: str | None = None
    part: str | None = None
    column: str | None = None
    model: str
    weights: str
    backend: str
    stack_version: str
    device: str | None
    device_name: str | None
    gpus: int
    link: str | None = None
    dtype: str
    quantize: str | None = None
    kv_dtype: str | None = None
    tensor_parallel: int = 1
    admission: str | None = None
    group_size: int | None = None
    num_groups: int | None = None
    offload: str | None = None
    percent: str | None = None
    host_memory_limit: int | None = None
    disk: bool = False
    memory_limit: int | None = None
    deterministic: bool = False
    batch_size: int
    sequence_length: int
    decode_length: int | None
    forward_only: bool = False
    loss: bool = False
    decode_only: bool = False
    request_rate: float | None = None
    requests: int | None = None
    api: str | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    runs: int
    warmups: int
    status: Status
    evidence: str | None = None
    prefill_ms: Summary | None = None
    decode_token_ms: Summary | None = None
    decode_total_ms: Summary | None = None
    first_tokens_ms: Summary | None = None
    first_tokens: int | None = None
    total_ms: Summary | None = None
    forward_ms: Summary | None = None
    throughput: Throughput = field(default_factory=Throughput)
    peak_memory_bytes: PeakMemory = field(default_factory=PeakMemory)
    pages_peak: int | None = None
    page_size: int | None = None
    sizes: Mapping[str, int] | None = None
    link_gb_s: float | None = None
    link_bound: Mapping[str, float] | None = None
    energy: Mapping[str, Any] | None = None
    launches: Mapping[str, int] | None = None
    bound: Bound | None = None
    utilisation: Mapping[str, Any] | None = None
    predicted: Predicted | None = None
    serving: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    checked: Checked | None = None
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {self.schema_version} is not {SCHEMA_VERSION}, the one this version reads")
        if self.status not in get_args(Status):
            raise ValueError(f"status must be one of {', '.join(get_args(Status))}, not {self.status!r}")
        check_time("started_at", self.started_at)
        check(self, [getattr(self, name) for name in TIMES])

    @property
    def prompt_length(self) -> int:
        """As a case has it."""
        return self.sequence_length - self.decode_only

    @property
    def steps(self) -> int:
        """Decode steps: decode_length less the first token, which the prefill gives where there is one."""
        return _steps(self.decode_length, self.decode_only)

    @property
    def worked_out_throughput(self) -> Throughput:
        """The rates that follow from the times."""
        return throughput(self.work)

    @property
    def work(self) -> dict[str, tuple[int, Summary | None]]:
        """For each throughput figure, the tokens of one run that it counts and the latency that they took."""
        return work(
            batch_size=self.batch_size,
            sequence_length=self.sequence_length,
            steps=self.steps,
            prefill_ms=self.prefill_ms,
            decode_total_ms=self.decode_total_ms,
            total_ms=self.total_ms,
            forward_ms=self.forward_ms,
        )

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain values; `from_json` gives the record back."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return {"schema_version": value.pop("schema_version"), **value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Record:
        """Reads what `to_json` wrote. A time may be the list of its samples, and throughput be left out: both are then worked out.

        Raises ValueError for an unknown or missing name and wherever the constructor does.
        """
        unknown = set(value) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"unknown names in a record: {', '.join(sorted(unknown))}")
        kept = dict(value)
        try:
            for name in TIMES:
                if kept.get(name) is not None:
                    kept[name] = Summary.of(kept[name]) if isinstance(kept[name], list) else Summary.from_json(kept[name])
            if "throughput" not in kept:
                steps = _steps(kept["decode_length"], kept.get("decode_only", False))
                counted = {name: kept.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
                tokens = work(batch_size=kept["batch_size"], sequence_length=kept["sequence_length"], steps=steps, **counted)
                kept["throughput"] = throughput(tokens)
            elif kept["throughput"] is not None:
                given = dict(kept["throughput"])
                given["samples"] = {name: tuple(samples) for name, samples in given.get("samples", {}).items()}
                kept["throughput"] = Throughput(**given)
            if kept.get("predicted") is not None and kept["predicted"].get("interval") is not None:
                interval = {name: tuple(ends) for name, ends in kept["predicted"]["interval"].items()}
                kept["predicted"] = {**kept["predicted"], "interval": interval}
            for name, kind in (("peak_memory_bytes", PeakMemory), ("bound", Bound), ("predicted", Predicted), ("checked", Checked)):
                if kept.get(name) is not None:
                    kept[name] = kind(**kept[name])
            return cls(**kept)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a record: {error}") from error


def _steps(decode_length: int | None, decode_only: bool) -> int:
    return 0 if decode_length is None else decode_length - (not decode_only)


def work(
    *,
    batch_size: int,
    sequence_length: int,
    steps: int,
    prefill_ms: Summary | None,
    decode_total_ms: Summary | None,
    total_ms: Summary | None,
    forward_ms: Summary | None,
) -> dict[str, tuple[int, Summary | None]]:
    """For each throughput figure, the tokens of one run that it counts and the latency that they took."""
    return {
        "prefill_first_tok_s": (batch_size, prefill_ms),
        "prefill_prompt_tok_s": (batch_size * sequence_length, prefill_ms),
        "decode_tok_s": (batch_size * steps, decode_total_ms),
        "total_tok_s": (batch_size * (steps + 1), total_ms),
        "forward_tok_s": (batch_size * sequence_length, forward_ms),
    }


def throughput(counted: Mapping[str, tuple[int, Summary | None]]) -> Throughput:
    """The rates of the runs and their means, from the tokens and latencies that `work` lists."""
    samples = {name: rates(tokens, latency.samples) for name, (tokens, latency) in counted.items() if latency is not None}
    means: dict[str, Any] = {name: mean(values) for name, values in samples.items()}
    return Throughput(samples=samples, **means)
