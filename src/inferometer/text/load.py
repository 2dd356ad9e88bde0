"""Finds the tokenizer of a model: a folder's files, a GGUF file's metadata, or the byte tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inferometer.errors import UserError, shown
from inferometer.text.bytes import ByteTokenizer
from inferometer.text.folder import folder_tokenizer
from inferometer.text.tokenizer import Tokenizer

BYTE: Final = "byte"
"""The name of the byte tokenizer, where a path is expected."""

_KINDS: Final = f"give a folder, a tokenizer.json, a .gguf file, or {BYTE!r} with --tokenizer"


def load_tokenizer(path: Path | str | None) -> Tokenizer | None:
    """The tokenizer at `path`: a folder, a tokenizer.json, a .gguf file, or "byte".

    None where `path` is None or a folder without tokenizer files: such a model runs on token ids alone. Where a folder has
    several formats, tokenizer.json comes before vocab.json with merges.txt, and that before vocab.txt.
    Raises UserError, naming the file and the remedy, for a file that is damaged or of a kind that cannot be read exactly.
    """
    if path is None:
        return None
    if str(path) == BYTE:
        return ByteTokenizer()
    if not isinstance(path, str | Path) or path == "":
        raise UserError(f"{shown(path)} names no tokenizer: {_KINDS}")
    path = Path(path)
    try:
        found = path.exists()
    except OSError:  # a name too long to be a file's
        found = False
    if found and path.is_dir():
        return folder_tokenizer(path)
    if not found:
        raise UserError(f"no tokenizer at {str(path)[:200]}: {_KINDS}")
    if path.suffix == ".gguf":
        from inferometer.text.gguf import gguf_tokenizer

        return gguf_tokenizer(path)
    if path.name == "tokenizer.json":
        return folder_tokenizer(path.parent)
    raise UserError(f"{path} is no tokenizer: {_KINDS}")
