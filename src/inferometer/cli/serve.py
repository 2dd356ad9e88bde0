"""`inferometer serve`: serves a model over text-generation-inference's and OpenAI's HTTP interfaces."""

from __future__ import annotations

import argparse
import os

from inferometer.cli.options import add_model
from inferometer.errors import UserError
from inferometer.server.flags import add_flags, read_settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model(parser, "as --model-id")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it. Exit code 0, or 1 if the engine had died by then."""
    given = {name: value for name, value in vars(arguments).items() if name not in ("model", "command")}
    if arguments.model is not None:
        if given.get("model_id", arguments.model) != arguments.model:
            raise UserError(f"MODEL {arguments.model} and --model-id {given['model_id']} name two models; give one")
        given["model_id"] = arguments.model
    settings = read_settings(given, os.environ)

    from inferometer.server.life import serve

    return serve(settings)
