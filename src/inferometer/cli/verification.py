"""The command that would measure an estimate's case, or why `inferometer bench` has none."""

from __future__ import annotations

import shlex
from dataclasses import replace

from inferometer.cli import bench
from inferometer.cli.parser import Parser
from inferometer.errors import UserError
from inferometer.estimate.answer import Estimate
from inferometer.estimate.measuring import BENCH
from inferometer.estimate.memory import is_cpu, kv_bytes
from inferometer.hardware.detect import detect
from inferometer.model.byte_size import gib


def unmeasured(found: Estimate) -> str | None:
    """Why `bench` would refuse the estimate's command, or measure another case under it; None where it would do neither.

    Another program's command is that program's to refuse. Bench's own is read and checked by bench itself, so that the two agree.
    """
    asked = found.request
    if not found.verify.startswith(BENCH):
        return None
    if asked.spec.unrun is not None:
        return f"{asked.spec.name} is estimated only: {asked.spec.unrun} cannot be run"
    if asked.published is not None:
        return f"{asked.spec.name} is estimated only: weights in {asked.published.named} cannot be run"
    host, dtype = detect().host, asked.formats.dtype
    multiplies = {"float32": True, "float16": host.multiplies_float16, "bfloat16": host.multiplies_bfloat16}
    if is_cpu(asked.device) and not multiplies[dtype]:
        return f"--dtype {dtype}: this CPU has no {dtype} matrix instructions; use --dtype float32"
    if asked.layout.devices > 1 and asked.layout.parallel != "tensor":
        return f"--parallel {asked.layout.parallel} is estimated only: GPUs share a model by --tensor-parallel"
    parser = Parser(prog=BENCH.strip())
    bench.configure(parser)
    request = bench.request_of(parser.parse_args(shlex.split(found.verify.removeprefix(BENCH))))
    if asked.stored and request.backends != ("native",):
        return f"--backend {request.backends[0]} widens a checkpoint that is in few bits; use --stack native"
    try:
        request.check()
        request.check_model(asked.spec)
        request.check_backends(spec=asked.spec, device="cpu" if is_cpu(asked.device) else "cuda")
    except UserError as error:
        return str(error)
    return _too_many_at_once(found) if request.backends == ("native",) else None


def _too_many_at_once(found: Estimate) -> str | None:
    """Why bench has no room for a batch that a run, sweep by sweep, has room for; None where it has.

    Sequences of one token end with the sweep that reads them, and what comes later takes their pages; bench wants pages for all of them.
    """
    asked, needed = found.request, found.memory
    if asked.order is not None or found.fit.short_by_bytes is not None:
        return None
    at_once = replace(asked.stack, sweep_tokens=None)
    held, whole = (kv_bytes(asked.spec, asked.formats, stack, asked.workload) for stack in (asked.stack, at_once))
    if needed.device_bytes + whole - held <= asked.device.usable_memory_bytes:
        return None
    return f"it holds the pages of a whole batch at once, here {gib(whole)}, of which a sweep needs {gib(held)}; use a smaller --batch-size"
