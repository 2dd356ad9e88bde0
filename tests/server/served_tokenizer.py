"""A tokenizer as checkpoints bring it: bytes and a few pairs of them, a token for the beginning of a text, and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if loop.first and message.role == 'assistant' %}{{ raise_exception('this model does not begin') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
BEGIN, END = 0, 1


def served_tokenizer(folder: Path) -> Path:
    """Writes it into `folder`, which it returns. 0 is "<s>", 1 is "</s>", 2 to 257 are bytes, what follows are pairs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ["he", "ll", "th", "ing", "Ġt"]
    merges = [("h", "e"), ("l", "l"), ("t", "h"), ("i", "n"), ("in", "g"), ("Ġ", "t")]
    vocabulary = {token: place for place, token in enumerate(["<s>", "</s>", *alphabet, *pairs, "in"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
