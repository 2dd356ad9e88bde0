"""`inferometer bench`: prefill and decode of a model at several batch sizes, as Markdown tables or records."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from inferometer.bench.registry import names
from inferometer.bench.request import BenchRequest
from inferometer.cli.options import add_admission_options, add_model_options, add_sampling_options, at_least, sampling_params
from inferometer.cli.progress import Bar

FAILED, CASES_FAILED = 1, 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Hub id, folder, .gguf file or preset (default: the embedded model)")
    group = parser.add_argument_group("workload")
    group.add_argument("--batch-size", type=at_least(1), action="append", metavar="N", help="repeatable (default: 1 2 4 8 16 32)")
    group.add_argument("--sequence-length", type=at_least(1), default=10, metavar="N", help="prompt tokens of each sequence (default: 10)")
    group.add_argument("--decode-length", type=at_least(1), default=8, metavar="N", help="tokens to generate for each (default: 8)")
    group.add_argument("--runs", type=at_least(1), default=10, metavar="N", help="measured runs of each batch size (default: 10)")
    group.add_argument("--warmups", type=at_least(0), default=1, metavar="N", help="runs before them (default: 1)")
    group.add_argument("--backend", choices=names(), action="append", help="repeatable; several take turns run by run (default: native)")
    group.add_argument("--forward-only", action="store_true", help="one forward with logits at every position instead of generation")
    group.add_argument("--loss", action="store_true", help="with --forward-only: also the mean next-token cross-entropy")
    group.add_argument("--quantize", metavar="FORMAT", help="format of the layers' weights; which ones there are, the backend decides")
    add_sampling_options(parser)
    add_admission_options(parser, default=None, meaning="a batch prefills as a whole, then decodes as a whole")
    add_model_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help='print {"records": [...]} instead of tables')
    output.add_argument("--output", type=Path, metavar="FILE", help="append each record to FILE, one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, 3 if any case ended oom, error or timeout, or 1 if --output could not take the records."""
    sampling_params(arguments)  # refuses values out of range by their flags, before anything is loaded
    request = BenchRequest(
        model=arguments.model,
        batch_sizes=tuple(dict.fromkeys(arguments.batch_size or (1, 2, 4, 8, 16, 32))),
        sequence_length=arguments.sequence_length,
        decode_length=arguments.decode_length,
        runs=arguments.runs,
        warmups=arguments.warmups,
        backends=tuple(dict.fromkeys(arguments.backend or ("native",))),
        forward_only=arguments.forward_only,
        loss=arguments.loss,
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
        device=arguments.device,
        gpu_memory=arguments.gpu_memory,
        deterministic=arguments.deterministic,
        admission=arguments.admission,
        group_size=arguments.group_size,
        num_groups=arguments.num_groups,
        seed=arguments.seed,
    )
    request.check()

    from inferometer.bench.benchmark import benchmark
    from inferometer.bench.journal import Journal, Sink
    from inferometer.report.tables import document

    with ExitStack() as stack:
        sink = Sink(None if arguments.output is None else stack.enter_context(Journal(arguments.output)))
        bar = stack.enter_context(closing(Bar("bench")))
        records = benchmark(request, emit=sink.take, progress=bar)
    if arguments.json:
        json.dump({"records": [record.to_json() for record in records]}, sys.stdout, allow_nan=False, indent=2)
        print()
    else:
        print(document(records), end="")
    if sink.failure is not None:
        sys.stdout.flush()
        kept = f"{sink.kept} of {len(records)} records are in it"
        print(f"inferometer: error: --output {arguments.output}: {sink.failure.strerror}; {kept}", file=sys.stderr)
        return FAILED
    return CASES_FAILED if any(record.status in ("oom", "error", "timeout") for record in records) else 0
