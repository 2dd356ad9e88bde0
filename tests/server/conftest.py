"""Servers that the tests of this folder share: one of each family a test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import LIMITS, RunningServer, dummy
from served_tokenizer import served_tokenizer

from tiny_models import tiny_model


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
    with dummy(models["llama"], *LIMITS) as running:
        yield running


@pytest.fixture(scope="session")
def bloom_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of a small bloom."""
    with dummy(models["bloom"], *LIMITS) as running:
        yield running


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small llama with a tokenizer that puts a token before every text, and a chat template that does so as well."""
    folder = tmp_path_factory.mktemp("chat")
    return served_tokenizer(tiny_model(folder, "llama", max_position_embeddings=512, eos_token_id=299))


@pytest.fixture(scope="session")
def chat_server(chat_model: Path) -> Iterator[RunningServer]:
    """A server of it."""
    with dummy(chat_model, *LIMITS, "--tokenizer", str(chat_model)) as running:
        yield running


@pytest.fixture(scope="session")
def keyed_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server with four permits and the key `sesame`. Whoever uses it leaves it idle."""
    with dummy(models["llama"], *LIMITS, "--max-concurrent-requests", "4", "--api-key", "sesame") as running:
        yield running


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bert with 64 positions."""
    return tiny_model(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="session")
def encoder_server(encoder: Path) -> Iterator[RunningServer]:
    """A server of it with four permits."""
    with dummy(encoder, "--max-concurrent-requests", "4") as running:
        yield running


@pytest.fixture
def small_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of its own for a test that ends or overloads it: four permits."""
    with dummy(models["llama"], *LIMITS, "--max-concurrent-requests", "4", "--drain-seconds", "20") as running:
        yield running
