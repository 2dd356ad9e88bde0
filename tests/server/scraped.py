"""A server's metrics as numbers."""

from __future__ import annotations

from running_server import RunningServer


def scrape(server: RunningServer) -> dict[str, float]:
    """Every sample by its name and labels as they are written."""
    answer = server.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class Difference:
    """What two scrapes of a server differ by."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._before = scrape(server)
        self.after = self._before

    def __call__(self, name: str) -> float:
        return self.after[name] - self._before.get(name, 0)

    def look(self) -> None:
        """The second scrape."""
        self.after = scrape(self._server)

    def total(self, prefix: str) -> float:
        """Over all labels, say."""
        return sum(self(name) for name in self.after if name.startswith(prefix))
