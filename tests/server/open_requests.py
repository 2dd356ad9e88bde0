"""Requests that stay open: their answers are not read, or the engine stands still."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

from running_server import RunningServer


def ask(server: RunningServer, path: str, body: Any, headers: Mapping[str, str] | None = None) -> HTTPConnection:
    """Sends a request and does not read its answer."""
    connection = server.connect()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    return connection


class Frozen:
    """The engine, stopped for a while: what is asked meanwhile stays open."""

    def __init__(self, server: RunningServer) -> None:
        self._engine = server.engine_process()

    def __enter__(self) -> None:
        os.kill(self._engine, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._engine, signal.SIGCONT)
