"""The files in deploy/ name only what there is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
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
