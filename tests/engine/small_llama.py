"""A small llama, prompts for it, and requests of several kinds."""

from __future__ import annotations

import random

from inferometer import SamplingParams

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "eos_token_id": 7,
}


def some_prompts(count: int, longest: int = 40) -> list[list[int]]:
    """Random tokens; of the same count always the same."""
    generator = random.Random(count)
    return [[generator.randrange(300) for _ in range(generator.randint(1, longest))] for _ in range(count)]


def mixed_params(count: int) -> list[SamplingParams]:
    """Greedy and random ones, short and long, some with scores; none ends early."""
    kinds = [
        SamplingParams(max_new_tokens=20, ignore_eos=True),
        SamplingParams(max_new_tokens=9, do_sample=True, seed=5, ignore_eos=True),
        SamplingParams(max_new_tokens=31, top_k=20, seed=6, temperature=3.0, ignore_eos=True),
        SamplingParams(max_new_tokens=1, top_p=0.5, seed=7, ignore_eos=True),
        SamplingParams(max_new_tokens=17, repetition_penalty=1.7, ignore_eos=True, top_logprobs=3, prompt_logprobs=True),
    ]
    return [kinds[i % len(kinds)] for i in range(count)]
