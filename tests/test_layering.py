"""Who may import whom: a floor of the house imports only floors below it, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# From the ground up. Floors on one line stand side by side and do not import each other.
FLOORS = (
    ("errors",),
    ("model",),
    ("text",),
    ("hardware",),
    ("kernels",),
    ("nn",),
    ("schedule",),
    ("estimate",),
    ("engine",),
    ("bench",),
    ("server", "report"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
# Floors with rooms, which stand above each other as floors do. What is in no room of such a floor is its __init__ alone.
ROOMS = {
    "bench": (("records", "machine"), ("backends",), ("prediction",), ("measurement",), ("serving", "study"), ("plan",), ("conduct",)),
    "report": (("markup", "plots"), ("records",), ("tables",), ("compare", "page", "study", "estimates")),
}
ROOM_LEVEL = {floor: {name: level for level, names in enumerate(rooms) for name in names} for floor, rooms in ROOMS.items()}
TORCH_FLOORS = {"nn", "kernels", "engine", "bench"}
TRANSFORMERS_FILES = {f"bench/backends/{name}.py" for name in ("deepspeed", "hf", "hf_batch", "hf_compile")}
# The floor is nothing without these. What the command line reads of it, and what starts a server before its engine loads (SERVER_STARTS),
# must start without them all the same: their import takes a second.
SERVER_PACKAGES = {"fastapi", "httptools", "pydantic", "starlette", "uvicorn", "prometheus_client", "opentelemetry"}
SERVER_STARTS = {
    f"server/{name}.py"
    for name in ("__init__", "child", "flags", "frames", "life", "log", "messages", "served_model", "settings", "shards")
}


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name, and whether it is imported as soon as the file is."""

    module: str
    line: int
    at_start: bool
    for_types: bool


def imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Every import in a file of `package`, within functions too, and by name through import_module."""

    def visit(node: ast.AST, at_start: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_start, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            # `from package import name` may name a module.
            yield from (Import(f"{base}.{alias.name}", node.lineno, at_start, for_types) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Import(name.value, node.lineno, at_start, for_types)
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for child in node.body:
                yield from visit(child, at_start, True)
            for child in node.orelse:
                yield from visit(child, at_start, for_types)
            return
        inner = at_start and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner, for_types)

    yield from visit(tree, True, False)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def violations(source: Path) -> list[str]:
    """What is wrong in the package `inferometer` under `source`, a line each."""
    root = source / "inferometer"
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        # The package's own __init__ is the front door: it hands out names of every floor on first use, and nothing at the start.
        floor = relative.partition("/")[0].removesuffix(".py")
        front_door = relative == "__init__.py"
        if floor not in LEVEL and not front_door:
            found.append(f"{relative}: {floor} is on no floor of the house")
            continue
        levels = ROOM_LEVEL.get(floor, {})
        room = path.relative_to(root).parts[1].removesuffix(".py") if levels else ""
        if levels and room not in levels and room != "__init__":
            found.append(f"{relative}: {room} is no room of {floor}")
            continue
        package = ".".join(["inferometer", *path.relative_to(root).parts[:-1]])
        for entry in imports(ast.parse(path.read_text(encoding="utf-8"), str(path)), package):
            where = f"{relative}:{entry.line}"
            top, _, rest = entry.module.partition(".")
            if top == "inferometer":
                target = rest.partition(".")[0]
                if front_door:
                    if not entry.for_types:
                        found.append(f"{where}: the front door imports {entry.module} at once")
                elif target in LEVEL and target != floor and LEVEL[target] >= LEVEL[floor]:
                    found.append(f"{where}: {floor} imports {target}, which is not below it")
                elif target not in LEVEL and target not in ("", "__version__"):
                    found.append(f"{where}: {entry.module} is on no floor of the house")
                elif target == floor and levels:
                    other = rest.split(".")[1]
                    if other != room and levels.get(other, len(FLOORS)) >= levels.get(room, 0):
                        found.append(f"{where}: {floor}/{room} imports {floor}/{other}, which is not below it")
            elif top == "torch" and floor not in TORCH_FLOORS:
                found.append(f"{where}: {floor} imports torch")
            elif top in ("transformers", "accelerate") and relative not in TRANSFORMERS_FILES:
                found.append(f"{where}: only {', '.join(sorted(TRANSFORMERS_FILES))} may import {top}")
            elif floor == "server" and top in SERVER_PACKAGES and relative not in SERVER_STARTS:
                continue
            elif floor not in TORCH_FLOORS and entry.at_start and not entry.for_types and top not in sys.stdlib_module_names:
                found.append(f"{where}: {floor} imports {top} at its start, and must start without optional packages")
    return found


def test_the_house_stands() -> None:
    assert violations(SOURCE) == []


def test_every_floor_in_the_source_was_looked_at() -> None:
    looked_at = {path.relative_to(SOURCE / "inferometer").parts[0] for path in (SOURCE / "inferometer").rglob("*.py")}
    assert {"model", "nn", "engine", "bench", "cli"} <= looked_at


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("model/a.py", "import inferometer.nn.layers", "model imports nn, which is not below it"),
        ("model/a.py", "def f():\n    from inferometer.engine import llm", "model imports engine"),
        (
            "model/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from inferometer.text.load import x",
            "model imports text",
        ),
        ("schedule/a.py", "import importlib\nimportlib.import_module('inferometer.engine.llm')", "schedule imports engine"),
        ("nn/a.py", "from ..engine import llm", "nn imports engine"),
        ("nn/a.py", "from inferometer import engine", "nn imports engine"),
        ("report/page/a.py", "from inferometer.server import app", "report imports server, which is not below it"),
        ("bench/plan/a.py", "from inferometer.cli.main import main", "bench imports cli"),
        ("bench/records/a.py", "from inferometer.bench.plan.plan import plan", "bench/records imports bench/plan, which is not below it"),
        ("report/page/a.py", "def f():\n    from ..study import tables", "report/page imports report/study, which is not below it"),
        ("bench/a.py", "", "a is no room of bench"),
        ("report/charts/a.py", "", "charts is no room of report"),
        ("model/a.py", "def f():\n    import torch", "model imports torch"),
        ("cli/a.py", "from torch import nn", "cli imports torch"),
        ("bench/backends/native.py", "import transformers", "only bench/backends/deepspeed.py, bench/backends/hf.py, "),
        ("text/a.py", "import tokenizers", "text imports tokenizers at its start"),
        ("report/page/a.py", "class A:\n    import numpy", "report imports numpy at its start"),
        ("server/a.py", "import torch", "server imports torch"),
        ("server/a.py", "import numpy", "server imports numpy at its start"),
        ("server/flags.py", "import fastapi", "server imports fastapi at its start"),
        ("__init__.py", "from inferometer.engine.llm import LLM", "the front door imports inferometer.engine.llm.LLM at once"),
        ("engine/a.py", "from inferometer import LLM", "inferometer.LLM is on no floor"),
        ("utils.py", "", "utils is on no floor"),
        ("stuff/a.py", "", "stuff is on no floor"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str, complaint: str) -> None:
    planted = tmp_path / "inferometer" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(code)
    found = violations(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(file)
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("engine/a.py", "import torch\nfrom inferometer.nn import layers\nfrom inferometer import __version__"),
        ("bench/backends/hf.py", "import torch\nimport transformers"),
        ("server/a.py", "import fastapi\nfrom opentelemetry import trace\nfrom inferometer.engine import llm"),
        ("bench/study/a.py", "from inferometer.bench.records.record import Record\nfrom .study import Study"),
        ("text/a.py", "import json\ndef f():\n    import tokenizers"),
        ("text/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
        (
            "model/a.py",
            "from inferometer.model.spec import ModelSpec\nfrom .spec import ModelSpec\nfrom inferometer.errors import UserError",
        ),
        ("__main__.py", "from inferometer.cli.main import main"),
    ],
)
def test_what_is_allowed_is_not_complained_of(tmp_path: Path, file: str, code: str) -> None:
    planted = tmp_path / "inferometer" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(code)
    assert violations(tmp_path) == []


def test_no_test_file_imports_another() -> None:
    """Which would run its module code once more under a second name: what several share is a module beside them."""
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    names = {file.stem for file in files}
    found = [(file.name, name) for file in files for name in _imported(file) if name.rpartition(".")[2] in names]
    assert found == []


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
