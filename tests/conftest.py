"""Its folder is where tests of every floor find what they share (gguf_models)."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("inferometer", deadline=None)
settings.load_profile("inferometer")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Sets aside what is there before the first test: torch, thousands of tests."""
    del session
    _set_aside()


@pytest.fixture(scope="module", autouse=True)
def set_aside() -> None:
    """Sets aside what the files before have left: what they imported (transformers' models, torch's compiler) and session fixtures."""
    _set_aside()


def _set_aside() -> None:
    """Takes all that lives out of every later collection of garbage.

    Between cases a benchmark collects it, as models are freed by nothing else, and would walk all of that each time.
    """
    gc.collect()
    gc.freeze()
