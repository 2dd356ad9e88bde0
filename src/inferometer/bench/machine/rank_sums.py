"""What a sum over ranks takes on this machine, measured by as many ranks as a model would have, in processes of their own.

`python -m inferometer.bench.machine.rank_sums DEVICE RANKS` prints one JSON object, {bytes: seconds}. It is a process because a collective
that hangs on a GPU hangs whoever waits for it: here that is ended with its ranks when its time is over.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch

from inferometer.engine.device import resolve_device
from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.leader import start
from inferometer.engine.parallel.placement import rank_device
from inferometer.engine.parallel.ranks import Ranks
from inferometer.engine.parallel.sum_choice import SIZES
from inferometer.engine.parallel.sum_tuning import WIDTH, times_s
from inferometer.engine.parallel.wire import RANKS, Call
from inferometer.nn.collective import Collective

LIMIT_S: Final = 120.0
"""Of one number of ranks: start, connections and compilation included."""
GPU_SIZES: Final = (8 << 10, *SIZES)
HOST_SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""Bytes: of a token's row, of a few, and of prompts."""
_SHARE_S: Final = 0.15
"""Of a size, where the host makes every call."""
_REPEATS: Final = 5


class SumsError(RuntimeError):
    """No sum could be measured; the message is one line and says why."""


def measured_sums(device: torch.device, ranks: int, limit_s: float = LIMIT_S) -> dict[int, float]:
    """Seconds of a sum over so many ranks, on the slowest of them, by bytes of what each has.

    Where ranks write into each other's memory that is with residual and norm, in a recorded graph; elsewhere the sum alone. Raises
    SumsError.
    """
    command = [sys.executable, "-m", __spec__.name, str(device), str(ranks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            told, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise SumsError(f"not done after {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        raise SumsError(lines[-1].strip()[:300] if lines else f"ended with {process.returncode}")
    return {int(nbytes): float(seconds) for nbytes, seconds in json.loads(told.splitlines()[-1]).items()}


def timed_sums(ranks: Ranks, name: str) -> dict[int, float]:
    """This rank's part in measuring; all ranks have the same figures. name: of the first rank's device."""
    device = rank_device(name, ranks.local_rank, ranks.local_size)
    collective = ranks.collective(device, invariant=False)
    if isinstance(collective, GpuCollective) and collective.linked:
        return {nbytes: _recorded_s(collective, nbytes) for nbytes in GPU_SIZES}
    return {nbytes: _called_s(collective, device, nbytes) for nbytes in (HOST_SIZES if device.type == "cpu" else GPU_SIZES)}


class Timed(Protocol):
    """What both kinds of ranks offer to whoever times them."""

    def minimum(self, number: int) -> int:
        """The least of what all ranks give."""


def _recorded_s(collective: GpuCollective, nbytes: int) -> float:
    way = collective.way(torch.empty(nbytes // (2 * WIDTH), WIDTH, dtype=torch.bfloat16, device=collective.device))
    with torch.cuda.device(collective.device), torch.inference_mode():
        return times_s(collective, nbytes, (way,))[way]


def _called_s(collective: Collective, device: torch.device, nbytes: int) -> float:
    width = min(1024, nbytes // 4)
    x = torch.zeros(nbytes // 4 // width, width, device=device)

    def calls_s(count: int) -> float:
        collective.minimum(0)
        begin = time.perf_counter()
        for _ in range(count):
            collective.all_reduce(x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return _slowest(collective, (time.perf_counter() - begin) / count)

    calls_s(2)
    # Equal on all ranks, since it comes of what is: the slowest rank's time.
    count = max(1, min(50, int(_SHARE_S / _REPEATS / calls_s(2))))
    return statistics.median(calls_s(count) for _ in range(_REPEATS))


def _slowest(collective: Timed, seconds: float) -> float:
    return -collective.minimum(-max(1, int(seconds * 1e9))) / 1e9


def main(arguments: Sequence[str]) -> int:
    """Prints seconds by bytes, as JSON, of sums over so many ranks. arguments: the first device, the number of ranks."""
    name, count = str(resolve_device(arguments[0])), int(arguments[1])
    ranks = start(count)
    try:
        found: Mapping[int, float]
        found, _ = ranks.ask(Call(RANKS, timed_sums, (name,), answered=True), lambda: timed_sums(ranks, name))
    finally:
        ranks.close()
    print(json.dumps({str(nbytes): seconds for nbytes, seconds in found.items()}))
    return 0


if __name__ == "__main__":
    # By the name under which other ranks find its functions.
    from inferometer.bench.machine import rank_sums

    try:
        sys.exit(rank_sums.main(sys.argv[1:]))
    except Exception as error:  # noqa: BLE001  (whatever it is, who started this tells it in a line)
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
