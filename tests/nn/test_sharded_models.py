"""Models cut over ranks: the numbers of the whole within rounding, the very same on all ranks, and the tokens of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.nn.collective import ALONE
from rank_pool import RankPool
from scattered_rows import scattered_outputs
from sharded_work import Case, generated, outputs
from tiny_models import CONFIGS, tiny_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {"hidden_size": 32, "n_head": 4}),
    "bloom-residual-after-norm": (
        "bloom",
        {"hidden_size": 32, "n_head": 8, "apply_residual_connection_post_layernorm": True, "tie_word_embeddings": False},
    ),
    "opt-350m-wiring": ("opt", {"tie_word_embeddings": False}),
    "opt": ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": True}),
    "gpt2": ("gpt2", {}),
    "gpt_bigcode-mqa": ("gpt_bigcode", {}),
    "gpt_bigcode-mha": ("gpt_bigcode", {"multi_query": False}),
    "llama-gqa": ("llama", {}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "llama-mha": ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "qwen2": ("llama", {"model_type": "qwen2"}),
    "mistral": ("llama", {"model_type": "mistral", "sliding_window": None}),
    "llama-tiny-vocabulary": ("llama", {"vocab_size": 6}),
    "bert": ("bert", {}),
}
EVERY = ("bloom", "opt-350m-wiring", "gpt2", "gpt_bigcode-mqa", "llama-gqa", "bert")
"""One of each family; the others are slow tests."""
ODD = 301
"""Tokens that no number of ranks divides."""
_folder = Path()


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _folder
    _folder = tmp_path_factory.mktemp("sharded")
    yield
    whole.cache_clear()
    whole_tokens.cache_clear()


def folder_of(variant: str) -> Path:
    kind, changes = VARIANTS[variant]
    (_folder / variant).mkdir(exist_ok=True)
    return tiny_model(_folder / variant, kind, **{"vocab_size": ODD, **changes})


@cache
def whole(case: Case) -> dict[str, Tensor]:
    return outputs(ALONE, case)


@cache
def whole_tokens(case: Case) -> dict[int, list[tuple[Any, ...]]]:
    return generated(ALONE, case)


def check_outputs(pool: RankPool, ranks: int, case: Case, close: float = 2e-5) -> None:
    wanted, found = whole(case), pool.run(ranks, outputs, case)
    for name, tensor in wanted.items():
        assert all(torch.equal(other[name], found[0][name]) for other in found[1:]), f"{name} differs between ranks"
        if name == "tokens":
            assert torch.equal(found[0][name], tensor)
        else:
            largest = float(tensor[tensor.isfinite()].abs().max())
            torch.testing.assert_close(found[0][name], tensor, rtol=0, atol=close * max(1.0, largest))


def check_tokens(pool: RankPool, ranks: int, case: Case, close: float = 1e-4) -> None:
    wanted, found = whole_tokens(case), pool.run(ranks, generated, case)
    assert all(other == found[0] for other in found[1:])
    for request, emissions in wanted.items():
        assert [token for token, *_ in found[0][request]] == [token for token, *_ in emissions]
        for (_, logprob, scores), (_, own, own_scores) in zip(found[0][request], emissions, strict=True):
            assert logprob == pytest.approx(own, abs=close)
            assert (scores is None) == (own_scores is None)
            if scores is not None and own_scores is not None:
                assert scores[1:] == pytest.approx(own_scores[1:], abs=close)


def check_company(pool: RankPool, case: Case) -> None:
    """Requests have the same bits alone and beside others, of which some sample."""
    together = pool.run(2, generated, case)[0]
    for number in (0, 1):
        assert pool.run(2, generated, case, (number,))[0][number] == together[number]


def variants(names: tuple[str, ...] | dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=() if name in EVERY else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("variant", variants(VARIANTS))
def test_ranks_compute_what_the_whole_does(pool: RankPool, variant: str, ranks: int) -> None:
    check_outputs(pool, ranks, Case(folder_of(variant)))


@pytest.mark.parametrize("variant", variants(VARIANTS))
def test_ranks_need_no_more_of_a_stream_than_they_add_up(pool: RankPool, variant: str) -> None:
    """Large sums leave each rank rows of its own, and lend memory for what they return."""
    case = Case(folder_of(variant), compiled=False)
    wanted, found = whole(case), pool.run(2, scattered_outputs, case)
    for name, tensor in wanted.items():
        for outcome, sums in found:
            assert sums > 2
            largest = float(tensor[tensor.isfinite()].abs().max())
            torch.testing.assert_close(outcome[name], tensor, rtol=0, atol=2e-5 * max(1.0, largest))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("variant", variants({name: None for name in VARIANTS if name != "bert"}))
def test_greedy_and_sampled_tokens_are_those_of_the_whole(pool: RankPool, variant: str, ranks: int) -> None:
    """With prompts in pieces, shared beginnings and more requests than run together; with the compiled kernels where there are any."""
    check_tokens(pool, ranks, Case(folder_of(variant)))


@pytest.mark.parametrize("variant", variants({name: None for name in VARIANTS if name != "bert"}))
def test_tokens_without_the_compiled_kernels(pool: RankPool, variant: str) -> None:
    check_tokens(pool, 2, Case(folder_of(variant), compiled=False))


@pytest.mark.parametrize("quantize", ["int8", "fp8", "int4-g32", "int4-g64-sym"])
@pytest.mark.parametrize(
    "variant", ["llama-gqa", pytest.param("gpt2", marks=pytest.mark.slow), pytest.param("bloom", marks=pytest.mark.slow)]
)
def test_few_bits_are_those_of_the_whole(pool: RankPool, variant: str, quantize: str) -> None:
    """Inner widths of 48 and more are cut within groups, and rows of a scale of their own are cut too."""
    case = Case(folder_of(variant), quantize)
    check_outputs(pool, 2, case)
    check_outputs(pool, 4, case)
    check_tokens(pool, 2, case)


def test_activations_in_8_bits_are_rounded_part_by_part(pool: RankPool) -> None:
    """Each rank by the largest number that it has, which is finer than the whole row's."""
    case = Case(folder_of("llama-gqa"), "w8a8")
    wanted, found = whole(case), pool.run(2, outputs, case)
    assert torch.equal(found[0]["logits"], found[1]["logits"])
    assert (found[0]["logits"] - wanted["logits"]).abs().max() < 0.1 * wanted["logits"].abs().max()


