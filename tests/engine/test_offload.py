"""`LLM(offload=...)`: the resident engine's tokens in every order, under limits that hold."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from inferometer import LLM, SamplingParams
from inferometer.cli.progress import Bar
from inferometer.engine.memory import activation_bytes
from inferometer.engine.quantize import quantize
from inferometer.engine.residency import homes, storage
from inferometer.engine.residency.link import MemoryLink
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sizes import SEATS, SWEEP_TOKENS
from inferometer.errors import PointlessWarning, UserError
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.model.placement import Placement
from inferometer.nn.dummy import DummySource
from inferometer.schedule.completion import Completion
from tiny_models import CONFIGS, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::inferometer.errors.PointlessWarning")

DECODERS = [kind for kind in CONFIGS if kind != "bert"]
ORDERS = [("continuous", None), ("zigzag", 2), ("diagonal", 2), ("row", 1)]
_folder = Path()


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _folder
    _folder = tmp_path_factory.mktemp("offload")
    yield
    opened.cache_clear()


@cache
def opened(kind: str, admission: str, group_size: int | None, offload: str | None) -> LLM:
    return made(kind, admission=admission, group_size=group_size, offload=offload)


def made(kind: str, **options: Any) -> LLM:
    return LLM(tiny_model(_folder, kind), dtype="float32", device="cpu", weights="dummy", seed=2, **options)


def told(completions: list[Completion]) -> list[tuple[tuple[int, ...], str | None]]:
    return [(tuple(completion.token_ids), completion.finish_reason) for completion in completions]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("kind", DECODERS)
def test_every_order_gives_the_resident_engines_tokens(kind: str, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=7))
    prompts = [[(7 * number + 3 * place) % 300 for place in range(length)] for number, (length, _) in enumerate(lengths)]
    params = [
        SamplingParams(
            max_new_tokens=new, temperature=1.7 if number % 2 else 1.0, seed=number, stop_token_ids=(5, 80, 200), ignore_eos=True
        )
        for number, (_, new) in enumerate(lengths)
    ]
    wanted = told(opened(kind, "continuous", None, None).generate(prompts, params))
    for admission, size in ORDERS:
        assert told(opened(kind, admission, size, "weights:0.7").generate(prompts, params)) == wanted


@pytest.mark.parametrize("fraction", ["0", "0.01", "0.3", "0.5", "0.999", "1"])
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_fractions_and_formats(fraction: str, quantize: str | None) -> None:
    params = SamplingParams(max_new_tokens=6, temperature=2.0, seed=1, ignore_eos=True)
    with made("llama", quantize=quantize) as whole, made("llama", quantize=quantize, offload=f"weights:{fraction}") as parted:
        assert told(parted.generate([[1, 2, 3], [4]], params)) == told(whole.generate([[1, 2, 3], [4]], params))


def test_what_quantize_has_written_is_streamed_as_it_is_stored(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    source = DummySource(describe(str(folder), config_only=True).spec, family("llama"), seed=5)
    save_file({name: source.read(name, "cpu", torch.float32) for name in source.tensors()}, folder / "model.safetensors")
    quantize(str(folder), weight_format("int4-g32", "float32"), tmp_path / "int4", progress=Bar)
    params = SamplingParams(max_new_tokens=6, temperature=2.0, seed=1, ignore_eos=True)
    with LLM(tmp_path / "int4", dtype="float32", device="cpu") as whole:
        wanted = told(whole.generate([[1, 2, 3], [4]], params))
    with LLM(tmp_path / "int4", dtype="float32", device="cpu", offload="weights") as parted:
        assert parted.model.quantised
        assert told(parted.generate([[1, 2, 3], [4]], params)) == wanted


def test_encoders_stream_too() -> None:
    with made("bert") as whole, made("bert", offload="weights:0.5") as parted:
        assert (parted.encode([[1, 2, 3], [4, 5]]) == whole.encode([[1, 2, 3], [4, 5]])).all()


def test_a_deterministic_engine_stays_one() -> None:
    params = SamplingParams(max_new_tokens=8, temperature=1.5, seed=3, ignore_eos=True)
    with made("llama", deterministic=True) as whole, made("llama", deterministic=True, offload="weights:0.5") as parted:
        ours, theirs = parted.generate([[1, 2], [3]], params), whole.generate([[1, 2], [3]], params)
    assert [completion.logprobs for completion in ours] == [completion.logprobs for completion in theirs]


def test_percent_and_disk_place_the_bytes(tmp_path: Path) -> None:
    with made("gpt2", percent=(25, 25, 100, 0, 100, 0), disk=tmp_path) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        placement = residency.placement
        total = placement.total_bytes
        assert (placement.resident_bytes, placement.host_bytes, placement.disk_bytes) == (total // 4, total // 4, total // 2)
        assert len(list(tmp_path.iterdir())) == 1
        llm.generate([[1, 2]], SamplingParams(max_new_tokens=3, ignore_eos=True))
    assert not list(tmp_path.iterdir())


def test_the_hosts_limit_holds_to_the_byte(tmp_path: Path) -> None:
    for kib in (13, 20, 60, 90, 150):
        limit = kib / 2**20
        with made("llama", offload="weights", host_memory=limit, disk=tmp_path) as llm:
            residency = llm.model.residency
            assert isinstance(residency, StreamedLayers)
            assert residency.host_bytes <= kib * 1024
            assert residency.placement.disk_bytes > 0 or kib == 150
            llm.generate([[1, 2]], SamplingParams(max_new_tokens=3, ignore_eos=True))
            assert residency.host_bytes <= kib * 1024


def test_pages_have_their_part_of_the_hosts_memory_where_weights_may_go_to_a_disk(tmp_path: Path) -> None:
    with made("llama", offload="weights,pages", host_memory=110 / 2**20, disk=tmp_path) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        assert residency.placement.disk_bytes > 0
        pages = (llm.engine.pages - llm.engine.device_pages) * llm.engine.page_bytes
        assert 0 < pages <= 110 * 1024 - residency.host_bytes


def test_a_hosts_limit_that_was_given_is_believed_and_looked_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the machine shows may grow as it is taken; what is not there in the end is one line."""
    layers, little, spec = [10 << 20] * 4, 20 << 20, describe("opt-125m", config_only=True).spec
    room = storage.DeviceRoom(bytes=1 << 40, capped=False, of_host=False)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "free_host_bytes", lambda: little)

        def place(**where: Any) -> Placement:
            return storage.Storage.of("weights", **where).place(layers, spec, room, torch.float32)

        with pytest.raises(UserError, match=r"^--offload puts .* which has room for 10\.0 MiB; raise --host-memory"):
            place()
        assert place(host_memory=1.0).host_bytes == sum(layers)
        with pytest.raises(UserError, match=r"^--offload puts .* which has room for 20\.0 MiB; raise --host-memory"):
            place(host_memory=30 / 1024)
        assert place(host_memory=1.0, disk=tmp_path).host_bytes == little - layers[0]
    monkeypatch.setattr(homes, "await_free_host_bytes", lambda wanted: little)
    made("llama", offload="weights", host_memory=1.0).close()
    monkeypatch.setattr(homes, "await_free_host_bytes", lambda wanted: 100)
    with pytest.raises(UserError, match=r"^layer 0 takes .* of which 100 B are free; lower --host-memory .* --disk DIR, or stream .*$"):
        made("llama", offload="weights", host_memory=1.0)


