"""What an estimate is asked for, resolved: names turned into a spec, a device, formats, a stack and a link, and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, cast, get_args

from inferometer.errors import UserError
from inferometer.estimate.asked_weights import WIDENED, asked_weights
from inferometer.estimate.groups import Order
from inferometer.estimate.layout import PARALLELS, Layout
from inferometer.estimate.limits import joining
from inferometer.estimate.memory import is_cpu
from inferometer.estimate.stack import Stack, find_stack
from inferometer.estimate.workload import Workload
from inferometer.hardware.calibration import Calibration, load_calibrations
from inferometer.hardware.catalogue import find_device, slugs
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.links import Link, host_link, link_between
from inferometer.model.description import ModelDescription, describe
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES, Formats, kv_format
from inferometer.model.offload import NOWHERE_ELSE, Offload, read_offload
from inferometer.model.outline import read_outline
from inferometer.model.published import Published, read_published
from inferometer.model.quantisation import read_quantisation
from inferometer.model.shard import check_shards
from inferometer.model.spec import ModelSpec
from inferometer.schedule.groups import GROUP_SIZE

_MOST: Final = 10**24
"""Of any number that is asked for: products of much larger ones are none that floating point has."""

_MOST_SWEEPS: Final = 10**6
"""Of groups in diagonal order: some seconds of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One estimate's question.

    `gpus` is what the machine has, of which `layout.devices` work; `link` joins those, None for one. order: that of the groups, of
    `workload.group` sequences, that the batch runs in; None for one batch. num_groups: most of them in flight, None for all. offload: what
    lives on the host. mixed_tokens: prompt tokens beside which a decode step is priced too. named: what this command line calls the model;
    hub_name: what other programs call it. stored: whether the checkpoint is in that format of weights already. stated: what says so.
    published: the checkpoint's format where it is one that no engine of this product runs, whatever the weights are asked to be in.
    """

    spec: ModelSpec
    device: DeviceSpec
    gpus: int
    link: Link | None
    formats: Formats
    stack: Stack
    workload: Workload
    calibration: Calibration | None
    layout: Layout
    order: Order | None = None
    num_groups: int | None = None
    offload: Offload = NOWHERE_ELSE
    mixed_tokens: int | None = None
    named: str
    hub_name: str
    stored: bool = False
    stated: str | None = None
    published: Published | None = None

    @property
    def quantize(self) -> str | None:
        """The name of the weights' format, None where it is the activations' type."""
        return None if self.formats.weights is None else self.formats.weights.name


def resolve(
    model: str | ModelSpec | ModelDescription | None,
    device: str | DeviceSpec,
    *,
    batch_size: int,
    sequence_length: int,
    decode_length: int | None,
    dtype: str,
    quantize: str | None,
    kv_dtype: str,
    tensor_parallel: int,
    stack: str,
    forward_only: bool,
    loss: bool,
    gpus: int | None,
    link: str | None,
    parallel: str,
    admission: str | None,
    group_size: int | None,
    num_groups: int | None,
    offload: str | None,
    mixed_tokens: int | None,
    calibration: Calibration | Literal["auto"] | None,
) -> Request:
    """The checked request. Raises UserError, one line, naming the flag that is wrong or contradicts another, and the remedy."""
    spec, config, named, hub_name, stated = _spec(model)
    found = find_device(device) if isinstance(device, str) else device
    chosen = find_stack(stack)
    for flag, value in (("batch-size", batch_size), ("sequence-length", sequence_length), ("tensor-parallel", tensor_parallel)):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"--{flag} must be at least 1, not {value!r}")
    numbers = {"batch-size": batch_size, "sequence-length": sequence_length, "decode-length": decode_length, "mixed-tokens": mixed_tokens}
    numbers |= {"tensor-parallel": tensor_parallel, "gpus": gpus, "group-size": group_size, "num-groups": num_groups}
    for flag, number in numbers.items():
        if number is not None and number > _MOST:
            raise UserError(f"--{flag}: no more than 10^24 is estimated; use a smaller number")
    for flag, given in (("loss", loss), ("mixed-tokens", mixed_tokens), ("admission", admission not in (None, "continuous"))):
        if given and spec.encoder:
            raise UserError(f"--{flag} is for decoders, and {spec.name} is an encoder; leave it out")
    forward_only = forward_only or spec.encoder
    if loss and not forward_only:
        raise UserError("--loss goes with --forward-only; add that, or leave it out")
    if not forward_only and not chosen.counts_host:
        raise UserError(f"--stack {chosen.name} is for a single forward: add --forward-only, or use --stack native or hf-eager")
    generated = 0 if forward_only else (1 if decode_length is None else decode_length)
    if not forward_only and generated < 1:
        raise UserError(f"--decode-length must be at least 1, not {generated}")
    _check_length(spec, sequence_length, generated)
    layout = _layout(spec, parallel, tensor_parallel, gpus)
    gpus = layout.devices if gpus is None else gpus
    if layout.devices > gpus:
        raise UserError(f"--tensor-parallel {layout.devices} needs as many GPUs, and --gpus is {gpus}")
    shards = layout.devices if layout.parallel == "tensor" else 1
    check_shards(spec, shards)
    measured = _measured(found) if calibration == "auto" else calibration
    if is_cpu(found) and gpus > layout.devices:
        raise UserError(f"--gpus {gpus}: cpu is one device; leave it out, or name a GPU with --device")
    joined = joining(found, measured, layout, link)
    if is_cpu(found) and gpus > 1:
        # Ranks on a CPU have its memory together.
        found = replace(found, memory_bytes=found.memory_bytes // gpus, visible_memory_bytes=None)
    name = resolve_dtype(dtype, found, config)
    cache = kv_format(kv_dtype)
    published = read_published(config, spec.name)
    stored = read_quantisation(config, spec.name) if published is None else None
    if link is not None and layout.devices == 1:
        link_between(found, max(gpus, 2), link)  # nothing crosses it, but a name that is wrong is still refused
    elsewhere = _offload(offload, found)
    if shards > 1 and (elsewhere.weights or elsewhere.pages):
        raise UserError(f"--offload is for one device, and --tensor-parallel is {shards}; leave one of them out")
    order = _order(admission, group_size, forward_only)
    if order == "diagonal":
        # Each sweep is looked at, unlike those of equal sequences.
        groups = -(-batch_size // (group_size or GROUP_SIZE))
        if max(groups, groups * generated // (num_groups or groups)) > _MOST_SWEEPS:
            raise UserError(
                f"--admission diagonal: more than {_MOST_SWEEPS:,} sweeps; use a smaller --batch-size, or a larger --group-size"
            )
    if num_groups is not None and (order is None or num_groups < 1 or (order == "row" and num_groups > 1)):
        raise UserError("--num-groups goes with --admission zigzag or diagonal, and is at least 1; in row order it is 1")
    if mixed_tokens is not None and (forward_only or mixed_tokens < 1):
        raise UserError("--mixed-tokens is a number of prompt tokens beside a decode step: at least 1, and not with --forward-only")
    limit = spec.context_limit
    if mixed_tokens is not None and limit is not None and mixed_tokens > limit:
        raise UserError(f"--mixed-tokens {mixed_tokens} is too long: {spec.name} has {limit} positions; ask for at most {limit} tokens")
    return Request(
        spec=spec,
        device=found,
        gpus=gpus,
        link=joined,
        formats=Formats(
            dtype=name,
            weights=asked_weights(quantize, spec, chosen, name, published or stored),
            kv_dtype=cache,
            shards=shards,
        ),
        stack=chosen,
        workload=Workload(
            batch=batch_size,
            length=sequence_length,
            generated=generated,
            loss=loss,
            group=(group_size or GROUP_SIZE) if order is not None else None,
            streamed=elsewhere.weights,
            hosted=elsewhere.pages,
        ),
        calibration=measured,
        layout=layout,
        order=order,
        num_groups=num_groups,
        offload=elsewhere,
        mixed_tokens=mixed_tokens,
        named=named,
        hub_name=hub_name,
        stored=stored is not None or (published is not None and quantize != WIDENED),
        stated=stated,
        published=published,
    )


def _layout(spec: ModelSpec, parallel: str, tensor_parallel: int, gpus: int | None) -> Layout:
    if parallel not in PARALLELS:
        raise UserError(f"--parallel {parallel} is unknown; use {', '.join(PARALLELS)}")
    devices = tensor_parallel if parallel == "tensor" else max(tensor_parallel, gpus or 1)
    layout = Layout(devices=devices, parallel=parallel)
    layout.check(spec)
    return layout


def _order(admission: str | None, group_size: int | None, forward_only: bool) -> Order | None:
    if admission in (None, "continuous"):
        if group_size is not None:
            raise UserError("--group-size goes with --admission zigzag, diagonal or row")
        return None
    if admission not in get_args(Order):
        raise UserError(f"--admission {admission} is unknown; use continuous, {', '.join(get_args(Order))}")
    if forward_only:
        raise UserError(f"--admission {admission} is an order of generation: leave out --forward-only")
    return cast(Order, admission)


def _offload(offload: str | None, device: DeviceSpec) -> Offload:
    """What `--offload` names, and that there is a link for it."""
    asked = read_offload(offload)
    if asked.name is not None and host_link(device) is None:
        raise UserError(f"--offload {offload}: {device.slug} has no link to its host over which weights could come; leave it out")
    return asked


def resolve_dtype(dtype: str, device: DeviceSpec, config: Mapping[str, Any]) -> str:
    """The type that `--dtype` names. "auto" is the checkpoint's on a GPU, and on a CPU bfloat16 if it has instructions for it.

    Raises UserError for an unknown name, or a 16-bit type that the device does not multiply.
    """
    name = DTYPE_ALIASES.get(dtype, dtype)
    if name == "auto":
        if is_cpu(device):
            return "bfloat16" if "bf16" in device.architecture else "float32"
        stored = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
        wanted = stored if stored in COMPUTE_DTYPES else "float16"
        return wanted if _multiplies(device, wanted) else "float16"
    if name not in COMPUTE_DTYPES:
        raise UserError(f"--dtype {dtype} is unknown; use auto, {', '.join(COMPUTE_DTYPES)}")
    if not is_cpu(device) and not _multiplies(device, name):
        have = " or ".join(known for known in COMPUTE_DTYPES if _multiplies(device, known))
        raise UserError(f"--dtype {name}: {device.slug} does not multiply {name}; use --dtype {have}")
    return name


def _multiplies(device: DeviceSpec, dtype: str) -> bool:
    return any(known == dtype for known in (*device.tensor.known(), *device.vector.known()))


def _spec(model: str | ModelSpec | ModelDescription | None) -> tuple[ModelSpec, Mapping[str, Any], str, str, str | None]:
    """The model, its config.json, what this command line calls it, what other programs do, and where that config.json is from."""
    if isinstance(model, ModelSpec):
        return model, {}, model.name, model.name, None
    found = model if isinstance(model, ModelDescription) else describe(model, config_only=True, read=read_outline)
    # A preset and what the Hub has are found again by their names, a folder or file where it lies.
    lies = found.path if found.hub_id is None else None
    named = found.name if lies is None else str(lies)
    stated = f"{found.hub_id or found.path}'s config.json{', as the preset has it' if found.source == 'preset' else ''}"
    return found.spec, found.config, named, found.hub_id or named, stated


def _check_length(spec: ModelSpec, length: int, generated: int) -> None:
    limit = spec.context_limit
    if limit is not None and length + generated > limit:
        what = f"--sequence-length {length}" + (f" + --decode-length {generated}" if generated else "")
        raise UserError(f"{what} is too long: {spec.name} has {limit} positions; ask for at most {limit} tokens")


@cache
def _fingerprint() -> str:
    from inferometer.hardware.detect import detect

    return detect().fingerprint


def _measured(device: DeviceSpec) -> Calibration | None:
    """What was measured on such a device of this machine; one that a file describes is another, whatever it is called."""
    if not is_cpu(device) and (device.slug not in slugs() or find_device(device.slug) != device):
        return None
    return load_calibrations(_fingerprint()).for_slug(device.slug)
