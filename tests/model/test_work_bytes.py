"""The inventory's bytes against the real tensors, and what the shards and formats make of them."""

from __future__ import annotations

import pytest
import torch
from configs import DECODERS, ENCODERS, config
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.model.config import read_spec
from inferometer.model.footprint import layer_weight_bytes, resident_weight_bytes
from inferometer.model.formats import QUANTIZED_FORMATS, Formats, kv_bytes_per_token, weight_format
from inferometer.model.ops import Op, compulsory_bytes, kv_bytes, tensor_flops, weight_bytes
from inferometer.model.presets import PRESETS
from inferometer.model.spec import LearnedPositions, ModelSpec
from inferometer.model.step import Share, Step, decode, decode_equal, encode, forward, mixed, prefill
from inferometer.model.work import work
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def _spec(key: str) -> ModelSpec:
    kind, options = (DECODERS | ENCODERS)[key]
    return read_spec(config(kind, options).to_dict(), key)


def _rows(module: Transformer, spec: ModelSpec, *, tokens: int, positions: int, head: bool, pooled: bool) -> int:
    """Bytes of the parameters that a step reads: tables at the rows looked up, everything else whole."""
    read = 0
    for name, parameter in module.named_parameters():
        row = parameter.shape[-1] * parameter.element_size()
        match name:
            case "embedding.token.weight" if not (spec.tied_head and head):
                read += min(tokens, parameter.shape[0]) * row
            case "embedding.position.weight":
                read += positions * row
            case "embedding.token_type.weight":
                read += row
            case "pooler.weight" | "pooler.bias" if not pooled:
                pass
            case "head.weight" | "head.projection.weight" if not head:
                pass
            case _:
                read += parameter.numel() * parameter.element_size()
    return read


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", [*DECODERS, *ENCODERS])
def test_weight_bytes_equal_the_real_tensors(key: str, dtype: str) -> None:
    spec, formats = _spec(key), Formats(dtype=dtype)
    module = Transformer(spec, torch.device("meta"), DTYPES[dtype])
    held = sum(p.numel() * p.element_size() for p in module.parameters())
    assert resident_weight_bytes(spec, formats) == held
    layer = sum(p.numel() * p.element_size() for p in module.layers[0].parameters())
    assert layer_weight_bytes(spec, formats) == layer
    steps = [(encode(2, 7, pooled=spec.pooler), 14, 7, False)]
    if not spec.encoder:
        steps += [(prefill(3, 5), 15, 5, True), (decode([4, 9, 4]), 3, 2, True), (forward(40, 7), 280, 7, True)]
        steps += [(mixed([(4, 2)], [3, 9]), 6, 5, True)]
    for step, tokens, positions, head in steps:
        expected = _rows(module, spec, tokens=tokens, positions=positions, head=head, pooled=step.pooled)
        assert weight_bytes(work(spec, step, formats)) == expected


@pytest.mark.parametrize("kv_dtype", [None, "float32", "int8", "fp8"])
@pytest.mark.parametrize("key", DECODERS)
def test_kv_bytes_equal_the_caches(key: str, kv_dtype: str | None) -> None:
    spec, formats = _spec(key), Formats(dtype="bfloat16", kv_dtype=kv_dtype)
    stored = {None: torch.bfloat16, "float32": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kv_dtype]
    token = PagedCache.bytes_per_token(spec, stored)
    cache = PagedCache(spec, 2, 3, torch.device("cpu"), stored)
    assert cache.nbytes == cache.keys.nbytes + cache.values.nbytes == 6 * token
    assert kv_bytes_per_token(spec, formats) == token
    assert kv_bytes(work(spec, prefill(3, 5), formats)) == 15 * token
    assert kv_bytes(work(spec, decode([4, 9, 1]), formats)) == (4 + 9 + 1 + 3) * token
    assert kv_bytes(work(spec, mixed([(3, 2)], [7]), formats)) == (2 + 7 + 3 + 1) * token
    assert kv_bytes(work(spec, forward(3, 5), formats)) == 0


def test_compulsory_traffic_is_weights_kv_ids_and_outputs() -> None:
    spec, formats = _spec("llama-gqa"), Formats(dtype="float16")
    for step in (prefill(3, 5), decode([4, 4]), forward(2, 6, loss=True)):
        ops = work(spec, step, formats)
        outside = step.tokens * 8 + step.logit_rows * spec.vocabulary * 2 + (step.tokens * 8 + 4 if step.loss else 0)
        assert compulsory_bytes(ops) == weight_bytes(ops) + kv_bytes(ops) + outside
        assert all(op.activation_bytes > 0 for op in ops)
        assert all(op.weight_bytes <= op.bytes_read and op.kv_bytes <= op.bytes_moved for op in ops)


def test_int4_weights_by_hand() -> None:
    stored = weight_format("int4", "float16")
    assert stored.name == "int4-g64"
    # 100 columns: 50 bytes of elements, 2 groups of 64 with a 16-bit scale and a 16-bit offset each.
    assert stored.matrix_bytes(3, 100) == 3 * (50 + 2 * 4)
    assert weight_format("int4-g128-sym", "float16").matrix_bytes(1, 256) == 128 + 2 * 2
    assert weight_format("int8", "float16").matrix_bytes(5, 10) == 5 * (10 + 4)
    assert weight_format(None, "float32").matrix_bytes(5, 10) == 200
    with pytest.raises(UserError, match="--quantize int3"):
        weight_format("int3", "float16")


