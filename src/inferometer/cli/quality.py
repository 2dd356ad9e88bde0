"""`inferometer quality`: what a number format costs a model, in perplexity on a text."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.cli.options import add_format_options, add_model, add_parallel_options, at_least, tensor_parallel
from inferometer.cli.progress import Bar
from inferometer.cli.streams import tell
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.engine.llm import LLM

WINDOW = 1024
FEW_TOKENS = 32
"""Below so many predictions a mean over them is chance."""
LONG_S = 30.0
"""What takes longer than this from where its pace is known is said to."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model(parser)
    parser.add_argument("--file", type=Path, required=True, metavar="TEXT", help="a text in UTF-8 that the models predict token by token")
    parser.add_argument("--reference", metavar="MODEL", help="what to compare with (default: MODEL as it is stored)")
    parser.add_argument(
        "--sequence-length", type=at_least(2), metavar="N", help=f"tokens of the windows that the text is cut into (default: {WINDOW})"
    )
    add_format_options(parser)
    add_parallel_options(parser)
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer's folder or file (default: the model's)")
    parser.add_argument("--dtype", default="auto", help="of activations, in both models (default: float32 on a CPU, else the checkpoint's)")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="where to run (default: the first GPU, else the CPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Prints perplexities, divergence and agreement. Exit code 0."""
    if arguments.quantize is None and arguments.kv_dtype == "auto" and arguments.reference is None:
        raise UserError("quality compares a format with the model as it is: give --quantize, --kv-dtype or --reference MODEL")
    text = read_text("--file", arguments.file)

    from inferometer.engine.device import resolve_device
    from inferometer.engine.llm import LLM
    from inferometer.engine.quality import must_predict, quality

    device = str(resolve_device(arguments.device))
    dtype = "float32" if arguments.dtype == "auto" and device == "cpu" else arguments.dtype
    other = LLM(
        arguments.model,
        quantize=arguments.quantize,
        kv_dtype=arguments.kv_dtype,
        dtype=dtype,
        device=device,
        tokenizer=arguments.tokenizer,
        tensor_parallel=tensor_parallel(arguments),
    )
    must_predict(other)  # before another model is loaded
    dtype = str(other.dtype).removeprefix("torch.")
    reference = LLM(
        arguments.reference or arguments.model, dtype=dtype, device=device, tokenizer=arguments.tokenizer, tensor_parallel=other.ranks
    )
    tokens, window = _tokens(other, text), _window((other, reference), arguments.sequence_length)
    with closing(Bar("quality", "token")) as bar:
        bar.start(len(tokens))
        found = quality(reference, other, tokens, window, _foretelling(bar, len(tokens), window))
    if found.tokens < FEW_TOKENS:
        predicted = f"only {found.tokens} tokens were" if found.tokens > 1 else "only one token was"
        tell(f"{predicted} predicted, which says nothing of a format; give a longer text")
    answer = {
        "model": other.spec.name,
        "quantize": arguments.quantize,
        "kv_dtype": None if arguments.kv_dtype == "auto" else arguments.kv_dtype,
        "dtype": dtype,
        "sequence_length": window,
        **{name: value if math.isfinite(value) else None for name, value in asdict(found).items()},
    }
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
        return 0
    change = 100 * (found.perplexity / found.reference_perplexity - 1)
    print(f"perplexity            {found.perplexity:.4f} ({change:+.2f} %)")
    print(f"reference perplexity  {found.reference_perplexity:.4f}")
    print(f"KL divergence         {found.kl_divergence:.6f} nats a token")
    print(f"top-1 agreement       {100 * found.top1_agreement:.2f} %")
    print(f"tokens                {found.tokens} in windows of {window}")
    return 0


def _foretelling(bar: Bar, tokens: int, window: int) -> Callable[[int], None]:
    """Counts tokens; where no bar is shown, the first of them tell how long the rest takes, if that is long."""
    told = False

    def advance(count: int) -> None:
        nonlocal told
        bar.advance(count)
        left = bar.seconds_left()
        if left is None or told:
            return
        told = True
        if left > LONG_S:
            tell(f"{tokens} tokens in windows of {window} take about {left:.0f} s more")

    return advance


def read_text(option: str, file: Path) -> str:
    """The text in a file that an option names, without a mark of byte order in front. Raises UserError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{option} {file}: {error.strerror or error}; give a text file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {file} is not UTF-8 text at byte {error.start}; convert it first") from None


def _tokens(llm: LLM, text: str) -> list[int]:
    if llm.tokenizer is None:
        raise UserError(f"{llm.spec.name} has no tokenizer; name one with --tokenizer PATH")
    tokens = llm.tokenizer.encode(text)
    if len(tokens) < 2:
        raise UserError("--file has fewer than two tokens; give a longer text")
    wrong = next((token for token in tokens if not 0 <= token < llm.spec.vocabulary), None)
    if wrong is not None:
        raise UserError(f"the tokenizer gives token {wrong}, and {llm.spec.name} has {llm.spec.vocabulary}; name its own with --tokenizer")
    return tokens


def _window(models: Sequence[LLM], asked: int | None) -> int:
    """Of tokens that all models can hold."""
    window = WINDOW if asked is None else asked
    for model in models:
        limit = model.context_limit
        if limit is not None and window > limit:
            if asked is not None:
                raise UserError(
                    f"--sequence-length {asked} is more than the {limit} tokens that {model.spec.name} can hold; use at most {limit}"
                )
            window = limit
    return window
