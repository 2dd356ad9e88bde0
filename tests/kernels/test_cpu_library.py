"""The kernels for CPUs are compiled once, kept, and done without where they cannot be had."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

import forked
from inferometer.kernels import cpu_library as module
from inferometer.kernels.cpu_library import cpu_library
from killed_writers import leave

SAID = "inferometer: compiling kernels for this CPU, once (some 20 s)\n"
# A compiler that has the answer: it copies to where it was told to write.
COPIES = 'while [ "$1" != -o ]; do shift; done; cp'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CXX", raising=False)
    cpu_library.cache_clear()
    yield tmp_path / "home"
    cpu_library.cache_clear()


@pytest.fixture(scope="module")
def built() -> Path:
    """The library of this machine, which others need too: compiled if it is not there yet."""
    cpu_library.cache_clear()
    assert cpu_library() is not None
    command = module._compiler()
    assert command is not None
    return module._path(command)


def compiler(folder: Path, script: str) -> str:
    """A command that stands for a compiler."""
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_a_killed_process_was_compiling_goes_with_the_next(tmp_path: Path) -> None:
    """Of whichever sources it was."""
    leave(tmp_path / "cpu")
    module.build([compiler(tmp_path, f'{COPIES} "$0" "$2"')], tmp_path / "cpu-0123.so")
    assert {path.name for path in tmp_path.iterdir()} == {"cxx", "cpu-0123.so"}


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_it_is_compiled_once_which_is_said(
    built: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", quote(compiler(tmp_path, f'echo >> "{tmp_path}/runs"; {COPIES} "{built}" "$2"')))
    for said in SAID, "":
        library = cpu_library()
        assert library is not None
        assert capfd.readouterr() == ("", said)
        assert library.most_tokens >= 8
        cpu_library.cache_clear()
    assert (tmp_path / "runs").read_text() == "\n"
    assert [path.suffix for path in (home / "kernels").iterdir()] == [".so"]


def load(path: Path, environment: dict[str, str]) -> None:
    """Begins a file of that name, and then has the library; what is said on the way is in another beside it."""
    os.environ.update(environment)
    with open(f"{path}.err", "wb") as errors:
        os.dup2(errors.fileno(), 2)
    path.touch()
    assert cpu_library() is not None


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_of_several_processes_one_compiles_and_says_so(built: Path, home: Path, tmp_path: Path) -> None:
    """The others wait: the compiler takes longer than all of them need to come to it, as each says before by a file of its own."""
    there = " && ".join(f'[ -e "{tmp_path}/{name}" ]' for name in "abc")
    wait = f"until {there}; do sleep 0.05; done; sleep 0.2"
    command = compiler(tmp_path, f'echo >> "{tmp_path}/runs"; {wait}; {COPIES} "{built}" "$2"')
    apart, environment = forked.context(), {**os.environ, "CXX": quote(command)}
    processes = [apart.Process(target=load, args=(tmp_path / name, environment)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    said = sorted((tmp_path / f"{name}.err").read_text() for name in "abc")
    assert (tmp_path / "runs").read_text() == "\n"
    assert said == ["", "", SAID]


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_damaged_one_is_compiled_again(built: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = compiler(tmp_path, f'{COPIES} "{built}" "$2"')
    monkeypatch.setenv("CXX", quote(command))
    path = module._path([command])
    path.parent.mkdir(parents=True)
    path.write_text("damaged")
    assert cpu_library() is not None
    assert path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.9999])
def test_one_that_lacks_its_end_is_not_loaded(built: Path, tmp_path: Path, share: float) -> None:
    """The loader takes it, and the first look at what is not there is a SIGBUS."""
    whole = built.read_bytes()
    path = tmp_path / built.name
    path.write_bytes(whole[: int(share * len(whole))])
    assert module._loaded(path) is None
    path.write_bytes(whole)
    assert module._loaded(path) is not None


def test_another_compiler_or_processor_or_source_has_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {module._path(["c++"]), module._path(["c++"]), module._path(["clang++", "-g"])}
    with monkeypatch.context() as patch:
        patch.setattr(module, "_processor", lambda: "another")
        paths.add(module._path(["c++"]))
    shutil.copytree(module.SOURCES, tmp_path / "cpu")
    (tmp_path / "cpu" / "library.cpp").write_text("//")
    monkeypatch.setattr(module, "SOURCES", tmp_path / "cpu")
    paths.add(module._path(["c++"]))
    assert len(paths) == 4


@pytest.mark.parametrize("script", ["exit 1", "exit 0", 'while [ "$1" != -o ]; do shift; done; echo damaged > "$2"'])
def test_without_a_compiler_that_works_there_is_none_and_it_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str
) -> None:
    command = compiler(tmp_path, script)
    monkeypatch.setenv("CXX", quote(command))
    assert cpu_library() is None
    why = f"inferometer: warning: {command} could not compile them; torch's own operations do their work, slower\n"
    assert capfd.readouterr() == ("", SAID + why)


def test_without_any_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert cpu_library() is None
    assert capfd.readouterr() == ("", "")


def test_without_a_place_to_keep_it_there_is_none_and_the_place_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    monkeypatch.setenv("INFEROMETER_HOME", str(home))
    assert [cpu_library(), cpu_library()] == [None, None]
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"inferometer: warning: no kernels for this CPU: {home}")
    assert "set INFEROMETER_HOME" in err


def test_a_place_that_cannot_be_written_is_no_fault_of_the_compiler(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = home / "kernels"
    folder.mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folder)
    assert cpu_library() is None
    assert f"no kernels for this CPU: {folder}: Permission denied;" in capfd.readouterr().err
