"""Weights in few bits as some checkpoints are published, whose bytes are known and whose products no engine of this product runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inferometer.errors import ModelError, shown
from inferometer.model.formats import WeightFormat
from inferometer.model.module_names import ModuleNames, read_module_names
from inferometer.model.parameters import attention_matrices
from inferometer.model.spec import ModelSpec
from inferometer.model.stated_format import stated_format

METHODS = ("mxfp4", "fp8", "fbgemm_fp8")
_LARGEST_BLOCK = 2**31 - 1
_MXFP4_GROUP = 32
"""Open Compute Project, Microscaling Formats (MX) 1.0: 32 elements share a scale of 8 bits, a power of two."""
# The modules that a matrix of a layer is made of, under any of the names that families give them.
_ATTENTION: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention.qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.qkv_proj",)),
    "attention.query": (("self_attn.q_proj",),),
    "attention.query_down": (("self_attn.q_a_proj",),),
    "attention.query_up": (("self_attn.q_b_proj",),),
    "attention.latent_down": (("self_attn.kv_a_proj_with_mqa",),),
    "attention.latent_up": (("self_attn.kv_b_proj",),),
    "attention.output": (("self_attn.o_proj",),),
}
_FEED_FORWARD: dict[str, tuple[tuple[str, ...], ...]] = {
    "feed_forward.up": (("mlp.gate_proj", "mlp.up_proj"), ("mlp.gate_up_proj",)),
    "feed_forward.down": (("mlp.down_proj",),),
}
# One expert stands for all of them.
_EXPERTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "feed_forward.experts.up": (
        ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"),
        ("mlp.experts.gate_up_proj",),
        ("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w3"),
    ),
    "feed_forward.experts.down": (("mlp.experts.0.down_proj",), ("mlp.experts.down_proj",), ("block_sparse_moe.experts.0.w2",)),
    "feed_forward.shared.up": (
        ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    ),
    "feed_forward.shared.down": (("mlp.shared_experts.down_proj",), ("mlp.shared_expert.down_proj",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A format of weights as a checkpoint's config.json states it, for one model.

    method: its quant_method. element: of one number. block: (rows, inputs) that share a scale; an inputs of None is a whole row, a block
    of None a whole matrix. kept: modules that are left as they were.
    """

    method: str
    element: Literal["mxfp4", "fp8"]
    block: tuple[int, int | None] | None
    kept: ModuleNames = field(default_factory=ModuleNames)

    @property
    def named(self) -> str:
        """How records and messages call it."""
        if self.element == "mxfp4":
            return self.element
        blocks = "" if self.block is None or self.block[1] is None else f"-block{'x'.join(map(str, dict.fromkeys(self.block)))}"
        return f"{self.method.replace('_', '-')}{'' if self.method.endswith('fp8') else '-fp8'}{blocks}"

    def weights(self, spec: ModelSpec, name: str) -> WeightFormat:
        """The format for inventories of this model.

        Raises ModelError where only a part of what is one matrix here is in it, and for a method of experts where there are none.
        """
        if self.element == "mxfp4" and spec.experts is None:
            raise ModelError(
                f"{name}: quantization_config of quant_method {self.method!r}: it is one of experts, and the model has none; "
                "use the checkpoint before quantisation"
            )
        rows, group = self.block or (1, None)
        return WeightFormat(
            name=self.named,
            bits=4 if self.element == "mxfp4" else 8,
            group=group,
            rows=rows,
            scale_bits=0 if self.block is None else 8 if self.element == "mxfp4" else 32,
            compute="fp8" if self.element == "fp8" else None,
            element=self.element,
            kept=tuple((matrix, count) for matrix, count in self._kept(spec, name) if count),
        )

    def _kept(self, spec: ModelSpec, name: str) -> Iterator[tuple[str, int]]:
        """Each matrix of a layer, and in how many layers it stays as it is."""
        dense = spec.layers if spec.experts is None else spec.experts.dense_layers
        every, ordinary, mixed = range(spec.layers), range(dense), range(dense, spec.layers)
        attention = {matrix: _ATTENTION[matrix] for matrix in attention_matrices(spec)}
        for layers, modules in ((every, attention), (ordinary, _FEED_FORWARD), (mixed, _EXPERTS)):
            for matrix, names in modules.items():
                if ".shared." in matrix and (spec.experts is None or not spec.experts.shared):
                    continue
                if self.element == "mxfp4" and ".experts." not in matrix:
                    yield matrix, len(layers)  # this method is one of experts
                else:
                    yield matrix, sum(_left(self.kept, names, layer, name) for layer in layers)


def _left(kept: ModuleNames, names: tuple[tuple[str, ...], ...], layer: int, name: str) -> bool:
    """Whether the modules that a matrix is made of, under one of their names, are left as they were."""
    for modules in names:
        left = [kept.hold(f"model.layers.{layer}.{module}") for module in modules]
        if all(left):
            return True
        if any(left):
            raise ModelError(
                f"{name}: quantization_config leaves {modules[left.index(True)]} of layer {layer} as it is and not "
                f"{modules[left.index(False)]}, which are one matrix here; list both or neither"
            )
    return False


def read_published(config: Mapping[str, Any], name: str) -> Published | None:
    """The format that `config`, or that of its text model, states where it is one of these; None for all others, and for plain weights.

    Raises ModelError, one line, for values that make no sense.
    """
    found = stated_format(config)
    if not isinstance(found, Mapping):
        return None
    method = found.get("quant_method")
    if method in METHODS:
        kept = read_module_names(found.get("modules_to_not_convert"), name, "modules_to_not_convert")
        if method == "mxfp4":
            return Published(method=method, element="mxfp4", block=(1, _MXFP4_GROUP), kept=kept)
        kept = kept or read_module_names(found.get("ignored_layers"), name, "ignored_layers")
        size = found.get("weight_block_size")
        block = (1, None) if method == "fbgemm_fp8" else None if size is None else _block(size, name, "weight_block_size")
        return Published(method=method, element="fp8", block=block, kept=kept)
    return _compressed(found, name) if method == "compressed-tensors" else None


def _compressed(found: Mapping[str, Any], name: str) -> Published | None:
    """e4m3 with a scale for each block, which of compressed-tensors' layouts is the one that is not run."""
    groups = found.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) and len(groups) == 1 else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or weights.get("strategy") != "block" or found.get("kv_cache_scheme"):
        return None
    if (weights.get("num_bits"), weights.get("type"), weights.get("symmetric", True)) != (8, "float", True):
        return None
    block = _block(weights.get("block_structure"), name, "block_structure")
    kept = read_module_names(found.get("ignore"), name, "ignore")
    return Published(method="compressed-tensors", element="fp8", block=block, kept=kept)


def _block(value: Any, name: str, option: str) -> tuple[int, int]:
    sizes = value if isinstance(value, list | tuple) else ()
    whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LARGEST_BLOCK]
    if len(sizes) != 2 or len(whole) != 2:
        raise ModelError(f"{name}: quantization_config: {option} must be two sizes, as [128, 128], not {shown(value)}")
    return whole[0], whole[1]
