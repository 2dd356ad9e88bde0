"""Where cases run, by the value of --device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_worker import GIB

from inferometer.bench.machine.place import find_place
from inferometer.errors import UserError
from inferometer.hardware.detect import Machine
from inferometer.hardware.host import Host
from inferometer.hardware.nvidia import Gpu

HOST = Host(model="c", vendor="v", cores=2, flags=("avx2", "amx_bf16"), memory_bytes=8 * GIB, cache_bytes=None)
CARD = Gpu(index=0, name="NVIDIA L4", uuid=None, memory_bytes=23034 << 20, driver="1")


def test_places_by_the_value_of_device() -> None:
    machine = Machine(host=HOST, gpus=(CARD, replace(CARD, index=1)))
    cpu = find_place("cpu", machine)
    assert (cpu.torch_name, cpu.slug, cpu.multiplies) == ("cpu", "cpu", ("float32", "bfloat16"))
    card = find_place("cuda:1", machine)
    assert (card.torch_name, card.slug, card.count, card.kind) == ("cuda:1", "l4", 2, "cuda")
    assert card.memory_bytes == card.free_bytes() == 23034 << 20
    unknown = find_place("cuda", Machine(host=HOST, gpus=(replace(CARD, name="something"),)))
    assert (unknown.slug, unknown.spec, unknown.name) == (None, None, "something")
    assert find_place("auto", Machine(host=HOST, gpus=())).kind == "cpu"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:x", "gpu", "", "cuda:"])
def test_places_that_are_not_here(device: str) -> None:
    with pytest.raises(UserError, match="--device"):
        find_place(device, Machine(host=HOST, gpus=()))


def test_shards_lie_on_the_gpus_from_the_named_one_on() -> None:
    second = find_place("cuda:1", Machine(host=HOST, gpus=(CARD, replace(CARD, index=1), replace(CARD, index=2))))
    assert second.lacks(2) is None
    assert second.lacks(3) == "--tensor-parallel 3 needs 3 GPUs, and there are 2 here"