@pytest.mark.parametrize("kv_dtype", ["int8", pytest.param("float8_e4m3fn", marks=pytest.mark.slow)])
def test_a_cache_in_8_bits(pool: RankPool, kv_dtype: str) -> None:
    check_tokens(pool, 4, Case(folder_of("llama-gqa"), kv_dtype=kv_dtype), close=2e-3)


@pytest.mark.parametrize("compiled", [True, False])
def test_16_bits_differ_by_rounding_alone(pool: RankPool, compiled: bool) -> None:
    case = Case(folder_of("llama-gqa"), dtype="bfloat16", compiled=compiled)
    wanted, found = whole(case), pool.run(2, outputs, case)
    assert all(torch.equal(found[0][name], found[1][name]) for name in wanted)
    assert (found[0]["logits"] - wanted["logits"]).abs().max() < 0.03 * wanted["logits"].abs().max()
    pair = pool.run(2, generated, case)
    assert pair[0] == pair[1]


@pytest.mark.parametrize("variant", ["llama-gqa", "bloom"])
def test_deterministic_ranks_give_a_request_the_same_bits_in_any_company(pool: RankPool, variant: str) -> None:
    case = Case(folder_of(variant), deterministic=True)
    check_tokens(pool, 2, case)
    check_company(pool, case)


def test_the_whole_is_not_what_it_was_by_chance(pool: RankPool) -> None:
    """The weights decide: other models have other tokens, and rows of one differ."""
    tokens = [token for emissions in whole_tokens(Case(folder_of("llama-gqa"))).values() for token, *_ in emissions]
    assert len(set(tokens)) > len(tokens) // 3
    assert whole_tokens(Case(folder_of("gpt2"))) != whole_tokens(Case(folder_of("llama-gqa")))
    assert set(CONFIGS) == {VARIANTS[variant][0] for variant in VARIANTS}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpu_kernels_of_ranks_that_share_one_card(pool: RankPool, variant: str, dtype: str) -> None:
    """Through gloo: nothing is recorded, but every kernel that ranks launch is."""
    case = Case(folder_of(variant), dtype=dtype, device="cuda")
    if dtype == "float32":
        check_outputs(pool, 2, case, close=1e-4)
    else:
        found = pool.run(2, outputs, case)
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
        assert (found[0]["hidden"] - whole(case)["hidden"]).abs().max() < 0.05 * whole(case)["hidden"].abs().max()
    if variant != "bert":
        pair = pool.run(2, generated, case)
        assert pair[0] == pair[1]
        if dtype == "float32":
            check_tokens(pool, 2, case, close=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ["llama-gqa", "bloom"])
def test_deterministic_ranks_that_share_one_card(pool: RankPool, variant: str) -> None:
    check_company(pool, Case(folder_of(variant), deterministic=True, device="cuda"))


def test_counts_that_do_not_divide_are_refused(pool: RankPool) -> None:
    with pytest.raises(RuntimeError, match="UserError: --tensor-parallel 4 does not divide"):
        pool.run(4, outputs, replace(Case(tiny_model(_folder, "bloom")), compiled=False))
