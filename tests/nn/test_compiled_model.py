"""The compiled sweep against the torch modules, which are its reference."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch
from compiled_sweeps import CONTEXTS, CPU, LLAMA, PAGE_SIZE, SPECS, batch_of, cache_of, compiled_of, model_of, swept
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.model.spec import Activation, Alibi, LearnedPositions, ModelSpec, Rotary
from inferometer.nn import compiled_model
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.compiled_model import CompiledModel
from inferometer.nn.transformer import Transformer
from inferometer.schedule.sampling import SamplingParams

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_the_sweep_is_that_of_the_modules(spec: ModelSpec, contexts: list[tuple[int, int]]) -> None:
    model = model_of(spec, torch.float32)
    batch = batch_of(contexts, spec.vocabulary, 256)
    wanted = swept(model, None, batch, 256)
    for found, reference in zip(swept(model, compiled_of(model), batch, 256), wanted, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-4, atol=2e-5 * float(reference.abs().max()))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("name", ["llama", "bloom", "opt, norms behind", "sizes that fit nothing", "wide"])
def test_in_bfloat16_it_is_as_near_to_float32_as_the_modules_are(name: str, contexts: list[tuple[int, int]], packed: bool) -> None:
    model = model_of(SPECS[name], torch.bfloat16)
    exact = Transformer(SPECS[name], CPU, torch.float32)
    exact.load_state_dict(model.state_dict())
    if packed:
        model.pack()
    batch = batch_of(contexts, model.spec.vocabulary, 256)
    cache = cache_of(model.spec, torch.bfloat16, 256)
    wide = PagedCache(model.spec, 256, PAGE_SIZE, CPU, torch.float32)
    wide._memory.copy_(cache._memory)
    with torch.inference_mode():
        wanted = exact.logits(exact.sweep(batch, wide))
    theirs, ours = (swept(model, compiled, batch, 256)[1].float() for compiled in (None, compiled_of(model)))
    scale = float(wanted.abs().max())
    assert float((ours - wanted).abs().max()) <= 1.5 * float((theirs - wanted).abs().max()) + 2**-7 * scale


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation(activation: Activation, gated: bool) -> None:
    model = model_of(replace(LLAMA, activation=activation, gated=gated), torch.float32)
    batch = batch_of([(1, 5), (1, 9)], 97, 64)
    found, wanted = (swept(model, compiled, batch, 64)[0] for compiled in (compiled_of(model), None))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bloom", "wide"])
def test_company_does_not_change_a_bit(name: str, dtype: torch.dtype) -> None:
    model = model_of(SPECS[name], dtype)
    model.pack()
    batch = batch_of([(1, 3 + 29 * i) for i in range(20)], 97, 1024)
    together, logits, _ = swept(model, model.compiled, batch, 1024)
    assert batch.rows is not None
    for i in (0, 7, 19):
        one = slice(i, i + 1)
        rows = CachedRows(
            batch.rows.table,
            batch.rows.seats[one],
            batch.rows.contexts[one],
            torch.tensor([0, 1], dtype=torch.int32),
            batch.rows.places[one],
        )
        single = RaggedBatch(
            batch.token_ids[one], batch.positions[one], (1,), batch.context_lengths[one], batch.rotary_lengths[one], rows=rows
        )
        alone, its_logits, _ = swept(model, model.compiled, single, 1024)
        assert torch.equal(alone[0], together[i])
        assert torch.equal(its_logits[0], logits[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bloom", "one key head", "head size 80", "sizes that fit nothing"])
@pytest.mark.parametrize("piece", [(9, 9), (20, 266), (45, 300)])
def test_a_piece_of_a_prompt_is_its_tokens_one_by_one(name: str, dtype: torch.dtype, piece: tuple[int, int]) -> None:
    """Tokens of a piece attend together; none sees what comes after it, were that no number."""
    model = model_of(SPECS[name], dtype)
    model.pack()
    batch = batch_of([piece], 90, 64)
    assert batch.rows is not None
    nothing = 95
    with torch.no_grad():
        model.embedding.token.matrix[nothing] = torch.nan
    batch.token_ids[-1] = nothing
    compiled, cache = model.compiled, cache_of(model.spec, dtype, 64)
    together = swept(model, compiled, batch, 64)[0]
    assert together[-1].isnan().all()
    for i in range(piece[0] - 1):
        one, context = slice(i, i + 1), piece[1] - piece[0] + i + 1
        rows = CachedRows(
            batch.rows.table,
            batch.rows.seats,
            torch.tensor([context], dtype=torch.int32),
            torch.tensor([0, 1], dtype=torch.int32),
            batch.rows.places[one],
        )
        single = RaggedBatch(batch.token_ids[one], batch.positions[one], (1,), (context,), batch.rotary_lengths[one], rows=rows)
        with torch.inference_mode():
            assert torch.equal(model.sweep(single, cache)[0], together[i])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    model = model_of(SPECS["llama"], dtype)
    model.pack()
    batch = batch_of([(1, 300), (30, 290), (3, 20)], 97, 64)
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(swept(model, model.compiled, batch, 64))
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_shape(data: st.DataObject) -> None:
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    hidden = data.draw(st.integers(1, 70))
    spec = replace(
        LLAMA, layers=1, hidden=hidden, embedding=hidden, kv_heads=kv_heads, heads=kv_heads * group,
        head_size=2 * data.draw(st.integers(1, 40)), feed_forward=data.draw(st.integers(1, 70)), vocabulary=data.draw(st.integers(1, 70)),
        gated=data.draw(st.booleans()), norm=data.draw(st.sampled_from(["rms", "layer"])), qkv_bias=data.draw(st.booleans()),
        norm_placement=data.draw(st.sampled_from(["pre", "post"])), feed_forward_bias=data.draw(st.booleans()),
        positions=data.draw(st.sampled_from([Rotary(10000.0), Alibi(), LearnedPositions(600)])),
        norm_epsilon=0.1,  # a norm of one or two numbers would else amplify rounding without end
    )  # fmt: skip
    lengths = st.integers(1, 3).flatmap(lambda queries: st.tuples(st.just(queries), st.integers(queries, 530)))
    contexts = data.draw(st.lists(lengths, min_size=1, max_size=6))
    model = model_of(spec, torch.float32)
    batch = batch_of(contexts, spec.vocabulary, 256)
    for found, wanted in zip(*(swept(model, compiled, batch, 256) for compiled in (compiled_of(model), None)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=5e-5 * float(wanted.abs().max()) + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_a_number_stays_none(dtype: torch.dtype) -> None:
    model = model_of(SPECS["llama"], dtype)
    with torch.no_grad():
        model.get_parameter("layers.0.feed_forward.up.weight")[3, 5] = float("nan")
    model.pack()
    hidden, logits, _ = swept(model, model.compiled, batch_of([(1, 5), (1, 6)], 97, 64), 64)
    assert hidden.isnan().all()
    assert logits.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 15, 97, 8192, 20011])
def test_greedy_is_the_samplers(vocabulary: int, dtype: torch.dtype) -> None:
    compiled = compiled_of(model_of(LLAMA, dtype))
    logits = (torch.randn(13, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 5).to(dtype)
    logits[1] = 2.0  # all equal
    logits[2] = -torch.inf
    logits[3] = torch.nan
    logits[4, vocabulary // 2] = torch.inf
    logits[5, vocabulary // 3] = torch.nan
    logits[6, : vocabulary // 2] = -torch.inf
    logits[7, vocabulary // 2 :] = 9.0
    rows = [SamplingRow(SamplingParams(), 0, (), (), ())] * 13
    wanted = sample(logits, SamplingBatch.build(rows, vocabulary, CPU))
    tokens, logprobs = compiled.greedy(logits)
    assert torch.equal(tokens, wanted.token_ids)
    exact = logits[8:].double().log_softmax(-1).max(-1).values.float()
    torch.testing.assert_close(logprobs[8:], exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logprobs, wanted.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("matrix_units", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_left_to_the_modules(dtype: torch.dtype, matrix_units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps without a cache, more rows of a head than it takes, and whole matrices where a processor multiplies them."""
    model = model_of(SPECS["llama"], dtype)
    library = compiled_of(model)._library
    monkeypatch.setattr(library, "matrix_units", matrix_units)
    compiled, cache = CompiledModel(model, library), cache_of(model.spec, model.dtype, 64)
    at_once = 64 if matrix_units and dtype == torch.bfloat16 else 512
    for tokens in (at_once, at_once + 1):
        batch = batch_of([(tokens, tokens)], 97, 64)
        assert compiled.serves(batch, cache) is (at_once == 512 or tokens == at_once)
        assert compiled.projects(torch.zeros(tokens, model.spec.hidden, dtype=dtype)) is (tokens == at_once)
    assert not compiled.serves(batch_of([(1, 5)], 97, 64), None)


