"""Contexts that nobody computed: pages of random keys and values that stand for prompts of any length."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from inferometer.engine.engine import Engine
from inferometer.schedule.prefix import page_digest, prompt_salt, root_digest
from inferometer.schedule.request import Request

# Drawn at once, so that no second copy of a cache need exist.
_NUMBERS = 1 << 24


def invent(engine: Engine, requests: Many[Request]) -> None:
    """Lets every full page of the requests' prompts be found as if it had been computed; what lies in them is `fill`'s.

    Each request has pages of its own, though prompts may begin alike. The engine must have prefix caching and nothing to do; whatever it
    found before is forgotten. Added then, a request computes what is behind its last full page, and decodes.
    Raises PagesExhaustedError where the pool has too few pages.
    """
    if not engine.prefix_caching or engine.has_work:
        raise RuntimeError("invented prompts need prefix caching, and an engine without work")
    pool = engine.scheduler.pool
    pool.forget()
    size = pool.page_size
    for request in requests:
        tokens = request.prompt_token_ids
        digest = root_digest(prompt_salt(engine.model.spec.positions, request))
        pages = pool.take((len(tokens) - 1) // size)  # the last token is always computed
        for index, page in enumerate(pages):
            digest = page_digest(digest, tokens[index * size : (index + 1) * size])
            pool.publish(page, digest)
        pool.release(pages)


@torch.inference_mode()
def fill(engine: Engine, pages: int, seed: int) -> None:
    """Writes normally distributed keys and values into the first `pages` pages of every layer: finite, and as large as a norm's output."""
    cache = engine.cache
    generator = torch.Generator(engine.model.device).manual_seed(seed)
    places = pages * engine.page_size
    step = max(1, _NUMBERS // (cache.keys.shape[2] * cache.keys.shape[3]))
    for memory in (cache.keys, cache.values):
        for layer in memory:
            for start in range(0, places, step):
                part = layer[start : min(start + step, places)]
                part.copy_(torch.randn(part.shape, device=part.device, generator=generator))
