"""The tokenizer of a checkpoint folder in Hugging Face's layout.

tokenizer.json says how text is cut; the files beside it name the special tokens and set the options of the declared class, and
say the rest where there is no tokenizer.json. The result is what transformers' AutoTokenizer makes of the folder, with one
deliberate difference: where tokenizer.json has other steps than those that transformers hard-codes for the declared class,
tokenizer.json is followed, because the model was trained with it (SmolLM2 declares GPT2Tokenizer, and its tokenizer.json
splits digits).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inferometer.errors import UserError
from inferometer.text.json_file import read_json
from inferometer.text.pipelines import Pipeline, adjust, byte_level_bpe, declared_pipeline, surround, word_piece
from inferometer.text.special_tokens import Declared, declared_tokens
from inferometer.text.tokenizer import LibraryTokenizer

_REMEDY: Final = "save the tokenizer again with transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...)), which writes it"


def folder_tokenizer(folder: Path) -> LibraryTokenizer | None:
    """The tokenizer of `folder`, None if it has no tokenizer files. Raises UserError as `load_tokenizer` does."""
    config = read_json(folder / "tokenizer_config.json")
    model = read_json(folder / "config.json")
    whole = folder / "tokenizer.json"
    if whole.is_file():
        backend = _from_tokenizer_json(whole)
        kind = declared_pipeline(config, model, backend)
        # The file's post-processor says what goes around a text.
        config = {key: value for key, value in config.items() if key not in ("add_bos_token", "add_eos_token")}
        adjust(kind, backend, config)
    elif (folder / "vocab.json").is_file() or (folder / "merges.txt").is_file():
        kind = declared_pipeline(config, model, None)
        kind = Pipeline.GPT2 if kind is Pipeline.PLAIN else kind
        backend = byte_level_bpe(folder, kind, config, model)
    elif (folder / "vocab.txt").is_file():
        kind = Pipeline.BERT
        backend = word_piece(folder / "vocab.txt", declared_pipeline(config, model, None), config, model)
    elif native := sorted(path.name for path in folder.iterdir() if path.suffix == ".model" or path.name == "tekken.json"):
        raise UserError(f"{folder / native[0]}: this format is not read, only tokenizer.json; {_REMEDY}")
    else:
        return None
    declared = declared_tokens(folder, config, kind.default_tokens, backend)
    _add(backend, declared)
    surround(kind, backend, config, declared.named)
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return LibraryTokenizer(
        backend,
        special_tokens={name: str(token) for name, token in declared.named.items()},
        eos_token_ids=_generation_eos(folder, model),
        chat_template=_chat_template(folder, config),
    )


def folder_chat_template(folder: Path) -> str | None:
    """The chat template that `folder` declares, with or without a tokenizer beside it. Raises UserError for a damaged file."""
    return _chat_template(folder, read_json(folder / "tokenizer_config.json"))


def _from_tokenizer_json(path: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises nothing more precise)
        raise UserError(f"{path}: not a tokenizer.json that can be read ({' '.join(str(error).split())}); fetch the model again") from None


def _add(backend: Any, declared: Declared) -> None:
    """Adds the tokens that the backend lacks, or holds with other flags, in the order of their ids."""
    from tokenizers import AddedToken

    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    new = [token for _, token in sorted(declared.added.items()) if repr(token) not in present]
    texts = {token.content for token in backend.get_added_tokens_decoder().values()} | {str(token) for token in new}
    names = {str(token) for token in declared.named.values()}
    for token in (*declared.named.values(), *declared.extra):
        if str(token) not in texts:
            new.append(token)
            texts.add(str(token))
    tokens = []
    for token in new:
        if isinstance(token, str):
            token = AddedToken(token, special=True)
        elif str(token) in names:
            token.special = True
        tokens.append(token)
    backend.add_tokens(tokens)


def _generation_eos(folder: Path, model: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that end a generation, as generation_config.json says, else config.json; None where neither does."""
    for source in (read_json(folder / "generation_config.json"), model):
        ids = source.get("eos_token_id")
        ids = [ids] if isinstance(ids, int) else ids
        if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            return tuple(ids)
    return None


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The default chat template: that of a file of its own comes before the configuration's."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text; fetch the model again") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) else None
