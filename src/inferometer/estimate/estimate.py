"""What a model will cost on a device: times, memory and energy, each beside its bound, with an interval and the basis of it all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from inferometer.estimate.answer import PHASES, Estimate, Phase, PhaseEstimate
from inferometer.estimate.beside_link import prompt_tokens
from inferometer.estimate.bound import Bound, mean_bound
from inferometer.estimate.cost import mean_cost
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.fit import fit
from inferometer.estimate.groups import GroupRun
from inferometer.estimate.host_stream import HostStream
from inferometer.estimate.limits import limits
from inferometer.estimate.memory import is_cpu
from inferometer.estimate.memory_of import memory_of
from inferometer.estimate.power import power
from inferometer.estimate.request import Request, resolve
from inferometer.estimate.run import Total, forward_step, prefill_step
from inferometer.estimate.run_bound import RunBound, in_any_order, one_after_another
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.device import DeviceSpec
from inferometer.model.description import ModelDescription
from inferometer.model.footprint import weight_bytes_by_layer
from inferometer.model.formats import kv_bytes_per_token
from inferometer.model.placement import share
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Share, Step, decode_equal

__all__ = ["PHASES", "Estimate", "Phase", "PhaseEstimate", "deployment", "estimate", "memory_of", "phase_steps"]


def estimate(
    model: str | ModelSpec | ModelDescription | None,
    device: str | DeviceSpec,
    *,
    batch_size: int,
    sequence_length: int,
    decode_length: int | None = None,
    dtype: str = "float16",
    quantize: str | None = None,
    kv_dtype: str = "auto",
    tensor_parallel: int = 1,
    stack: str = "native",
    forward_only: bool = False,
    loss: bool = False,
    gpus: int | None = None,
    link: str | None = None,
    parallel: str = "tensor",
    admission: str | None = None,
    group_size: int | None = None,
    num_groups: int | None = None,
    offload: str | None = None,
    mixed_tokens: int | None = None,
    calibration: Calibration | Literal["auto"] | None = "auto",
) -> Estimate:
    """What `model` will cost on `device`, described by name or as data; no weights and no such device are needed.

    A batch of `batch_size` prompts of `sequence_length` tokens, each continued by `decode_length`; with `forward_only` (always, for
    an encoder) one pass with logits at all positions, and with `loss` their cross-entropy. `calibration` "auto" is what was measured
    on this machine, if it has the device. `parallel` says how `tensor_parallel` (or, with another way, `gpus`) devices share the model.
    `admission` zigzag, diagonal or row runs the batch in groups of `group_size`, `num_groups` of them at a time; `offload`
    "weights:FRACTION" brings that share of the layers' weights over the host link in every sweep, and "pages" the keys and values.
    `mixed_tokens` also prices a decode step beside so many prompt tokens.
    A model that does not fit is priced all the same; `fits`, `short_by_bytes` and `remedy` say so.
    Raises UserError, one line that names the option and the remedy, for a name that is unknown and a request that contradicts itself.
    """
    request = resolve(
        model,
        device,
        batch_size=batch_size,
        sequence_length=sequence_length,
        decode_length=decode_length,
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        stack=stack,
        forward_only=forward_only,
        loss=loss,
        gpus=gpus,
        link=link,
        parallel=parallel,
        admission=admission,
        group_size=group_size,
        num_groups=num_groups,
        offload=offload,
        mixed_tokens=mixed_tokens,
        calibration=calibration,
    )
    where = deployment(request)
    stream = host_stream(request)
    phases = {phase: _phase(request, where, stream, steps) for phase, steps in phase_steps(request, where).items()}
    needed = memory_of(request)
    return Estimate(
        request=request,
        phases=phases,
        memory=needed,
        fit=fit(request, needed),
        total=_total(request, where, stream, phases),
        least=_least(request, where, stream, phases),
        mixed=None if request.mixed_tokens is None else _phase(request, where, stream, (_mixed(request, request.mixed_tokens),)),
        limits=where.limits,
    )


def deployment(request: Request) -> Deployment:
    """What the request runs on, for what prices steps of its own."""
    return Deployment(
        spec=request.spec,
        device=request.device,
        stack=request.stack,
        layout=request.layout,
        formats=request.formats,
        limits=limits(request.device, request.calibration, request.link, sharing=request.layout.devices if is_cpu(request.device) else 1),
        power=power(request.device),
    )


def phase_steps(request: Request, where: Deployment) -> dict[Phase, tuple[Step, ...]]:
    """The steps whose mean is each phase's time. Groups pass through a layer one group at a time."""
    asked = request.workload
    if not asked.generated:
        return {"forward_ms": (forward_step(where, asked.batch, asked.length, loss=asked.loss),)}
    batch = asked.together if request.order is not None and request.stack.groups_apart else asked.batch
    steps: dict[Phase, tuple[Step, ...]] = {"prefill_ms": (prefill_step(where, batch, asked.length),)}
    if asked.generated > 1:
        # Costs grow evenly with the context, so the middle of the run (two steps, if it has no middle one) stands for all.
        twice = 2 * asked.length + asked.generated - 2
        middle = dict.fromkeys((twice // 2, -(-twice // 2)))
        steps["decode_token_ms"] = tuple(decode_equal(batch, context) for context in middle)
    return steps


def _mixed(request: Request, tokens: int) -> Step:
    asked = request.workload
    return Step(shares=(Share(tokens), Share(1, asked.length + asked.generated // 2, asked.batch)))


def host_stream(request: Request) -> HostStream | None:
    """What comes over the host link in every sweep; None where all is resident."""
    spec, formats, asked = request.spec, request.formats, request.offload
    layers = sum(weight_bytes_by_layer(spec, formats))
    return HostStream.of(
        request.device,
        request.calibration,
        weight_bytes=share(layers, asked.weights),
        token_bytes=asked.pages * kv_bytes_per_token(spec, formats),
    )


def _phase(request: Request, where: Deployment, stream: HostStream | None, steps: tuple[Step, ...]) -> PhaseEstimate:
    costs = [where.cost(step) for step in steps]
    if stream is not None:
        static = None if where.power is None else where.power.static_w
        passes = [_passes(request, where, stream, step) for step in steps]
        costs = [stream.cost(cost, step, count, static) for cost, step, count in zip(costs, steps, passes, strict=True)]
    return PhaseEstimate(cost=mean_cost(costs), bound=_bound(where, stream, steps))


def _bound(where: Deployment, stream: HostStream | None, steps: tuple[Step, ...]) -> Bound:
    bounds = [where.bound(step) for step in steps]
    if stream is not None:
        # The least passes are one: a sweep of all tokens.
        bounds = [stream.bound(each, step, 1) for each, step in zip(bounds, steps, strict=True)]
    return mean_bound(tuple(bounds))


def _passes(request: Request, where: Deployment, stream: HostStream, step: Step) -> int:
    """Sweeps that the step's tokens take: the weights come with each."""
    most = _sweep_tokens(where, stream)
    prompts = sum(share.queries * share.count for share in step.shares if share.queries > 1)
    return 1 if most is None or not request.workload.generated else max(1, -(-prompts // most))


def _sweep_tokens(where: Deployment, stream: HostStream | None) -> int | None:
    """Prompt tokens of a sweep, more where as many run while its weights come; None for stacks that run any number at once."""
    most = where.stack.sweep_tokens
    if most is None or stream is None or not stream.weight_bytes:
        return most
    return max(most, prompt_tokens(where, stream.weight_bytes, stream.bytes_s))


def _least(request: Request, where: Deployment, stream: HostStream | None, phases: Mapping[Phase, PhaseEstimate]) -> RunBound | None:
    """Of groups, that of the work in any order with as many sequences in flight: no order makes a sweep do more than a token of each."""
    asked = request.workload
    if not asked.generated:
        return None
    if request.order is None or asked.group is None:
        bounds = {phase: each.bound for phase, each in phases.items()}
        return one_after_another(bounds["prefill_ms"], bounds.get("decode_token_ms"), asked.generated - 1)
    groups = 1 if request.order == "row" else request.num_groups
    flight = asked.batch if groups is None else min(asked.batch, groups * asked.group)
    together = replace(request, order=None, workload=replace(asked, batch=flight, group=None))
    bounds = {phase: _bound(where, stream, steps) for phase, steps in phase_steps(together, where).items()}
    return in_any_order(bounds["prefill_ms"], bounds.get("decode_token_ms"), asked.generated - 1).times(asked.batch / flight)


def _total(request: Request, where: Deployment, stream: HostStream | None, phases: Mapping[Phase, PhaseEstimate]) -> Total | None:
    asked = request.workload
    if not asked.generated:
        return None
    if request.order is not None:
        assert asked.group is not None, "groups have a size"
        return GroupRun(
            deployment=where,
            order=request.order,
            groups=-(-asked.batch // asked.group),
            size=asked.together,
            length=asked.length,
            generated=asked.generated,
            most=request.num_groups,
            stream=stream,
            sweep_tokens=_sweep_tokens(where, stream),
        ).total()
    seconds, joules = where.stack.request_s, 0.0
    for phase, each in phases.items():
        count = asked.generated - 1 if phase == "decode_token_ms" else 1
        seconds += count * each.cost.ms / 1e3
        drawn = each.cost.joules(where.devices)
        if drawn is None:
            joules = math.nan
        else:
            joules += count * drawn
    return Total(seconds, None if math.isnan(joules) else joules, asked.batch * asked.generated)
