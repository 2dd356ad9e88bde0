"""How a checkpoint's tensors fill a model's parameters: data that a family file writes and the loader follows.

Checkpoint names are those of the Hugging Face causal language model (or BertModel) of the family, whatever the file: a GGUF
file and dummy weights present the same names. The mapping runs both ways, so the same weights can be handed to transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferometer.model.spec import ModelSpec

Layout = Literal["rows", "columns", "heads"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint tensor that fills the next rows of a parameter.

    layout: "rows", stored as the parameter's rows; "columns", stored transposed, (inputs, outputs);
    "heads", rows grouped by head, (heads, 3, head_size, ...), which the parameter wants as all queries, all keys, all values.
    """

    tensor: str
    shape: tuple[int, ...]
    layout: Layout = "rows"


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: how to read its configuration and where its tensors go.

    `model_types` are the values of config.json's "model_type" it answers for.
    `read(config, name)` returns the spec; raises ModelError naming the option that it cannot run exactly.
    `pieces(spec)` maps every parameter name of model.parameters to the checkpoint tensors that fill it, in row order.
    `optional_prefix` is the base-model prefix that a checkpoint's names may lack or carry ("transformer.", "model.", "bert.").
    `ignored(name, spec)` says whether a checkpoint tensor carries nothing the model needs (masks, inverse frequencies, a tied
    head's copy, heads of other tasks).
    `rename(name)` turns a name of an older checkpoint into today's; it is applied to every name first.
    `adapt(spec, names)` is the spec that a checkpoint with these tensors holds, where the configuration cannot tell (a pooler).
    """

    name: str
    model_types: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], ModelSpec]
    pieces: Callable[[ModelSpec], Mapping[str, tuple[Piece, ...]]]
    optional_prefix: str
    ignored: Callable[[str, ModelSpec], bool]
    rename: Callable[[str], str] = lambda name: name
    adapt: Callable[[ModelSpec, Collection[str]], ModelSpec] = lambda spec, names: spec
