"""A cache that grows by copies: at memory's rate where what is appended is in one piece, at that of divisions where it is strided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from inferometer.bench.backends.hf_batch import Batch
from inferometer.estimate.appended import Appended
from inferometer.estimate.cost import OpTime
from inferometer.estimate.limits import limits
from inferometer.estimate.machine import machine
from inferometer.estimate.stack import find_stack
from inferometer.hardware.catalogue import find_device
from inferometer.model.formats import Formats
from inferometer.model.presets import preset
from inferometer.model.step import Step, decode_equal, prefill
from inferometer.model.work import work
from inferometer.schedule.sampling import SamplingParams
from tiny_models import CONFIGS

PLAIN = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 300}
OUTLINES: dict[str, dict[str, Any]] = {
    "gpt_neox": {"model_type": "gpt_neox", **PLAIN},
    "phi3": {"model_type": "phi3", "pad_token_id": 0, "num_key_value_heads": 4, **PLAIN},
    "mpt": {"model_type": "mpt", "d_model": 32, "n_layers": 1, "n_heads": 4, "vocab_size": 300, "max_seq_len": 64},
    "gptj": {"model_type": "gptj", "n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 300, "n_positions": 64, "rotary_dim": 8},
}


def _copy(model: str, step: Step, *, stack: str = "hf-eager", device: str = "h200", dtype: str = "float16") -> OpTime | None:
    found = preset(model)
    assert found is not None
    spec, formats, card = found.spec(), Formats(dtype=dtype), find_device(device)
    appended = Appended(spec=spec, stack=find_stack(stack), machine=machine(card, limits(card)), formats=formats)
    return appended.copy(next(op for op in work(spec, step, formats) if op.kind == "kv_write"), step)


def _ms(model: str, step: Step, **changes: str) -> float:
    copy = _copy(model, step, **changes)
    assert copy is not None
    return copy.seconds(1.0) * 1e3


def test_strided_keys_take_what_a_profiler_shows() -> None:
    # torch's profiler on an H200: 282.6 us a call, keys and values of 32 layers.
    assert _ms("gpt3-6.7b", decode_equal(16, 710)) == pytest.approx(64 * 0.2826, rel=0.03)


@pytest.mark.parametrize(
    ("model", "rows", "binds"),
    [("gpt3-6.7b", 1, "memory"), ("gpt3-6.7b", 2, "vector"), ("bloomz-7b1", 1, "vector"), ("opt-6.7b", 16, "memory")],
)
def test_what_binds_it_is_the_familys(model: str, rows: int, binds: str) -> None:
    copy = _copy(model, decode_equal(rows, 710))
    assert copy is not None
    assert (copy.op.name, copy.binds) == ("cache_copy", binds)


def test_divisions_are_the_multiprocessors_and_bytes_the_memorys() -> None:
    step, cards = decode_equal(512, 60), [find_device(slug) for slug in ("h200", "a100-sxm-80gb")]
    cycles = [_ms("gpt3-6.7b", step, device=card.slug) * (card.multiprocessors or 0) * (card.boost_clock_hz or 0) for card in cards]
    assert cycles[0] == pytest.approx(cycles[1], rel=0.02)
    widths = [[_ms(model, step, dtype=dtype) for dtype in ("float16", "float32")] for model in ("gpt3-6.7b", "opt-6.7b")]
    assert widths[0][1] == pytest.approx(widths[0][0], rel=0.1)
    assert widths[1][1] == pytest.approx(2 * widths[1][0], rel=0.1)


@pytest.mark.parametrize("stack", ["native", "hf-compile", "vllm", "deepspeed"])
def test_only_a_cache_that_grows_by_copies_is_copied(stack: str) -> None:
    assert _copy("gpt3-6.7b", decode_equal(16, 710), stack=stack) is None


def test_a_prompt_copies_nothing() -> None:
    assert _copy("gpt3-6.7b", prefill(16, 710)) is None


@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "bert"] + list(OUTLINES))
def test_strided_is_what_transformers_hands_its_cache(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[bool, bool]] = []
    update = DynamicLayer.update

    def watched(self: DynamicLayer, key: torch.Tensor, value: torch.Tensor, *rest: Any, **named: Any) -> Any:
        handed.append((not key.is_contiguous(), not value.is_contiguous()))
        return update(self, key, value, *rest, **named)

    monkeypatch.setattr(DynamicLayer, "update", watched)
    options = {**CONFIGS, **OUTLINES}[family]
    config = AutoConfig.for_model(**options)
    model = AutoModelForCausalLM.from_config(config).eval()
    least = find_stack("hf-eager").strided.get(family, (float("inf"),) * 2)
    for rows in (1, 2, 3):
        with torch.inference_mode():
            batch = Batch(model, torch.ones(rows, 4, dtype=torch.long), SamplingParams(max_new_tokens=2), DynamicCache(config=config))
            handed.clear()
            batch.step()
        assert set(handed) == {(rows >= least[0], rows >= least[1])}
