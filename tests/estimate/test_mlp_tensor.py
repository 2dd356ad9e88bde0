"""Feed-forward blocks cut over devices, beside attention that each has whole."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.estimate import estimate
from inferometer.estimate.layout import Layout
from inferometer.model.formats import Formats
from inferometer.model.presets import PRESETS
from inferometer.model.step import decode_equal


def test_latent_attention_stays_whole_beside_blocks_that_are_cut() -> None:
    spec, step, formats = PRESETS["deepseek-v3"].spec(), decode_equal(2, 7), Formats()
    whole = {op.name: op for op in Layout().ops(spec, step, formats)}
    cut = {op.name: op for op in Layout(devices=2, parallel="mlp-tensor").ops(spec, step, formats)}
    assert {name: op for name, op in cut.items() if op.kind == "attention"} == {n: op for n, op in whole.items() if op.kind == "attention"}
    assert 2 * cut["feed_forward_down"].flops == whole["feed_forward_down"].flops


@pytest.mark.parametrize("model", ["gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b-fp8"])
def test_mixtures_of_experts_are_not_cut_so(model: str) -> None:
    asked: dict[str, Any] = {"batch_size": 1, "sequence_length": 64, "decode_length": 4, "parallel": "mlp-tensor"}
    with pytest.raises(UserError, match=rf"of {model} are mixtures of experts; use --parallel tensor"):
        estimate(model, "h200", gpus=8, **asked)
    estimate(model, "h200", gpus=1, **asked)
