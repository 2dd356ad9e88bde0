"""`inferometer estimate`: what a model will cost on a device, beside the least it can cost there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from inferometer.cli.estimate_plot import add_plot_options, draw, write
from inferometer.cli.options import add_model, at_least
from inferometer.cli.verification import unmeasured
from inferometer.errors import UserError
from inferometer.estimate.answer import MIXED, Phase
from inferometer.estimate.estimate import Estimate, estimate
from inferometer.estimate.fewer import faster_on_fewer
from inferometer.estimate.groups import Order
from inferometer.estimate.layout import PARALLELS
from inferometer.estimate.memory import is_cpu
from inferometer.estimate.plain import faster_in_plain
from inferometer.estimate.stack import STACKS
from inferometer.estimate.stored_weights import stored_parts
from inferometer.hardware.catalogue import CPU
from inferometer.model.byte_size import gib

_LENGTH, _DECODE = 512, 64
_PHASES = {"forward_ms": "forward", "prefill_ms": "prefill", "decode_token_ms": "decode (token)"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model(parser)
    group = parser.add_argument_group("workload")
    group.add_argument("--batch-size", type=at_least(1), default=1, metavar="N", help="sequences at a time (default: 1)")
    group.add_argument("--sequence-length", type=at_least(1), metavar="N", help=f"prompt tokens of each sequence (default: {_LENGTH})")
    group.add_argument("--decode-length", type=at_least(1), metavar="N", help=f"tokens to generate for each (default: {_DECODE})")
    group.add_argument("--forward-only", action="store_true", help="one forward with logits at every position instead of generation")
    group.add_argument("--loss", action="store_true", help="with --forward-only: also the mean next-token cross-entropy")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", metavar="SLUG|FILE", help="a device by name, cpu, or a TOML file (default: what is here)")
    machine.add_argument("--gpus", type=at_least(1), metavar="N", help="GPUs in the machine (default: as many as --tensor-parallel)")
    machine.add_argument("--link", metavar="nvlink|nvswitch|pcie4|...", help="what joins them (default: the fastest that the card has)")
    how = parser.add_argument_group("how it runs")
    how.add_argument("--stack", default="native", metavar="NAME", help=f"{', '.join(STACKS)} (default: native)")
    how.add_argument("--dtype", default="auto", metavar="auto|float32|float16|bfloat16", help="number format of weights and activations")
    how.add_argument(
        "--quantize", metavar="FORMAT", help="number format of the layers' weights: int8, int4-g64, fp8, ...; none: a checkpoint's, widened"
    )
    how.add_argument("--kv-dtype", default="auto", metavar="auto|fp8|int8", help="number format of the KV cache")
    how.add_argument("--tensor-parallel", type=at_least(1), metavar="N", help="GPUs to cut every layer over (default: --gpus, or 1)")
    how.add_argument(
        "--parallel",
        choices=PARALLELS,
        default="tensor",
        help="how --gpus share the model: all layers cut, only feed-forward blocks cut, or each has layers of its own (default: tensor)",
    )
    how.add_argument("--admission", choices=("continuous", *get_args(Order)), help="run the batch in groups, in this order")
    how.add_argument("--group-size", type=at_least(1), metavar="N", help="sequences of a group; with --admission")
    how.add_argument("--num-groups", type=at_least(1), metavar="N", help="most groups at a time; with --admission (default: all)")
    how.add_argument(
        "--offload",
        metavar="weights[:FRACTION][,pages]",
        help="what comes from the host in every sweep: that share of the layers' weights, the cache",
    )
    how.add_argument("--mixed-tokens", type=at_least(1), metavar="N", help="also a decode step beside N prompt tokens")
    add_plot_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--require-fit", action="store_true", help="exit with 2 if the devices lack the memory")
    output.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0. Raises UserError, after the estimate is printed, for what does not fit with --require-fit."""
    from inferometer.model.description import describe
    from inferometer.model.outline import read_outline

    model = describe(arguments.model, config_only=True, read=read_outline)
    forward_only = arguments.forward_only or model.spec.encoder
    if forward_only and arguments.decode_length is not None:
        why = f"and {model.spec.name} is an encoder" if model.spec.encoder else "which --forward-only does not"
        raise UserError(f"--decode-length is how many tokens a model generates, {why}; leave it out")
    decode = None if forward_only else arguments.decode_length or _DECODE
    room = (model.spec.context_limit or _LENGTH + _DECODE) - (decode or 0)
    asked: dict[str, Any] = {
        "device": _here() if arguments.device is None else arguments.device,
        "batch_size": arguments.batch_size,
        "sequence_length": arguments.sequence_length or max(1, min(_LENGTH, room)),
        "decode_length": decode,
        "dtype": arguments.dtype,
        "quantize": arguments.quantize,
        "kv_dtype": arguments.kv_dtype,
        "tensor_parallel": arguments.tensor_parallel or (arguments.gpus if arguments.parallel == "tensor" else None) or 1,
        "stack": arguments.stack,
        "forward_only": forward_only,
        "loss": arguments.loss,
        "gpus": arguments.gpus,
        "link": arguments.link,
        "parallel": arguments.parallel,
        "admission": arguments.admission,
        "group_size": arguments.group_size,
        "num_groups": arguments.num_groups,
        "offload": arguments.offload,
        "mixed_tokens": arguments.mixed_tokens,
    }
    found = estimate(model, **asked)
    if arguments.plot is not None:
        write(arguments.plot, draw(arguments.plot_kind, found, lambda change: estimate(model, **{**asked, **change})))
    elif arguments.plot_kind is not None:
        raise UserError(f"--plot-kind {arguments.plot_kind} needs --plot FILE.svg to draw into")
    plain = faster_in_plain(found, lambda: estimate(model, **{**asked, "quantize": None}))
    fewer = faster_on_fewer(found, lambda devices: estimate(model, **{**asked, **_on(found, devices)}))
    if arguments.json:
        json.dump(_document(found, fewer, plain), sys.stdout, allow_nan=False, indent=2)
        print()
    else:
        print(text(found, fewer, plain), end="")
    if arguments.require_fit and not found.fits:
        raise UserError(f"--require-fit: {found.request.spec.name} is {_shortage(found)}")
    return 0


