"""What of a model each rank has: all of it together, nothing twice but what is copied, and one line where that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.parameters import parameters
from inferometer.model.presets import PRESETS
from inferometer.model.shard import WHOLE, Shard
from inferometer.model.spec import Alibi, ModelSpec, Rotary

LLAMA = ModelSpec(
    name="m", family="llama", layers=2, hidden=24, heads=8, kv_heads=2, head_size=6, feed_forward=40, vocabulary=301,
    positions=Rotary(10000.0), norm="rms", norm_epsilon=1e-6, activation="silu", context_limit=64, embedding=24, attention_scale=0.4,
    gated=True, tied_head=False,
)  # fmt: skip
COUNTS = (2, 4, 8)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    heads = 8 * draw(st.integers(1, 3))
    groups = draw(st.sampled_from([heads, heads // 2, heads // 4, heads // 8]))
    gated = draw(st.booleans())
    return replace(
        LLAMA,
        heads=heads,
        kv_heads=heads // groups if heads % groups == 0 and (heads // groups) in (1, 2, 4, 8, heads) else heads,
        head_size=draw(st.sampled_from([2, 6, 16])),
        feed_forward=8 * draw(st.integers(1, 9)),
        vocabulary=draw(st.integers(1, 400)),
        embedding=draw(st.sampled_from([24, 10])),
        positions=draw(st.sampled_from([Rotary(10000.0), Alibi()])),
        gated=gated,
        tied_head=draw(st.booleans()),
        encoder=draw(st.booleans()),
    )


@settings(deadline=None)
@given(models(), st.sampled_from(COUNTS))
def test_the_parts_make_the_whole(spec: ModelSpec, count: int) -> None:
    shards = [Shard(rank, count) for rank in range(count)]
    local = [{p.name: p.shape for p in parameters(shard.local(spec))} for shard in shards]
    for parameter in parameters(spec):
        cuts = [shard.cut(spec, parameter.name, parameter.shape) for shard in shards]
        held: dict[int, int] = {}
        for cut, shapes in zip(cuts, local, strict=True):
            rows, columns = sum(map(len, cut.rows)) + cut.padding, [] if cut.columns is None else [len(cut.columns)]
            assert shapes[parameter.name] == (rows, *(columns or parameter.shape[1:]))
            for run in cut.rows:
                for row in run:
                    held[row] = held.get(row, 0) + 1
        assert sorted(held) == list(range(parameter.shape[0])), parameter.name
        if cuts[0].columns is not None:
            assert [i for cut in cuts for i in cut.columns or ()] == list(range(parameter.shape[1]))
        if parameter.name in ("embedding.token.weight", "head.weight") or ".up." in parameter.name:
            assert set(held.values()) == {1}
        if "qkv" in parameter.name:
            copies = max(1, count // spec.kv_heads)
            assert [held[row] for row in range(parameter.shape[0])] == [1] * spec.query_size + [copies] * 2 * spec.kv_size


@settings(deadline=None)
@given(models(), st.sampled_from(COUNTS))
def test_a_query_head_lies_with_its_key_head(spec: ModelSpec, count: int) -> None:
    for rank in range(count):
        queries, keys, _ = Shard(rank, count).cut(spec, "layers.0.attention.qkv.weight", (spec.query_size + 2 * spec.kv_size, 24)).rows
        size, local = spec.head_size, Shard(rank, count).local(spec)
        for i in range(local.heads):
            head = queries.start // size + i
            wanted = head // (spec.heads // spec.kv_heads)
            assert (keys.start - spec.query_size) // size + i // (local.heads // local.kv_heads) == wanted


def test_every_token_is_on_one_rank() -> None:
    for vocabulary in (1, 5, 300, 301, 302, 303):
        for count in COUNTS:
            parts = [Shard(rank, count).tokens(replace(LLAMA, vocabulary=vocabulary)) for rank in range(count)]
            assert [token for part in parts for token in part] == list(range(vocabulary))
            assert all(len(part) <= -(-vocabulary // count) for part in parts)


def test_slopes_are_those_of_the_own_heads() -> None:
    bloom = replace(LLAMA, positions=Alibi(), kv_heads=8)
    assert Shard(3, 4).local(bloom).positions == Alibi(of=8, first=6)
    assert WHOLE.local(bloom) is bloom


def test_biases_of_what_is_summed_belong_to_rank_0() -> None:
    assert Shard(0, 2).cut(LLAMA, "layers.0.feed_forward.down.bias", (24,)).summed
    assert not Shard(0, 2).cut(LLAMA, "layers.0.feed_forward.up.bias", (80,)).summed


@pytest.mark.parametrize("name", ["opt-6.7b", "bloomz-7b1"])
def test_a_rank_has_a_part_of_the_bytes(name: str) -> None:
    spec = PRESETS[name].spec()
    whole = resident_weight_bytes(spec, Formats())
    for count in (2, 4, 8):
        part = resident_weight_bytes(spec, Formats(shards=count))
        assert part == sum(p.size for p in parameters(Shard(0, count).local(spec))) * 2
        assert whole / count < part < 1.05 * whole / count


@pytest.mark.parametrize("count", [3, 16])
def test_a_count_that_does_not_divide_the_heads_is_one_line(count: int) -> None:
    with pytest.raises(UserError, match=r"--tensor-parallel \d+ does not divide m .*use one of 1, 2, 4, 8$") as told:
        Shard(0, count).local(LLAMA)
    assert "\n" not in str(told.value)


def test_a_rank_that_is_none_of_them() -> None:
    for rank, count in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"rank {rank} is none of {count}"):
            Shard(rank, count)
