"""A batch job: prompts of a file through a model, each result on disk as soon as it is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferometer.engine.job.prompt_file import JobPrompt, PromptFile
from inferometer.engine.job.result_file import ResultFile
from inferometer.errors import UserError
from inferometer.schedule.request import request_seed

if TYPE_CHECKING:
    from inferometer.engine.llm import LLM
    from inferometer.schedule.completion import Completion

Encode = Callable[[str], str | list[int]]
"""From a prompt's text to what the model continues: the text itself, or the token ids of a chat."""


def job_name(prompts: PromptFile, settings: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits for the prompts and whatever else decides their results."""
    told = json.dumps({"input": prompts.digest, **settings}, sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def run_job(llm: LLM, prompts: PromptFile, results: ResultFile, encode: Encode, told: Callable[[int], None]) -> None:
    """Runs all prompts that have no result yet, and writes each result as its prompt ends.

    told: hears how many more have ended. All prompts are checked before any runs. Raises UserError that names the line of one that cannot
    run, RunError where results cannot be written.

    A prompt that draws its tokens and names no seed has one of its own, made of the model's and its index: what it gets does not depend on
    when the job was interrupted.
    """
    left = [prompt for prompt in prompts.prompts if prompt.index not in results.done]
    rows: list[list[int]] = []
    params = []
    for prompt in left:
        own = prompt.params
        params.append(own if own.seed is not None else replace(own, seed=request_seed(llm.seed, prompt.index)))
        try:
            row = encode(prompt.prompt) if isinstance(prompt.prompt, str) else prompt.prompt
            rows.append(llm.check(row, params[-1]))
        except UserError as error:
            raise UserError(f"--input {prompts.path}, line {prompt.line}: {error}") from None
    with closing(llm.completions(rows, params)) as ended:
        for place, completion in ended:
            results.append(left[place].index, result(left[place], completion))
            told(1)


def result(prompt: JobPrompt, completion: Completion) -> dict[str, Any]:
    """What a line of the results says of a prompt, beside its index."""
    found: dict[str, Any] = {} if prompt.id is None else {"id": prompt.id}
    found |= {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(completion.prompt_token_ids),
        "token_ids": completion.token_ids,
        "logprobs": _finite(completion.logprobs),
    }
    if completion.prompt_logprobs is not None:
        found["prompt_logprobs"] = _finite(completion.prompt_logprobs)
    if completion.top_logprobs is not None:
        found["top_logprobs"] = [[[token, *_finite([logprob])] for token, logprob in top] for top in completion.top_logprobs]
    if completion.seed is not None:
        found["seed"] = completion.seed
    return found


def _finite(numbers: Sequence[float | None]) -> list[float | None]:
    """JSON has no infinity: what the model gives no probability at all is null."""
    return [None if number is None or number == float("-inf") else number for number in numbers]