@pytest.mark.parametrize("name", ["llama", "bloom", "sizes that fit nothing", "wide"])
def test_a_long_prompt_in_float32_is_that_of_the_modules(name: str) -> None:
    model = model_of(SPECS[name], torch.float32)
    batch = batch_of([(1, 40), (1, 9), (700, 810), (210, 210)], model.spec.vocabulary, 256)
    wanted = swept(model, None, batch, 256)
    for found, reference in zip(swept(model, compiled_of(model), batch, 256), wanted, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-4, atol=2e-5 * float(reference.abs().max()))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bloom", "wide"])
def test_neither_threads_nor_room_change_a_bit_of_a_long_prompt(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(SPECS[name], dtype)
    model.pack()
    batch = batch_of([(1, 40), (700, 810), (210, 210)], 97, 256)
    torch.set_num_threads(1)
    wanted = swept(model, model.compiled, batch, 256)
    torch.set_num_threads(9)
    monkeypatch.setattr(compiled_model, "_SCRATCH_BYTES", 1)
    hidden, _, cache = swept(model, model.compiled, batch, 256)  # of so many rows the logits are torch's
    assert torch.equal(hidden, wanted[0])
    assert torch.equal(cache, wanted[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_by_itself(dtype: torch.dtype) -> None:
    library = compiled_of(model_of(LLAMA, dtype))._library
    x, weight = torch.randn(130, 70).to(dtype), torch.randn(33, 70).to(dtype)
    found = compiled_model.product(library, x, weight, torch.empty(130, 33, dtype=dtype))
    error = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=error, atol=10 * error)
    for wrong in (
        (x.half(), weight),
        (x[:, 1:], weight[:, 1:]),
        (x, weight[:, 1:].contiguous()),
        (x.repeat(4, 1), weight),
        (x[:0], weight),
    ):
        with pytest.raises(ValueError, match="not"):
            compiled_model.product(library, *wrong, torch.empty(130, 33, dtype=dtype))


def test_models_that_it_does_not_run() -> None:
    assert CompiledModel.of(Transformer(LLAMA, CPU, torch.float16)) is None
    assert CompiledModel.of(Transformer(replace(LLAMA, encoder=True), CPU, torch.float32)) is None
