"""`inferometer generate`: continues prompts, the text streaming to stdout as it comes."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from inferometer.cli.options import (
    MODEL_HELP,
    add_admission_options,
    add_format_options,
    add_model_options,
    add_offload_options,
    add_parallel_options,
    add_sampling_options,
    at_least,
    named_by_flags,
    sampling_params,
    tensor_parallel,
)
from inferometer.cli.progress import Bar
from inferometer.cli.streams import tell
from inferometer.errors import UserError
from inferometer.model.presets import preset
from inferometer.schedule.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inferometer.engine.llm import LLM
    from inferometer.schedule.completion import Completion, StreamedToken

_DECIDING: Final = ("model", "weights", "tokenizer", "dtype", "quantize", "kv_dtype", "deterministic", "seed", "raw", "system")
"""Options that decide a job's results, beside those of sampling. Order, memory and where weights lie do not."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="texts to continue (default: all of standard input, as one)")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    job = parser.add_argument_group("batch job, in place of PROMPT")
    job.add_argument(
        "--input", type=Path, metavar="FILE", help='prompts, a JSON object a line: {"prompt": "..."}, with parameters of its own'
    )
    job.add_argument("--output", type=Path, metavar="FILE", help="results, a JSON object a line; the same command again goes on with it")
    group = parser.add_argument_group("prompt")
    group.add_argument("--raw", action="store_true", help="continue the text itself, without the model's chat template")
    group.add_argument("--system", metavar="TEXT", help="system message for the chat template")
    length = parser.add_argument_group("length")
    length.add_argument("--max-new-tokens", type=at_least(1), default=64, metavar="N", help="most tokens to generate (default: 64)")
    length.add_argument("--min-new-tokens", type=at_least(0), default=0, metavar="N", help="no end before N tokens")
    length.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end after this text; repeatable")
    length.add_argument("--ignore-eos", action="store_true", help="go on past the model's end token")
    add_sampling_options(parser)
    penalties = parser.add_argument_group("penalties")
    penalties.add_argument("--frequency-penalty", type=float, metavar="F", help="taken off a token's score for each time it was generated")
    penalties.add_argument("--presence-penalty", type=float, metavar="F", help="taken off a token's score once it was generated")
    add_admission_options(parser, default="continuous", meaning="continuous")
    add_model_options(parser)
    add_format_options(parser)
    add_offload_options(parser)
    add_parallel_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document when all is done, instead of streaming")


def run(arguments: argparse.Namespace) -> int:
    """Streams the continuations, or prints them as JSON; with --input runs a batch job. Exit code 0."""
    params = sampling_params(
        arguments,
        max_new_tokens=arguments.max_new_tokens,
        min_new_tokens=arguments.min_new_tokens,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
    )
    if arguments.raw and arguments.system is not None:
        raise UserError("--system goes into the chat template, which --raw leaves out; drop one of them")
    if arguments.input is not None or arguments.output is not None:
        return _run_job(arguments, params)
    prompts = arguments.prompt or [_standard_input()]
    if len(prompts) > 1 and _names_a_model(prompts[0]):
        tell(f"warning: {prompts[0]} is a prompt here, and the model is another; --model {prompts[0]} loads it")
    with named_by_flags(), _open(arguments) as llm:
        encode = _encoder(llm, arguments)
        tokens = llm.stream([encode(prompt) for prompt in prompts], params)
        if arguments.json:
            completions = {token.prompt: token.completion for token in tokens if token.completion is not None}
            answer = [_answer(prompt, completions[place]) for place, prompt in enumerate(prompts)]
            print(json.dumps({"model": llm.spec.name, "completions": answer}, indent=2, allow_nan=False))
        else:
            _print(tokens, len(prompts))
    return 0


def _names_a_model(text: str) -> bool:
    """Whether other commands would take it for the model."""
    try:
        return preset(text) is not None or text.endswith(".gguf") or (Path(text) / "config.json").is_file()
    except OSError:  # too long for a path
        return False


