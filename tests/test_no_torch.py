"""The torch-free floors and commands work where torch, numpy and transformers are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
TORCH_FREE = ("errors", "model", "text", "hardware", "schedule", "estimate", "report", "cli")
ABSENT = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "jinja2",
    "tqdm",
    "accelerate",
    "fastapi",
    "pydantic",
    "uvicorn",
)

# Run before anything else: the packages are as if they were not installed, to the finders and to whoever asks them.
REFUSE = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def run(code: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "INFEROMETER_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", REFUSE + code], capture_output=True, text=True, env=environment, timeout=60, input=stdin, check=False
    )


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(f"import sys\nfrom inferometer.cli.main import main\nsys.exit(main({list(arguments)!r}))", home)


def modules() -> list[str]:
    root = SOURCE / "inferometer"
    paths = [path for floor in TORCH_FREE for path in [root / f"{floor}.py", *(root / floor).rglob("*.py")] if path.exists()]
    named = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    # Of the floor that measures, what a report of old records or the parsing of a request needs.
    # A study is planned and conducted without torch: only its columns' processes load that.
    bench = {
        f"inferometer.bench.{room}.{name}"
        for room, names in {
            "records": ("statistics", "case", "record", "journal", "session"),
            "backends": ("prompts", "request", "requirement", "entry", "entries", "registry"),
            "study": ("study", "file", "library", "folder"),
            "plan": ("question", "plan", "edge_search"),
            "conduct": ("conductor", "worker"),
        }.items()
        for name in names
    }
    # Of the server, what its command line reads, and what starts it.
    server = {f"inferometer.server.{name}" for name in ("flags", "settings", "life")}
    return sorted(named | bench | server | {"inferometer"})


def test_the_refusal_refuses(tmp_path: Path) -> None:
    done = run("import torch", tmp_path)
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_every_torch_free_module_imports(tmp_path: Path) -> None:
    names = modules()
    assert len(names) > 20
    done = run("import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("models",), ("bench", "--help"), ("generate", "--help"), ("serve", "--help")]
    + [("study", "list"), ("study", "show", "backend-sweep"), ("study", "run", "backend-sweep", "--scale", "tiny", "--dry-run")],
)
def test_commands_without_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = command(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_models_as_json(tmp_path: Path) -> None:
    done = command(tmp_path, "models", "--json")
    presets = {preset["name"]: preset for preset in json.loads(done.stdout)["presets"]}
    assert presets["opt-1.3b"]["parameters"] == 1_315_758_080


@pytest.mark.parametrize("arguments", [("bench", "opt-125m", "--weights", "dummy"), ("generate", "--model", "opt-125m", "x")])
def test_what_needs_torch_names_the_extra(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = command(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "inferometer: error: this needs torch, which is not installed; pip install 'inferometer[run]'\n"


def test_the_server_names_its_extra(tmp_path: Path) -> None:
    done = command(tmp_path, "serve", "opt-125m", "--weights", "dummy")
    assert done.returncode == 2
    assert "which is not installed; pip install 'inferometer[server]'" in done.stderr


def test_wrong_usage_is_told_before_torch_is_missed(tmp_path: Path) -> None:
    done = command(tmp_path, "bench", "--batch-size", "0")
    assert done.returncode == 2
    assert "--batch-size" in done.stderr


def test_nothing_of_torch_is_loaded_by_listing_models(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "INFEROMETER_HOME": str(tmp_path)}
    code = (
        "import sys\nfrom inferometer.cli.main import main\nmain(['models'])\n"
        f"print(sorted(set(sys.modules) & set({ABSENT!r})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert done.stderr == "[]\n"
