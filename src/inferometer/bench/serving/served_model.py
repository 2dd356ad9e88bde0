"""What is served at an address, and in which words it is asked: found out by asking."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import PurePath
from typing import Any

from inferometer.bench.backends.request import Api
from inferometer.bench.serving.dialect import Dialect, OpenAIDialect, Prompt, TgiDialect
from inferometer.bench.serving.http_connection import Address, Connection, HttpError, fetch
from inferometer.bench.serving.load_client import LoadClient
from inferometer.bench.serving.served_prompts import Codec, cut_prompts, fitted_prompts, token_prompts
from inferometer.errors import UserError

_ASK_SECONDS = 60.0
_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """name: as it is asked for. dtype, version: as the server has them, None where it does not say."""

    address: Address
    url: str
    api: Api
    name: str
    dtype: str | None
    version: str | None

    @property
    def label(self) -> str:
        """The model's name in a record; of a folder, its last part."""
        return PurePath(self.name).name if self.name.startswith(("/", ".", "~")) else self.name

    def dialect(self, prompt_tokens: int) -> Dialect:
        """What it is asked in at first; `settle` finds out whether it takes that."""
        return OpenAIDialect(self.name) if self.api == "openai" else TgiDialect(prompt_tokens)

    async def settle(self, dialect: Dialect, prompt: Prompt, new_tokens: int, seconds: float) -> Dialect:
        """The dialect with as much of it as the server takes. Raises UserError with the server's words where it takes nothing."""
        tried: Sequence[Dialect] = [dialect]
        if isinstance(dialect, OpenAIDialect):
            tried = [OpenAIDialect(self.name, forces=forces, counts=counts) for forces, counts in product((True, False), repeat=2)]
        failure = ("", "")
        for each in tried:
            with closing(Connection(self.address)) as connection:
                answer = await LoadClient(self.address, each, seconds=seconds).ask(connection, encoded(each, prompt, new_tokens), 0.0)
            if answer.failure is None:
                return each
            failure = answer.failure
            if failure[0] not in ("http 400", "http 422"):
                break
        raise UserError(
            f"--url {self.url}: a first request was not served ({failure[0]}: {failure[1]}); start the server for such requests"
        )

    async def prompts(self, codec: Codec | None, seed: str, count: int, length: int) -> Sequence[Prompt]:
        """`count` different prompts of `length` tokens, as exactly as the API allows without the model's tokenizer.

        Raises UserError where the server does not take a prompt of that length.
        """
        if self.api == "tgi":
            return cut_prompts(seed, count, length)
        if codec is not None:
            return token_prompts(codec, seed, count, length)

        counter = _Counter(self, length)
        made = await fitted_prompts(counter.count, seed, count, length)
        if counter.refused is not None and await counter.count(str(made[0])) != length:
            raise UserError(f"--url {self.url}: a prompt of --sequence-length {length} is not served: {counter.refused}; use a shorter one")
        return made


@dataclass(slots=True)
class _Counter:
    """Counts tokens by asking for one more. refused: the server's words for a text that it would not take."""

    served: ServedModel
    length: int
    refused: str | None = None

    async def count(self, text: str) -> int:
        asked = {"model": self.served.name, "prompt": text, "max_tokens": 1, "temperature": 0}
        status, body = await _ask(self.served.address, self.served.url, "POST", "/v1/completions", asked)
        usage = _object(body).get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if status == 200:
            # A server that does not count is given a word a token.
            return tokens if type(tokens) is int else len(text.split())
        self.refused = " ".join(body.decode("utf-8", "replace").split())[:_WORDS]
        return self.length + 1


async def meet(url: str, *, api: str, model: str | None, headers: Mapping[str, str]) -> ServedModel:
    """Asks what is served at `url`. `api` "auto" is OpenAI's where there is one, as it can count tokens and force lengths.

    Raises UserError where nothing answers, or nothing of these two kinds.
    """
    address = Address.of(url, headers=headers)
    _, about = await _ask(address, url, "GET", "/info")
    info = _object(about)
    if api in ("auto", "openai"):
        status, listed = await _ask(address, url, "GET", "/v1/models")
        data = _object(listed).get("data")
        ids = [each.get("id") for each in data if isinstance(each, dict)] if isinstance(data, list) else []
        names = [name for name in ids if isinstance(name, str) and name]
        if status == 200 and names:
            return _served(address, url, "openai", _chosen(model, names, url), info)
        if api == "openai":
            raise UserError(f"--url {url}: /v1/models lists no model (status {status}); use --api tgi, or name another address")
    if isinstance(info.get("model_id"), str):
        return _served(address, url, "tgi", _chosen(model, [info["model_id"]], url), info)
    raise UserError(f"--url {url} is no text-generation-inference or OpenAI server: neither /v1/models nor /info says what it serves")


def _chosen(model: str | None, names: Sequence[str], url: str) -> str:
    """The name to ask for: the first without a wish; a folder may be named by its last part."""
    if model is None:
        return names[0]
    for name in names:
        if model in (name, PurePath(name).name):
            return name
    raise UserError(f"--url {url} serves {', '.join(names[:3])}, not {model}; leave the model out, or name another address")


def encoded(dialect: Dialect, prompt: Prompt, new_tokens: int) -> bytes:
    """A request's body."""
    return json.dumps(dialect.body(prompt, new_tokens), separators=(",", ":")).encode()


def _served(address: Address, url: str, api: Api, name: str, info: Mapping[str, Any]) -> ServedModel:
    dtype, version = info.get("model_dtype"), info.get("version")
    return ServedModel(
        address=address,
        url=url,
        api=api,
        name=name,
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        version=version if isinstance(version, str) else None,
    )


async def _ask(address: Address, url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    try:
        return await fetch(address, method, path, None if body is None else json.dumps(body).encode(), seconds=_ASK_SECONDS)
    except TimeoutError:
        raise UserError(f"--url {url}: no answer to {path} within {_ASK_SECONDS:g} s; look whether the server is well") from None
    except (OSError, HttpError) as error:
        raise UserError(f"--url {url}: no server answers there ({error}); start one, or name another address") from error


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
