"""Its folder is where tests of every floor find what they share (gguf_models).

What the user's environment and home say is nothing of a test's: our variables and a server's go before anything reads them, and the home is
a folder that has the user's models and compiled kernels and nothing else. What tests start inherits both.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from inferometer.model.store import cache_dir
from inferometer.server.flags import FLAGS

HOME = Path(tempfile.mkdtemp(prefix="inferometer-home-"))
for shared in ("models", "kernels"):
    with suppress(OSError):  # a home that cannot be written has nothing to share
        (cache_dir() / shared).mkdir(parents=True, exist_ok=True)
        (HOME / shared).symlink_to((cache_dir() / shared).resolve())
_SERVER = {each.variable for each in FLAGS}
for name in [name for name in os.environ if name.startswith("INFEROMETER_") or name in _SERVER]:
    del os.environ[name]
os.environ["INFEROMETER_HOME"] = str(HOME)

# Until all tests are collected nothing of them can be garbage, and to look for it takes a fifth of the time that collecting takes.
gc.disable()

# How long an example takes says how busy the machine is.
settings.register_profile("inferometer", deadline=None)
settings.load_profile("inferometer")


def pytest_unconfigure() -> None:
    """Removes the home of the tests, whose processes have ended by now."""
    shutil.rmtree(HOME)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Sets aside what is there before the first test: torch, thousands of tests."""
    del session
    gc.enable()
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
