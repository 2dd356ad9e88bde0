"""The flexgen backend over a stand-in for the package: what it is given, how it is driven, and that its tokens are right."""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from flexgen_stand_in import Package

from inferometer.bench.backends.entries import FLEXGEN
from inferometer.bench.backends.flexgen import FlexGenBackend, check_model, open_backend, write_arrays
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.check import check
from inferometer.errors import UserError
from inferometer.model.config import read_spec
from inferometer.model.description import ModelDescription, describe
from inferometer.nn.load import open_source
from inferometer.schedule.sampling import SamplingParams
from killed_writers import leave
from tiny_models import CONFIGS, tiny_model

CPU = torch.device("cpu")
PLAIN = {"ffn_dim": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": True}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    found = Package()
    for name, module in found.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1.8" if name == "flexgen" else version(name))
    return found


def described(tmp_path: Path) -> ModelDescription:
    folder = tiny_model(tmp_path, "opt")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **PLAIN}))
    return describe(str(folder), config_only=True)


def opened(tmp_path: Path, group: int | None = None) -> tuple[FlexGenBackend, ModelDescription]:
    description = described(tmp_path)
    write_arrays(open_source(description, weights="dummy"), description.spec, tmp_path / "arrays" / f"{description.spec.name}-np", CPU)
    return FlexGenBackend(description.spec, str(tmp_path / "arrays"), CPU, group), description