@pytest.mark.parametrize("quantize", QUANTIZED_FORMATS)
def test_quantised_reads_equal_the_quantised_footprint(quantize: str) -> None:
    spec = _spec("llama-biases")
    formats = Formats(dtype="float16", weights=weight_format(quantize, "float16"))
    plain = Formats(dtype="float16")
    ops = work(spec, decode([4]), formats)
    unread = (spec.vocabulary - 1) * spec.embedding * 2
    assert weight_bytes(ops) == resident_weight_bytes(spec, formats) - unread
    assert resident_weight_bytes(spec, formats) < resident_weight_bytes(spec, plain)
    assert tensor_flops(ops) == tensor_flops(work(spec, decode([4]), plain))


def _moved(ops: tuple[Op, ...], name: str) -> int:
    return sum(op.count * op.collective_bytes for op in ops if op.name == name)


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("key", ["opt", "bloom", "gpt_bigcode-mqa", "llama-gqa", "llama-mha"])
def test_shards_cut_the_work_evenly(key: str, shards: int) -> None:
    spec = _spec(key)
    one, cut = Formats(dtype="float16"), Formats(dtype="float16", shards=shards)
    step = prefill(4, 8)
    whole, part = work(spec, step, one), work(spec, step, cut)
    by_name = {op.name: op for op in whole}
    for op in part:
        if op.name in ("attention_output", "feed_forward_up", "feed_forward_down", "attention_scores", "attention_values"):
            assert op.flops * shards == by_name[op.name].flops
        if op.kind == "norm":
            assert op == by_name[op.name]
    payload = step.tokens * spec.hidden * 2
    for name in ("attention_all_reduce", "feed_forward_all_reduce"):
        assert _moved(part, name) == spec.layers * 2 * (shards - 1) * payload // shards
    assert not any(op.collective_bytes for op in whole)
    assert resident_weight_bytes(spec, cut) * shards >= resident_weight_bytes(spec, one)
    ceil_rows = -(-spec.vocabulary // shards)
    assert next(op for op in part if op.kind == "logits").shape == (4, ceil_rows, spec.embedding)


def test_keys_with_fewer_heads_than_shards_are_copied() -> None:
    spec = _spec("gpt_bigcode-mqa")
    assert kv_bytes_per_token(spec, Formats(shards=4)) == kv_bytes_per_token(spec, Formats())


def test_shards_that_do_not_divide_are_refused_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"--tensor-parallel 3 does not divide llama-gqa .* use one of 1, 2, 4"):
        work(_spec("llama-gqa"), decode([3]), Formats(shards=3))


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="encoder"):
        work(_spec("bert"), forward(1, 3), Formats())
    with pytest.raises(ValueError, match="pooler"):
        work(_spec("opt"), encode(1, 3, pooled=True), Formats())
    with pytest.raises(ValueError, match="at least one sequence"):
        decode([])
    with pytest.raises(ValueError, match="cache"):
        Step(shares=(Share(1, 3),), cached=False)
    with pytest.raises(ValueError, match="loss"):
        Step(shares=(Share(1),), loss=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6))
def test_distinct_positions_are_those_of_a_set(sequences: list[tuple[int, int]]) -> None:
    step = mixed(sequences, [])
    covered = {position for queries, before in sequences for position in range(before, before + queries)}
    assert step.distinct_positions == len(covered)
    assert step.tokens == sum(queries for queries, _ in sequences)
    assert step.attended(causal="half") <= step.attended(causal="full")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, len(DECODERS) - 1))
def test_a_batch_reads_weights_once_and_adds_up_else(contexts: list[int], which: int) -> None:
    spec = _spec(list(DECODERS)[which])
    formats = Formats(dtype="float16")
    together = work(spec, decode(contexts), formats)
    alone = [work(spec, decode([context]), formats) for context in contexts]
    assert tensor_flops(together) == sum(map(tensor_flops, alone))
    assert kv_bytes(together) == sum(map(kv_bytes, alone))
    rows = (len(contexts) - 1) * spec.embedding * 2 * (not spec.tied_head)
    if isinstance(spec.positions, LearnedPositions):
        rows += (len(set(contexts)) - 1) * spec.hidden * 2
    assert weight_bytes(together) == weight_bytes(alone[0]) + rows


def test_every_preset_has_an_inventory() -> None:
    for preset in PRESETS.values():
        spec = preset.spec()
        step = encode(1, 16) if spec.encoder else forward(1, 16)
        ops = work(spec, step, Formats())
        # Two FLOPs a weight of every matrix and token, attention and the head beside it.
        assert tensor_flops(ops) >= 2 * 16 * spec.layers * spec.hidden * spec.feed_forward * 2


def test_equal_contexts_are_counted_as_they_would_be_listed() -> None:
    assert decode_equal(3, 6) == decode([6, 6, 6])
