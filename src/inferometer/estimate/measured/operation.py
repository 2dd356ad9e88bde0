"""Single operations that somebody measured: products, copies, all-reduces and attention. They inform about an estimate's parts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from inferometer.hardware.table import Table

OperationKind = Literal["product", "copy", "all_reduce", "decode_attention", "prefill_attention"]
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
OPERATIONS = "operations.toml"

# What each kind's shape is made of, in the order of `Operation.shape`.
_SHAPES: Mapping[OperationKind, tuple[str, ...]] = {
    "product": ("m", "n", "k"),
    "copy": ("bytes",),
    "all_reduce": ("bytes",),
    "decode_attention": ("batch", "context", "heads", "kv_heads", "head_size"),
    "prefill_attention": ("batch", "context", "heads", "kv_heads", "head_size"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One measured operation, `us` microseconds long.

    set: which series it belongs to. shape: (m, n, k) of a product; bytes read and written of a copy; bytes of an all-reduce's payload;
    (batch, context, heads, kv_heads, head_size) of one layer's attention, in decode one query a sequence.
    gpus, link: of an all-reduce. captured: whether it ran within a recorded graph.
    """

    set: str
    kind: OperationKind
    device: str
    gpus: int
    link: str | None
    captured: bool
    dtype: str
    shape: tuple[int, ...]
    us: float
    source: str

    @property
    def name(self) -> str:
        """The operation by its shape, as 4096 x 4096 x 8192."""
        count = f"{self.gpus} GPUs, " if self.gpus > 1 else ""
        return count + " x ".join(map(str, self.shape)) + (f" on {self.device}" if self.set == "best-product" else "")


@cache
def load_operations() -> tuple[Operation, ...]:
    """Every operation, in the order of the file."""
    return tuple(read_operations(tomllib.loads(files("inferometer.estimate.measured").joinpath(OPERATIONS).read_text("utf-8"))))


def read_operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """The operations of a file's tables. Raises UserError that names the table and the key that is wrong."""
    outer = Table(document, OPERATIONS)
    for index, table in enumerate(outer.tables("table")):
        values = document["table"][index]
        columns, rows = table.texts("columns"), values.get("rows")
        if not columns or not isinstance(rows, list):
            raise table.error("columns must be a list of names, rows a list of rows")
        plain = {key: value for key, value in values.items() if key not in ("columns", "rows")}
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise table.error(f"rows[{number}] must be a list of {len(columns)} values")
            yield _operation(Table(plain | dict(zip(columns, row, strict=True)), f"{OPERATIONS}: table[{index}]: rows[{number}]"))
    outer.finish()


def _operation(table: Table) -> Operation:
    named = table.text("kind")
    kind = next((kind for kind in KINDS if kind == named), None)
    if kind is None:
        raise table.error(f"kind must be one of {', '.join(KINDS)}, not {named!r}")
    made = Operation(
        set=table.text("set"),
        kind=kind,
        device=table.text("device"),
        gpus=table.count("gpus") if table.has("gpus") else 1,
        link=table.text("link") if table.has("link") else None,
        captured=table.flag("captured") if table.has("captured") else True,
        dtype=table.text("dtype"),
        shape=tuple(table.count(name) for name in _SHAPES[kind]),
        us=float(table.number("us")),
        source=f"{table.text('source')}, {table.text('date')}",
    )
    table.finish()
    return made
