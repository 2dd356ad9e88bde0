"""What is built works where nothing else of this repository is: the wheel without torch, the wheel with all of its extras, the sdist.

Where no index of packages can be reached, `-k "borrowed or torch or sdist"` is what can be run: it takes torch and the rest from the
interpreter that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
TINY = ("opt-125m", "--weights", "dummy", "--dtype", "float32")
CARDS = ("l4", "a100-sxm-80gb", "h100-sxm")

pytestmark = pytest.mark.slow


def interpreters() -> list[str]:
    """This one, and one of each other version from 3.11 on that is within reach."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(11, 15):
        path = shutil.which(f"python3.{minor}")
        # A shim may stand for an interpreter that is not there.
        if path and (3, minor) not in found and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            found[3, minor] = path
    return [found[version] for version in sorted(found)]


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that has the wheel, seen from a folder that has nothing else."""

    environment: Path
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A program of the environment, with nothing of the caller's Python about it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        program = [str(self.environment / "bin" / words[0]), *words[1:]]
        more = {"INFEROMETER_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(program, cwd=self.folder, env=kept | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str) -> str:
        """What it prints, once it has ended well."""
        process = self.start(*words)
        out, problems = process.communicate(timeout=600)
        assert process.returncode == 0, problems
        return out

    def inferometer(self, *words: str) -> str:
        """What a command prints."""
        return self.run("inferometer", *words)


def installed(python: str, folder: Path, *requirement: str) -> Installed:
    """An environment of `python` with what pip makes of `requirement`."""
    subprocess.run([python, "-m", "venv", str(folder / "environment")], check=True)
    (folder / "away").mkdir()
    new = Installed(folder / "environment", folder / "away")
    new.run("pip", "install", "--quiet", "--disable-pip-version-check", *requirement)
    return new


def borrowed(wheel: Path, folder: Path) -> Installed:
    """An environment with the wheel alone, which sees the packages of this interpreter behind its own. Asks no index."""
    environment = folder / "environment"
    # What --system-site-packages shows is the base interpreter's, which is not this one where this one is itself an environment's.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (own,) = environment.glob("lib/python*/site-packages")
    lent = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
    into = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*into, "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)], check=True)
    (folder / "away").mkdir()
    return Installed(environment, folder / "away")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=REPOSITORY, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(archives: Path) -> Path:
    (path,) = archives.glob("*.whl")
    return path


@pytest.fixture(scope="module", params=["installed", "borrowed"])
def whole(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel, its server and transformers: in the versions that are tested, or in those of this interpreter."""
    folder = tmp_path_factory.mktemp("whole")
    if request.param == "borrowed":
        return borrowed(wheel, folder)
    return installed(sys.executable, folder, f"{wheel}[server,hf]", "--constraint", str(REPOSITORY / "requirements-dev.txt"))


def test_the_sdist_makes_the_same_wheel(archives: Path, wheel: Path, tmp_path: Path) -> None:
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as file:
        file.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "again"], cwd=folder, check=True, capture_output=True)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(folder / "again" / wheel.name) as other:
        assert {each.filename: each.CRC for each in one.infolist()} == {each.filename: each.CRC for each in other.infolist()}


@pytest.mark.parametrize("python", interpreters())
def test_without_torch_it_predicts(python: str, wheel: Path, tmp_path: Path) -> None:
    bare = installed(python, tmp_path, "--no-index", "--no-deps", str(wheel))
    version = re.fullmatch(r"inferometer-(.*?)-.*", wheel.stem)
    assert version
    assert bare.inferometer("--version") == f"inferometer {version[1]}\n"
    for card in CARDS:
        lengths = ("--batch-size", "1", "--sequence-length", "512", "--decode-length", "32")
        assert "% of bound" in bare.inferometer("estimate", "opt-6.7b", "--device", card, *lengths)
    assert "own-time" in bare.inferometer("validate")
    assert CARDS[0] in bare.inferometer("devices")
    assert "opt-6.7b" in bare.inferometer("models")
    assert "backend-sweep" in bare.inferometer("study", "list")
    assert "skipped" in bare.inferometer("study", "run", "backend-sweep", "--scale", "tiny", "--dry-run")


def test_it_generates(whole: Installed) -> None:
    answer = json.loads(whole.inferometer("generate", "--model", *TINY, "--max-new-tokens", "4", "--json", "hello"))
    assert len(answer["completions"][0]["token_ids"]) == 4
    where = whole.run("python", "-c", "import inferometer; print(inferometer.__file__)")
    assert Path(where.strip()).is_relative_to(whole.environment)


def test_it_measures_and_reports(whole: Installed) -> None:
    lengths = ("--batch-size", "1", "--sequence-length", "16", "--decode-length", "3", "--runs", "2")
    whole.inferometer("bench", *TINY, *lengths, "--backend", "native", "--backend", "hf", "--output", "records.jsonl")
    records = [json.loads(line) for line in (whole.folder / "records.jsonl").read_text().splitlines()]
    assert {record["status"] for record in records} == {"ok"}
    assert "2 cases, 2 of them ok: opt-125m" in whole.inferometer("report", "records.jsonl")


def test_it_estimates(whole: Installed) -> None:
    lengths = ("--batch-size", "1", "--sequence-length", "512", "--decode-length", "32")
    assert "% of bound" in whole.inferometer("estimate", "opt-6.7b", "--device", "l4", *lengths)


def test_it_serves_until_it_is_told_to_end(whole: Installed) -> None:
    process = whole.start("inferometer", "serve", *TINY, "--hostname", "127.0.0.1", "--port", "0", "--gpu-memory", "1")
    try:
        assert process.stderr
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        body = json.dumps({"inputs": "hello", "parameters": {"max_new_tokens": 4, "details": True}}).encode()
        request = urllib.request.Request(f"{address}/generate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["details"]["generated_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        _, problems = process.communicate(timeout=60)
        assert process.returncode == 0, problems
    finally:
        process.kill()
        process.communicate()
