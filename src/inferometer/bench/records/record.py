"""A record: what one case gave, with its status and the evidence, refused at construction where its own arithmetic is off."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from inferometer.bench.records.statistics import Summary, mean, rates

SCHEMA_VERSION = 1
Status = Literal["ok", "oom", "error", "timeout", "skipped"]
TIMES: Final = ("prefill_ms", "decode_token_ms", "decode_total_ms", "first_tokens_ms", "total_ms", "forward_ms")

# Division and multiplication back may each be off by half a unit in the last place; anything near this is an error of arithmetic.
_RELATIVE = 1e-9


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
    """What the estimator expected. `interval` holds (low, high) by the predicted figure's name. total_ms: as in the bound."""

    forward_ms: float | None = None
    prefill_ms: float | None = None
    decode_token_ms: float | None = None
    total_ms: float | None = None
    peak_memory_bytes: int | None = None
    j_per_token: float | None = None
    basis: str | None = None
    interval: Mapping[str, tuple[float, float]] | None = None


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

    Raises ValueError where decode_total differs from steps x decode_token, where throughput x latency differs from the tokens of a
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
        times = tuple(getattr(self, name) for name in TIMES)
        if self.status != "ok":
            if not self.evidence:
                raise ValueError(f"status {self.status} needs evidence")
            if any(t is not None for t in times):
                raise ValueError(f"a case with status {self.status} has no times to show")
            return
        if self.evidence is not None or (self.checked is not None and not self.checked.passed):
            raise ValueError("an ok case has no evidence of a failure and no failed check")
        if any(t is not None and len(t.samples) != self.runs for t in times):
            raise ValueError(f"each time has one sample for each of the {self.runs} runs")
        self._check_first_tokens()
        if self.serving is not None:
            self._check_serving(self.serving)
        elif self.forward_only:
            self._check_forward()
        elif self.decode_only:
            self._check_decode_only()
        else:
            self._check_generation()
        self._check_throughput()

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
        return throughput(self._work())

    def _check_forward(self) -> None:
        others = (self.prefill_ms, self.decode_token_ms, self.decode_total_ms, self.total_ms)
        if self.forward_ms is None or any(t is not None for t in others):
            raise ValueError("a forward-only case has forward_ms and no other time")

    def _check_decode_only(self) -> None:
        if any(t is not None for t in (self.prefill_ms, self.total_ms, self.forward_ms)):
            raise ValueError("a case without a prefill has decode times and no others")
        if self.decode_total_ms is None or self.decode_token_ms is None:
            raise ValueError("a case without a prefill has decode_total_ms and decode_token_ms")
        self._check_steps(self.decode_total_ms, self.decode_token_ms)

    def _check_serving(self, serving: Mapping[str, Any]) -> None:
        times = (self.prefill_ms, self.decode_token_ms, self.decode_total_ms, self.total_ms, self.forward_ms)
        if any(t is not None for t in times):
            raise ValueError("a served case has the times of its requests and no others")
        served, failed = serving.get("served"), serving.get("failed")
        if not isinstance(served, int) or not isinstance(failed, int) or served < 1 or failed < 0 or served + failed != self.requests:
            raise ValueError(f"served {served} and failed {failed} are not the {self.requests} requests")
        for name in ("ttft", "tpot", "e2e", "itl"):
            if serving.get(name) is not None and serving[name].get("samples") is not None:
                Summary.from_json(serving[name])
        if serving.get("output_tok_s") is not None:
            tokens = served * serving["output_tokens"]["mean"]
            if not math.isclose(serving["output_tok_s"] * serving["duration_s"], tokens, rel_tol=_RELATIVE):
                raise ValueError(f"serving.output_tok_s {serving['output_tok_s']} x {serving['duration_s']} s is not {tokens} tokens")

    def _check_generation(self) -> None:
        if self.admission is not None and self.prefill_ms is None:
            if self.total_ms is None or any(t is not None for t in (self.decode_total_ms, self.decode_token_ms, self.forward_ms)):
                raise ValueError("a case whose prefill and decode share sweeps has total_ms and no other time")
            return
        if self.prefill_ms is None or self.total_ms is None or self.forward_ms is not None:
            raise ValueError("a generating case has prefill_ms and total_ms, and no forward_ms")
        if (self.decode_total_ms is None) != (self.steps == 0) or (self.decode_token_ms is None) != (self.steps == 0):
            raise ValueError(f"decode times go with decode steps, of which there are {self.steps}")
        decode = (0.0,) * self.runs
        if self.decode_total_ms is not None and self.decode_token_ms is not None:
            decode = self.decode_total_ms.samples
            self._check_steps(self.decode_total_ms, self.decode_token_ms)
        for run, (whole, prefill, rest) in enumerate(zip(self.total_ms.samples, self.prefill_ms.samples, decode, strict=True)):
            if not math.isclose(whole, prefill + rest, rel_tol=_RELATIVE):
                raise ValueError(f"run {run}: total_ms {whole} is not prefill {prefill} and decode {rest}")

    def _check_first_tokens(self) -> None:
        if (self.first_tokens_ms is None) != (self.first_tokens is None):
            raise ValueError("first_tokens and first_tokens_ms go together")
        if self.first_tokens_ms is None or self.first_tokens is None:
            return
        if self.total_ms is None or self.prefill_ms is not None:
            raise ValueError("first_tokens_ms is part of a total whose prefill and decode share sweeps")
        tokens = self.batch_size * (self.steps + 1)
        if not self.batch_size <= self.first_tokens <= tokens:
            raise ValueError(f"first_tokens {self.first_tokens} is not from {self.batch_size} to {tokens}")
        for run, (part, whole) in enumerate(zip(self.first_tokens_ms.samples, self.total_ms.samples, strict=True)):
            if part > whole:
                raise ValueError(f"run {run}: first_tokens_ms {part} is more than total_ms {whole}")

    def _check_steps(self, totals: Summary, tokens: Summary) -> None:
        for run, (total, token) in enumerate(zip(totals.samples, tokens.samples, strict=True)):
            if not math.isclose(total, self.steps * token, rel_tol=_RELATIVE):
                raise ValueError(f"run {run}: decode_total_ms {total} is not {self.steps} steps of {token}")

    def _check_throughput(self) -> None:
        for name, (tokens, latency) in self._work().items():
            samples = self.throughput.samples.get(name, ())
            figure = getattr(self.throughput, name)
            if latency is None:
                if samples or figure is not None:
                    raise ValueError(f"throughput.{name} has no time that it could come from")
                continue
            if figure is None or len(samples) != len(latency.samples):
                raise ValueError(f"throughput.{name} needs a rate for each run")
            for run, (rate, ms) in enumerate(zip(samples, latency.samples, strict=True)):
                if not math.isclose(rate * ms / 1000.0, tokens, rel_tol=_RELATIVE):
                    raise ValueError(f"run {run}: throughput.{name} {rate} x {ms} ms is not {tokens} tokens")
            if not math.isclose(figure, mean(samples), rel_tol=_RELATIVE):
                raise ValueError(f"throughput.{name} {figure} is not the mean of the runs' rates, {mean(samples)}")

    def _work(self) -> dict[str, tuple[int, Summary | None]]:
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
