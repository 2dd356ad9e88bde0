"""Small models of random weights for the tests of the offline interface; a test file may have others of these names."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from offloaded import Maker, dummy
from small_llama import CONFIG

from inferometer import LLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a small llama."""
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """A model of it. Whoever uses it leaves it idle."""
    return LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=3, gpu_memory=0.25)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """A model by its family, with any options of LLM; whoever makes one closes it, or lets it go."""
    return partial(dummy, tmp_path_factory.mktemp("families"))
