"""Its folder is where tests of every floor find what they share (gguf_models)."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("inferometer", deadline=None)
settings.load_profile("inferometer")
