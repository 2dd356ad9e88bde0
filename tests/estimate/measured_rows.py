"""Measured rows for tests: one that is whole, and changes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from inferometer.errors import UserError
from inferometer.estimate.measured import MeasuredRow, Regime, Split

_ROW = MeasuredRow(
    regime="a regime",
    id="a row",
    stack="native",
    device="a100-sxm-80gb",
    gpus=1,
    link=None,
    parallel="none",
    model="opt-1.3b",
    dtype="float16",
    quantize=None,
    mode="prefill",
    admission=None,
    group_size=None,
    groups=None,
    batch=1,
    prompt_tokens=128,
    new_tokens=0,
    loss=False,
    quantity="time_ms",
    value=10.0,
    tok_s=None,
    session=None,
    published_estimate=None,
    revision=None,
    calibration=None,
    source="a source",
    note=None,
    counted=True,
)


def row(**changes: Any) -> MeasuredRow:
    """A prefill of 128 tokens of opt-1.3b on an A100 that took 10 ms, but for the changes."""
    return replace(_ROW, **changes)


def split(fitted: tuple[str, ...] = (), leave_out: tuple[Any, ...] = (), **alike: str) -> Split:
    """A split; alike by keyword."""
    return Split(fitted=frozenset(fitted), leave_out=leave_out, alike=MappingProxyType({k.replace("_", "-"): v for k, v in alike.items()}))


def regime(division: Split, **changes: Any) -> Regime:
    """A regime of times that is held to 10 %."""
    fields: dict[str, Any] = {
        "name": "a regime",
        "title": "A regime",
        "quantity": "time_ms",
        "published": None,
        "gate": 0.1,
        "worst_gate": None,
        "stretch": 0.05,
        "gates": True,
        "constants": None,
        "split": division,
    }
    return Regime(**{**fields, **changes})


def refusal(read: Callable[[], object]) -> str | None:
    """The one line with which `read` refuses its input; None if it takes it."""
    said = None
    try:
        read()
    except UserError as error:
        said = str(error)
    assert said is None or "\n" not in said
    return said
