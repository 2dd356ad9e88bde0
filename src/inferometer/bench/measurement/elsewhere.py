"""A benchmark under another Python, for a backend that needs one of its own: a request goes out, records come back as they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.progress import Progress, Silent
from inferometer.bench.records.record import Record
from inferometer.errors import UserError

_SOURCE: Final = Path(__file__).resolve().parents[3]
_MODULE: Final = "inferometer.bench.measurement.elsewhere"


def benchmark_elsewhere(
    found: BackendEntry, request: BenchRequest, emit: Callable[[Record], None], progress: Progress | None = None
) -> list[Record]:
    """As `benchmark`, in a process of `found.python`, which need not have this package but what the package imports.

    What the process prints goes to stderr. Raises UserError for what it says the user can put right, RuntimeError where it dies.
    """
    watcher = progress or Silent()
    told, tells = os.pipe()
    environment = {name: value for name, value in os.environ.items() if name != found.python_variable}
    path = [str(_SOURCE), *filter(None, [environment.get("PYTHONPATH")])]
    command = [found.python, "-m", _MODULE, str(tells)]
    records: list[Record] = []
    each = request.runs + request.warmups
    watcher.start(len(request.batch_sizes) * max(len(request.contexts), 1) * each)
    with os.fdopen(told, encoding="utf-8") as lines:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _is_a_file(sys.stderr) else subprocess.DEVNULL,
                text=True,
                pass_fds=[tells],
                env={**environment, "PYTHONPATH": os.pathsep.join(path)},
            )
        except OSError as error:
            raise UserError(f"{found.python} of {found.python_variable} does not run ({error.strerror}); name another Python") from error
        finally:
            os.close(tells)
        try:
            assert child.stdin is not None
            with suppress(BrokenPipeError), child.stdin:
                json.dump(asdict(request), child.stdin)
            for line in lines:
                said = json.loads(line)
                if "user_error" in said:
                    raise UserError(said["user_error"])
                record = Record.from_json(said)
                emit(record)
                records.append(record)
                watcher.advance(each)
        except BaseException:
            child.kill()
            raise
        finally:
            code = child.wait()
    if code:
        raise RuntimeError(f"{found.python} ended with exit code {code} after {len(records)} records")
    return records


def _is_a_file(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False


def request_of(value: dict[str, Any]) -> BenchRequest:
    """The request that `asdict` and JSON made a dictionary with lists of."""
    given: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    return BenchRequest(**given)


def main(descriptor: int) -> int:
    """In the other Python: reads the request from stdin, and writes a line for each record."""
    from inferometer.bench.measurement.benchmark import benchmark

    with os.fdopen(descriptor, "w", encoding="utf-8") as out:

        def tell(value: dict[str, Any]) -> None:
            out.write(json.dumps(value, allow_nan=False) + "\n")
            out.flush()

        try:
            benchmark(request_of(json.load(sys.stdin)), lambda record: tell(record.to_json()))
        except UserError as error:
            tell({"user_error": str(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
