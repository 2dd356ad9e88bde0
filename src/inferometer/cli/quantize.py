"""`inferometer quantize`: writes a model in few bits to a folder that loads directly."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from inferometer.cli.progress import Bar
from inferometer.errors import UserError
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES, ROUNDED_FORMATS, weight_format


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Hub id, folder, .gguf file or preset (default: the embedded model)")
    parser.add_argument("--quantize", required=True, metavar="FORMAT", help=f"of the layers' matrices: {', '.join(ROUNDED_FORMATS)}")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write, which must not be there")
    parser.add_argument("--dtype", default="auto", metavar="auto|float32|float16|bfloat16", help="of all else (default: as it is stored)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder and says where it is."""
    form = weight_format(arguments.quantize, "float32")
    if form.name not in ROUNDED_FORMATS:
        raise UserError(f"--quantize {arguments.quantize} cannot be written; use one of {', '.join(ROUNDED_FORMATS)}")
    name = DTYPE_ALIASES.get(arguments.dtype, arguments.dtype)
    if name not in ("auto", *COMPUTE_DTYPES):
        raise UserError(f"--dtype {arguments.dtype} is unknown; use auto, {', '.join(COMPUTE_DTYPES)}")

    import torch

    from inferometer.model.description import describe, with_weights
    from inferometer.model.families import family
    from inferometer.nn.formats.folder import QuantisedFolder, matrices_to_nearest
    from inferometer.nn.formats.stored import QuantisedSource
    from inferometer.nn.load import open_source
    from inferometer.nn.names import fitted

    description = with_weights(describe(arguments.model))
    kind = family(description.spec.family)
    with closing(open_source(description)) as source, closing(Bar("quantize", "tensor")) as bar:
        if isinstance(source, QuantisedSource):
            raise UserError(f"{description.name} is in few bits already; use the checkpoint before quantisation")
        spec = fitted(description.spec, source, kind)
        folder = QuantisedFolder(description, source, spec, kind, form, None if name == "auto" else getattr(torch, name))
        bar.start(folder.tensors)
        folder.write(arguments.output, matrices_to_nearest(source, spec, kind, form), bar.advance)
    size = sum(path.stat().st_size for path in arguments.output.iterdir())
    if arguments.json:
        print(json.dumps({"model": description.name, "quantize": form.name, "path": str(arguments.output), "bytes": size}, indent=2))
    else:
        print(f"{arguments.output}: {description.name} in {form.name}, {size / 2**20:.1f} MiB")
    return 0
