"""Options that several commands share, and the values that they take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferometer.cli.parser import Once
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError
from inferometer.model.formats import KEPT_HEAD, ROUNDED_FORMATS
from inferometer.schedule.admission import ADMISSIONS
from inferometer.schedule.groups import GROUP_SIZE
from inferometer.schedule.sampling import SEEDS, NamedError, SamplingParams

MODEL_HELP = "Hub id, folder, .gguf file or preset (default: the embedded model)"


class _Model(Once):
    """Keeps which model a command is of, whether it stands by itself or behind --model, and refuses two."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if values is None:
            return  # nothing stands by itself
        before = namespace.model
        super().__call__(parser, namespace, values, option_string)
        if before not in (None, values):
            alone, behind = (before, values) if option_string else (values, before)
            raise UserError(f"MODEL {alone} and --model {behind} name two models; give one")


def add_model(parser: argparse.ArgumentParser, meaning: str = MODEL_HELP) -> None:
    """Which model a command is of: `model`, None if none is named. meaning: what the help says of it."""
    parser.add_argument("model", nargs="?", metavar="MODEL", action=_Model, help=meaning)
    parser.add_argument("--model", metavar="MODEL", action=_Model, default=None, help="the same")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded and run."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--weights", choices=("auto", "dummy"), default="auto", help="dummy: random, seeded, nothing to download (default: auto)"
    )
    group.add_argument(
        "--tokenizer", metavar="PATH|byte", help="a tokenizer's folder or file, or byte: one token a byte (default: the model's)"
    )
    group.add_argument("--dtype", default="auto", metavar="auto|float32|float16|bfloat16", help="number format of weights and activations")
    group.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="where to run (default: the first GPU, else the CPU)")
    group.add_argument(
        "--gpu-memory",
        type=positive_number,
        metavar="GIB",
        help="most memory to take on the device (a CPU without --offload: for the cache)",
    )
    group.add_argument(
        "--deterministic", action="store_true", help="equal to the bit in any batch: a prompt's tokens and log-probabilities"
    )
    group.add_argument("--seed", type=seed, default=0, help="of dummy weights, random prompts and sampling (default: 0)")


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    """Over how many devices the model is spread."""
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--tensor-parallel",
        type=at_least(1),
        metavar="N",
        help="spread every layer over N GPUs, or N processes on a CPU (default: 1; under torchrun all that it has started)",
    )


def tensor_parallel(arguments: argparse.Namespace) -> int:
    """How many that is."""
    if arguments.tensor_parallel is not None:
        return int(arguments.tensor_parallel)
    here = Torchrun.of()
    return 1 if here is None else here.size


def rounded_formats() -> str:
    """What helps with --quantize."""
    return f"of the layers' matrices, with a head in int8: {', '.join(ROUNDED_FORMATS)}; with {KEPT_HEAD} behind it the head stays as it is"


def add_format_options(parser: argparse.ArgumentParser) -> None:
    """In what formats the model is held."""
    group = parser.add_argument_group("formats")
    group.add_argument("--quantize", metavar="FORMAT", help=rounded_formats())
    group.add_argument("--kv-dtype", default="auto", metavar="auto|fp8|int8", help="of the KV cache (default: as activations)")


def add_offload_options(parser: argparse.ArgumentParser) -> None:
    """What lives elsewhere than on the device."""
    group = parser.add_argument_group("offloading: for models and caches that do not fit; the tokens are the same")
    group.add_argument(
        "--offload", metavar="WHAT", help="weights, weights:FRACTION, pages (the KV cache), or weights and pages with a comma between"
    )
    group.add_argument(
        "--percent",
        nargs=6,
        type=int,
        metavar=("W_GPU", "W_CPU", "C_GPU", "C_CPU", "A_GPU", "A_CPU"),
        help="instead, FlexGen's six numbers: percent of weights, cache and activations on GPU and host; the rest of the weights on --disk",
    )
    group.add_argument("--host-memory", type=positive_number, metavar="GIB", help="most host memory to take for it (default: what is free)")
    group.add_argument(
        "--disk", metavar="DIR", help="folder for the weights that the host's memory has no room for; made with all above it if missing"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """The sampling options that generate and bench have in common. Unset is None."""
    group = parser.add_argument_group("sampling (greedy unless one of these asks for more)")
    group.add_argument("--do-sample", action="store_true", help="draw tokens at random")
    group.add_argument("--temperature", type=float, metavar="T", help="divides the logits; 0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that together have probability P")
    group.add_argument("--typical-p", type=float, metavar="P", help="draw from the tokens of typical information, together P")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: tokens seen before become less likely")
    group.add_argument("--watermark", action="store_true", help="mark the text statistically")


def add_admission_options(parser: argparse.ArgumentParser, *, default: str | None, meaning: str) -> None:
    """In which order requests run. `default` is the admission if none is given, and `meaning` what the help calls that."""
    group = parser.add_argument_group("admission: which requests run together; the tokens are the same")
    group.add_argument("--admission", choices=ADMISSIONS, default=default, help=f"the order in which requests run (default: {meaning})")
    group.add_argument("--group-size", type=at_least(1), metavar="N", help=f"requests a group; not for continuous (default: {GROUP_SIZE})")
    group.add_argument(
        "--num-groups", type=at_least(1), metavar="N", help="most groups at once; zigzag, diagonal (default: as many as fit)"
    )


def add_tuning_option(group: argparse._ArgumentGroup, *, default: float | None, meaning: str) -> None:
    """How long a model's launches may be measured before a case of the native backend."""
    group.add_argument(
        "--tuning-seconds",
        type=number_of_seconds,
        default=default,
        metavar="S",
        help=f"most time to measure the native backend's launches for a number of rows, on a GPU; 0: none (default: {meaning})",
    )


def sampling_params(arguments: argparse.Namespace, **more: Any) -> SamplingParams:
    """SamplingParams of what was given. Raises UserError that names the flag where a value is out of range."""
    names = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
    given = {name: getattr(arguments, name, None) for name in names}
    wanted = {name: value for name, value in given.items() if value is not None} | more
    with named_by_flags():
        return SamplingParams(do_sample=arguments.do_sample, watermark=arguments.watermark, **wanted)


@contextmanager
def named_by_flags() -> Iterator[None]:
    """What is refused within is told by the flags, and not by the names that their parameters have in Python."""
    try:
        yield
    except NamedError as error:
        raise UserError(error.told(_flag)) from error


def _flag(parameter: str) -> str:
    """That sets it, each time for one of its items."""
    return f"--{parameter.partition('[')[0].replace('_', '-')}"


def at_least(least: int) -> Any:
    """An argparse type: a whole number of at least `least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        return value

    return read


def seed(text: str) -> int:
    """An argparse type: a whole number of 64 bits, not negative."""
    value: int = at_least(0)(text)
    if value >= SEEDS:
        raise argparse.ArgumentTypeError(f"must be below 2^64, not {value}")
    return value


def finite(text: str) -> float:
    """A finite number; NaN, which is neither above nor below any, for what is none."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def positive_number(text: str) -> float:
    """An argparse type: a finite number above 0."""
    value = finite(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def number_of_seconds(text: str) -> float:
    """An argparse type: a finite number that is not below 0."""
    value = finite(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return value


def svg_file(text: str) -> Path:
    """An argparse type: a file for an SVG image, so that no other kind of image is expected of it."""
    path = Path(text)
    if path.suffix.lower() != ".svg":
        raise argparse.ArgumentTypeError(f"{text}: what is drawn is an SVG image; name a file that ends in .svg")
    return path
