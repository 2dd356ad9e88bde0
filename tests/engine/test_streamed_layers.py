"""Layers that come and go compute what layers that stay compute, to the bit, whoever brings them and however late."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from processes import in_a_fork
from streamed_models import CPU, PROMPTS, poisoned, resident, several, spec_of, states, streamed
from torch import Tensor

from inferometer.engine.residency.courier import DirectCourier, ThreadCourier
from inferometer.engine.residency.disk_file import DiskFaultError, DiskSpace
from inferometer.engine.residency.link import MemoryLink
from inferometer.engine.residency.load import load_streamed
from inferometer.engine.residency.streamed import StreamedLayers, hides_launches
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.model.placement import Placement
from inferometer.nn.batch import paged_prompt
from inferometer.nn.cache import PagedCache
from inferometer.nn.dummy import DummySource
from inferometer.nn.formats.layout import format_layouts
from inferometer.nn.numerics import Numerics
from inferometer.nn.residency import AllResident
from inferometer.nn.transformer import Transformer
from tiny_models import CONFIGS

SHAPES = [(2, 1.0, 2), (3, 1.0, 2), (7, 1.0, 3), (5, 0.4, 2), (6, 0.77, 3), (4, 0.01, 2), (1, 1.0, 2)]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("layers", "fraction", "slots"), SHAPES)
def test_streamed_layers_compute_what_resident_ones_do(tmp_path: Path, kind: str, layers: int, fraction: float, slots: int) -> None:
    spec = spec_of(tmp_path, kind, layers)
    wanted = states(resident(spec))
    model = streamed(spec, fraction, slots=slots)
    poisoned(model)
    for _ in range(4):
        assert torch.equal(states(model), wanted)


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4-g32", "int4-g32-sym", "fp8"])
def test_weights_in_few_bits_are_streamed_as_they_are(tmp_path: Path, name: str) -> None:
    spec = spec_of(tmp_path, "llama", 5)
    kinds = format_layouts(spec, weight_format(name, "float32"), CPU)
    wanted = states(resident(spec, kinds))
    model = streamed(spec, 0.7, disk=0.5, folder=tmp_path / "disk", quantised=kinds)
    poisoned(model)
    assert torch.equal(states(model), wanted)
    assert torch.equal(states(model), wanted)


def test_invariant_numerics_read_the_slots_too(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "opt", 4)
    plain, model = resident(spec, numerics=Numerics.INVARIANT), streamed(spec, 0.8, numerics=Numerics.INVARIANT)
    poisoned(model)
    plain.pack()
    model.pack()
    assert torch.equal(states(model), states(plain))
    assert torch.equal(states(model), states(plain))


@pytest.mark.parametrize("kind", ["llama", "opt", "bloom"])
def test_a_cache_in_pages_is_written_as_by_resident_layers(tmp_path: Path, kind: str) -> None:
    spec = spec_of(tmp_path, kind, 4)
    caches = []
    for model in (resident(spec), streamed(spec, 0.6)):
        cache = PagedCache(spec, 2, 16, CPU, torch.float32)
        with torch.inference_mode():
            model.sweep(paged_prompt(PROMPTS[1], 16, CPU), cache)
        caches.append(cache)
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)


@pytest.mark.parametrize(("layers", "fraction", "slots"), [(6, 1.0, 2), (7, 1.0, 2), (7, 0.5, 3)])
def test_every_sweep_brings_every_streamed_layer_once(tmp_path: Path, layers: int, fraction: float, slots: int) -> None:
    model = streamed(spec_of(tmp_path, "llama", layers), fraction, slots=slots)
    residency = model.residency
    assert isinstance(residency, StreamedLayers)
    courier = poisoned(model)
    count = len(residency.placement.streamed_layers)
    for sweep in range(1, 5):
        states(model)
        assert sum(courier.brought.values()) == sweep * count
    ahead = min(residency.placement.ring_slots, count)
    single = residency.placement.streamed_bytes
    assert 4 * single <= residency.brought_bytes <= 4 * single + ahead * residency.placement.slot_bytes


def test_a_sweep_that_ends_on_its_way_spoils_nothing(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama", 5)
    wanted = states(resident(spec))
    for broken in range(5):
        model = streamed(spec, 1.0)
        poisoned(model)
        states(model)

        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        hook = model.layers[broken].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="broken"):
            states(model)
        hook.remove()
        assert torch.equal(states(model), wanted)
        assert torch.equal(states(model), wanted)


def test_a_slow_link_is_waited_for(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama", 4)
    model = streamed(spec, 1.0)
    residency = model.residency
    assert isinstance(residency, StreamedLayers)
    residency._courier.close()
    residency._courier = ThreadCourier(MemoryLink(bytes_s=5e6), None)
    assert torch.equal(states(model), states(resident(spec)))
    residency.close()


def test_a_link_that_copies_by_itself_needs_no_thread(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "llama", 4)
    model = streamed(spec, 1.0)
    residency = model.residency
    assert isinstance(residency, StreamedLayers)
    residency._courier.close()
    residency._courier = DirectCourier(MemoryLink())
    assert torch.equal(states(model), states(resident(spec)))
    assert torch.equal(states(model), states(resident(spec)))


def test_nothing_streamed_is_the_resident_model(tmp_path: Path) -> None:
    model = streamed(spec_of(tmp_path, "llama"), 0.0)
    assert isinstance(model.residency, AllResident)
    assert model.resident


def test_state_dict_and_sizes_are_those_of_the_resident_model(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "opt", 3)
    model, plain = streamed(spec, 0.5), resident(spec)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {n: t.shape for n, t in plain.state_dict().items()}
    assert model.weight_bytes == plain.weight_bytes


def test_closing_lets_everything_go(tmp_path: Path) -> None:
    model = streamed(spec_of(tmp_path, "llama", 4), 1.0, disk=0.5, folder=tmp_path / "disk")
    residency = model.residency
    assert isinstance(residency, StreamedLayers)
    courier = residency._courier
    assert isinstance(courier, ThreadCourier)
    states(model)
    assert list((tmp_path / "disk").iterdir())
    buffers = [weakref.ref(buffer.tensor) for buffer in residency._homes._hosted.values()]
    residency.close()
    residency.close()
    gc.collect()
    assert not courier._thread.is_alive()
    assert not list((tmp_path / "disk").iterdir())
    assert all(buffer() is None for buffer in buffers)
    with pytest.raises(RuntimeError, match="closed"):
        states(model)


def test_a_model_that_nobody_closes_leaves_nothing_either(tmp_path: Path) -> None:
    model = streamed(spec_of(tmp_path, "llama", 4), 1.0, disk=0.5, folder=tmp_path / "disk")
    states(model)
    assert isinstance(model.residency, StreamedLayers)
    assert isinstance(model.residency._courier, ThreadCourier)
    thread = model.residency._courier._thread
    del model
    gc.collect()
    thread.join(timeout=60)
    gc.collect()
    assert not thread.is_alive()
    assert not list((tmp_path / "disk").iterdir())


def test_a_failed_load_leaves_no_file(tmp_path: Path) -> None:
    class Failing(DummySource):
        def read(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
            if "layers.2" in name:
                raise MemoryError
            return super().read(name, device, dtype)

    spec = spec_of(tmp_path, "llama", 4)
    with pytest.raises(MemoryError):
        load_streamed(
            spec,
            Failing(spec, family(spec.family), seed=4),
            family(spec.family),
            lambda sizes: Placement.of(sizes, streamed_bytes=sum(sizes), disk_bytes=sum(sizes)),
            device=CPU,
            dtype=torch.float32,
            disk=DiskSpace(tmp_path / "disk"),
        )
    assert not list((tmp_path / "disk").iterdir())


@pytest.fixture
def from_disk(tmp_path: Path) -> Iterator[Transformer]:
    model = streamed(spec_of(tmp_path, "llama", 4), 1.0, disk=1.0, folder=tmp_path / "disk")
    yield model
    assert isinstance(model.residency, StreamedLayers)
    model.residency.close()


def test_a_file_that_vanished_stops_the_sweep(from_disk: Transformer, tmp_path: Path) -> None:
    states(from_disk)
    for path in (tmp_path / "disk").iterdir():
        path.unlink()
    with pytest.raises(DiskFaultError, match=r"^--disk [^\n]*removed[^\n]*$"):
        several(from_disk)


def test_a_file_that_was_cut_off_stops_the_sweep(from_disk: Transformer, tmp_path: Path) -> None:
    wanted = states(from_disk)
    (file,) = (tmp_path / "disk").iterdir()
    whole = file.read_bytes()
    with file.open("r+b") as handle:
        handle.truncate(len(whole) // 2)
    with pytest.raises(DiskFaultError, match=r"^--disk [^\n]*ends after[^\n]*$"):
        several(from_disk)
    file.write_bytes(whole)
    assert torch.equal(states(from_disk), wanted)


def test_a_fork_waits_for_no_layer_that_nobody_brings_there(from_disk: Transformer) -> None:
    wanted = states(from_disk)

    def read() -> None:
        with pytest.raises(RuntimeError, match="of which this is a fork"):
            states(from_disk)

    in_a_fork(read)
    assert torch.equal(states(from_disk), wanted)


def test_what_the_link_hides_need_not_be_recorded() -> None:
    assert not hides_launches(AllResident())
    homes = None
    for megabytes, hides in ((400, True), (41, True), (39, False)):
        placement = Placement.of([megabytes << 20] * 4, streamed_bytes=(megabytes << 20) * 4)
        assert hides_launches(StreamedLayers(placement, homes, homes)) is hides  # type: ignore[arg-type]
