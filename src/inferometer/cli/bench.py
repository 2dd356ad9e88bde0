"""`inferometer bench`: prefill and decode of a model at several batch sizes, as Markdown tables or records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.bench.backends.registry import entry, names
from inferometer.bench.backends.request import APIS, DECODE_LENGTH, TUNING_SECONDS, BenchRequest
from inferometer.cli.options import (
    add_admission_options,
    add_model,
    add_model_options,
    add_offload_options,
    add_parallel_options,
    add_sampling_options,
    add_tuning_option,
    at_least,
    positive_number,
    sampling_params,
    tensor_parallel,
)
from inferometer.cli.progress import Bar
from inferometer.cli.streams import tell
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.bench.records.record import Record

FAILED, CASES_FAILED = 1, 3
SEQUENCE_LENGTH = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--batch-size", type=at_least(1), action="append", metavar="N", help="repeatable (default: 1 2 4 8 16 32)")
    group.add_argument(
        "--sequence-length", type=at_least(1), metavar="N", help=f"prompt tokens of each sequence (default: {SEQUENCE_LENGTH})"
    )
    group.add_argument("--decode-length", type=at_least(1), metavar="N", help=f"tokens to generate for each (default: {DECODE_LENGTH})")
    group.add_argument("--runs", type=at_least(1), default=10, metavar="N", help="measured runs of each batch size (default: 10)")
    group.add_argument("--warmups", type=at_least(0), default=1, metavar="N", help="runs before them (default: 1)")
    group.add_argument("--no-energy", action="store_true", help="do not repeat each phase for two seconds to read its energy")
    add_tuning_option(group, default=TUNING_SECONDS, meaning="60")
    group.add_argument("--backend", choices=names(), action="append", help="repeatable; several take turns run by run (default: native)")
    group.add_argument("--forward-only", action="store_true", help="one forward with logits at every position instead of generation")
    group.add_argument("--loss", action="store_true", help="with --forward-only: also the mean next-token cross-entropy")
    group.add_argument(
        "--decode-at",
        type=at_least(2),
        action="append",
        metavar="CONTEXT",
        help="time --decode-length decode steps over a cache filled at random with so many tokens; repeatable, without a prefill",
    )
    group.add_argument("--quantize", metavar="FORMAT", help="format of the layers' weights; which ones there are, the backend decides")
    group.add_argument("--kv-dtype", default="auto", metavar="auto|fp8|int8", help="of the KV cache (default: as activations)")
    server = parser.add_argument_group("a server, with --backend http; a bearer token is read from INFEROMETER_API_KEY")
    server.add_argument("--url", metavar="URL", help="where it listens, as http://HOST:PORT; MODEL is then the name it is asked for")
    server.add_argument("--api", choices=("auto", *APIS), default="auto", help="whose requests it is sent (default: openai if it has them)")
    server.add_argument(
        "--concurrency", type=at_least(1), action="append", metavar="N", help="requests at a time, in place of --batch-size; repeatable"
    )
    server.add_argument("--request-rate", type=positive_number, metavar="R", help="requests a second, at random moments, instead")
    server.add_argument("--requests", type=at_least(1), metavar="N", help="measured requests of each load (default: --runs rounds)")
    server.add_argument("--request-timeout", type=positive_number, default=600.0, metavar="S", help="seconds a request may take")
    server.add_argument("--slo-ttft", type=positive_number, metavar="MS", help="goodput: most time to the first token")
    server.add_argument("--slo-tpot", type=positive_number, metavar="MS", help="goodput: most time a token after it")
    add_sampling_options(parser)
    add_admission_options(parser, default=None, meaning="a batch prefills as a whole, then decodes as a whole")
    add_model_options(parser)
    add_offload_options(parser)
    add_parallel_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help='print {"records": [...]} instead of tables')
    output.add_argument("--output", type=Path, metavar="FILE", help="append each record to FILE, one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, 3 if any case ended oom, error or timeout, or 1 if --output could not take the records."""
    sampling_params(arguments)  # refuses values out of range by their flags, before anything is loaded
    request = request_of(arguments)
    if arguments.concurrency and request.url is None:
        raise UserError("--concurrency is of a server; add --backend http, or use --batch-size")
    if arguments.concurrency and arguments.batch_size:
        raise UserError("--concurrency and --batch-size are the same of a server; leave one of them out")
    if arguments.decode_at and arguments.sequence_length is not None:
        raise UserError("--sequence-length is of prompts, which --decode-at runs without; leave one of them out")
    request.check()

    from inferometer.bench.records.journal import Journal, Sink
    from inferometer.report.tables.benchmark import document

    with ExitStack() as stack:
        sink = Sink(None if arguments.output is None else stack.enter_context(Journal(arguments.output)))
        bar = stack.enter_context(closing(Bar("bench")))
        records = _measure(request, sink.take, bar)
    if arguments.json:
        json.dump({"records": [record.to_json() for record in records]}, sys.stdout, allow_nan=False, indent=2)
        print()
    else:
        print(document(records), end="")
    if sink.failure is not None:
        sys.stdout.flush()
        kept = f"{sink.kept} of {len(records)} records are in it"
        tell(f"error: --output {arguments.output}: {sink.failure.strerror}; {kept}")
        return FAILED
    return CASES_FAILED if any(record.status in ("oom", "error", "timeout") for record in records) else 0


def request_of(arguments: argparse.Namespace) -> BenchRequest:
    """What a command line asks for, unchecked."""
    return BenchRequest(
        model=arguments.model,
        batch_sizes=tuple(dict.fromkeys(arguments.concurrency or arguments.batch_size or (1, 2, 4, 8, 16, 32))),
        sequence_length=arguments.sequence_length or SEQUENCE_LENGTH,
        decode_length=arguments.decode_length,
        runs=arguments.runs,
        warmups=arguments.warmups,
        energy=not arguments.no_energy,
        tuning_seconds=arguments.tuning_seconds,
        backends=tuple(dict.fromkeys(arguments.backend or ("native",))),
        forward_only=arguments.forward_only,
        loss=arguments.loss,
        decode_only=bool(arguments.decode_at),
        contexts=tuple(dict.fromkeys(arguments.decode_at or ())),
        do_sample=arguments.do_sample,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        typical_p=arguments.typical_p,
        repetition_penalty=arguments.repetition_penalty,
        watermark=arguments.watermark,
        weights=arguments.weights,
        tokenizer=arguments.tokenizer,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        kv_dtype=arguments.kv_dtype,
        tensor_parallel=tensor_parallel(arguments),
        device=arguments.device,
        gpu_memory=arguments.gpu_memory,
        deterministic=arguments.deterministic,
        admission=arguments.admission,
        group_size=arguments.group_size,
        num_groups=arguments.num_groups,
        offload=arguments.offload,
        percent=None if arguments.percent is None else tuple(arguments.percent),
        host_memory=arguments.host_memory,
        disk=arguments.disk,
        seed=arguments.seed,
        url=arguments.url,
        api=arguments.api,
        request_rate=arguments.request_rate,
        requests=arguments.requests,
        request_timeout=arguments.request_timeout,
        slo_ttft_ms=arguments.slo_ttft,
        slo_tpot_ms=arguments.slo_tpot,
    )


def _measure(request: BenchRequest, emit: Callable[[Record], None], bar: Bar) -> list[Record]:
    if not entry(request.backends[0]).in_process:
        from inferometer.bench.serving.http_benchmark import http_benchmark

        return http_benchmark(request, emit, bar)
    from inferometer.bench.measurement.benchmark import benchmark

    return benchmark(request, emit, bar)
