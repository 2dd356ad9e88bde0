"""Its folder is where tests of every floor find what they share (gguf_models)."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("inferometer", deadline=None)
settings.load_profile("inferometer")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what is there before the first test (torch, thousands of tests) out of every later collection of garbage.

    Between cases a benchmark collects it, as models are freed by nothing else, and would walk all of that each time.
    """
    del session
    gc.collect()
    gc.freeze()
