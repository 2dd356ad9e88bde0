"""Every decoder family and variant against transformers, in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from configs import DECODERS, VOCABULARY  # type: ignore[import-not-found]
from models import all_logits, greedy, save  # type: ignore[import-not-found]
from transformers import PreTrainedModel

from inferometer import LLM, SamplingParams
from inferometer.nn.batch import prompt_batch

STEPS = 34  # over two ends of pages
LENGTHS = (13, 1, 37, 13, 60)


@pytest.fixture(scope="module", params=sorted(DECODERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, PreTrainedModel, LLM]:
    kind, options = DECODERS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = save(kind, options, folder)
    return request.param, reference, LLM(folder, dtype="float32", device="cpu", gpu_memory=0.1)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]


def test_logits_of_a_ragged_batch(pair: tuple[str, PreTrainedModel, LLM], prompts: list[list[int]]) -> None:
    _, reference, llm = pair
    with torch.inference_mode():
        ours = llm.model(prompt_batch(prompts, llm.device), logits="all").split([len(p) for p in prompts])
        last = llm.model(prompt_batch(prompts, llm.device))
    for prompt, logits, final in zip(prompts, ours, last, strict=True):
        expected = all_logits(reference, prompt)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(final, expected[-1], atol=1e-4, rtol=0)


def test_greedy_tokens_and_log_probabilities(pair: tuple[str, PreTrainedModel, LLM], prompts: list[list[int]]) -> None:
    name, reference, llm = pair
    params = SamplingParams(max_new_tokens=STEPS, ignore_eos=True, prompt_logprobs=True)
    together = llm.generate(prompts, params)
    for prompt, completion in zip(prompts, together, strict=True):
        assert completion.finish_reason == "length"
        assert completion.text == ""
        alone = llm.generate([prompt], params)[0]
        assert alone.token_ids == completion.token_ids
        if "dynamic" in name:
            # Frequencies depend on when a token was written; one whole forward is no reference then.
            assert completion.token_ids == greedy(reference, prompt, STEPS)
            continue
        ids = prompt + completion.token_ids
        logits = all_logits(reference, ids)[:-1]
        # Each token is the choice after those before it, so all of them are what a greedy search finds, without its steps.
        assert completion.token_ids == logits[len(prompt) - 1 :].argmax(-1).tolist()
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert completion.prompt_logprobs is not None
        assert completion.prompt_logprobs[0] is None
        scores = torch.tensor([*completion.prompt_logprobs[1:], *completion.logprobs])
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(alone.logprobs), torch.tensor(completion.logprobs), atol=1e-4, rtol=0)
