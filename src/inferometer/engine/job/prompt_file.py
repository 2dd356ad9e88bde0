"""The prompts of a batch job: a JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from inferometer.errors import UserError, shown
from inferometer.schedule.sampling import ParameterError, SamplingParams
from inferometer.text.tokenizer import refuse_surrogates

PARAMETERS = tuple(field.name for field in fields(SamplingParams))
_KEYS = ("prompt", "prompt_token_ids", "id", *PARAMETERS)


@dataclass(frozen=True, slots=True)
class JobPrompt:
    """A prompt of a job. index: its place among all, from 0. line: of the file, from 1. id: the file's own name for it, if it has one.

    prompt: a text, or token ids. params: the job's, with what the line says in their place.
    """

    index: int
    line: int
    id: str | int | None
    prompt: str | list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class PromptFile:
    """All prompts of a file. digest: SHA-256 of its bytes."""

    path: Path
    digest: str
    prompts: tuple[JobPrompt, ...]


def read_prompts(path: Path, params: SamplingParams) -> PromptFile:
    """The prompts of a file of JSON lines; empty lines are passed over.

    A line is {"prompt": text} or {"prompt_token_ids": [...]}, perhaps with an "id" and with parameters of SamplingParams by their names.
    params: what holds where a line says nothing. Raises UserError that names the line and what is wrong with it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"--input {path}: {error.strerror}; name a file with a JSON object on each line") from None
    asked = asdict(params)
    prompts: list[JobPrompt] = []
    lines: dict[str | int, int] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, asked, len(prompts), number)
        except UserError as error:
            raise UserError(f"--input {path}, line {number}: {error}") from None
        if prompt.id is not None and lines.setdefault(prompt.id, number) != number:
            raise UserError(f"--input {path}, line {number}: the id {json.dumps(prompt.id)} is that of line {lines[prompt.id]}, too")
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"--input {path}: has no prompts; give it lines such as " + '{"prompt": "Hello"}')
    return PromptFile(path, hashlib.sha256(content).hexdigest(), tuple(prompts))


def _prompt(line: bytes, asked: Mapping[str, Any], index: int, number: int) -> JobPrompt:
    given = _object(line)
    for key in given:
        if key not in _KEYS:
            raise UserError(f"{_shown(key)} is unknown; there are prompt, prompt_token_ids, id and the parameters {', '.join(PARAMETERS)}")
    if ("prompt" in given) == ("prompt_token_ids" in given):
        raise UserError("give either prompt, a text, or prompt_token_ids, a list of whole numbers")
    name = given.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int | None):
        raise UserError(f"id must be a text or a whole number, not {_shown(name)}")
    if isinstance(name, str) and any("\ud800" <= character <= "\udfff" for character in name):
        raise UserError(f"the id {_shown(name)} holds a lone surrogate, which no file can: remove it")
    params = {**asked, **{key: value for key, value in given.items() if key in PARAMETERS}}
    if "logit_bias" in given and isinstance(given["logit_bias"], dict):
        params["logit_bias"] = {_token(token_id): bias for token_id, bias in given["logit_bias"].items()}
    for key in ("stop", "stop_token_ids"):
        if given.get(key, ()) is None:
            params[key] = ()
    try:
        return JobPrompt(index, number, name, _tokens(given), SamplingParams(**params))
    except ParameterError as error:
        raise UserError(f"{error.rule}, not {_shown(error.value)}") from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode(), parse_constant=_no_number, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text at byte {error.start}") from None
    except RecursionError:
        raise UserError("is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UserError('must be a JSON object such as {"prompt": "Hello"}')
    return found


def _tokens(given: Mapping[str, Any]) -> str | list[int]:
    if "prompt" in given:
        text = given["prompt"]
        if not isinstance(text, str):
            raise UserError(f"prompt must be a text, not {_shown(text)}; token ids go into prompt_token_ids")
        refuse_surrogates(text)  # here, as a chat template puts it elsewhere in its own text
        return text
    ids = given["prompt_token_ids"]
    if not isinstance(ids, list) or not ids or any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise UserError("prompt_token_ids must be a list of at least one whole number")
    return ids


def _token(text: str) -> int | str:
    """JSON's keys are texts; what is no whole number is left to be refused by name."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise UserError(f"{_shown(twice)} is given twice; give it once")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _shown(value: object) -> str:
    """As the file spells it."""
    return shown(value, json.dumps)
