"""A small study of two columns, and the tables of a document read back."""

from __future__ import annotations

from typing import Any

from report_records import ran

from inferometer.bench.records.record import Record

SWEEP = """
[fixed]
model = "opt-125m"
sequence_length = 8
decode_length = 5
[[part]]
name = "sweep"
axes = { batch_size = [1, 2, 4] }
columns = [
    { name = "old", backend = "hf" },
    { name = "new", backend = "native" },
]
"""
TABLE = """
[[table]]
part = "sweep"
title = "Throughput (tokens/sec | msec/token)"
rows = "batch_size"
columns = "column"
cell = "{throughput:.2f} | {ms_per_token:.2f}"
beside = []
"""


def lines(text: str, start: str) -> list[str]:
    """The table whose first line begins so."""
    every = text.splitlines()
    first = next(index for index, line in enumerate(every) if line.startswith(start))
    rest = every[first:]
    return rest[: next((index for index, line in enumerate(rest) if not line), len(rest))]


def cells(text: str, start: str) -> list[list[str]]:
    """The rows of that table below its headings."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines(text, start)[2:]]


def pair(size: int, *, old: float, new: float, **changes: Any) -> list[Record]:
    return [
        ran("old", prefill=[old], token=[old], batch_size=size, backend="hf"),
        ran("new", prefill=[new], token=[new], batch_size=size, **changes),
    ]
