"""A sweep that keeps nothing, on a GPU: kernels rotate, keys are shared, and log-probabilities are read off 16-bit logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from inferometer import LLM
from inferometer.nn import segments
from inferometer.nn.batch import prompt_batch
from inferometer.nn.transformer import Transformer
from tiny_models import CONFIGS, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPTS = [[(7 * i + 3 * row) % 300 for i in range(length)] for row, length in enumerate((19, 19, 7, 1, 1, 40))]


def pair(folder: Path, family: str, dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    """The same numbers in float32 on the CPU and in `dtype` on the GPU."""
    there = LLM(tiny_model(folder, family), dtype=str(dtype).removeprefix("torch."), device="cuda", weights="dummy", seed=4).model
    here = Transformer(there.spec, torch.device("cpu"), torch.float32)
    here.load_state_dict({name: tensor.float().cpu() for name, tensor in there.state_dict().items()})
    return here, there


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", CONFIGS)
@torch.inference_mode()
def test_states_and_log_probabilities_are_the_cpus(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    here, there = pair(tmp_path, family, dtype)
    want, found = (model.sweep(prompt_batch(PROMPTS, model.device)) for model in (here, there))
    # Rounded at every step of a few layers, of numbers about one.
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}[dtype]
    torch.testing.assert_close(found.cpu().float(), want, atol=tolerance, rtol=tolerance)
    if there.spec.encoder:
        return
    targets = torch.arange(len(found)) % there.spec.vocabulary
    told = there.log_probabilities(found, targets.to(found.device), chunk=32)
    # Of the states that there are, so that rounding logits to 16 bits is all that differs.
    expected = there.logits(found).float().log_softmax(-1).gather(1, targets[:, None].to(found.device))[:, 0]
    torch.testing.assert_close(told, expected, atol=2e-5, rtol=2e-5)


@torch.inference_mode()
def test_shared_keys_give_what_repeated_keys_give(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(60, 8, 64, generator=draw, device="cuda", dtype=torch.float16)
    key, value = torch.randn(2, 60, 2, 64, generator=draw, device="cuda", dtype=torch.float16)
    plan = (segments.Segment(slice(0, 60), 3, 20, 20, None, True, None),)
    shares, ask = [], segments._shares_keys

    def noted(q: Tensor, k: Tensor, v: Tensor, segment: segments.Segment) -> bool:
        shares.append(ask(q, k, v, segment))
        return shares[-1]

    monkeypatch.setattr(segments, "_shares_keys", noted)
    with segments.attention_kernels(query.device):
        found = segments.attend_segments(query, key, value, plan, None, 0, 0.125)
        monkeypatch.setattr(segments, "_shares_keys", lambda *arguments: False)
        want = segments.attend_segments(query, key, value, plan, None, 0, 0.125)
    assert shares == [True]
    torch.testing.assert_close(found, want, atol=2e-3, rtol=2e-3)
