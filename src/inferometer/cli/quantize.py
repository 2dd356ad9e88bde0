"""`inferometer quantize`: writes a model in few bits to a folder that loads directly."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from inferometer.cli.options import add_model, at_least, rounded_formats
from inferometer.cli.progress import Bar
from inferometer.cli.quality import read_text
from inferometer.cli.streams import tell
from inferometer.errors import UserError
from inferometer.model.byte_size import gib
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES, KEPT_HEAD_FORMATS, ROUNDED_FORMATS, weight_format

WINDOWS, WINDOW = 32, 512


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model(parser)
    parser.add_argument("--quantize", required=True, metavar="FORMAT", help=rounded_formats())
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write, not there yet or empty; those above it are made"
    )
    parser.add_argument("--dtype", default="auto", metavar="auto|float32|float16|bfloat16", help="of all else (default: as it is stored)")
    group = parser.add_argument_group("calibration (without a text every number is rounded to its nearest)")
    group.add_argument(
        "--calibrate", type=Path, metavar="TEXT", help=f"a text in UTF-8 such as the model will meet, of {WINDOW} tokens at least"
    )
    group.add_argument("--windows", type=at_least(1), metavar="N", help=f"pieces of {WINDOW} tokens to take of it (default: {WINDOWS})")
    group.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="where to calibrate (default: the first GPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder and says where it is. Exit code 0."""
    form = weight_format(arguments.quantize, "float32")
    if form.name not in (*ROUNDED_FORMATS, *KEPT_HEAD_FORMATS):
        raise UserError(f"--quantize {arguments.quantize} cannot be written; use one of {', '.join(ROUNDED_FORMATS)}")
    name = DTYPE_ALIASES.get(arguments.dtype, arguments.dtype)
    if name not in ("auto", *COMPUTE_DTYPES):
        raise UserError(f"--dtype {arguments.dtype} is unknown; use auto, {', '.join(COMPUTE_DTYPES)}")
    if arguments.windows is not None and arguments.calibrate is None:
        raise UserError(f"--windows {arguments.windows} says how much of a text to take; add --calibrate, or leave it out")
    if str(arguments.output) == ".":
        raise UserError("-o must name a folder that is not there")
    text = None if arguments.calibrate is None else read_text("--calibrate", arguments.calibrate)

    from inferometer.engine.device import DTYPES
    from inferometer.engine.quantize import quantize

    written = quantize(
        arguments.model,
        form,
        arguments.output,
        dtype=None if name == "auto" else DTYPES[name],
        text=text,
        windows=arguments.windows or WINDOWS,
        device=arguments.device,
        progress=Bar,
        say=tell,
    )
    size = sum(path.stat().st_size for path in arguments.output.iterdir())
    if arguments.json:
        answer = {"model": written.model, "quantize": form.name, "path": str(arguments.output), "bytes": size}
        print(json.dumps(answer | {"calibration_tokens": written.calibration_tokens}, indent=2))
    else:
        seen = "" if written.calibration_tokens is None else f", calibrated on {written.calibration_tokens} tokens"
        print(f"{arguments.output}: {written.model} in {form.name}, {gib(size)}{seen}")
    return 0