def _document(found: Estimate, fewer: Mapping[Phase, Estimate], plain: Mapping[Phase, Estimate]) -> dict[str, Any]:
    reason = unmeasured(found)
    faster = {
        "faster_on_fewer": {
            phase: {"devices": each.request.layout.devices, "ms": each.phases[phase].cost.ms} for phase, each in fewer.items()
        },
        "faster_unquantized": {phase: each.phases[phase].cost.ms for phase, each in plain.items()},
    }
    return {**found.to_dict(), **faster, **({} if reason is None else {"verify": None}), "unmeasured": reason}


def text(found: Estimate, fewer: Mapping[Phase, Estimate] | None = None, plain: Mapping[Phase, Estimate] | None = None) -> str:
    """The estimate for a reader: each time beside its interval, its bound and what binds; memory by use; time by kind of op.

    fewer: of phases that are faster on fewer devices, what they take there. plain: of those that are with weights as they are.
    """
    faster = [_on_fewer(phase, each) for phase, each in (fewer or {}).items()]
    faster += [_in_plain(phase, each) for phase, each in (plain or {}).items()]
    times = [*_times(found), *faster]
    return "\n".join([_title(found), "", *times, "", *_memory(found), "", *_kinds(found), "", *_basis(found)]) + "\n"


def _on(found: Estimate, devices: int) -> dict[str, Any]:
    """The options that ask for so many."""
    return {"gpus": devices, "tensor_parallel": devices if found.request.layout.parallel == "tensor" else 1}


def _on_fewer(phase: Phase, fewer: Estimate) -> str:
    asked = fewer.request
    over = "" if asked.link is None or asked.layout.devices == 1 else f" over {asked.link.name}"
    return f"{_PHASES[phase]} is faster on {asked.layout.devices}{over}: {_ms(fewer.phases[phase].cost.ms)} ms"


def _in_plain(phase: Phase, plain: Estimate) -> str:
    return f"{_PHASES[phase]} is faster with {plain.request.formats.dtype} weights: {_ms(plain.phases[phase].cost.ms)} ms"


def _here() -> str:
    """The first GPU of this machine that the catalogue knows, else the CPU."""
    from inferometer.hardware.detect import detect

    machine = detect()
    return next((slug for index in range(len(machine.gpus)) if (slug := machine.slug(index))), CPU)


def _title(found: Estimate) -> str:
    asked = found.request
    devices = asked.layout.devices
    machine = asked.device.name
    if devices > 1:
        each = "ranks on" if is_cpu(asked.device) else "x"
        machine = f"{devices} {each} {machine} over {asked.link.name if asked.link else 'a link'}"
    kind = asked.formats.dtype if asked.quantize is None else f"{asked.quantize} weights, {asked.formats.dtype}"
    lengths = f"batch {asked.workload.batch} of {asked.workload.length} tokens"
    end = f", {asked.workload.generated} generated" if asked.workload.generated else ", one forward" + (" with loss" * asked.workload.loss)
    return f"{asked.spec.name} on {machine}, {kind}, {asked.stack.name}: {lengths}{end}"


