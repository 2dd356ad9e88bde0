"""Small checkpoints with weights: lively random ones, and one that says what is written for it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from configs import BLOOM, GPT2, LLAMA  # type: ignore[import-not-found]
from models import save  # type: ignore[import-not-found]
from running_server import RunningServer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

VOCABULARY, END = 300, 299
"""Bytes, some tokens that stand for nothing, and the end of a text."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"vocab_size": VOCABULARY, "max_position_embeddings": 512, "eos_token_id": END},
    "gpt2": GPT2 | {"vocab_size": VOCABULARY, "n_positions": 512, "eos_token_id": END},
    "bloom": BLOOM | {"vocab_size": VOCABULARY, "eos_token_id": END},
}


def lively(family: str, folder: Path) -> PreTrainedModel:
    """A random model of a family, saved in `folder`, which says many different things."""
    folder.mkdir()
    model: PreTrainedModel = save(family, FAMILIES[family], folder)
    return model


def scripted(folder: Path, *texts: str) -> None:
    """A llama that goes on as in `texts` behind each of their bytes, whatever came before, and after the last byte ends.

    No byte may occur twice in all of them, unless it follows itself: that one is then repeated for ever.
    """
    follower: dict[int, int] = {}
    for text in texts:
        data = text.encode()
        for byte, after in itertools.pairwise(data):
            assert byte not in follower, (text, byte)
            follower[byte] = after
        follower.setdefault(data[-1], END)
    options = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=END, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(options).eval()
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(torch.randn(VOCABULARY, 256), dim=1)
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.zero_()
        for byte, after in follower.items():
            model.lm_head.weight[after] += embeddings[byte]
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)


def stripping_tokenizer(path: Path) -> Path:
    """A tokenizer of bytes that drops the space around a text, so that there are texts without a token. Written to `path`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


def served(folder: Path, *more: str) -> RunningServer:
    """A server of a checkpoint in float32 on the CPU."""
    return RunningServer("--model-id", str(folder), "--dtype", "float32", "--device", "cpu", *more, forked=True)
