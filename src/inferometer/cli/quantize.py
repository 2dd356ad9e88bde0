"""`inferometer quantize`: writes a model in few bits to a folder that loads directly."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.cli.options import at_least
from inferometer.cli.progress import Bar
from inferometer.cli.quality import read_text
from inferometer.errors import UserError
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES, ROUNDED_FORMATS, WeightFormat, weight_format

if TYPE_CHECKING:
    from torch import Tensor

    from inferometer.kernels.quant_weight import QuantWeight

WINDOWS, WINDOW = 32, 512


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Hub id, folder, .gguf file or preset (default: the embedded model)")
    parser.add_argument("--quantize", required=True, metavar="FORMAT", help=f"of the layers' matrices: {', '.join(ROUNDED_FORMATS)}")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write, which must not be there")
    parser.add_argument("--dtype", default="auto", metavar="auto|float32|float16|bfloat16", help="of all else (default: as it is stored)")
    group = parser.add_argument_group("calibration (without a text every number is rounded to its nearest)")
    group.add_argument("--calibrate", type=Path, metavar="TEXT", help="a text in UTF-8 such as the model will meet")
    group.add_argument(
        "--windows", type=at_least(1), default=WINDOWS, metavar="N", help=f"pieces of {WINDOW} tokens to take of it (default: {WINDOWS})"
    )
    group.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="where to calibrate (default: the first GPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder and says where it is."""
    form = weight_format(arguments.quantize, "float32")
    if form.name not in ROUNDED_FORMATS:
        raise UserError(f"--quantize {arguments.quantize} cannot be written; use one of {', '.join(ROUNDED_FORMATS)}")
    name = DTYPE_ALIASES.get(arguments.dtype, arguments.dtype)
    if name not in ("auto", *COMPUTE_DTYPES):
        raise UserError(f"--dtype {arguments.dtype} is unknown; use auto, {', '.join(COMPUTE_DTYPES)}")
    text = None if arguments.calibrate is None else read_text("--calibrate", arguments.calibrate)

    import torch

    from inferometer.model.description import describe, with_weights
    from inferometer.model.families import family
    from inferometer.nn.formats.folder import QuantisedFolder, check_free, matrices_to_nearest
    from inferometer.nn.formats.stored import QuantisedSource
    from inferometer.nn.load import open_source
    from inferometer.nn.names import fitted

    check_free(arguments.output)
    description = with_weights(describe(arguments.model))
    kind = family(description.spec.family)
    with closing(open_source(description)) as source:
        if isinstance(source, QuantisedSource):
            raise UserError(f"{description.name} is in few bits already; use the checkpoint before quantisation")
        spec = fitted(description.spec, source, kind)
        folder = QuantisedFolder(description, source, spec, kind, form, None if name == "auto" else getattr(torch, name))
        matrices = matrices_to_nearest(source, spec, kind, form)
        replaced: dict[str, Tensor] = {}
        if text is not None:
            found, replaced = _calibrated(arguments, text, form)
            matrices = found.__getitem__
        with closing(Bar("quantize", "tensor")) as bar:
            bar.start(folder.tensors)
            folder.write(arguments.output, matrices, bar.advance, replaced=replaced)
    size = sum(path.stat().st_size for path in arguments.output.iterdir())
    if arguments.json:
        print(json.dumps({"model": description.name, "quantize": form.name, "path": str(arguments.output), "bytes": size}, indent=2))
    else:
        print(f"{arguments.output}: {description.name} in {form.name}, {size / 2**20:.1f} MiB")
    return 0


def _calibrated(arguments: argparse.Namespace, text: str, form: WeightFormat) -> tuple[dict[str, QuantWeight], dict[str, Tensor]]:
    """The matrices, and the norms that are no longer as they were; by parameter name, on the CPU."""
    import torch

    from inferometer.engine.device import resolve_device
    from inferometer.engine.llm import LLM
    from inferometer.nn.formats.calibration import calibrate
    from inferometer.nn.formats.layout import QuantLayout

    device = resolve_device(arguments.device)
    llm = LLM(arguments.model, device=str(device), dtype="float32" if device.type == "cpu" else "auto")
    if llm.spec.encoder:
        raise UserError(f"--calibrate predicts text, and {llm.spec.name} is an encoder; leave it out")
    if llm.tokenizer is None:
        raise UserError(f"{llm.spec.name} has no tokenizer for --calibrate; put its files into the model's folder")
    tokens = llm.tokenizer.encode(text)
    window = WINDOW if llm.context_limit is None else min(WINDOW, llm.context_limit)
    windows = [tokens[start : start + window] for start in range(0, len(tokens), window)][: arguments.windows]
    if len(tokens) < 2:
        raise UserError("--calibrate: the text has fewer than two tokens; give a longer one")
    matrices: dict[str, QuantWeight] = {}
    norms: dict[str, Tensor] = {}
    with closing(Bar("calibrate", "layer")) as bar:
        bar.start(llm.spec.layers)
        for layer in calibrate(llm.model, windows, QuantLayout.of(form, torch.device("cpu")), bar.advance):
            matrices |= {name: weight.to("cpu") for name, weight in layer.matrices.items()}
            norms |= {name: norm.cpu() for name, norm in layer.norms.items()}
    return matrices, norms
