"""A benchmark of a server: closed loops of so many requests at a time, or random arrivals at a rate. Without torch."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from secrets import token_hex
from typing import Any

from inferometer import __version__
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.progress import Progress, Silent
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record
from inferometer.bench.serving.dialect import Dialect, OpenAIDialect, Prompt
from inferometer.bench.serving.load_client import LoadClient, Watched
from inferometer.bench.serving.served_model import ServedModel, encoded, meet
from inferometer.bench.serving.serving import Slo, serving
from inferometer.hardware.host import read_host
from inferometer.text.load import load_tokenizer

# Arrivals that nobody waits for have no number at a time that could be warmed up with: as many in a hundred of what is measured.
_WARM_PERCENT = 10
_REQUESTS_A_RUN = 10
KEY_VARIABLE = "INFEROMETER_API_KEY"


def http_benchmark(request: BenchRequest, emit: Callable[[Record], None], progress: Progress | None = None) -> list[Record]:
    """Measures the server at `request.url` under each load, and returns a record for each; `emit` gets each as soon as it is there.

    `batch_sizes` are the requests at a time, unless `request_rate` says how many a second come. Each load has `requests` requests, or
    `runs` times as many as there are at a time (of a rate, ten), after `warmups` rounds that do not count. No prompt comes twice, nor in
    another call. A bearer token is read from INFEROMETER_API_KEY.

    Raises UserError where no server answers, or none that serves such requests.
    """
    request.check()
    return asyncio.run(_measure(request, emit, progress or Silent()))


async def _measure(request: BenchRequest, emit: Callable[[Record], None], progress: Progress) -> list[Record]:
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    served = await meet(str(request.url), api=request.api, model=request.model, headers=headers)
    codec = None if request.tokenizer is None else load_tokenizer(request.tokenizer)
    cases = _cases(request, served)
    counts = [(_warmups(request, case), case.requests or 0) for case in cases]
    length, seconds = request.sequence_length, request.request_timeout
    requests = sum(warm + measured for warm, measured in counts)
    # Of this time alone: a server may have kept the beginnings of all that it was ever asked.
    prompts = await served.prompts(codec, f"{request.seed}/{token_hex(8)}", 1 + requests, length)
    dialect = await served.settle(served.dialect(length), prompts[-1], request.new_tokens, seconds)
    progress.start(requests)
    records, fresh = [], iter(prompts)
    for case, (warm, measured) in zip(cases, counts, strict=True):
        record = await _load(request, served, dialect, case, list(islice(fresh, warm + measured)), warm, progress)
        emit(record)
        records.append(record)
    return records


def _cases(request: BenchRequest, served: ServedModel) -> list[Case]:
    return [
        Case(
            model=served.label,
            backend="http",
            dtype=served.dtype or "unknown",
            device=None,
            batch_size=size,
            sequence_length=request.sequence_length,
            decode_length=request.new_tokens,
            seed=request.seed,
            request_rate=request.request_rate,
            requests=request.requests or request.runs * (size if request.request_rate is None else _REQUESTS_A_RUN),
            api=served.api,
            slo_ttft_ms=request.slo_ttft_ms,
            slo_tpot_ms=request.slo_tpot_ms,
        )
        for size in (request.batch_sizes if request.request_rate is None else (1,))
    ]


def _warmups(request: BenchRequest, case: Case) -> int:
    """At least a round of the measured load each, so that what starts slowly has started."""
    if case.request_rate is None:
        return request.warmups * case.batch_size
    return request.warmups * max(1, (case.requests or 0) * _WARM_PERCENT // 100)


async def _load(
    request: BenchRequest, served: ServedModel, dialect: Dialect, case: Case, prompts: Sequence[Prompt], warm: int, progress: Progress
) -> Record:
    started = datetime.now(UTC)
    bodies = [encoded(dialect, prompt, request.new_tokens) for prompt in prompts]
    client = LoadClient(served.address, dialect, seconds=request.request_timeout)
    if case.request_rate is None:
        watched = await client.closed_loop(bodies, concurrency=case.batch_size, warmups=warm, advance=progress.advance)
    else:
        watched = await client.poisson(bodies, rate_s=case.request_rate, seed=case.seed, warmups=warm, advance=progress.advance)
    return _record(request, served, dialect, case, watched, started)


def _record(request: BenchRequest, served: ServedModel, dialect: Dialect, case: Case, watched: Watched, started: datetime) -> Record:
    failures = [each.failure for each in watched.requests if each.failure is not None]
    evidence: str | None = None
    figures: dict[str, Any] | None = None
    if len(failures) == len(watched.requests):
        kind, said = failures[0]
        evidence = f"none of {len(failures)} requests was served; the first: {kind}: {said}"
    else:
        figures = serving(
            watched.requests,
            slo=Slo(case.slo_ttft_ms, case.slo_tpot_ms),
            new_tokens=request.new_tokens,
            prompt_tokens=request.sequence_length,
            client=watched.client,
            api=served.api,
            forced=isinstance(dialect, OpenAIDialect) and dialect.forces,
        )
    return Record(
        case_id=case.case_id,
        started_at=started.isoformat(timespec="milliseconds"),
        model=case.model,
        weights=case.weights,
        backend=case.backend,
        stack_version=f"{served.api} {served.version or 'of unknown version'}",
        device=None,
        device_name=None,
        gpus=0,
        dtype=case.dtype,
        batch_size=case.batch_size,
        sequence_length=case.sequence_length,
        decode_length=case.decode_length,
        request_rate=case.request_rate,
        requests=case.requests,
        api=case.api,
        slo_ttft_ms=case.slo_ttft_ms,
        slo_tpot_ms=case.slo_tpot_ms,
        seed=case.seed,
        runs=request.runs,
        warmups=request.warmups,
        status="ok" if evidence is None else "error",
        evidence=evidence,
        serving=figures,
        environment=_environment(),
    )


def _environment() -> dict[str, Any]:
    """Of the client; a server does not tell its own."""
    host = read_host()
    return {
        "inferometer": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "cpu": host.model,
        "cores": host.cores,
    }
