"""A tiny model for the tests of the native backend; a test file may have another of this name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferometer.engine.llm import LLM
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny_model(tmp_path_factory.mktemp("model"), "llama")
    with LLM(path, weights="dummy", dtype="float32", device="cpu") as llm:
        yield llm
