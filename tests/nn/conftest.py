"""Ranks that stand by for all tests of this folder: their start is most of what such tests cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    with RankPool() as ranks:
        yield ranks
