"""GGUF files that hold a tokenizer, and the fields of small ones of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from inferometer.text.byte_level import BYTE_TO_CHARACTER

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write_vocabulary(path: Path, fields: dict[str, Any]) -> None:
    """A GGUF file with the given tokenizer.* fields."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def byte_level(text: str = "ab", **fields: Any) -> dict[str, Any]:
    """A byte-level vocabulary that joins any neighbours within `text`: its tokens are then the pieces of the pre-tokenizer."""
    spelled = "".join(BYTE_TO_CHARACTER[byte] for byte in text.encode())
    parts = {spelled[i:j]: None for i in range(len(spelled)) for j in range(i + 2, len(spelled) + 1)}
    tokens = [*BYTE_TO_CHARACTER, *parts]
    merges = [f"{part[:i]} {part[i:]}" for part in parts for i in range(1, len(part))]
    return {"model": "gpt2", "tokens": tokens, "merges": merges, "token_type": [NORMAL] * len(tokens), **fields}


def with_added(**fields: Any) -> dict[str, Any]:
    base = byte_level(**fields)
    tokens = [*base["tokens"], "<|endoftext|>", "<|im_end|>", "<tool>", "    "]
    types = [*base["token_type"], CONTROL, CONTROL, USER_DEFINED, USER_DEFINED]
    return {**base, "tokens": tokens, "token_type": types}


def pieces_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """A small SentencePiece vocabulary; longer pieces score lower, as in training, and each piece has a score of its own."""
    pieces = [
        "▁",
        *"abcdehlotrw",
        "▁h",
        "he",
        "el",
        "ll",
        "lo",
        "▁he",
        "ell",
        "llo",
        "hel",
        "ello",
        "▁hello",
        "▁wo",
        "or",
        "ld",
        "wor",
        "worl",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    return tokens, scores, [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]


def llama_fields(**fields: Any) -> dict[str, Any]:
    tokens, scores, types = pieces_vocabulary()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {"model": "llama", "pre": "default", "tokens": tokens, "scores": scores, "token_type": types, **ids, **fields}