def _times(found: Estimate) -> list[str]:
    rows = [("", "expected", "interval", "bound", "binds", "% of bound")]
    for phase, each in found.phases.items():
        low, high = found.interval[phase]
        ours, least = each.cost.ms, each.bound.ms
        share = f"{100 * least / ours:.0f}"
        rows.append((_PHASES[phase], f"{_ms(ours)} ms", f"{_ms(low)} - {_ms(high)}", f"{_ms(least)} ms", each.bound.binds, share))
    if found.mixed is not None:
        low, high = found.interval[MIXED]
        ours, limit = found.mixed.cost.ms, found.mixed.bound
        what = f"decode + {found.request.mixed_tokens} prompt tokens"
        rows.append(
            (what, f"{_ms(ours)} ms", f"{_ms(low)} - {_ms(high)}", f"{_ms(limit.ms)} ms", limit.binds, f"{100 * limit.ms / ours:.0f}")
        )
    lines = _table(rows)
    if found.total_ms is not None and found.least is not None:
        low, high = found.interval["total_ms"]
        order = "" if found.request.order is None else f", {found.request.order} order, groups of {found.request.workload.group}"
        lines.append(
            f"in all: {_ms(found.total_ms)} ms ({_ms(low)} - {_ms(high)}), bound {_ms(found.least.ms)} ms ({found.least.binds}){order}"
        )
    asked = found.request.workload
    token = found.decode_token_ms or found.prefill_ms or found.forward_ms
    if found.request.order is not None and found.total_ms:
        # Their steps need not be of the whole batch, as the phase's is.
        lines.append(f"throughput: {asked.batch * asked.generated / found.total_ms * 1e3:,.1f} tokens/s over the whole run")
    elif token:
        tokens = asked.batch if asked.generated else asked.batch * asked.length
        lines.append(f"throughput: {tokens / token * 1e3:,.1f} tokens/s {'in decode' if found.decode_token_ms else ''}".rstrip())
    return [*lines, _energy(found)]


def _energy(found: Estimate) -> str:
    if found.j_per_token is None:
        return "energy: unknown (no power limit is stated)"
    low, high = found.interval["j_per_token"]
    watts = ", ".join(
        f"{each.cost.watts:.0f} W in {_PHASES[phase]}" + (f" at {100 * each.cost.clock:.0f} % of the clock" if each.cost.clock < 1 else "")
        for phase, each in found.phases.items()
        if each.cost.watts is not None
    )
    devices = found.request.layout.devices
    return f"energy: {found.j_per_token:.3g} J/token ({low:.3g} - {high:.3g}); {watts}{f' on each of {devices}' if devices > 1 else ''}"


def _most(what: str, number: int | None) -> str:
    return f"the {what} {'not bounded by memory' if number is None else f'{number:,}'}"


def _memory(found: Estimate) -> list[str]:
    held = found.memory
    sizes = {
        "weights": held.weights,
        **{f"  {part}": size for part, size in stored_parts(found.request).items()},
        "KV cache": held.kv,
        "activations": held.activations,
        "logits": held.logits,
        "context": held.context,
        **({"workspace": held.workspace} if held.workspace else {}),
        **({"communication": held.communication} if held.communication else {}),
        "peak of tensors": held.peak_bytes,
        "needed": held.device_bytes,
        "available": found.request.device.usable_memory_bytes,
    }
    title = "memory on each device" if found.request.layout.devices > 1 else "memory"
    verdict = (
        f"fits; {_most('largest batch of these lengths is', found.largest_batch)}, "
        f"{_most('longest prompts of this batch', found.largest_context)}"
        if found.fits
        else f"does not fit: {_shortage(found)}"
    )
    return [*_table([(title, ""), *((name, gib(size)) for name, size in sizes.items())]), verdict]


def _shortage(found: Estimate) -> str:
    short = f"{gib(found.short_by_bytes or 0)} short of the {gib(found.memory.device_bytes)} that it needs on each device"
    ways = [f"with {flags}" for flags in found.fit.remedies]
    if found.fit.offload is not None:
        ways.append(f"at the speed of the host link with {found.fit.offload}")
    if not ways:
        return f"{short}; no batch size, number format or shard count that the device joins makes it fit: use a larger --device"
    return f"{short}; it would fit {', or '.join(filter(None, (', '.join(ways[:-1]), ways[-1])))}"


def _kinds(found: Estimate) -> list[str]:
    phases = list(found.phases.items())
    rows = [("ms by kind of op", *(f"{_PHASES[phase]} {what}" for phase, _ in phases for what in ("expected", "bound")))]
    rows += [
        (kind, *(_ms(part[kind]) for _, each in phases for part in (each.cost.kinds, each.bound.kinds))) for kind in phases[0][1].cost.kinds
    ]
    host = "the host, beside" if found.request.stack.counts_host else "the host, not counted"
    rows.append((host, *(cell for _, each in phases for cell in (_ms(each.cost.host_ms), ""))))
    if any(each.cost.stream_ms for _, each in phases):
        rows.append(("host link, beside", *(_ms(part) for _, each in phases for part in (each.cost.stream_ms, each.bound.stream_ms))))
    return _table(rows)


def _basis(found: Estimate) -> list[str]:
    stored = [] if found.weights_format is None else [f"weights: {found.weights_format}"]
    lines = [*stored, f"basis: {found.basis}; {found.request.device.name}: {found.request.device.source}"]
    reason = unmeasured(found)
    lines.append(f"verify: {found.verify}" if reason is None else f"verify: no `inferometer bench` measures this case: {reason}")
    if found.limits.basis == "assumed":
        lines.append("this CPU's speed is assumed from its cores and instructions: `inferometer devices --calibrate` measures it")
    return lines


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _ms(value: float) -> str:
    """Three significant figures, all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