def test_weights_are_read_where_they_are_to_run(tmp_path: Path) -> None:
    description = described(tmp_path)
    source, devices = open_source(description, weights="dummy"), []
    read = source.read

    def reading(name: str, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        devices.append(device)
        return read(name, "cpu", dtype)

    source.read = reading  # type: ignore[method-assign]
    write_arrays(source, description.spec, tmp_path / "arrays", torch.device("cuda", 1))
    assert set(devices) == {torch.device("cuda", 1)}


@pytest.mark.usefixtures("package")
def test_a_model_that_a_killed_process_was_to_read_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    description, temporary = described(tmp_path), tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    leave(temporary / "inferometer-flexgen")
    asked = BenchRequest(model=str(description.path), batch_sizes=(1,), weights="dummy", backends=("flexgen",))
    open_backend(Opening(request=asked, description=description, device=CPU, dtype=torch.float16)).close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("group", [None, 2])
def test_its_tokens_are_right_in_one_group_and_in_several(tmp_path: Path, package: Package, group: int | None) -> None:
    backend, description = opened(tmp_path, group)
    reference = HFBackend(description.config, description.spec, open_source(description, weights="dummy"), backend.device, torch.float16)
    prompts = random_prompts(0, 6, 9, 300)
    backend.prepare(6, 13)
    found = check(backend, reference, prompts, dtype=torch.float16, steps=4, loss=False, together=6)
    assert found.passed, found
    assert "4 cached decode tokens against hf" in found.method
    policy = package.made[-1].policy
    assert (policy.gpu_batch_size, policy.num_gpu_batches) == ((6, 1) if group is None else (2, 3))
    backend.close()


def test_its_own_loop_is_driven_step_by_step(tmp_path: Path, package: Package) -> None:
    backend, _ = opened(tmp_path, 2)
    prompts = random_prompts(0, 4, 7, 300)
    backend.prepare(4, 10)
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    made = len(package.made)
    for _ in range(2):
        backend.prefill(prompts, params)
        assert (backend._model.output_ids[:, 7:] >= 0).sum(1).tolist() == [1] * 4
        backend.decode()
        assert (backend._model.output_ids[:, 7:] >= 0).sum(1).tolist() == [2] * 4
        backend.decode()
        rows = backend.finish()
        assert [len(row) for row in rows] == [3] * 4
    assert len(package.made) == made  # the same model, whose weights were read once
    backend.prefill(prompts, params)
    assert [len(row) for row in backend.finish()] == [1] * 4  # one that is not complete is dropped
    backend.generate(prompts, params)
    assert [list(row) for row in backend.finish()] == [list(row) for row in rows]
    backend.close()


def test_everything_is_on_the_gpu_and_no_copy_thread_runs(tmp_path: Path, package: Package) -> None:
    backend, description = opened(tmp_path)
    made = package.made[0]
    policy, config, spec = made.policy, made.config, description.spec
    assert [policy.w_gpu_percent, policy.cache_gpu_percent, policy.act_gpu_percent] == [100] * 3
    assert [policy.w_cpu_percent, policy.cache_cpu_percent, policy.act_cpu_percent] == [0] * 3
    assert (policy.overlap, policy.compress_weight, policy.compress_cache, policy.attn_sparsity) == (True, False, False, 1.0)
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (spec.layers, spec.hidden, spec.vocabulary)
    assert config.pad_token_id == -1  # no token of a random prompt is padding
    assert made.env.disk.num_copy_threads == 0
    assert backend.resident_bytes > 2 * spec.vocabulary * spec.hidden
    assert backend.stack_version == "0.1.8"
    timers = sys.modules["flexgen.flex_opt"].timers
    backend.close()
    assert sys.modules["flexgen.flex_opt"].timers != timers  # the package has its own again


def test_rows_that_are_no_whole_groups_are_a_failed_case(tmp_path: Path, package: Package) -> None:
    backend, _ = opened(tmp_path, 4)
    with pytest.raises(ValueError, match="6 rows are no multiple of 4"):
        backend.prepare(6, 10)
    backend.close()


def test_a_failure_within_its_loop_is_raised_and_the_next_batch_runs(tmp_path: Path, package: Package) -> None:
    backend, _ = opened(tmp_path)
    prompts, params = random_prompts(0, 2, 5, 300), SamplingParams(max_new_tokens=3, ignore_eos=True)
    backend.prepare(2, 8)
    embed = backend._compute.opt_output_embed

    def fail(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    backend._compute.opt_output_embed = fail
    with pytest.raises(torch.OutOfMemoryError):
        backend.prefill(prompts, params)
    backend._compute.opt_output_embed = embed
    backend.abandon()
    backend.generate(prompts, params)
    assert [len(row) for row in backend.finish()] == [3, 3]
    backend.close()


def test_a_failure_in_a_check_leaves_the_next_one_able_to_run(tmp_path: Path, package: Package) -> None:
    backend, _ = opened(tmp_path)
    prompts = random_prompts(0, 2, 5, 300)
    embed = backend._compute.opt_output_embed

    def fail(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    backend._compute.opt_output_embed = fail
    with pytest.raises(torch.OutOfMemoryError):
        backend.logits(prompts, last_only=True)
    backend._compute.opt_output_embed = embed
    assert backend.logits(prompts, last_only=True).shape == (2, 1, 300)
    backend.close()


def test_logits_of_the_last_position_are_made_alone(tmp_path: Path, package: Package) -> None:
    backend, _ = opened(tmp_path)
    prompts = random_prompts(0, 3, 7, 300)
    everywhere, last = (backend.logits(prompts, last_only=each) for each in (False, True))
    assert (everywhere.shape, last.shape) == ((3, 7, 300), (3, 1, 300))
    torch.testing.assert_close(last, everywhere[:, -1:])
    with backend._watched(last_only=True) as seen:
        backend.prepare(3, 9)
        backend.generate(prompts, SamplingParams(max_new_tokens=2, ignore_eos=True))
    assert [tuple(each.shape) for each in seen] == [(3, 1, 300)] * 2
    backend.close()


@pytest.mark.parametrize("changes", [{"ffn_dim": 64}, {"do_layer_norm_before": False}, {"word_embed_proj_dim": 16}, {"enable_bias": False}])
def test_an_opt_that_the_package_is_not_is_refused(changes: dict[str, Any]) -> None:
    check_model(read_spec({**CONFIGS["opt"], **PLAIN}, "tiny"))
    with pytest.raises(UserError, match="--backend flexgen runs OPT with"):
        check_model(read_spec({**CONFIGS["opt"], **PLAIN, **changes}, "tiny"))


@pytest.mark.parametrize(
    ("changes", "device", "words"),
    [
        ({"admission": "diagonal"}, "cuda", "--admission"),
        ({"dtype": "bf16"}, "cuda", "use --dtype float16"),
        ({}, "cpu", "use --device cuda"),
        ({"forward_only": True}, "cuda", "--forward-only"),
        ({"temperature": 0.5}, "cuda", "likeliest token"),
    ],
)
def test_what_it_does_not_run(changes: dict[str, Any], device: str, words: str) -> None:
    asked = BenchRequest(**{"model": None, "batch_sizes": (1,), "backends": ("flexgen",), **changes})
    assert words in str(FLEXGEN.refusal(asked, device=device))
    assert FLEXGEN.refusal(BenchRequest(model=None, batch_sizes=(8,), admission="zigzag", group_size=8), device="cuda") is None
    assert "runs opt" in str(FLEXGEN.refusal(asked, spec=read_spec(CONFIGS["bloom"], "tiny"))) or changes
