"""The process that starts the ranks of one machine through torch.distributed's elastic agent, and ends with whoever asked for them.

Started as `python -m inferometer.engine.parallel.launcher FD SIZE HOST PORT STORE_PORT`: a socket whose other end rank 0 holds, how many
ranks there are, rank 0 among them, and where it and the ranks' store listen. When a rank fails, it says on that socket how, as a line of
JSON with the process: [1234, "SIGKILL"].
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

_LOOK_S: Final = 0.05


def main(arguments: list[str]) -> int:
    """0 when all ranks have ended well, 1 when one has failed."""
    end, size = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    # What ends a whole group or service goes to this process as well; when it ends is rank 0's to say.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    threading.Thread(target=_report, args=(end,), daemon=True).start()
    logging.disable(logging.CRITICAL)  # that a rank has ended is said once, by rank 0
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Settings that some versions of torch take as fields and others from the environment.
    os.environ |= {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}
    newer: dict[str, Any] = {"signals_to_handle": "SIGQUIT", "shutdown_timeout": 0}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size - 1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        run_id=f"inferometer-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="127.0.0.1",
        **{name: value for name, value in newer.items() if name in {field.name for field in fields(LaunchConfig)}},
    )
    follower = ("-m", "inferometer.engine.parallel.follower", *arguments[1:], str(os.getpid()))
    try:
        elastic_launch(config, sys.executable)(*follower)
    except ChildFailedError:
        return 1
    return 0


def _report(end: socket.socket) -> None:
    """Says how the first rank ended that did not end well. The agent knows only once it has ended the others, which takes it seconds."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # not started yet, or the agent was first
            ended = None
        if ended is None or (ended.si_code == os.CLD_EXITED and ended.si_status == 0):
            time.sleep(_LOOK_S)
            continue
        how = f"exit code {ended.si_status}" if ended.si_code == os.CLD_EXITED else signal.Signals(ended.si_status).name
        with suppress(OSError):
            end.sendall(json.dumps([ended.si_pid, how]).encode() + b"\n")
        return


def _end_with(end: socket.socket) -> None:
    """Ends this process, and by that those that it has started, when rank 0 has ended or wants it to."""
    with suppress(OSError):
        end.recv(1)
    os._exit(0)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # the interpreter's own way out takes a second
