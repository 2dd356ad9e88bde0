"""The files in deploy/ name only what there is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from running_server import RunningServer

from inferometer.server.flags import FLAGS
from inferometer.server.settings import ServerSettings

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
VARIABLES = {each.variable for each in FLAGS}


def test_every_metric_of_the_dashboard_exists_with_the_labels_it_asks_for(server: RunningServer) -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    server.generate("something to be seen", max_new_tokens=2)
    samples = [line.rpartition(" ")[0] for line in server.get("/metrics").body.decode().splitlines() if not line.startswith("#")]
    labels = {name.partition("{")[0]: set(re.findall(r'(\w+)="', name)) for name in samples}
    named = {name for query in queries for name in re.findall(r"\b(?:inferometer|tgi|process)_\w+", query)}
    assert len(named) > 20
    assert named <= labels.keys()
    for query in queries:
        for name, wanted in re.findall(r"\b((?:inferometer|tgi|process)_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=~?\"", wanted)) - {"instance"} <= labels[name], query
        assert query.count("(") == query.count(")")


def test_panels_do_not_lie_on_each_other() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    places: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_unit_gives_the_server_its_time_to_drain() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "inferometer.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > ServerSettings().drain_seconds
    assert service["KillMode"] == "mixed"  # the engine is ended by the server, not by the signal
    assert shlex.split(service["ExecStart"])[1:] == ["serve"]
    variables = {word.partition("=")[0] for word in shlex.split(service["Environment"])}
    assert variables - {"HOME", "INFEROMETER_HOME"} <= VARIABLES


def test_the_container_is_built_from_what_there_is() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"(?m)^COPY (.*) \S+$", text):
        for source in line.split():
            assert (REPOSITORY / source).exists()
    assert f"EXPOSE {ServerSettings().port}" in text
    (entry,) = re.findall(r"(?m)^ENTRYPOINT (.*)$", text)
    assert json.loads(entry) == ["inferometer", "serve"]
    (extra,) = re.findall(r"/build\[(\w+)\]", text)
    assert f"\n{extra} = [" in (REPOSITORY / "pyproject.toml").read_text()
    variables = {word.partition("=")[0] for line in re.findall(r"(?m)^ENV (.*)$", text) for word in line.split()}
    assert variables - {"INFEROMETER_HOME"} <= VARIABLES
    # What compiles the CPU's kernels; it brings gcc and the headers, which a GPU's launches need.
    assert re.search(r"apt-get install .* g\+\+ ", text)


def test_what_the_container_copies_builds_the_whole_package(tmp_path: Path) -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    for line in re.findall(r"(?m)^COPY (.*) \S+$", (DEPLOY / "Containerfile").read_text()):
        for source in line.split():
            assert f"!{source}" in ignored
            if (REPOSITORY / source).is_dir():
                shutil.copytree(REPOSITORY / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(REPOSITORY / source, tmp_path / source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "wheels"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if name.startswith("inferometer/")}
        entries = file.read(next(name for name in file.namelist() if name.endswith("entry_points.txt"))).decode()
    wanted = {str(path.relative_to(tmp_path / "src")) for path in (tmp_path / "src").rglob("*") if path.is_file()}
    assert packed == wanted
    assert {Path(name).suffix for name in packed} >= {".py", ".toml", ".cpp", ".css", ".js", ".html"}
    assert "native = inferometer.bench.backends.entries:NATIVE" in entries