def _run_job(arguments: argparse.Namespace, params: SamplingParams) -> int:
    if arguments.input is None or arguments.output is None:
        raise UserError("--input and --output go together: prompts come from one file and results go to another")
    if arguments.prompt or arguments.json:
        raise UserError("--input takes the place of PROMPT, and --output that of --json; leave those out")
    if arguments.output.exists() and arguments.input.exists() and arguments.output.samefile(arguments.input):
        raise UserError(f"--output {arguments.output}: is the input; name another file")
    from inferometer.engine.job.job import job_name, run_job
    from inferometer.engine.job.prompt_file import read_prompts
    from inferometer.engine.job.result_file import ResultFile

    prompts = read_prompts(arguments.input, params)
    settings = {name: getattr(arguments, name) for name in _DECIDING} | {"params": dataclasses.asdict(params)}
    count = len(prompts.prompts)
    with ResultFile(arguments.output, job_name(prompts, settings), count) as results:
        if results.torn_bytes:
            torn = f"{results.torn_bytes} bytes of a last line that a crash had torn are taken off; its prompt runs again"
            tell(f"warning: --output {arguments.output}: {torn}")
        if len(results.done) == count:
            return 0
        bar = Bar("generate", "prompt")
        with _open(arguments) as llm:
            bar.start(count)
            bar.advance(len(results.done))
            try:
                run_job(llm, prompts, results, _encoder(llm, arguments), bar.advance)
            finally:
                bar.close()
    return 0


def _open(arguments: argparse.Namespace) -> LLM:
    from inferometer.engine.llm import LLM

    return LLM(
        arguments.model,
        dtype=arguments.dtype,
        device=arguments.device,
        weights=cast(Literal["auto", "dummy"], arguments.weights),
        tokenizer=arguments.tokenizer,
        quantize=arguments.quantize,
        kv_dtype=arguments.kv_dtype,
        tensor_parallel=tensor_parallel(arguments),
        admission=arguments.admission,
        group_size=arguments.group_size,
        num_groups=arguments.num_groups,
        offload=arguments.offload,
        percent=arguments.percent,
        host_memory=arguments.host_memory,
        disk=arguments.disk,
        gpu_memory=arguments.gpu_memory,
        deterministic=arguments.deterministic,
        seed=arguments.seed,
    )


def _standard_input() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no prompt: give PROMPT, or text on standard input")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # some locales let pass what is no text
    try:
        text = sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not {error.encoding} text at byte {error.start}; convert it, or set PYTHONUTF8=1") from None
    if not text:
        raise UserError("no prompt: standard input was empty; give PROMPT, or text there")
    return text


def _encoder(llm: LLM, arguments: argparse.Namespace) -> Callable[[str], str | list[int]]:
    """What makes of a prompt what the model continues: with a chat template, the token ids of a user's message."""
    from inferometer.text.chat import ChatTemplate

    tokenizer = llm.tokenizer
    template = None if arguments.raw or tokenizer is None else ChatTemplate.of(tokenizer)
    if template is None or tokenizer is None:
        if arguments.system is not None:
            raise UserError(f"--system needs a chat template, and {llm.spec.name} has none; put the text into the prompt")
        return lambda prompt: prompt
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    # The template has written the special tokens itself.
    return lambda prompt: tokenizer.encode(template.render([*system, {"role": "user", "content": prompt}]), special=False)


def _print(tokens: Iterable[StreamedToken], prompts: int) -> None:
    """Streams one prompt's text at a time, in order; what comes for later ones meanwhile is kept until it is their turn."""
    waiting: dict[int, list[str]] = {place: [] for place in range(prompts)}
    finished = set()
    turn = 0
    _begin(turn, prompts)
    for token in tokens:
        waiting[token.prompt].append(token.text)
        if token.completion is not None:
            finished.add(token.prompt)
        while turn < prompts:
            sys.stdout.write("".join(waiting[turn]))
            sys.stdout.flush()
            waiting[turn].clear()
            if turn not in finished:
                break
            sys.stdout.write("\n")
            turn += 1
            _begin(turn, prompts)


def _begin(turn: int, prompts: int) -> None:
    if prompts > 1 and turn < prompts:
        sys.stdout.write(f"--- {turn + 1}/{prompts} ---\n")
        sys.stdout.flush()


def _answer(prompt: str, completion: Completion) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_token_ids": completion.prompt_token_ids,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "seed": completion.seed,
    }
