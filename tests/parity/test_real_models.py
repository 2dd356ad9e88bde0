"""The embedded models: real weights, against transformers reading the same files."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from pathlib import Path

import gguf
import numpy
import pytest
import torch
from models import all_logits  # type: ignore[import-not-found]
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from inferometer import LLM, SamplingParams
from inferometer.engine.device import supports
from inferometer.errors import UserError
from inferometer.model.config import read_spec
from inferometer.model.families import family_for
from inferometer.model.gguf import gguf_config
from inferometer.model.store import locate
from inferometer.nn.export import hf_state
from inferometer.nn.gguf import GgufSource

pytestmark = pytest.mark.real

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a village by the sea,"]


def _located(name: str) -> Path:
    path = locate(name)
    if path is None:
        pytest.skip(f"{name} is not in the cache; run: inferometer models fetch {name}")
    return path


@pytest.fixture(scope="module")
def llm() -> LLM:
    _located("smollm2-135m")
    return LLM(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    path = _located("smollm2-135m")
    with pytest.MonkeyPatch.context() as patch:
        # transformers reads the file twice, and makes the same map of names for each of its modules: most of what loading takes.
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        # Every word of the vocabulary is a slice of the file, and a slice of a plain array is made in a third of the time.
        mapped = numpy.memmap
        patch.setattr(numpy, "memmap", lambda *given, **named: mapped(*given, **named).view(numpy.ndarray))
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def test_every_tensor_equals_what_transformers_reads(reference: PreTrainedModel) -> None:
    path = _located("smollm2-135m")
    config = gguf_config(path)
    expected = dict(reference.named_parameters())
    with closing(GgufSource(path)) as source:
        names = set()
        for name, tensor in hf_state(source, read_spec(config, "m"), family_for(config), dtype=torch.float32):
            assert torch.equal(tensor, expected[name]), name
            names.add(name)
    assert names == expected.keys()


def test_the_capital_of_france(llm: LLM) -> None:
    completion = llm.generate("The capital of France is", SamplingParams(max_new_tokens=3))[0]
    assert completion.text.startswith(" Paris.")


def test_greedy_ids_and_log_probabilities_equal_transformers(llm: LLM, reference: PreTrainedModel) -> None:
    assert llm.tokenizer is not None
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    for prompt, completion in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        ids = llm.tokenizer.encode(prompt)
        assert completion.prompt_token_ids == ids
        whole = ids + completion.token_ids
        logits = all_logits(reference, whole)[len(ids) - 1 : -1]
        # Each token is the choice after those before it: what a greedy search finds, without its steps.
        assert completion.token_ids == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1)
        picked = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), picked, atol=1e-4, rtol=0)


def test_the_bfloat16_model_says_the_same(llm: LLM) -> None:
    if not supports(torch.device("cpu"), torch.bfloat16):
        with pytest.raises(UserError, match=r"no bfloat16 matrix instructions; use --dtype float32"):
            LLM(dtype="bfloat16", device="cpu")
        return
    with LLM(dtype="bfloat16", device="cpu") as half:
        assert half.generate("The capital of France is", SamplingParams(max_new_tokens=3))[0].text.startswith(" Paris.")


def test_stop_strings_on_real_text(llm: LLM) -> None:
    free = llm.generate("The capital of France is", SamplingParams(max_new_tokens=12))[0]
    cut = free.text[3:6]
    stopped = llm.generate("The capital of France is", SamplingParams(max_new_tokens=12, stop=(cut,)))[0]
    assert stopped.text == free.text[: free.text.index(cut) + len(cut)]
    assert stopped.finish_reason == "stop_sequence"


def test_embeddings_equal_transformers() -> None:
    path = _located("all-minilm-l6-v2")
    texts = ["A man is eating food.", "Someone has lunch.", "x", "The quick brown fox. " * 100]
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    with torch.inference_mode():
        rows = []
        for text in texts:
            batch = tokenizer([text], return_tensors="pt", truncation=True, max_length=256)
            rows.append(torch.nn.functional.normalize(model(**batch).last_hidden_state[0].mean(0), dim=0))
    with LLM("all-minilm-l6-v2", dtype="float32", device="cpu") as llm:
        ours = llm.encode(texts)
    numpy.testing.assert_allclose(ours, torch.stack(rows).numpy(), atol=1e-4)
    assert ours[0] @ ours[1] > ours[0] @ ours[2]