@pytest.mark.parametrize("quantize", [None, "int8", "int4-g32-kept-head"])
def test_the_devices_limit_holds_to_the_byte(quantize: str | None) -> None:
    limit = int(0.05 * 2**30)
    with made("llama", offload="weights", gpu_memory=0.05, quantize=quantize) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        there = {**dict(llm.model.named_parameters()), **llm.model.quantised}
        held = sum(each.nbytes for name, each in there.items() if not name.startswith("layers.")) + residency.placement.device_bytes
        held += activation_bytes(llm.spec, llm.dtype, llm.engine.sweep_tokens) + llm.engine.cache.nbytes
        assert limit - llm.engine.page_bytes < held <= limit


def test_sweeps_are_as_short_as_a_tight_limit_asks() -> None:
    with made("llama", offload="weights", gpu_memory=0.05) as wide, made("llama", offload="weights", gpu_memory=0.003) as tight:
        assert wide.engine.sweep_tokens == SWEEP_TOKENS
        assert SEATS <= tight.engine.sweep_tokens < SWEEP_TOKENS
        passing = activation_bytes(tight.spec, tight.dtype, tight.engine.sweep_tokens)
        assert tight.engine.sweep_tokens == SEATS or passing <= int(0.003 * 2**30) // 4
        prompts = [[1, 2, 3] * 18 + [row] for row in range(8)]
        params = SamplingParams(max_new_tokens=4, ignore_eos=True)
        assert told(tight.generate(prompts, params)) == told(wide.generate(prompts, params))


