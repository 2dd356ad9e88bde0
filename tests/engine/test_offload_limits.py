"""`LLM(offload=...)` under limits: bytes lie where they may, and what cannot be is told in one line."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from offloaded import Maker, told

from inferometer import LLM, SamplingParams
from inferometer.engine.device import supports
from inferometer.engine.memory import activation_bytes
from inferometer.engine.residency import homes, storage
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sizes import SEATS, SWEEP_TOKENS
from inferometer.errors import PointlessWarning, UserError
from inferometer.model.description import describe
from inferometer.model.placement import Placement
from tiny_models import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::inferometer.errors.PointlessWarning")


def test_percent_and_disk_place_the_bytes(made: Maker, tmp_path: Path) -> None:
    with made("gpt2", percent=(25, 25, 100, 0, 100, 0), disk=tmp_path) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        placement = residency.placement
        total = placement.total_bytes
        assert (placement.resident_bytes, placement.host_bytes, placement.disk_bytes) == (total // 4, total // 4, total // 2)
        assert len(list(tmp_path.iterdir())) == 1
        llm.generate([[1, 2]], SamplingParams(max_new_tokens=3, ignore_eos=True))
    assert not list(tmp_path.iterdir())


def test_the_hosts_limit_holds_to_the_byte(made: Maker, tmp_path: Path) -> None:
    for kib in (13, 20, 60, 90, 150):
        limit = kib / 2**20
        with made("llama", offload="weights", host_memory=limit, disk=tmp_path) as llm:
            residency = llm.model.residency
            assert isinstance(residency, StreamedLayers)
            assert residency.host_bytes <= kib * 1024
            assert residency.placement.disk_bytes > 0 or kib == 150
            llm.generate([[1, 2]], SamplingParams(max_new_tokens=3, ignore_eos=True))
            assert residency.host_bytes <= kib * 1024


def test_pages_have_their_part_of_the_hosts_memory_where_weights_may_go_to_a_disk(made: Maker, tmp_path: Path) -> None:
    with made("llama", offload="weights,pages", host_memory=110 / 2**20, disk=tmp_path) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        assert residency.placement.disk_bytes > 0
        pages = (llm.engine.pages - llm.engine.device_pages) * llm.engine.page_bytes
        assert 0 < pages <= 110 * 1024 - residency.host_bytes


def test_a_hosts_limit_that_was_given_is_believed_and_looked_after(made: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_the_devices_limit_holds_to_the_byte(made: Maker, quantize: str | None) -> None:
    limit = int(0.05 * 2**30)
    with made("llama", offload="weights", gpu_memory=0.05, quantize=quantize) as llm:
        residency = llm.model.residency
        assert isinstance(residency, StreamedLayers)
        there = {**dict(llm.model.named_parameters()), **llm.model.quantised}
        held = sum(each.nbytes for name, each in there.items() if not name.startswith("layers.")) + residency.placement.device_bytes
        held += activation_bytes(llm.spec, llm.dtype, llm.engine.sweep_tokens) + llm.engine.cache.nbytes
        assert limit - llm.engine.page_bytes < held <= limit


def test_sweeps_are_as_short_as_a_tight_limit_asks(made: Maker) -> None:
    with made("llama", offload="weights", gpu_memory=0.05) as wide, made("llama", offload="weights", gpu_memory=0.003) as tight:
        assert wide.engine.sweep_tokens == SWEEP_TOKENS
        assert SEATS <= tight.engine.sweep_tokens < SWEEP_TOKENS
        passing = activation_bytes(tight.spec, tight.dtype, tight.engine.sweep_tokens)
        assert tight.engine.sweep_tokens == SEATS or passing <= int(0.003 * 2**30) // 4
        prompts = [[1, 2, 3] * 18 + [row] for row in range(8)]
        params = SamplingParams(max_new_tokens=4, ignore_eos=True)
        assert told(tight.generate(prompts, params)) == told(wide.generate(prompts, params))


def test_a_full_disk_names_the_number_that_puts_less_there(made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_does_not_fit_the_device_names_the_fraction_that_does(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 40, "hidden_size": 64}
    path = tiny_model(tmp_path, "llama", **layers)
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
    narrower = "a 16-bit --dtype, " if supports(torch.device("cpu"), torch.bfloat16) else ""
    with pytest.raises(UserError, match=f"even two layers at a time do not fit: use --quantize int4, {narrower}or more memory$"):
        LLM(path, offload="weights", **(options | {"gpu_memory": 0.0001}))


@pytest.mark.parametrize("pages", ["", ",pages"])
def test_the_fraction_that_is_named_has_room_for_a_sequence_and_too_little_names_it_again(tmp_path: Path, pages: str) -> None:
    path = tiny_model(tmp_path, "llama", num_hidden_layers=40, hidden_size=64, intermediate_size=512)
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "weights": "dummy", "gpu_memory": 0.0085}

    def refused(share: str) -> str:
        with pytest.raises(UserError) as caught, LLM(path, offload=f"weights:{share}{pages}", **options) as llm:
            _ = llm.engine
        return str(caught.value)

    named = re.fullmatch(rf"--offload .*; (stream at least 0\.\d+ of them \(--offload (weights:0\.\d+{pages})\))", refused("0.1"))
    assert named is not None
    # So much that the weights have room, and nothing beside them.
    assert refused("0.6").startswith("no memory is left for the KV cache beside the weights")
    assert f"; {named[1]}, raise --gpu-memory, or use " in refused("0.6")
    with LLM(path, offload=named[2], **options) as llm:
        longest = llm.context_limit
        assert longest is not None
        (answer,) = llm.generate([[1] * (longest - 8)], SamplingParams(max_new_tokens=8, ignore_eos=True))
    assert len(answer.token_ids) == 8


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
def test_what_makes_no_sense_is_one_line(made: Maker, options: dict[str, Any], message: str) -> None:
    # A warning would be a line beside it.
    with warnings.catch_warnings(action="error"), pytest.raises(UserError, match=message) as caught:
        made("llama", **options)
    assert "\n" not in str(caught.value)


def test_offloading_what_fits_is_pointless_and_said(made: Maker, tmp_path: Path) -> None:
    with pytest.warns(PointlessWarning, match="leave out --offload"):
        made("llama", offload="weights")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("llama")
        path = tiny_model(tmp_path, "llama", num_hidden_layers=40, hidden_size=64)
        LLM(path, dtype="float32", device="cpu", weights="dummy", offload="weights", gpu_memory=0.0015)


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
