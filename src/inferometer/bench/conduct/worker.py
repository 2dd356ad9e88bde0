"""A column's process: takes a study's cases one after another and answers with their records.

Started as `python -m inferometer.bench.conduct.worker FD PARENT BACKEND`: the socket to talk through, the process that it must not
outlive, and the backend of the cases, whose imports are over before the first message goes out. A message is a line of JSON each way:
{"do": STEP, ...} is answered with {"resident_bytes": N}, and {"record": {...}} as well where the case ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.records.case import Case
from inferometer.engine.parallel.lifeline import die_with
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.bench.conduct.desk import Desk
    from inferometer.bench.records.record import Record


def main(arguments: list[str]) -> int:
    """Works until there is nobody to answer any more."""
    end, parent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    die_with(parent)
    # A terminal's interrupt goes to all; when this process ends is the other one's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print is no answer of ours.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from inferometer.bench.conduct.desk import Desk

    desk = Desk()
    desk.settle(arguments[2])
    _send(end, {"resident_bytes": 0})
    with end.makefile("rb") as lines:
        for line in lines:
            _send(end, _answer(desk, json.loads(line)))
    return 0


def _answer(desk: Desk, message: Mapping[str, Any]) -> dict[str, Any]:
    record: Record | None = None
    match message["do"]:
        case "load" | "begin" as step:
            try:
                if step == "load":
                    desk.load(_request(message["request"]), message["memory_limit"])
                else:
                    record = desk.begin(Case(**message["case"]))
            except UserError as error:
                desk.release()
                return {"skipped": str(error), "resident_bytes": desk.resident_bytes}
        case "run":
            record = desk.run(warmups=message["warmups"], runs=message["runs"])
        case "end":
            record = desk.end(shared=message["shared"])
        case "release":
            desk.release()
        case step:
            raise ValueError(f"no step is called {step}")
    answer: dict[str, Any] = {"resident_bytes": desk.resident_bytes}
    return answer if record is None else {**answer, "record": record.to_json()}


def _request(values: Mapping[str, Any]) -> BenchRequest:
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return BenchRequest(**given)


def _send(end: socket.socket, message: Mapping[str, Any]) -> None:
    end.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
