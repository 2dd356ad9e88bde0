"""Servers that the tests of this folder share, one of each family a test process; forked, as test_server_life.py starts whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running_server import LIMITS, RunningServer, dummy
from served_tokenizer import served_tokenizer

from inferometer import LLM
from tiny_models import tiny_model

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small models by family, with 512 positions and no end token, so that lengths are what was asked for."""
    folder = tmp_path_factory.mktemp("served")
    return {
        "llama": tiny_model(folder, "llama", max_position_embeddings=512, eos_token_id=299),
        "gpt2": tiny_model(folder, "gpt2", n_positions=512, eos_token_id=299),
        "bloom": tiny_model(folder, "bloom", eos_token_id=299),
    }


@pytest.fixture(scope="session")
def server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of a small llama. Whoever uses it leaves it idle."""
    with dummy(models["llama"], *LIMITS, forked=True) as running:
        yield running


@pytest.fixture(scope="session")
def bloom_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of a small bloom."""
    with dummy(models["bloom"], *LIMITS, forked=True) as running:
        yield running


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small llama with a tokenizer that puts a token before every text, and a chat template that does so as well."""
    folder = tmp_path_factory.mktemp("chat")
    return served_tokenizer(tiny_model(folder, "llama", max_position_embeddings=512, eos_token_id=299))


@pytest.fixture(scope="session")
def chat_server(chat_model: Path) -> Iterator[RunningServer]:
    """A server of it."""
    with dummy(chat_model, *LIMITS, "--tokenizer", str(chat_model), forked=True) as running:
        yield running


@pytest.fixture(scope="module")
def llm(chat_model: Path) -> LLM:
    """The same model without a server; a test file may have another of this name."""
    return LLM(chat_model, dtype="float32", device="cpu", weights="dummy", tokenizer=chat_model, gpu_memory=0.25)


@pytest.fixture(scope="module")
def client(chat_server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's client of that server, which takes no answer twice; a test file may have another of this name."""
    import openai  # only here, as it takes a second

    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def keyed_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server with four permits and the key `sesame`. Whoever uses it leaves it idle."""
    with dummy(models["llama"], *LIMITS, "--max-concurrent-requests", "4", "--api-key", "sesame", forked=True) as running:
        yield running


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bert with 64 positions."""
    return tiny_model(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="session")
def encoder_server(encoder: Path) -> Iterator[RunningServer]:
    """A server of it with four permits."""
    with dummy(encoder, "--max-concurrent-requests", "4", forked=True) as running:
        yield running
