"""Entry point: finds the command, runs it, and turns every way of ending into an exit code and at most one line on stderr."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Protocol, cast

from inferometer import __version__
from inferometer.cli.interrupts import interrupts
from inferometer.cli.parser import Parser
from inferometer.cli.streams import standard_output, tell
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import RunError, UserError, warn_in_one_line

# Each is a module of this package with `configure(parser)` and `run(arguments) -> exit code`.
COMMANDS = {
    "generate": "continue prompts, streaming to the terminal",
    "serve": "serve a model over HTTP, for text-generation-inference and OpenAI clients",
    "bench": "measure prefill and decode at several batch sizes",
    "study": "run sets of cases over several stacks, to tables that were published",
    "estimate": "predict times, memory and energy on any device, beside the bound",
    "validate": "compare predictions with published measurements, by regime",
    "quantize": "write a model in few bits to a folder that loads directly",
    "quality": "measure what a number format costs a model: perplexity, divergence, agreement",
    "report": "make a document or a page of records, or compare old records with new ones",
    "models": "list the known models; fetch an embedded one",
    "devices": "list the known devices, detect what is here, calibrate it",
}

SHARED = ("generate", "serve", "bench", "quality")
"""Commands that run on all processes of torchrun's: number 0 runs the command, the others follow it."""

ENDED_BY_SIGNALS = ("serve",)
"""Commands for which a signal is no interruption but the way to end them, also before they have begun."""

DONE, FAILED, USAGE, CASES_FAILED, INTERRUPTED = 0, 1, 2, 3, 130

_OF_A_PATH = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP})
"""What may be wrong with a path that a user named, and is found out by whoever first looks for it."""

_EXTRAS = (
    {"transformers": "hf", "accelerate": "hf"}
    | dict.fromkeys(("torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "tqdm"), "run")
    | dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn", "httptools", "prometheus_client", "opentelemetry"), "server")
)


class Command(Protocol):
    """A command's module."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The command line. Only the chosen command's module is imported; all, to have their help, if that is None."""
    top = Parser(prog="inferometer", description="Runs, serves, measures and predicts transformer inference.")
    top.add_argument("--version", action="version", version=f"inferometer {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            _module(name).configure(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with standard_output() as output:
        code, line = _ended(given)
        with suppress(OSError):  # which it remembers
            output.flush()
        if output.failure is not None:  # whatever came of it
            output.drop()
            if isinstance(output.failure, BrokenPipeError):
                return DONE  # whoever read it has seen enough
            code, line = FAILED, f"error: the standard output takes no more: {output.failure.strerror}; send it somewhere else"
    if line is not None:
        tell(line)
    return code


def _ended(given: list[str]) -> tuple[int, str | None]:
    """The exit code of a command line, and the line that says why it is not that of a command that ran."""
    try:
        with interrupts():
            return _run(given), None
    except UserError as error:
        return FAILED if isinstance(error, RunError) else USAGE, f"error: {error}"
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            return FAILED, _unexpected(error)
        return USAGE, f"error: this needs {package}, which is not installed; pip install 'inferometer[{_EXTRAS[package]}]'"
    except KeyboardInterrupt:
        return (DONE, None) if _chosen(given) in ENDED_BY_SIGNALS else (INTERRUPTED, "interrupted")
    except OSError as error:
        if error.filename is None or error.errno not in _OF_A_PATH:
            return FAILED, _unexpected(error)
        return USAGE, f"error: {error.filename}: {error.strerror}; name another, or change who may read it"
    except Exception as error:  # noqa: BLE001  (the last place that can turn it into one line)
        return FAILED, _unexpected(error)


def _dispatch(given: list[str]) -> int:
    try:
        arguments = parser(_chosen(given)).parse_args(given)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    with warnings.catch_warnings():
        warn_in_one_line()
        return _module(arguments.command).run(arguments)


def _chosen(given: list[str]) -> str | None:
    return next((word for word in given if not word.startswith("-")), None)


def _run(given: list[str]) -> int:
    """The command, or what this process has to do of it, if torchrun has started it with others."""
    here = Torchrun.of() if _chosen(given) in SHARED else None
    if here is None:
        return _dispatch(given)
    if here.rank:
        from inferometer.engine.parallel.follower import follow

        return follow(here)
    try:
        return _dispatch(given)
    finally:
        here.end()


def _module(name: str) -> Command:
    return cast(Command, import_module(f"inferometer.cli.{name}"))


def _unexpected(error: Exception) -> str:
    if os.environ.get("INFEROMETER_DEBUG"):
        traceback.print_exc()
    return f"error: {type(error).__name__}: {error} (INFEROMETER_DEBUG=1 shows where)"
