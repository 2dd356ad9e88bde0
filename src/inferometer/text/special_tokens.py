"""The special and added tokens that a checkpoint's files declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferometer.errors import UserError, shown
from inferometer.text.json_file import read_json

STANDARD_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Declared:
    """`named`: name -> token; `extra`: special tokens without a name; `added`: id -> token. A token is a str or an AddedToken."""

    named: Mapping[str, Any]
    extra: tuple[Any, ...]
    added: Mapping[int, Any]


def declared_tokens(folder: Path, config: Mapping[str, Any], defaults: Mapping[str, str], backend: Any) -> Declared:
    """The tokens that tokenizer_config.json (`config`) declares, with those of its class (`defaults`) where it is silent.

    Without added_tokens_decoder in it, the older special_tokens_map.json and added_tokens.json count as well.
    `backend` is the tokenizer as built so far. Raises UserError for a token that is neither text nor a description of one.
    """
    path = folder / "tokenizer_config.json"
    settings: dict[str, Any] = {**defaults, **config}
    listed = config.get("added_tokens_decoder")
    added: dict[int, Any] = {}
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    if isinstance(listed, Mapping):
        try:
            added = {int(token_id): _token(token, path) for token_id, token in listed.items()}
        except ValueError:
            raise UserError(f"{path}: added_tokens_decoder has a key that is no token id; fetch the model again") from None
        known = {str(token): token for token in added.values()}
    else:
        path = folder / "special_tokens_map.json"
        settings.update((key, _legacy(value)) for key, value in read_json(path).items())
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    names = [*STANDARD_NAMES, *(key for key in settings if key.endswith("_token") and key not in STANDARD_NAMES)]
    # Settings such as "add_bos_token": true have such names too; a token is a text or a description of one.
    named = {name: settings[name] for name in names if isinstance(settings.get(name), (str, Mapping)) or _is_added(settings.get(name))}
    if isinstance(extra, Mapping):
        named, extra = {**named, **extra}, ()
    extra = tuple(_token(token, path) for token in extra)
    named = {name: _token(token, path) for name, token in named.items()}
    if not isinstance(listed, Mapping):
        added = _legacy_added(folder, {str(token) for token in (*named.values(), *extra)})
        known |= {str(token): token for token in added.values()}
    # A name refers to the token as it was added, with that token's flags.
    return Declared({name: known.get(str(token), token) for name, token in named.items()}, extra, added)


def _token(value: Any, path: Path) -> Any:
    from tokenizers import AddedToken

    if isinstance(value, (str, AddedToken)):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in flags if flag in value})
    raise UserError(f"{path}: {shown(value)} does not describe a token; fetch the model again")


def _legacy(value: Any) -> Any:
    """In special_tokens_map.json every token is special, whatever its description says."""
    return {**value, "special": True} if isinstance(value, Mapping) and "content" in value else value


def _legacy_added(folder: Path, special: set[str]) -> dict[int, Any]:
    from tokenizers import AddedToken

    path = folder / "added_tokens.json"
    added: dict[int, Any] = {}
    for text, token_id in read_json(path).items():
        if not isinstance(token_id, int):
            raise UserError(f"{path}: {shown(text)} has no token id; fetch the model again")
        added[token_id] = AddedToken(text, normalized=text not in special, special=text in special)
    return added


def _is_added(value: Any) -> bool:
    from tokenizers import AddedToken

    return isinstance(value, AddedToken)
