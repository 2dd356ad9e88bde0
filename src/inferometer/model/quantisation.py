"""What a checkpoint says of its own weights in few bits: quantization_config, as config.json holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferometer.errors import ModelError, UserError, shown
from inferometer.model.formats import KEPT_HEAD, KEPT_HEAD_FORMATS, QUANTIZED_FORMATS, ROUNDED_FORMATS, WeightFormat, weight_format
from inferometer.model.published import METHODS as ESTIMATED
from inferometer.model.published import read_published
from inferometer.model.stated_format import stated_format

Method = Literal["inferometer", "gptq", "awq", "compressed-tensors"]
METHODS: tuple[Method, ...] = ("inferometer", "gptq", "awq", "compressed-tensors")
VERSION = 2
"""Of this package's own format. In 1 every head was kept as it is."""
_LARGEST_GROUP = 2**31 - 1
_ONLY_ESTIMATED = (
    "estimated (`inferometer estimate`) and not run; use the checkpoint before quantisation, with --quantize where it is too large"
)
_COMPRESSED = {
    "pack-quantized": ("int4",),
    "int-quantized": ("int8",),
    "float-quantized": ("fp8",),
    "naive-quantized": ("int8", "fp8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How a checkpoint's matrices are stored.

    element: of one number. group: inputs that share a scale, None for all of them. symmetric: whether the zero point is the middle.
    ordered: whether inputs may belong to groups in any order (act-order). offset: what the file's zero points are to be added to.
    rounds: whether products round their activations to the same type. form: the name of this package's own format.
    """

    method: Method
    element: Literal["int8", "int4", "fp8"]
    group: int | None = None
    symmetric: bool = True
    ordered: bool = False
    offset: int = 0
    rounds: bool = False
    form: str | None = None

    @property
    def named(self) -> str:
        """The format as records name it: this package's own by its --quantize value, another as METHOD-LAYOUT."""
        if self.form is not None:
            return self.form
        if self.element != "int4":
            return f"{self.method}-{'w8a8' if self.rounds and self.element == 'int8' else self.element}"
        group = "" if self.group is None else f"-g{self.group}"
        return f"{self.method}-int4{group}{'-sym' if self.symmetric else ''}"

    @property
    def weights(self) -> WeightFormat:
        """The format for inventories. Rows of unknown length count as groups of 128."""
        if self.form is not None:
            return weight_format(self.form, "float16")
        if self.element != "int4":
            compute = self.element if self.rounds or self.element == "fp8" else None
            return WeightFormat(name=self.method, bits=8, scale_bits=32, compute=compute, element=self.element)
        scale_bits = 16 if self.symmetric else 32
        return WeightFormat(name=self.method, bits=4, group=self.group or 128, scale_bits=scale_bits, element="int4")


def read_quantisation(config: Mapping[str, Any], name: str) -> Quantisation | None:
    """What `config` says, or that of its text model, None if neither says anything. `name` is how the model is called in messages.

    Raises ModelError, one line, for a method or an option that is not run (those of model.published among them, which are estimated),
    and for values that make no sense.
    """
    found = stated_format(config)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ModelError(f"{name}: quantization_config must be an object, not {shown(found)}")
    method = found.get("quant_method")
    options = _Options(found, name, method)
    if method == "inferometer":
        return _own(options)
    if method == "gptq":
        return _gptq(options)
    if method == "awq":
        return _awq(options)
    if method == "compressed-tensors":
        if read_published(config, name) is not None:
            raise options.error(f"blocks of weights with a scale each are {_ONLY_ESTIMATED}")
        return _compressed(options)
    if method == "bitsandbytes" or options.raw("load_in_8bit") or options.raw("load_in_4bit"):
        raise options.error(
            "weights that bitsandbytes has stored are not supported: use the checkpoint before quantisation, with --quantize int8"
        )
    if read_published(config, name) is not None:
        raise options.error(_ONLY_ESTIMATED)
    raise options.error(
        f"not supported, only {', '.join(METHODS)}, and for estimates {', '.join(ESTIMATED)}; use the checkpoint before quantisation"
    )


def stored_format(config: Mapping[str, Any], name: str) -> str | None:
    """What a checkpoint's own few bits are called, None for one of plain weights. Raises as `read_quantisation`."""
    stored = read_quantisation(config, name)
    return None if stored is None else stored.named


def check_quantize(name: str | None) -> None:
    """Raises UserError for an unknown --quantize value, whatever the model."""
    if name is not None:
        weight_format(name, "float32")


def resolve_quantize(name: str | None, stored: Quantisation | None) -> WeightFormat | None:
    """The format for a --quantize value and a checkpoint that is in few bits already or not; None for plain weights.

    "bitsandbytes" is int8 here. Raises UserError for an unknown name and where the checkpoint is stored in another way.
    """
    if stored is not None:
        alias = None if name is None or name in QUANTIZED_FORMATS else weight_format(name, "float32").name
        if name not in (None, stored.method, stored.named) and (alias is None or alias != stored.form):
            what = stored.form or stored.method
            raise UserError(
                f"--quantize {name}: the checkpoint is in {what} already; leave it out, or use the checkpoint before quantisation"
            )
        return stored.weights
    if name is None:
        return None
    form = weight_format("int8" if name == "bitsandbytes" else name, "float32")
    if form.name not in (*ROUNDED_FORMATS, *KEPT_HEAD_FORMATS):
        raise UserError(f"--quantize {name}: the checkpoint is not stored so; use one of {', '.join(ROUNDED_FORMATS)}")
    return form


def _own(options: _Options) -> Quantisation:
    version, form = options.raw("version"), options.raw("format")
    if version not in (1, VERSION) or isinstance(version, bool):
        raise options.error(f"version {shown(version)} of the format is not known, only 1 and {VERSION}; quantize the model again")
    if not isinstance(form, str) or form not in (*ROUNDED_FORMATS, *KEPT_HEAD_FORMATS):
        raise options.error(f"format {shown(form)} is unknown; the formats are {', '.join(ROUNDED_FORMATS)}")
    if version == 1 and form in ROUNDED_FORMATS:
        form += KEPT_HEAD
    known = weight_format(form, "float16")
    assert known.element != "float"
    assert known.element != "mxfp4"
    return Quantisation(
        method="inferometer",
        element=known.element,
        group=known.group,
        symmetric=not known.asymmetric,
        rounds=known.compute == "int8",
        form=form,
    )


def _gptq(options: _Options) -> Quantisation:
    options.require("bits", (4,), "only 4 bits are read")
    kind = options.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    if options.flag("is_marlin_format", False):
        raise options.error("weights in Marlin's layout are not read; use the checkpoint before it was repacked")
    return Quantisation(
        method="gptq",
        element="int4",
        group=options.group("group_size"),
        symmetric=False,
        ordered=options.flag("desc_act", False),
        offset=1 if kind == "gptq" else 0,
    )


def _awq(options: _Options) -> Quantisation:
    options.require("bits" if options.raw("bits") is not None else "w_bit", (4,), "only 4 bits are read")
    options.choice("version", ("gemm", "GEMM"), "gemm")
    options.flag("zero_point", True)
    return Quantisation(
        method="awq",
        element="int4",
        group=options.group("group_size" if options.raw("group_size") is not None else "q_group_size"),
        symmetric=False,
    )


def _compressed(options: _Options) -> Quantisation:
    groups = options.raw("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise options.error(f"config_groups must hold one group, not {shown(groups)}: models of several formats are not run")
    group = next(iter(groups.values()))
    if not isinstance(group, Mapping):
        raise options.error(f"config_groups holds {shown(group)}, not an object")
    if options.raw("kv_cache_scheme"):
        raise options.error("kv_cache_scheme is not supported: the cache's type is --kv-dtype's")
    sparsity = options.raw("sparsity_config")
    # Tools that have measured how many weights are 0 say so and store all of them.
    if sparsity and not (isinstance(sparsity, Mapping) and sparsity.get("format") == "dense"):
        raise options.error("sparsity_config is not supported; use the checkpoint before it was made sparse")
    form = group.get("format") or options.raw("format")
    weights = group.get("weights")
    if not isinstance(form, str) or form not in _COMPRESSED:
        raise options.error(f"format {shown(form)} is not supported, only {', '.join(_COMPRESSED)}")
    if not isinstance(weights, Mapping):
        raise options.error(f"weights must be an object, not {shown(weights)}")
    return _of_scheme(form, options.inner(weights), group.get("input_activations"))


def _of_scheme(form: str, weights: _Options, activations: Any) -> Quantisation:
    bits, kind = weights.raw("num_bits"), weights.choice("type", ("int", "float"), "int")
    known: dict[tuple[Any, str], Literal["int8", "int4", "fp8"]] = {(8, "int"): "int8", (4, "int"): "int4", (8, "float"): "fp8"}
    element = known.get((bits, kind)) if isinstance(bits, int) else None
    if element is None or element not in _COMPRESSED[form]:
        raise weights.error(f"weights of type {kind} in {shown(bits)} bits are not supported in {form}")
    symmetric = weights.flag("symmetric", True)
    strategy = weights.choice("strategy", ("group", "channel", "tensor"), "channel")
    if element != "int4" and (strategy == "group" or not symmetric):
        raise weights.error(f"{element} weights with {'groups' if strategy == 'group' else 'zero points'} are not supported")
    if element == "int4" and strategy == "tensor":
        raise weights.error("int4 weights with one scale are not supported, only by group or channel")
    rounds = activations is not None
    if rounds:
        given = weights.inner(activations if isinstance(activations, Mapping) else {})
        given.require("num_bits", (8,), "only 8 bits are run")
        given.choice("type", ("float" if element == "fp8" else "int",), "int")
        if element == "int4":
            raise weights.error("int4 weights with rounded activations are not supported")
        if not given.flag("symmetric", True):
            raise weights.error("activations with zero points are not supported")
        if element == "int8" and not given.flag("dynamic", False):
            raise weights.error("int8 activations of a fixed scale are not supported, only dynamic ones")
    actorder = weights.raw("actorder")
    return Quantisation(
        method="compressed-tensors",
        element=element,
        group=weights.group("group_size") if strategy == "group" else None,
        symmetric=symmetric,
        ordered=actorder not in (None, False, "weight", "static"),
        rounds=rounds and element == "int8",
    )


class _Options:
    """Values of a configuration, with their types checked."""

    def __init__(self, values: Mapping[str, Any], name: str, method: Any) -> None:
        self._values, self._method = values, method
        self.name = name

    def inner(self, values: Mapping[str, Any]) -> _Options:
        """Those of a part."""
        return _Options(values, self.name, self._method)

    def raw(self, option: str) -> Any:
        return self._values.get(option)

    def error(self, message: str) -> ModelError:
        method = shown(self._method)
        return ModelError(" ".join(f"{self.name}: quantization_config of quant_method {method}: {message}".split()))

    def require(self, option: str, wanted: tuple[int, ...], reason: str) -> None:
        value = self.raw(option)
        if isinstance(value, bool) or not isinstance(value, int) or value not in wanted:
            raise self.error(f"{option} = {shown(value)} is not supported: {reason}")

    def flag(self, option: str, default: bool) -> bool:
        value = self._values.get(option, default)
        if not isinstance(value, bool):
            raise self.error(f"{option} must be true or false, not {shown(value)}")
        return value

    def choice(self, option: str, wanted: tuple[str, ...], default: str) -> str:
        value = self.raw(option)
        value = default if value is None else value
        if not isinstance(value, str) or value not in wanted:
            raise self.error(f"{option} = {shown(value)} is not supported, only {', '.join(dict.fromkeys(map(str.lower, wanted)))}")
        return value

    def group(self, option: str) -> int | None:
        """None for -1, all inputs."""
        value = self.raw(option)
        if isinstance(value, bool) or not isinstance(value, int) or not (value == -1 or 0 < value <= _LARGEST_GROUP):
            raise self.error(f"{option} must be -1 or a multiple of 32, not {shown(value)}")
        if value == -1:
            return None
        if value % 32:
            raise self.error(f"{option} = {value} is not supported, only multiples of 32")
        return value
