"""The launcher as rank 0 holds it: started beside a socket pair, and certainly ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import inferometer

TOKEN_VARIABLE: Final = "INFEROMETER_RANKS_TOKEN"
"""Where a rank finds the word by which rank 0 knows it: in its environment, which no other user can read."""


class Launch:
    """A running launcher of ranks 1 to size - 1, which look for rank 0 at `address`. threads: of each on a CPU. end: our side of the
    socket pair."""

    def __init__(self, size: int, address: tuple[str, int], store_port: int, token: str, threads: int) -> None:
        self.end, other = socket.socketpair()
        package = str(Path(inferometer.__file__).parent.parent)  # wherever this package lies, the ranks find it too
        environment = {
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            TOKEN_VARIABLE: token,
            "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with other:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "inferometer.engine.parallel.launcher",
                    str(other.fileno()),
                    *map(str, (size, *address, store_port)),
                ],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print is no output of ours
                env=environment,
                start_new_session=True,  # a terminal's interrupt goes to whoever it is meant for
            )

    def kill(self) -> None:
        """Ends it at once, and with it the ranks that it has started."""
        self.end.close()
        self.process.kill()
        self.process.wait()
