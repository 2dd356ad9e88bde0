"""Triton is optional: where it is missing or no GPU is, the references serve, and nothing imports it."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from inferometer.kernels import decode_launch, decode_span, gate, ragged_prefill, support
from inferometer.kernels.support import Tiles, look_up, power_of_two, usable

MODULES = "gate, kv_write, norm, paged_decode, ragged_prefill, rotary_write, skinny, skinny_choice"
RUN = f"""
import sys
import torch
own = set(sys.modules)  # of torch, which may import Triton for itself
from inferometer.kernels import {MODULES}
assert "triton" not in sys.modules.keys() - own
sys.modules["triton"] = None  # as if it were not installed
from inferometer.kernels.gate import gate
from inferometer.kernels.kv_write import kv_write
from inferometer.kernels.norm import norm
from inferometer.kernels.paged_decode import paged_decode
from inferometer.kernels.ragged_prefill import ragged_prefill
from inferometer.kernels.rotary_write import rotary_write
keys, values = torch.zeros(2, 16, 1, 16)
kv_write(torch.ones(2, 1, 16), torch.ones(2, 1, 16), keys, values, torch.tensor([0, 1]))
seats, starts, contexts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0], [0, 2], [2]))
pages = keys, values, torch.zeros(1, 1, dtype=torch.int32), seats
assert paged_decode(torch.ones(1, 1, 16), *pages, contexts, page_size=16, scale=1.0, longest=2).eq(1).all()
assert ragged_prefill(torch.ones(2, 1, 16), *pages, starts, contexts, page_size=16, scale=1.0, longest_query=2).eq(1).all()
heads, turn = torch.ones(2, 3, 16), torch.ones(2, 1, 16)
assert rotary_write(heads, turn, -turn, keys, values, torch.tensor([0, 1])).eq(0).all()
assert norm(torch.ones(1, 4), torch.ones(1, 4), kind="rms", epsilon=0.0).eq(1).all()
assert gate(torch.ones(1, 4), "relu").eq(1).all()
"""


def test_importing_the_kernels_imports_no_triton_and_all_runs_without_it() -> None:
    subprocess.run([sys.executable, "-c", RUN], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


def test_kernels_are_counted_once_for_all_arguments_that_they_are_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        def __getitem__(self, grid: object) -> Any:
            return lambda *arguments, **options: object()

    monkeypatch.setitem(vars(gate._gate), "compiled", Compiler())
    monkeypatch.setattr(gate._gate, "_known", {})
    before = support.variants()
    for dtype in (torch.float16, torch.bfloat16):
        gate._gate.launch((1,), torch.zeros(4, dtype=dtype))
    assert support.variants() == before + 2


def test_a_cpu_is_served_by_the_references() -> None:
    assert not usable(torch.device("cpu"))


@pytest.mark.parametrize(
    ("capability", "found", "wanted"), [((9, 0), True, True), ((7, 5), True, True), ((7, 0), True, False), ((9, 0), False, False)]
)
def test_a_gpu_needs_triton_and_a_certain_age(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], found: bool, wanted: bool
) -> None:
    monkeypatch.setattr(support, "capability", lambda device: capability)
    monkeypatch.setattr(support, "find_spec", lambda name: name if found else None)
    assert usable.__wrapped__(torch.device("cuda", 0)) is wanted


def test_a_kernel_is_no_function_of_python() -> None:
    with pytest.raises(TypeError, match="span_of is called by other kernels"):
        decode_span.span_of(1, 2, 3, 4)


class Launched:
    """Stands for Triton's object: what was compiled, each with the launches of it that went past Triton."""

    def __init__(self) -> None:
        self.compilations: list[list[tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def compile_and_run(*arguments: Any, **options: Any) -> Any:
            launches: list[tuple[Any, ...]] = []
            self.compilations.append(launches)
            return Found(launches)

        return compile_and_run


@dataclass
class Found:
    launches: list[tuple[Any, ...]]
    function: str = "function"
    packed_metadata: str = "metadata"

    def run(self, *given: Any) -> None:
        *grid, stream, function, metadata, seen, before, after = given[:9]
        assert (stream, function, metadata, seen, before, after) == ("stream", "function", "metadata", None, None, None)
        self.launches.append((tuple(grid), *given[9:]))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[support.Kernel, Launched]:
    def add(x: Any, y: Any, count: Any, rows: Any, width: support.constexpr, early: support.constexpr) -> None: ...

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: "stream", raising=False)
    stand_in = Launched()
    own = support.kernel("rows")(add)
    own.__dict__["compiled"] = stand_in
    return own, stand_in


def test_what_was_compiled_is_launched_with_addresses_and_every_argument(launched: tuple[support.Kernel, Launched]) -> None:
    own, stand_in = launched
    x, y, other = torch.empty(64), torch.empty(64), torch.empty(64)
    own.launch((3,), x, y, 48, 5, early=True, width=8, num_warps=4)
    own.launch((4, 2), y, other, 32, 1, early=True, width=8, num_warps=4)
    (launches,) = stand_in.compilations
    assert launches == [((4, 2, 1), y.data_ptr(), other.data_ptr(), 32, 1, 8, True)]
    own.launch((1,), x, y, 48, 5, 8, early=True, num_warps=4)  # the same, a compile-time argument in its place
    own.launch((1,), x, y, 48, 5, 16, early=True, num_warps=4)
    assert len(stand_in.compilations) == 3


CHANGES: dict[str, dict[str, Any]] = {
    "unaligned": {"x": torch.empty(65)[1:]},
    "type": {"x": torch.empty(64, dtype=torch.float16)},
    "odd": {"count": 47},
    "one": {"count": 1},
    "wide": {"count": 1 << 31},
    "float": {"count": 48.0},
    "wide-plain": {"rows": 1 << 31},
    "width": {"width": 16},
    "flag": {"early": False},
    "option": {"num_warps": 8},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_what_triton_would_compile_anew_it_is_asked_for(launched: tuple[support.Kernel, Launched], changed: dict[str, Any]) -> None:
    own, stand_in = launched
    given = {"x": torch.empty(64), "y": torch.empty(64), "count": 48, "rows": 5, "width": 8, "early": True, "num_warps": 4}
    for each in (given, given | changed, given, given | changed):
        own.launch((1,), *(each[name] for name in ("x", "y", "count", "rows")), **{k: each[k] for k in ("width", "early", "num_warps")})
    assert [len(launches) for launches in stand_in.compilations] == [1, 1]


EDGES = sorted(
    {sign * (1 << power) + near for power in (0, 4, 31, 32, 62) for sign in (1, -1) for near in (-1, 0, 1)} | {(1 << 63) - 1, 1 << 63}
)


@pytest.mark.parametrize("role", ["", "plain"])
def test_whole_numbers_that_triton_tells_apart_are_told_apart(role: str) -> None:
    specialised = importlib.import_module("triton._C.libtriton").native_specialize_impl
    backend = importlib.import_module("triton.backends.nvidia.compiler").CUDABackend

    def body(x: Any) -> None: ...

    own = support.kernel(*(("x",) if role else ()))(body)
    mine = {number: tuple(own._facts((number,))[0]) for number in EDGES}
    tritons = {number: specialised(backend, number, False, not role, not role) for number in EDGES}
    assert len(set(tritons.values())) > 2
    for one, other in itertools.product(EDGES, EDGES):
        assert tritons[one] == tritons[other] or mine[one] != mine[other], (one, other)


class TestLookUp:
    SMALL, LARGE, OLD = (Tiles(block=block, warps=4, stages=1) for block in (64, 32, 16))
    TABLE: support.Table = (((8, 0), ((128, SMALL), (256, LARGE))), ((7, 5), ((256, OLD),)))

    @pytest.mark.parametrize(
        ("capability", "head_bytes", "tiles"),
        [((9, 0), 128, SMALL), ((8, 0), 129, LARGE), ((8, 0), 1000, LARGE), ((7, 5), 64, OLD), ((0, 0), 64, OLD)],
    )
    def test_first_that_fits(self, capability: tuple[int, int], head_bytes: int, tiles: Tiles) -> None:
        assert look_up(self.TABLE, capability, head_bytes) is tiles


@pytest.mark.parametrize(
    "table",
    [decode_launch.ALONE, decode_launch.ALONE_SHORT, decode_launch.ALONE_NARROW, decode_launch.ALONE_FEW, decode_launch.ALONE_EARLY]
    + [decode_launch.GROUPED, decode_launch.GROUPED_SHORT, decode_launch.GROUPED_FEW, decode_launch.GROUPED_ONCE]
    + [ragged_prefill.TABLE, ragged_prefill.FLOAT32],
)
def test_tables_go_from_new_to_old_and_from_narrow_to_wide(table: support.Table) -> None:
    devices = [least for least, _ in table]
    assert devices == sorted(devices, reverse=True)
    assert devices[-1] == support.OLDEST
    for _, heads in table:
        assert [widest for widest, _ in heads] == sorted(widest for widest, _ in heads)
        for _, tiles in heads:
            assert all(power_of_two(size) == size for size in (tiles.block, tiles.warps, tiles.queries))
            assert tiles.block >= 16


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (80, 128), (128, 128), (129, 256)])
def test_power_of_two(number: int, power: int) -> None:
    assert power_of_two(number) == power
