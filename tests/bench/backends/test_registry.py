"""Backends by name: what comes with the package, what another package adds, and what each needs and refuses."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from inferometer.bench.backends import registry, requirement
from inferometer.bench.backends.entries import ENTRIES
from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.registry import entry, names, stack_of
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.backends.requirement import Requirement, versions
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.errors import UserError
from inferometer.estimate.stack import STACKS, find_stack
from inferometer.model.config import read_spec
from tiny_models import CONFIGS, tiny_model

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers entry points as an installed package would."""

    def register(**values: str) -> None:
        points = metadata.EntryPoints(metadata.EntryPoint(name, value, registry.GROUP) for name, value in values.items())
        monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))
        registry.names.cache_clear()
        registry.entry.cache_clear()

    yield register
    monkeypatch.undo()
    registry.names.cache_clear()
    registry.entry.cache_clear()


def request(**changes: Any) -> BenchRequest:
    return BenchRequest(**{"model": None, "batch_sizes": (1,), **changes})


def test_pyproject_declares_what_a_source_tree_knows_by_itself() -> None:
    declared = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["entry-points"][registry.GROUP]
    assert list(declared) == [each.name for each in ENTRIES]
    for name, value in declared.items():
        module, _, attribute = value.partition(":")
        assert getattr(import_module(module), attribute) is entry(name)


@pytest.mark.parametrize("found", ENTRIES, ids=lambda found: found.name)
def test_every_backend_of_ours_can_be_priced_and_opened(found: BackendEntry) -> None:
    assert (found.stack in STACKS) == found.in_process
    module, _, function = found.opener.partition(":")
    path = PYPROJECT.parent / "src" / Path(*module.split(".")).with_suffix(".py")
    assert f"def {function}(" in path.read_text("utf-8")
    assert stack_of(found.name) == found.stack


@pytest.mark.parametrize("found", [each for each in ENTRIES if each.stack is not None], ids=lambda found: found.name)
def test_the_estimators_name_of_a_format_is_one_that_the_backend_takes(found: BackendEntry) -> None:
    """And means the same to it: an estimate names the format as its stack does, and is verified under that name."""
    assert found.stack is not None
    stack = find_stack(found.stack)
    for quantize in found.quantize:
        form = stack.weights(quantize, "float16")
        assert form.name in found.quantize
        assert stack.weights(form.name, "float16") == form


def test_a_backend_of_another_package_is_found_by_its_entry_point(other_package: Any, tmp_path: Path) -> None:
    (tmp_path / "their_backend.py").write_text(
        "from inferometer.bench.backends.entry import BackendEntry\n"
        "from inferometer.bench.backends.native import open_backend\n"
        "ENTRY = BackendEntry(name='theirs', opener='inferometer.bench.backends.native:open_backend', stack=None)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        other_package(theirs="their_backend:ENTRY", native="their_backend:ENTRY")
        assert names()[-1] == "theirs"
        assert entry("native").stack == "native"
        (record,) = benchmark(
            request(model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", runs=1, backends=("theirs",)),
            lambda record: None,
        )
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("their_backend", None)
    assert (record.status, record.backend, record.predicted) == ("ok", "theirs", None)


@pytest.mark.parametrize("value", ["no_such_module:ENTRY", "json:loads", "inferometer.bench.backends.entries:NATIVE"])
def test_a_broken_entry_point_is_one_line(other_package: Any, value: str) -> None:
    other_package(theirs=value)
    with pytest.raises(UserError, match=r"--backend theirs: .* reinstall its package"):
        entry("theirs")
    with pytest.raises(UserError, match="--backend other is unknown; use native or "):
        entry("other")
    assert stack_of("other") is None


def test_what_is_not_installed_is_a_skipped_row_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = requirement.find_spec
    monkeypatch.setattr(requirement, "find_spec", lambda name: None if name == "transformers" else found(name))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    asked = request(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", runs=1, backends=("hf", "native")
    )
    skipped, ok = benchmark(asked, lambda record: None)
    assert (skipped.status, ok.status, skipped.stack_version) == ("skipped", "ok", "not installed")
    assert skipped.evidence == "--backend hf needs transformers, which is not installed; pip install 'inferometer[hf]'"


def test_a_backend_may_run_under_a_python_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = entry("hf-compile")
    assert found.python == sys.executable
    monkeypatch.setenv("INFEROMETER_PYTHON_HF_COMPILE", "/no/such/python")
    assert found.python == "/no/such/python"
    with pytest.raises(UserError, match="/no/such/python is not a Python that runs"):
        found.missing()
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("INFEROMETER_PYTHON_HF_COMPILE", str(bare))
    assert "needs transformers, which is not installed" in str(found.missing())
    assert str(bare) in str(found.missing())
    assert versions(["json", "no_such"], str(bare)) == {"json": "", "no_such": None}


def test_the_newest_version_that_serves() -> None:
    needed = Requirement(module="transformers", install="transformers<=4.43.4", newest="4.43.4", families=("bloom",), quantize=("int8",))
    assert needed.unmet("4.43.4") is needed.unmet("4.9") is needed.unmet("4.43.4+cu1") is needed.unmet("") is None
    assert "needs transformers 4.43.4 or older, and 4.43.10 is installed" in str(needed.unmet("4.43.10"))
    assert "not installed" in str(needed.unmet(None))
    assert needed.concerns(family="bloom", quantize="int8")
    assert not needed.concerns(family="opt", quantize="int8")
    assert not needed.concerns(family="bloom", quantize=None)
    assert not needed.concerns(family=None, quantize="int8")


@pytest.mark.parametrize(
    ("backend", "changes", "words"),
    [
        ("hf", {"deterministic": True}, "--deterministic .* --backend hf; leave one"),
        ("hf", {"watermark": True}, "--watermark is not run by --backend hf"),
        ("hf", {"gpu_memory": 1.0}, "--gpu-memory is not kept by --backend hf"),
        ("hf", {"quantize": "awq"}, "--quantize awq is not run by --backend hf"),
        ("hf-compile", {"forward_only": True}, "--forward-only is not run by --backend hf-compile"),
        ("hf-compile", {"admission": "row"}, "--admission .* --backend hf-compile"),
    ],
)
def test_what_a_backend_does_not_run_is_said_once(backend: str, changes: dict[str, Any], words: str) -> None:
    reason = entry(backend).refusal(request(**changes))
    assert reason is not None
    with pytest.raises(UserError, match=words) as raised:
        request(backends=(backend,), **changes).check()
    assert str(raised.value) == reason
    assert entry(backend).refusal(request()) is None


def test_a_model_or_device_that_a_backend_does_not_run() -> None:
    narrow = BackendEntry(name="narrow", opener="a:b", stack=None, dtypes=("float16",), families=("opt",), devices=("cuda",), samples=False)
    llama, opt, bert = (read_spec(CONFIGS[family], "tiny") for family in ("llama", "opt", "bert"))
    assert "runs opt, and tiny is of family llama" in str(narrow.refusal(request(), spec=llama))
    assert narrow.refusal(request(), spec=opt) is None
    assert "not on cpu; use --device cuda" in str(narrow.refusal(request(), spec=opt, device="cpu"))
    assert "use --dtype float16" in str(narrow.refusal(request(dtype="bf16")))
    assert narrow.refusal(request(dtype="fp16"), device="cuda") is None
    assert "leave out --do-sample" in str(narrow.refusal(request(top_k=3)))
    assert "is an encoder" in str(entry("hf-compile").refusal(request(), spec=bert))
