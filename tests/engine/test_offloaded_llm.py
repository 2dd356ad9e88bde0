"""Weights and pages elsewhere, through the interface: the tokens of the resident model in every order, and limits that hold."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from inferometer import LLM, SamplingParams
from inferometer.engine.loaded_part import DeviceLimits
from inferometer.engine.memory import activation_bytes
from inferometer.engine.page_room import PageRoom, share_pages
from inferometer.engine.residency.storage import Storage, resident_beside_layers
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.room_beside import RoomBeside
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.errors import PointlessWarning, UserError
from inferometer.nn.tiered_cache import TieredCache, slots_bytes
from tiny_models import tiny_model

PROMPTS = ["one", "a prompt that is longer than the others are", "three", "the last but one", "stop"]
PARAMS = [
    SamplingParams(max_new_tokens=9, ignore_eos=True),
    SamplingParams(max_new_tokens=14),
    SamplingParams(max_new_tokens=12, do_sample=True, temperature=1.5, seed=3),
    SamplingParams(max_new_tokens=20, stop=("e", "\x00")),
    SamplingParams(max_new_tokens=5, stop_token_ids=(7, 8, 9)),
]


def llm(tmp_path: Path, **more: Any) -> LLM:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PointlessWarning)
        return LLM(tiny_model(tmp_path, "llama", vocab_size=256), weights="dummy", dtype="float32", device="cpu", **more)


def tokens(model: LLM) -> list[list[int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PointlessWarning)
        return [completion.token_ids for completion in model.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("order", ["continuous", "zigzag", "diagonal", "row"])
@pytest.mark.parametrize("offload", ["pages", "weights,pages", "weights:0.4,pages", "0 100 30 70 100 0", "100 0 50 50 100 0"])
def test_all_orders_give_the_tokens_of_the_resident_engine(tmp_path: Path, order: str, offload: str) -> None:
    with llm(tmp_path) as resident:
        expected = tokens(resident)
    where: dict[str, Any] = {"offload": offload} if "," in offload or offload == "pages" else {"percent": offload}
    groups = {} if order == "continuous" else {"group_size": 2}
    with llm(tmp_path, admission=order, host_memory=0.01, **where, **groups) as model:
        assert tokens(model) == expected
        assert isinstance(model.engine.cache, TieredCache)
        assert model.engine.page_traffic_bytes[1] > 0 or model.engine.device_pages
        model.engine.scheduler.check_pages()
        assert model.engine.scheduler.pool.in_use == 0


def test_host_memory_is_a_limit(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PointlessWarning)
        check_host_memory(tmp_path)


def check_host_memory(tmp_path: Path) -> None:
    with llm(tmp_path, offload="pages", host_memory=0.002) as model:
        page = model.engine.page_bytes
        assert model.engine.device_pages == 0
        assert 0 <= int(0.002 * 2**30) - model.engine.pages * page < page
    with llm(tmp_path, offload="weights,pages", host_memory=0.004) as model:
        placement: Any = model.model.residency
        assert placement.placement.host_bytes + model.engine.pages * page <= int(0.004 * 2**30)
    with llm(tmp_path, offload="pages", host_memory=1e-6) as model, pytest.raises(UserError, match="raise --host-memory"):
        model.engine  # noqa: B018 - taking it is what fails


def test_a_cache_in_8_bits_stays_on_the_device(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--kv-dtype int8 keeps all pages on the device"):
        llm(tmp_path, offload="pages", kv_dtype="int8")


def test_bringing_what_would_fit_is_called_pointless(tmp_path: Path) -> None:
    model = llm(tmp_path, offload="pages", host_memory=0.01)
    with pytest.warns(PointlessWarning, match="all pages of the KV cache fit on the device"):
        model.engine  # noqa: B018


@pytest.mark.parametrize(("prompts", "said"), [(["one"], "all pages of this prompt fit"), (["a", "b"], "all pages of these 2 prompts fit")])
def test_bringing_what_would_fit_of_what_is_asked_is_called_pointless(tmp_path: Path, prompts: list[str], said: str) -> None:
    few = SamplingParams(max_new_tokens=3)
    with llm(tmp_path, offload="pages", host_memory=0.01, gpu_memory=1 / 1024) as model:
        model.engine  # noqa: B018 - not all that could be asked for fits: nothing is said of it
        with pytest.warns(PointlessWarning, match=f"^{said} on the device: .*; leave out --offload pages$"):
            model.generate(prompts, few)
        with pytest.warns(PointlessWarning, match=said):
            list(model.stream(prompts, few))
        with warnings.catch_warnings(action="error"):
            model.generate(["a prompt"] * 200, SamplingParams(max_new_tokens=40))
    with llm(tmp_path) as resident, warnings.catch_warnings(action="error"):
        resident.generate(prompts, few)


@pytest.mark.parametrize("offload", ["weights,pages", "0 100 30 70 100 0"])
@pytest.mark.parametrize("mib", [1.7, 2, 2.5, 6])
def test_slots_of_pages_are_as_small_as_a_tight_limit_asks(tmp_path: Path, offload: str, mib: float) -> None:
    with llm(tmp_path) as resident:
        expected = tokens(resident)
    where: dict[str, Any] = {"offload": offload} if "," in offload else {"percent": offload}
    with llm(tmp_path, gpu_memory=mib / 1024, host_memory=0.05, **where) as model:
        assert tokens(model) == expected
        cache, residency = model.engine.cache, model.model.residency
        assert isinstance(cache, TieredCache)
        assert isinstance(residency, StreamedLayers)
        held = resident_beside_layers(model.spec, model.dtype) + residency.placement.device_bytes
        held += activation_bytes(model.spec, model.dtype, model.engine.sweep_tokens)
        on_device = cache.keys.nbytes + cache.values.nbytes + slots_bytes(model.spec, model.kv_dtype, PAGE_SIZE, cache.slot_pages)
        assert held + on_device <= int(mib * 2**20)
        assert cache.slot_pages >= min(-(-(model.spec.context_limit or 0) // PAGE_SIZE), cache.pages - cache.resident)


@pytest.mark.parametrize(
    ("offload", "relief"),
    [
        ("pages", r"raise --gpu-memory, or stream the weights too \(--offload weights,pages\)"),
        ("weights:0.4,pages", "raise --gpu-memory, or stream more of the weights"),
        ("weights,pages", "raise --gpu-memory"),
    ],
)
def test_no_room_for_a_slot_names_what_makes_some(tmp_path: Path, offload: str, relief: str) -> None:
    with llm(tmp_path, offload=offload, host_memory=0.05) as model:
        beside = RoomBeside(model.model, model.kv_dtype, Storage.of(offload), DeviceLimits(None, 0.9))
        with pytest.raises(UserError, match=f"^--offload pages needs .* through which pages come, .* are free on the device; {relief}$"):
            beside.shared(1, seats=4)
        beside = RoomBeside(model.model, model.kv_dtype, Storage.of(None, (50, 50, 0, 100, 100, 0)), DeviceLimits(None, 0.9))
        with pytest.raises(UserError, match=r"^--percent needs .*; raise --gpu-memory, or lower the first of --percent's numbers$"):
            beside.shared(1, seats=4)
        with pytest.warns(PointlessWarning, match="make the third of --percent's numbers 100$"):
            beside.shared(10000, seats=4)


def test_shares_of_pages() -> None:
    assert share_pages(1, 5, 1000) == PageRoom(1000, 0)
    assert share_pages(1, 0, 1000, 64) == PageRoom(64, 0)
    assert share_pages(0.5, 100, 1000) == PageRoom(200, 100)
    assert share_pages(0.5, 100, 1000, 61) == PageRoom(61, 30)
    assert share_pages(0.7, 30, 70) == PageRoom(100, 30)
    assert share_pages(0, 30, 0) == PageRoom(30, 30)
    for share in (0.01, 0.1, 0.3, 0.5, 0.99):
        for device, host in ((1, 1), (7, 3), (100, 1), (3, 1000)):
            room = share_pages(share, device, host)
            assert room.device <= device
            assert room.elsewhere <= host
            assert room.elsewhere - 1 < share * room.pages + 1e-9
    with pytest.raises(UserError, match="raise --host-memory"):
        share_pages(0.5, 10, 0)
    with pytest.raises(UserError, match="no memory is left on the device"):
        share_pages(0.5, 0, 10)
    assert PAGE_SIZE == 16


def test_several_ranks_and_offloading_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave them out, or --tensor-parallel"):
        llm(tmp_path, offload="pages", tensor_parallel=2)