def test_a_full_disk_names_the_number_that_puts_less_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        UserError, match=r"^--disk [^\n]*the disk is full[^\n]*free space there, or raise the second of --percent's numbers$"
    ):
        made("llama", percent=(0, 50, 100, 0, 100, 0), disk=tmp_path)
    with pytest.raises(UserError, match=r"^--disk [^\n]*the disk is full[^\n]*free space there, or raise --host-memory$"):
        made("llama", offload="weights", host_memory=60 / 2**20, disk=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("offload", ["weights", "weights:0.5"])
def test_later_runs_find_the_pages_of_earlier_ones_as_the_resident_engines_do(offload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit changes which rows run together, and on a GPU with it how sums round: so much, and nothing else, tells a later run from the
    first."""
    monkeypatch.setattr("inferometer.engine.residency.load.link_to", lambda device: MemoryLink(40e6))
    prompts = [[row + 1, *range(1, 36 + row)] for row in range(6)]
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)

    def runs(**options: Any) -> list[list[tuple[list[int], list[float]]]]:
        found = []
        with made("llama", **options) as llm:
            llm.model.few_tokens = None  # the CPU's own code for few tokens, which adds in another order, is for resident layers
            for number in range(3):
                found.append([(each.token_ids, each.logprobs) for each in llm.generate(prompts, params)])
                assert (llm.engine.scheduler.hit_pages > 0) == (number > 0)
        return found

    whole = runs()
    assert runs(offload=offload) == whole
    assert [[ids for ids, _ in run] for run in whole[1:]] == [[ids for ids, _ in whole[0]]] * 2


@pytest.mark.parametrize("options", [{}, {"offload": "weights:0.5"}, {"offload": "weights,pages", "host_memory": 0.01}])
def test_a_closed_model_goes_with_its_last_name(options: dict[str, Any]) -> None:
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    made("llama", **options).generate([[1, 2]], params)  # what is imported and kept for all
    gc.collect()
    gc.disable()
    try:
        llm = made("llama", **options)
        llm.generate([[1, 2]], params)
        engine = llm.engine
        parts = [weakref.ref(part) for part in (llm, llm.model, engine, engine.scheduler, engine.cache, engine.cache.keys)]
        del engine
        llm.close()
        del llm
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_what_does_not_fit_the_device_names_the_fraction_that_does() -> None:
    layers = {"num_hidden_layers": 40, "hidden_size": 64}
    path = tiny_model(_folder, "llama", **layers)
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "weights": "dummy", "gpu_memory": 0.0015}
    with pytest.raises(UserError, match=r"^--offload weights:0\.1 leaves .* --gpu-memory lets .*--offload weights:0\.\d+\)$") as caught:
        LLM(path, offload="weights:0.1", **options)
    enough = str(caught.value).rpartition("weights:")[2].rstrip(")")
    residency = LLM(path, offload=f"weights:{enough}", **options).model.residency
    assert isinstance(residency, StreamedLayers)
    with pytest.raises(UserError, match=r"stream at least (0\.\d+) of them \(--offload weights:\1,pages\)$"):
        LLM(path, offload="weights:0.1,pages", **options)
    with pytest.raises(UserError, match=r"; lower the first of --percent's numbers to \d+$") as lower:
        LLM(path, percent="90 10 0 100 100 0", **options)
    first = str(lower.value).split()[-1]
    LLM(path, percent=f"{first} {100 - int(first)} 0 100 100 0", **options).close()
    with pytest.raises(UserError, match="even two layers"):
        LLM(path, offload="weights", **(options | {"gpu_memory": 0.0001}))
    tiny_model(_folder, "llama")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_memory": 1.0}, "goes with --offload"),
        ({"disk": "somewhere"}, "goes with --offload"),
        ({"offload": "weights", "percent": (0, 100, 100, 0, 100, 0)}, "leave out --offload"),
        ({"offload": "weights", "tensor_parallel": 2}, "leave them out, or --tensor-parallel"),
        ({"offload": "weights", "host_memory": 0}, "above 0"),
        ({"offload": "weights", "host_memory": "2"}, "above 0"),
        ({"offload": "weights:0", "disk": "somewhere"}, "--disk holds weights"),
        ({"offload": "weights", "host_memory": 0.00001}, "--disk DIR"),
        ({"percent": (0, 50, 100, 0, 100, 0)}, "--disk DIR"),
        ({"percent": (0, 100, 100, 0, 100, 0), "host_memory": 0.00001}, "raise --host-memory"),
        ({"offload": "weights", "disk": 5}, "--disk must be a folder, not 5"),
        ({"offload": "weights", "disk": ""}, "--disk must be a folder, not ''"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: dict[str, Any], message: str) -> None:
    # A warning would be a line beside it.
    with warnings.catch_warnings(action="error"), pytest.raises(UserError, match=message) as caught:
        made("llama", **options)
    assert "\n" not in str(caught.value)


def test_offloading_what_fits_is_pointless_and_said() -> None:
    with pytest.warns(PointlessWarning, match="leave out --offload"):
        made("llama", offload="weights")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("llama")
        path = tiny_model(_folder, "llama", num_hidden_layers=40, hidden_size=64)
        LLM(path, dtype="float32", device="cpu", weights="dummy", offload="weights", gpu_memory=0.0015)
    tiny_model(_folder, "llama")


def test_a_closed_model_says_so() -> None:
    llm = made("llama", offload="weights")
    llm.generate([[1]], SamplingParams(max_new_tokens=2))
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[1]], SamplingParams(max_new_tokens=2))


LOADS = """
import resource, sys
from pathlib import Path
import torch
from inferometer import LLM
from inferometer.engine.residency.link import MemoryLink
from inferometer.engine.residency.streamed import StreamedLayers
LLM(sys.argv[2], dtype="float32", device="cpu", weights="dummy", offload="weights").close()  # libraries take what they take

def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

import gc; gc.collect()
Path("/proc/self/clear_refs").write_text("5")
before = peak()
llm = LLM(sys.argv[1], dtype="float32", device="cpu", weights="dummy", offload="weights")
placement = llm.model.residency.placement
beside = sum(p.nbytes for name, p in llm.model.named_parameters() if not name.startswith("layers."))
print(peak() - before, placement.host_bytes, placement.device_bytes + beside, placement.slot_bytes)
"""


def test_loading_holds_the_model_and_one_layer(tmp_path: Path) -> None:
    small = tiny_model(tmp_path, "llama")
    path = tiny_model(tmp_path, "opt", hidden_size=768, ffn_dim=3072, num_attention_heads=12, num_hidden_layers=6, word_embed_proj_dim=768)
    # What is freed goes back to the system at once: else the allocator keeps up to two of its largest pieces.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", LOADS, str(path), str(small)], check=True, capture_output=True, text=True, env=env)
    risen, host, device, layer = map(int, done.stdout.split())
    assert host + device <= risen + 4 * layer
    assert risen <= host + device + layer
