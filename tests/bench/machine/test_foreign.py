"""Others at work on a GPU are told of before anything runs there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from inferometer.bench.machine.foreign import foreign
from inferometer.bench.machine.place import Place
from inferometer.hardware.detect import Machine
from inferometer.hardware.host import read_host
from inferometer.hardware.nvidia import Gpu
from inferometer.hardware.telemetry import Telemetry

CARD = Gpu(index=3, name="NVIDIA H200", uuid=None, memory_bytes=141 << 30, driver="580")
MACHINE = Machine(host=read_host(), gpus=(CARD,))


class Card:
    """A telemetry of a card of which so much memory is in use."""

    def __init__(self, used: int | None) -> None:
        self.used = used

    def read(self) -> Card:
        return self

    def value(self, sensor: str) -> int | None:
        assert sensor == "gpu_memory_used_bytes"
        return self.used


def place(name: str) -> Place:
    return Place(torch_name=name, slug="h200", name="NVIDIA H200", spec=None, count=1, memory_bytes=None, multiplies=())


def told(where: str, used: int | None) -> str | None:
    return foreign(place(where), MACHINE, cast(Telemetry, Card(used)))


@pytest.mark.parametrize(("where", "used"), [("cuda:0", 600 << 20), ("cuda:0", None), ("cpu", 9 << 30), ("cuda:1", 9 << 30)])
def test_nothing_is_said_of_an_idle_card_or_none(where: str, used: Any) -> None:
    assert told(where, used) is None


def test_what_others_hold_is_said() -> None:
    said = told("cuda:0", 12 << 30)
    assert said is not None
    assert said.startswith("other processes hold 12.0 GiB of cuda:0: what they do is in the times")
