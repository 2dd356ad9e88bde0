"""Two small validation reports: a regime that gates, with a fitted row, and one that only informs."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from inferometer.estimate.measured import MeasuredRow, Regime, Split
from inferometer.estimate.validation import Report, score


def measured(name: str, value: float, **changes: Any) -> MeasuredRow:
    """A prefill on an A100."""
    fields: dict[str, Any] = dict.fromkeys(MeasuredRow.__slots__)
    fields |= {
        "regime": "first",
        "id": name,
        "stack": "native",
        "device": "a100-sxm-80gb",
        "gpus": 1,
        "parallel": "none",
        "model": "opt-1.3b",
    }
    fields |= {
        "dtype": "float16",
        "mode": "prefill",
        "batch": 1,
        "prompt_tokens": 128,
        "new_tokens": 0,
        "loss": False,
        "quantity": "time_ms",
    }
    return MeasuredRow(**{**fields, "value": value, "source": "a page | table 2", "counted": True, **changes})


def reports(error: float = 0.25) -> tuple[Report, ...]:
    """The estimator is `error` too high on every row; the first regime's gate is 10 %, its row "a" fitted."""
    rows = [measured("a", 10.0), measured("b", 20.0, note="a known defect"), measured("c", 30.0)]
    first = Regime(
        name="first",
        title="First things",
        quantity="time_ms",
        published="8 % in sample",
        gate=0.1,
        worst_gate=0.3,
        stretch=0.05,
        gates=True,
        constants=None,
        split=Split(fitted=frozenset({"a"}), alike=MappingProxyType({})),
    )
    second = Regime(
        name="second",
        title="Second things",
        quantity="peak_gib",
        published=None,
        gate=None,
        worst_gate=None,
        stretch=None,
        gates=True,
        constants=None,
        split=Split(alike=MappingProxyType({})),
    )
    memory = [measured("m", 3.0, regime="second", quantity="peak_gib")]
    return (
        score(first, rows, lambda row, constants: row.value * (1 + error), {}),
        score(second, memory, lambda row, constants: None, {}),
    )
