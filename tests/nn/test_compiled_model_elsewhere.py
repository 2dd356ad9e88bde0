"""The compiled sweep as processors with other instructions than this one run it."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compiled_sweeps import SPECS, batch_of, model_of, swept

from inferometer.kernels.cpu_library import CpuLibrary, build
from inferometer.nn.compiled_model import CompiledModel

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=["x86-64", "haswell", "skylake-avx512"])
def plainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuLibrary:
    """The kernels as processors with fewer instructions than this one have them."""
    need_x86()
    needed = {"x86-64": "sse2", "haswell": "avx2", "skylake-avx512": "avx512dq"}[request.param]
    if needed not in read_host_flags():
        pytest.skip(f"this processor has no {needed}")
    path = tmp_path_factory.mktemp("kernels") / "cpu.so"
    build(["c++"], path, f"-march={request.param}")
    return CpuLibrary(path)


def need_x86() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("for x86 processors")


def read_host_flags() -> set[str]:
    return set(Path("/proc/cpuinfo").read_text().split())


@pytest.mark.slow  # three compilations of the whole library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bloom", "sizes that fit nothing", "wide"])
def test_processors_with_fewer_instructions(plainer: CpuLibrary, name: str, dtype: torch.dtype) -> None:
    model = model_of(SPECS[name], dtype)
    batch = batch_of([(1, 300), (1, 16), (7, 9)], 97, 64)
    wanted = swept(model, None, batch, 64)[1].float()
    model.pack()
    found = swept(model, CompiledModel(model, plainer), batch, 64)[1].float()
    error = 2e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found, wanted, rtol=error, atol=error * float(wanted.abs().max()))


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> CpuLibrary:
    """The kernels as processors with AMX have them, whose tiles are software here."""
    need_x86()
    path = tmp_path_factory.mktemp("kernels") / "cpu.so"
    build(["c++", "-include", str(Path(__file__).with_name("software_tiles.h"))], path, "-march=native")
    return CpuLibrary(path)


@pytest.mark.parametrize("rows", [1, 16, 17, 32, 33, 48, 64])
def test_processors_with_tiles(tiled: CpuLibrary, rows: int) -> None:
    """Products of any number of rows, in layers and in the head."""
    model = model_of(replace(SPECS["wide"], vocabulary=96), torch.bfloat16)
    batch = batch_of([(rows, rows + 5)], 96, 64)
    model.pack()
    wanted, scores, _ = swept(model, CompiledModel.of(model), batch, 64)
    compiled = CompiledModel(model, tiled)
    assert compiled._layers[0].up.block % 32 == 0 < compiled._layers[0].up.block
    assert compiled.projects(wanted)
    found, its_scores, _ = swept(model, compiled, batch, 64)
    for each, reference in ((found, wanted), (its_scores, scores)):
        torch.testing.assert_close(each.float(), reference.float(), rtol=0.03, atol=0.03 * float(reference.abs().max()))
